"""A new command is two files and one declaration: the toy command has a page, a picture, JSON and help."""

import json

import pytest
from click.testing import CliRunner, Result

from kit.toy_study import count_tokens
from rankscope.cli.fields import option_text
from rankscope.cli.program import CommandGroups, CommandSpec
from rankscope.errors import ConfigError

PROGRAM = CommandGroups(
    name="rankscope",
    declared={
        "count": CommandSpec(
            question="Look at texts",
            sentence="Count tokens.",
            examples=("count --text 'a b c'", "count --text a --text b --plot counts.png"),
            config="kit.toy_finding:CountConfig",
            study="kit.toy_study:count_tokens",
        )
    },
)
HOSTILE = "<script>alert(1)</script> \x1b[2J"


def run(*args: str) -> Result:
    return CliRunner().invoke(PROGRAM, list(args), standalone_mode=False, catch_exceptions=True)


def test_the_conclusion_is_printed_first() -> None:
    found = run("count", "--text", "a b c", "--text", "d")
    assert found.exception is None
    lines = found.stdout.splitlines()
    assert lines[:3] == ["Tokens of texts", "", "There are 4 tokens in 2 texts."]
    assert [line.split() for line in lines[-2:]] == [["a", "b", "c", "3"], ["d", "1"]]


def test_json_has_schema_fields_words_and_rows() -> None:
    found = json.loads(run("count", "--text", "a b c", "--format", "json").stdout)
    assert (found["schema"], found["command"]) == ("rankscope/2", "count")
    assert found["texts"] == [{"text": "a b c", "tokens": 3}]
    assert found["words"] == ["There are 3 tokens in 1 text."]
    assert [row["value"] for row in found["rows"]] == [3.0]
    assert found["provenance"]["config"]["text"] == ["a b c"]


def test_files_by_ending_and_a_picture(tmp_path) -> None:
    page, picture = tmp_path / "counts.html", tmp_path / "counts.svg"
    found = run("count", "--text", HOSTILE, "--output", str(page), "--plot", str(picture))
    assert found.exception is None
    for made in (page.read_text(), picture.read_text()):
        assert "<script" not in made
        assert "\x1b" not in made
        assert "&lt;script&gt;" in made
    assert "\x1b" not in run("count", "--text", HOSTILE).stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("count",), "an empty list was given"),
        (
            ("count", "--text", "a", "--longest", "0"),
            "--longest 0: input should be greater than or equal to 1",
        ),
        (("count", "--text", "a", "--longest", "x"), "--longest x: input should be a valid integer"),
        (("count", "--text", "a", "--format", "parquet"), "parquet is a binary format"),
        (
            ("count", "--text", "a", "--format", "csv", "--output", "a.json"),
            "ends like json, but --format csv was asked for",
        ),
        (("count", "--text", "a", "--plot", "a.pdf"), ".svg"),
        (("count", "--txet", "a"), "--text"),
        (("cuont",), "did you mean 'count'"),
    ],
)
def test_wrong_use_is_one_line_that_names_the_option(args: tuple[str, ...], words: str) -> None:
    found = run(*args)
    assert found.exception is not None
    told = getattr(found.exception, "format_message", lambda: found.exception.worded(option_text))()
    assert words in told
    assert found.stdout == ""


def test_help_begins_with_examples_and_has_groups() -> None:
    found = run("count", "--help").stdout
    assert found.index("rankscope count --text 'a b c'") < found.index("--longest")
    assert found.index("Texts:") < found.index("Output:")
    assert "[all]" in found
    listed = run("--help").stdout
    assert "Look at texts:" in listed
    assert "Count tokens." in listed


def test_an_ending_that_is_none_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"use \.json, \.parquet"):
        count_tokens(text=("a",)).save(tmp_path / "a.docx")
    assert list(tmp_path.iterdir()) == []
