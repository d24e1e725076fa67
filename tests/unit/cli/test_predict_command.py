"""``rankscope predict``: what it prints and writes, and how it refuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankscope.cli import app

RANDOM = ["--layers", "3", "--heads", "2", "--dim", "8", "--tokens", "8"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["predict", *arguments])


def test_a_config_at_several_depths_is_a_table() -> None:
    result = run("bert-base", "--layers", "2,32", "--tokens", "16")
    assert result.exit_code == 0, result.output
    assert "passes 0.9" in result.stdout
    assert "equal parameters" in result.stdout
    assert "Mean cosine after layer" in result.stdout
    conclusion = result.stdout.partition("Forecast")[0]
    assert "forecast to pass 0.9 with 32 layers (at layer 32), but not with 2 layers." in conclusion


def test_json_has_rows_and_fields() -> None:
    result = run(*RANDOM, "--variant", "san+mlp", "--seed", "5", "--spread", "0.2", "--format", "json")
    found = json.loads(result.stdout)
    assert found["command"] == "predict"
    assert {row["statement"] for row in found["rows"]} == {"forecast", "a-priori"}
    assert found["forecast"]["depths"][0]["layers"] == 3
    assert len(found["mlps"]) == 3
    assert found["provenance"]["config"]["spread"] == 0.2


def test_statements_in_words() -> None:
    keeps = run(*RANDOM, "--variant", "transformer", "--init", "rezero")
    assert "Proven: no input collapses" in keeps.stdout
    shrinks = run(*RANDOM, "--spread", "0.1", "--target", "1e-20")
    assert "shrink in every block" in shrinks.stdout
    assert "Proven: the spread is at most 1e-20 after layer 3." in shrinks.stdout
    skips = run(*RANDOM, "--variant", "san+skip")
    assert "attention branch smaller than its skip" in skips.stdout
    assert "could stop collapse" in run(*RANDOM, "--variant", "san+mlp", "--spread", "0.2").stdout


@pytest.mark.parametrize("ending", [".csv", ".html", ".json", ".parquet", ".txt"])
def test_files_are_written(tmp_path: Path, ending: str) -> None:
    file, picture = tmp_path / f"out{ending}", tmp_path / "out.svg"
    result = run(*RANDOM, "--spread", "0.2", "--output", str(file), "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert file.stat().st_size > 100
    assert "mean token cosine" in picture.read_text()


def test_a_cosine_can_fail_the_run() -> None:
    passed = run("bert-base", "--layers", "12", "--tokens", "8", "--cosine", "0.4", "--fail-if-passed")
    assert passed.exit_code == 1
    assert "mean cosine after layer" in passed.stderr
    assert "limit 0.4" in passed.stderr
    assert run("bert-base", "--layers", "12", "--tokens", "8", "--fail-if-passed").exit_code == 0


def test_a_cosine_within_rounding_decides_nothing() -> None:
    small = ("bert-base", "--layers", "2", "--tokens", "8")
    rows = json.loads(run(*small, "--format", "json").stdout)["rows"]
    last = next(row["value"] for row in rows if row["layer"] == 2)
    for factor, code in ((1 - 1e-9, 1), (1, 3), (1 + 1e-9, 0)):
        assert run(*small, "--fail-if-passed", "--cosine", repr(last * factor)).exit_code == code
    asked = (*small, "--fail-if-passed", "--cosine", repr(last))
    assert "is undecided: mean cosine after layer 2" in run(*asked).stderr
    assert run(*asked, "--undecided", "ok").exit_code == 0
    assert run(*asked, "--undecided", "fail").exit_code == 1


def test_only_a_forecast_can_pass() -> None:
    result = run("bert-base", "--weights", "initial", "--fail-if-passed")
    assert result.exit_code == 2
    assert "--fail-if-passed speaks of a forecast" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no config was named"),
        (["bert-base", "--heads", "2"], "--heads belongs to a random network"),
        (["bert-base", "--layers", "4,x"], "expected whole numbers"),
        (["bert-base", "--layers", ","], "expected whole numbers"),
        (["bert-base", "--layers", "0"], "between 1 and"),
        (["bert-base", "--spread", "1"], "need weights"),
        (["bert-base", "--tokens", "1"], "--tokens 1"),
        (["gtp2"], "did you mean 'gpt2'"),
        ([*RANDOM, "--weights", "initial"], "belongs to a model"),
        ([*RANDOM, "--spread", "-1"], "--spread -1"),
        (["bert-base", "--weights", "some"], "unknown weights 'some'. Known: initial, trained."),
        (["bert-base", "--sede", "3"], "No such option"),
        (["bert-base", "--threshold", "0.8"], "predict has no --threshold any more; use --cosine"),
        (["bert-base", "--device", "cuda"], "--device says how weights are loaded"),
    ],
)
def test_wrong_use_is_one_line_and_code_two(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output
