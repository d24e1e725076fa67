"""Files of every command: what is read is not overwritten, what was found is not lost, bad input is one line."""

import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from kit.checkpoint_folders import bert, save
from kit.compare_tables import random_scan
from rankscope.cli import app
from rankscope.cli.body import Output, write
from rankscope.errors import FileError
from rankscope.findings.collapse import CollapseFinding
from rankscope.papers.figures.figure import FIGURES
from rankscope.results import Table
from rankscope.studies.collapse import collapse

SMALL = ("--layers", "2", "--heads", "2", "--dim", "8", "--tokens", "4")
COMMANDS: dict[str, tuple[str, ...]] = {
    "scan": ("states.npy",),
    "compare": ("a.json", "b.json"),
    "ablate": SMALL,
    "collapse": SMALL,
    "rate": SMALL,
    "paths": (*SMALL, "--top", "0"),
    "certify": SMALL,
    "predict": SMALL,
    "equilibria": ("--tokens", "3", "--dim", "2", "--starts", "2", "--steps", "5"),
    "claims": ("residual-is-not-a-norm",),
}
"""One quick run of every command that writes to a file."""

MODELS = ("scan", "ablate", "paths", "certify", "rate", "predict")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def refused(*arguments: object) -> str:
    """The line that a command ends with, in which nothing was measured and nothing written."""
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    return result.stderr


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = save(bert(), tmp_path_factory.mktemp("outputs") / "model")
    return folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of inputs, in which the commands run."""
    monkeypatch.chdir(tmp_path)
    np.save("states.npy", np.random.default_rng(0).standard_normal((3, 2, 5, 4)))
    np.save("mask.npy", np.ones((4, 4), dtype=bool))
    Path("texts.txt").write_text("one text\nanother text\n")
    for name, seed in (("a", 0), ("b", 1)):
        random_scan(name, seed=seed, layers=1).save(f"{name}.json")
    return tmp_path


def claim() -> str:
    from rankscope.papers.claims import CLAIMS

    return next(iter(CLAIMS))


def arguments_of(command: str) -> tuple[str, ...]:
    return (claim(),) if command == "claims" else COMMANDS[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_format_that_the_ending_contradicts_is_refused(command: str) -> None:
    words = refused(command, *arguments_of(command), "--output", "x.json", "--format", "csv")
    assert "--output x.json ends like json, but --format csv was asked for" in words


@pytest.mark.parametrize("command", COMMANDS)
def test_results_that_cannot_be_written_are_kept_aside(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise FileError("the disk is full")

    monkeypatch.setattr("rankscope.results.write_atomically", full)
    result = run(command, *arguments_of(command), "--output", "x.json")
    assert result.exit_code == 2, result.output
    kept = re.search(r"the disk is full; the results are in (\S+)", result.stderr)
    assert kept is not None, result.stderr
    assert Table.load(kept[1]).command == command


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_behind_stdout_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = collapse(layers=2, heads=1, dim=4, tokens=3)
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(FileError, match="No space left on device; the results are in") as told:
            write(finding, finding.document(), Output(), "json")
        monkeypatch.undo()
        with suppress(OSError):  # what could not be written is still in the buffer
            full.close()
    kept = re.search(r"the results are in (\S+)", str(told.value))
    assert kept is not None
    assert CollapseFinding.load(kept[1]) == finding


def test_a_reader_who_has_seen_enough_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("rankscope.cli.body.emit", gone)
    finding = collapse(layers=2, heads=1, dim=4, tokens=3)
    with pytest.raises(BrokenPipeError):
        write(finding, finding.document(), Output(), "json")


@pytest.mark.parametrize("option", ["--output", "--plot"])
@pytest.mark.parametrize("link", ["itself", "soft", "hard", "roundabout"])
def test_no_way_of_naming_an_input_overwrites_it(place: Path, option: str, link: str) -> None:
    os.rename("states.npy", "states.svg.npy")
    target = Path("states.svg.npy")
    name = {"itself": target, "roundabout": Path("..") / place.name / target}.get(link, Path("link.svg"))
    if link == "soft":
        name.symlink_to(target)
    if link == "hard":
        name.hardlink_to(target)
    if option == "--output" and name.suffix == ".svg":
        name = name.rename("link.dat")
    assert "would be overwritten" in refused("scan", target, option, name)


@pytest.mark.parametrize("command", ["scan", "ablate", "paths", "certify", "rate"])
def test_texts_are_not_overwritten(command: str) -> None:
    assert "would be overwritten" in refused(
        command, "minilm", "--texts", "texts.txt", "--output", "texts.txt"
    )


@pytest.mark.parametrize("command", ["scan", "ablate", "paths", "certify"])
@pytest.mark.parametrize("kind", ["images", "audio", "inputs"])
def test_other_inputs_are_not_overwritten(command: str, kind: str) -> None:
    name = Path("given")
    name.mkdir()
    (name / "picture.json").write_text("{}")
    line = refused(command, "minilm", f"--{kind}", name, "--output", name / "picture.json")
    assert "is a file of 'given', which is to be read" in line


@pytest.mark.parametrize("command", MODELS)
def test_a_model_is_not_overwritten(command: str, checkpoint: Path) -> None:
    before = (checkpoint / "config.json").read_bytes()
    given = () if command == "predict" else ("--random-tokens", "2x4")
    line = refused(command, checkpoint, *given, "--output", checkpoint / "config.json")
    assert "would be overwritten" in line
    Path("weights.svg").symlink_to(checkpoint / "model.safetensors")
    assert "would be overwritten" in refused(command, checkpoint, *given, "--plot", "weights.svg")
    assert (checkpoint / "config.json").read_bytes() == before


def test_earlier_results_in_a_model_folder_may_be_replaced(checkpoint: Path) -> None:
    for _ in range(2):
        done = run("scan", checkpoint, "--random-tokens", "2x4", "--output", checkpoint / "scan.json")
        assert done.exit_code == 0, done.output
    (checkpoint / "scan.json").unlink()


@pytest.mark.parametrize("command", ["ablate", "collapse", "rate", "paths", "certify", "predict"])
def test_a_mask_is_not_overwritten(command: str) -> None:
    line = refused(command, *SMALL, "--mask", "file:mask.npy", "--output", "mask.npy")
    assert "--output 'mask.npy' is one of the files that are to be read" in line


def test_code_and_scans_are_not_overwritten() -> None:
    Path("mine.py").write_text("model = None\n")
    assert "would be overwritten" in refused("scan", "mine.py:model", "--output", "mine.py")
    assert "would be overwritten" in refused("compare", "a.json", "b.json", "--output", "b.json")
    Path("run").mkdir()
    Path("run/log.csv").write_text("words to learn\n")
    line = refused("train", "memorize", "--fast", "--corpus", "run/log.csv", "--output", "run")
    assert "would be overwritten" in line


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("vl_convert", "plots", ("rate", *SMALL, "--plot", "x.png")),
        ("vl_convert", "plots", ("collapse", *SMALL, "--plot", "x.png")),
        ("vl_convert", "plots", ("certify", *SMALL, "--plot", "x.png")),
        ("vl_convert", "plots", ("ablate", *SMALL, "--plot", "x.png")),
        ("vl_convert", "plots", ("scan", "states.npy", "--plot", "x.png")),
        ("vl_convert", "plots", ("reproduce", next(iter(FIGURES)), "--fast", "--output", "out")),
        ("tensorboard", "tensorboard", ("train", "sort", "--fast", "--output", "out", "--tensorboard")),
        ("vl_convert", "plots", ("train", "sort", "--fast", "--plot", "x.png")),
        ("vl_convert", "plots", ("list", "masks", "--tokens", "4", "--plot", "x.png")),
    ],
)
def test_a_missing_extra_is_named_before_the_work(
    package: str, extra: str, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("the work has begun")

    for name in (
        "studies.certify.certify",
        "studies.ablate.ablate",
        "studies.collapse.collapse",
        "studies.rate.rate",
        "studies.scan.scan_states",
        "papers.figures.run.reproduce",
        "papers.tasks.training._epoch",
    ):
        monkeypatch.setattr(f"rankscope.{name}", work)
    for name in list(sys.modules):
        if name.startswith(package):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert f"pip install 'rankscope[{extra}]'" in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr


def test_a_system_error_is_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a refused connection nor a file that may not be read is a failure to write."""

    def failing(error: OSError) -> str:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("rankscope.studies.collapse.collapse", fail)
        return refused("collapse", *SMALL)

    assert "the network failed: Connection refused" in failing(
        ConnectionRefusedError(111, "Connection refused")
    )
    line = failing(PermissionError(13, "Permission denied", "weights.bin"))
    assert "refused to read or write 'weights.bin': Permission denied" in line


def test_an_interrupted_sweep_says_how_much_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "interrupted; 3 of 6 configurations are done, and the same command goes on"

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt(told)

    monkeypatch.setattr("rankscope.studies.sweep.sweep", stop)
    found = CliRunner().invoke(app, ["sweep", "spec.yaml", "--output", str(tmp_path)])
    assert (found.exit_code, found.stderr.strip()) == (130, f"rankscope: {told}")


def test_a_model_with_a_memory_is_not_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(words: str) -> str:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError(words)

        monkeypatch.setattr("rankscope.studies.collapse.collapse", fail)
        return refused("collapse", *SMALL)

    assert "unexpected RuntimeError: the memory tokens" in failing("the memory tokens do not fit")
    assert "not enough memory" in failing(
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9"
    )


@pytest.mark.parametrize(
    "what", ["measures", "masks", "objectives", "thresholds", "models", "tasks", "figures"]
)
def test_a_listing_is_json_that_any_reader_takes(what: str) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    found = json.loads(run("list", what, "--format", "json").stdout, parse_constant=refuse)
    assert found["rows"]


@pytest.mark.parametrize("command", ["scan", "ablate", "compare", "collapse"])
def test_an_argument_that_is_no_text_is_one_line(command: str) -> None:
    line = refused(command, "caf\udce9", "--output", "x.json")
    assert "is not UTF-8 text" in line


@pytest.mark.parametrize(
    ("error", "words"), [(RecursionError("deep"), "nested too deeply"), (None, "no whole character")]
)
def test_what_no_reader_foresaw_is_one_line(
    error: Exception | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deep JSON and half characters may also come from the files of a model, by way of other libraries."""

    def fail(*_: object, **__: object) -> None:
        if error is not None:
            raise error
        "\ud800".encode()

    monkeypatch.setattr("rankscope.studies.collapse.collapse", fail)
    line = refused("collapse", *SMALL)
    assert words in line
    assert "fault of rankscope" not in line


def test_deep_json_of_any_kind_is_one_line() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    Path("deep.json").write_text('{"schema": "rankscope/1", "rows": ' + deep + "}")
    Path("model").mkdir()
    Path("model/config.json").write_text('{"model_type": "bert", "x": ' + deep + "}")
    for arguments in (("compare", "deep.json", "a.json"), ("predict", "deep.json"), ("predict", "model")):
        assert "nested too deeply" in refused(*arguments), arguments
    for arguments in (("scan", "model"), ("ablate", "model", "--weights", "initial")):
        assert "nested too deeply" in refused(*arguments, "--random-tokens", "2x4"), arguments


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("num_hidden_layers", 10**9, "num_hidden_layers=1000000000, which no machine can build"),
        pytest.param("num_hidden_layers", 10**400, "which no machine can build", id="beyond floats"),
        pytest.param("hidden_size", 10**400, "GB of weights", id="a width beyond floats"),
        ("num_attention_heads", 10**9, "num_attention_heads=1000000000"),
        ("hidden_size", 10**9, "GB of weights (hidden_size=1000000000"),
        ("vocab_size", 10**13, "GB of weights (hidden_size=16, intermediate_size=32"),
    ],
)
def test_sizes_that_cannot_be_built_are_named(field: str, value: int, words: str) -> None:
    config = {"model_type": "bert", "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(config | {"vocab_size": 100, field: value}))
    Path("nested").mkdir()
    nested = {"model_type": "clip", "text_config": config | {"vocab_size": 100, field: value}}
    Path("nested/config.json").write_text(json.dumps(nested))
    asked = [(name, "--weights", "initial") for name in ("scan", "ablate", "predict")]
    for folder in ("model", "nested"):
        Path(folder, "model.safetensors").write_bytes(b"never opened")
        for arguments in (("scan",), *asked):
            given = () if arguments[0] == "predict" else ("--random-tokens", "2x4")
            assert words in refused(arguments[0], folder, *arguments[1:], *given), (folder, arguments)
    if "build" in words:
        assert words in refused("predict", "model")


def test_a_forecast_of_endless_depth_is_refused() -> None:
    Path("spec.json").write_text(json.dumps({"layers": 10**6, "heads": 1, "dim": 4}))
    assert "layers=1000000" in refused("predict", "spec.json")
