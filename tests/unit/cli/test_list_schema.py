"""``rankscope list schema NAME``: what the result of a command holds."""

import json

import pytest
from click.testing import CliRunner, Result

from rankscope.cli import app
from rankscope.findings.fields import finding_classes, schema_of


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["list", *arguments])


@pytest.mark.parametrize("name", finding_classes())
def test_the_schema_of_every_result_is_printed(name: str) -> None:
    """That results obey it is a law of findings."""
    found = run("schema", name)
    assert found.exit_code == 0, found.output
    schema = json.loads(found.stdout)
    assert schema == schema_of(finding_classes()[name])
    assert all("description" in one for one in schema["properties"].values())


def test_it_is_written_to_a_file(tmp_path) -> None:
    found = run("schema", "compare", "--output", str(tmp_path / "schema.json"))
    assert found.exit_code == 0
    assert json.loads((tmp_path / "schema.json").read_text())["properties"]["command"]["const"] == "compare"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("schema",),
            "'rankscope list schema NAME', with one of: ablate, atlas, certify, claims, collapse, compare",
        ),
        (("schema", "colapse"), "unknown result 'colapse'; did you mean 'collapse'?"),
        (("schema", "compare", "--format", "csv"), "a schema is JSON, not csv"),
        (("schema", "compare", "--tokens", "3"), "go with 'rankscope list masks'"),
        (("masks", "causal"), "takes no second name, got 'causal'"),
        (("shcema",), "did you mean 'schema'?"),
    ],
)
def test_wrong_use_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 2
    assert found.stdout == ""
    assert words in found.stderr
    assert found.stderr.count("\n") == 1
