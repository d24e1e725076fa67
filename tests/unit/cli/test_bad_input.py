"""Wrong input of every kind, to every command: one line, exit code 2, nothing written. A new command adds one line."""

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kit.compare_tables import random_scan
from rankscope.cli import app
from rankscope.cli.app import COMMANDS
from rankscope.cli.fields import TypedText

SMALL = ("--layers", "2", "--heads", "2", "--dim", "8", "--tokens", "4")
MODEL = ("mine.py:model", "--call", "mine.py:call")
RIGHT: dict[str, tuple[str, ...]] = {
    "scan": MODEL,
    "compare": ("a.json", "b.json"),
    "watch": ("run.jsonl",),
    "diagnose": MODEL,
    "stuck": ("8.3178",),
    "ablate": SMALL,
    "paths": SMALL,
    "certify": SMALL,
    "predict": SMALL,
    "collapse": SMALL,
    "rate": SMALL,
    "atlas": ("--only", "softmax"),
    "equilibria": ("--tokens", "3", "--dim", "2"),
    "sweep": ("spec.json",),
    "sweep show": ("folder",),
    "claims": ("proof-step",),
    "reproduce": ("wu-masks", "--fast"),
    "train": ("sort", "--fast"),
    "list": ("masks",),
}
"""Arguments with which a command would run."""

FOLDERS = ("compare", "sweep", "sweep show", "scan", "reproduce", "train")
"""Commands for which a folder as --output is right, or which read one."""

READS = ("scan", "compare", "watch", "diagnose", "ablate", "paths", "certify", "rate", "predict", "sweep")
"""Commands whose first argument may be a file."""

every = pytest.mark.parametrize("command", RIGHT)


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with files of every kind, in which the commands are given."""
    folder = tmp_path_factory.mktemp("bad")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        Path("mine.py").write_text("import torch\nmodel = torch.nn.Linear(2, 2)\ndef call(model): ...\n")
        Path("run.jsonl").write_text("")
        Path("spec.json").write_text(
            json.dumps({"command": "collapse", "product": {"layers": [1], "heads": [1]}})
        )
        for name in ("a", "b"):
            random_scan(name, layers=1).save(f"{name}.json")
        whole = Path("a.json").read_text()
        Path("cut.json").write_text(whole[: len(whole) // 2])
        Path("foreign.json").write_text('{"name": "package", "version": 1}')
        Path("list.json").write_text("[1, 2]")
        Path("future.json").write_text(json.dumps(json.loads(whole) | {"schema": "rankscope/9"}))
        Path("other.json").write_text(
            json.dumps({"schema": "rankscope/2", "command": "stuck", "rows": [], "provenance": {}})
        )
        Path("binary.json").write_bytes(b"\xff\xfe\x00\x80")
        Path("empty.json").write_text("")
        Path("\x1b[31mred.json").write_text("{}")
        Path("folder").mkdir()
        Path("taken.svg").mkdir()
        Path("plain").write_text("a text")
        yield folder


def said(*arguments: str) -> str:
    """The one line with which a command refuses what it is given."""
    before = {
        path: path.read_bytes() for path in Path().rglob("*") if path.suffix != ".pyc" and path.is_file()
    }
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2, (arguments, result.output)
    assert result.stdout == "", arguments
    assert result.stderr.count("\n") == 1, (arguments, result.stderr)
    assert "fault of rankscope" not in result.stderr, result.stderr
    assert "\x1b" not in result.stderr
    after = {
        path: path.read_bytes() for path in Path().rglob("*") if path.suffix != ".pyc" and path.is_file()
    }
    assert after == before, arguments
    return result.stderr


def test_every_command_is_here() -> None:
    assert set(RIGHT) == {*COMMANDS, *(f"{name} {one}" for name in COMMANDS for one in COMMANDS[name].inner)}


@every
def test_options_that_it_does_not_have(command: str) -> None:
    given = (*command.split(), *RIGHT[command])
    assert "no-such-option" in said(*given, "--no-such-option")
    assert "no-such-option" in said(*given, "--no-such-option=3")
    assert "yaml" in said(*given, "--format", "yaml")


@pytest.mark.parametrize("command", COMMANDS)
def test_values_of_a_wrong_type(command: str) -> None:
    for one in app.get_command(click.Context(app), command).params:
        if isinstance(one, click.Option) and not one.hidden and isinstance(one.type, TypedText):
            name = one.opts[0]
            if one.type.choices:
                assert "neither" in said(command, *RIGHT[command], name, "neither")
            elif "INTEGER" in one.type.name or "NUMBER" in one.type.name:
                for wrong in ("two", "1e400"):
                    said(command, *RIGHT[command], name, wrong)


@every
def test_places_where_nothing_can_be_written(command: str) -> None:
    given = (*command.split(), *RIGHT[command])
    for wrong in ("plain/x.json", "x" * 300 + ".json"):
        said(*given, "--output", wrong)
    if command not in FOLDERS:
        assert "folder" in said(*given, "--output", "folder")
    assert "it is a folder; add a file name, such as taken.svg/result.svg" in said(
        *given, "--plot", "taken.svg"
    )
    for wrong in ("x.json", "x", "plain/x.png", "nowhere/x.png", "x.PDF"):
        said(*given, "--plot", wrong)


@pytest.mark.parametrize("command", READS)
def test_files_that_are_none_of_its_own(command: str) -> None:
    more = (
        ("--random-tokens", "2x4")
        if command in ("scan", "diagnose", "ablate", "paths", "certify", "rate")
        else ()
    )
    for wrong in (
        *("cut.json", "foreign.json", "list.json", "future.json", "other.json", "binary.json", "empty.json"),
        *(
            "folder",
            "absent.json",
            "plain",
            "\x1b[31mred.json",
            "x" * 200,
            "x" * 300,
            " ",
            "caf\udce9",
            "a\nb",
        ),
        *("mine.py:absent", "absent.py:model", "no.module:x", "/dev/null"),
    ):
        given = (wrong, "b.json") if command == "compare" else (wrong, *more)
        said(command, *given)


@pytest.mark.parametrize("command", ["sweep", "reproduce", "train"])
@pytest.mark.parametrize("name", ["x.json", "x.html", "x.png"])
def test_a_folder_that_is_called_like_a_file(command: str, name: str) -> None:
    words = said(command, *RIGHT[command], "--output", name)
    assert f"--output {name} ends like a file, but this command writes a folder; name one, such as x" in words


def test_what_a_file_is_and_what_was_expected() -> None:
    assert "'other.json' is a result of 'rankscope stuck', expected the log of a run" in said(
        "watch", "other.json"
    )
    assert "'absent.jsonl': No such file or directory; name the log of a run" in said("watch", "absent.jsonl")
    assert "its schema is 'rankscope/9', expected 'rankscope/2'" in said("compare", "future.json", "b.json")
    assert "a name that is compared is empty" in said("compare", "", "b.json")
    assert "there is no folder or file 'absent.json'" in said("scan", "absent.json")


def test_names_in_notes_cannot_reach_the_terminal() -> None:
    """A file may be called by anything; the line that says it was written is for a person."""
    result = CliRunner().invoke(app, ["stuck", "8.3178", "--output", "\x1b[2J\x07.txt"])
    Path("\x1b[2J\x07.txt").unlink()
    assert result.exit_code == 0
    assert "wrote " in result.stderr
    assert not set(result.stderr) & {"\x1b", "\x07"}
