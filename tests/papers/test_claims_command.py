"""``rankscope claims`` as a person meets it."""

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankscope.cli.app import app
from rankscope.network import LayerNorm
from rankscope.papers.claims import CLAIMS
from rankscope.papers.proofs import PROOFS
from rankscope.results import COLUMNS, Table

QUICK = ["claims", "proof-step", "path-count", "dobrushin-l1"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def failed(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_several_claims_are_a_table() -> None:
    result = run(*QUICK)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert "All 3 claims have the expected verdict: 1 holds and 2 are false." in result.stdout
    head = lines.index(["claim", "verdict", "number", "what", "it", "is"])
    assert lines[head + 2][:5] == ["proof-step", "false", "0.412", ">", "0"]
    assert lines[head + 3][:5] == ["path-count", "holds", "11.1", "=", "11.1"]
    assert lines[head + 4][:5] == ["dobrushin-l1", "false", "4", ">", "1"]
    assert result.stderr == ""


def test_one_claim_is_printed_whole() -> None:
    result = run("claims", "proof-step")
    assert result.exit_code == 0, result.output
    told = " ".join(result.stdout.split())
    one = CLAIMS["proof-step"]
    assert "proof-step (the step that follows in the proof) is false, as rankscope expects." in told
    assert one.statement in told
    assert "Source: Dong, Cordonnier, Loukas." in told
    assert "appendix, proof of Theorem 2.2" in told
    assert "Verdict: false" in told
    assert "R = (1, -1), E = 0.3 R R^T" in told
    assert "0.412 > 0" in told
    assert max(map(len, result.stdout.splitlines())) <= 110


def test_json_has_rows_and_whole_findings() -> None:
    found = json.loads(run(*QUICK, "--format", "json", "--seed", "2").stdout)
    assert (found["schema"], found["command"]) == ("rankscope/2", "claims")
    assert found["provenance"]["seeds"] == [2]
    assert [row["claim"] for row in found["rows"]] == QUICK[1:]
    assert all(list(row)[: len(COLUMNS)] == list(COLUMNS) for row in found["rows"])
    assert all(row["as_expected"] and row["seed"] == 2 for row in found["rows"])
    step = found["claims"][0]
    assert (step["id"], step["verdict"], step["expected"]) == ("proof-step", "false", "false")
    assert step["as_expected"] is True
    assert step["number"] == step["numbers"][0]
    assert step["number"]["value"] == found["rows"][0]["value"]
    assert step["number"]["text"] == "0.412 > 0"
    assert step["details"][0]["label"] == "P R"
    assert step["details"][0]["value"] == pytest.approx(0.29131261245159, rel=1e-12)


def test_csv_html_and_files(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run(*QUICK, "--format", "csv").stdout)))
    assert [row["verdict"] for row in rows] == ["false", "holds", "false"]
    page, picture = tmp_path / "claims.html", tmp_path / "claims.svg"
    assert run(*QUICK, "--output", str(page), "--plot", str(picture)).exit_code == 0
    assert "proof-step: the step that follows in the proof" in page.read_text()
    assert "dobrushin-l1" in picture.read_text()
    saved = tmp_path / "claims.parquet"
    assert run(*QUICK, "--output", str(saved)).exit_code == 0
    assert Table.load(saved).frame["claim"].to_list() == QUICK[1:]


def test_a_verdict_that_was_not_expected_exits_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LayerNorm, "forward", lambda self, x, context=None: x)
    result = run("claims", "layernorm-plays-no-role")
    assert result.exit_code == 1
    assert "is undecided, but was expected to be: false." in result.stdout
    assert "Verdict: undecided (expected: false)" in result.stdout
    assert "fails" in result.stdout
    assert result.stderr == "layernorm-plays-no-role: expected 'false', found 'undecided'\n"
    among = run("claims", "layernorm-plays-no-role", "path-count")
    assert among.exit_code == 1
    assert "1 of 2 claims has another verdict than the expected one: layernorm-plays-no-role" in among.stdout


def test_wrong_use() -> None:
    assert "unknown claim 'proof-stop'; did you mean 'proof-step'?" in failed("claims", "proof-stop")
    assert "--seed -1" in failed("claims", "proof-step", "--seed", "-1")
    assert "--seed has no effect on proof-step" in failed("claims", "proof-step", "--seed", "3")
    assert "No such option" in failed("claims", "--sede", "3")


def test_claims_are_listed() -> None:
    found = json.loads(run("list", "claims", "--format", "json").stdout)
    assert [row["name"] for row in found["rows"]] == list(CLAIMS)
    assert all(row["title"] and row["source"] for row in found["rows"])
    assert {row["expected"] for row in found["rows"]} == {
        "holds",
        "holds under an assumption",
        "false",
        "not checkable",
    }
    assert run("list", "claims").stdout.splitlines()[2].startswith("path-sum")


def test_theorems_are_listed() -> None:
    found = json.loads(run("list", "theorems", "--format", "json").stdout)
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == list(PROOFS)
    assert rows["several-heads-bound"] == {
        "name": "several-heads-bound",
        "proof": PROOFS["several-heads-bound"].label,
        "verdict": "false",
        "title": CLAIMS["several-heads-bound"].title,
        "paper": "dong2021",
        "statement": "Theorem 2.3",
        "replaces": None,
        "bounds": ["dong-2.3"],
        "command": "rankscope claims several-heads-bound",
    }
    assert (rows["cubic-contraction"]["verdict"], rows["cubic-contraction"]["replaces"]) == (
        "repaired",
        "dong2021, Theorem 2.3",
    )
    assert {row["verdict"] for row in rows.values()} == {
        "true",
        "true under an assumption",
        "false",
        "repaired",
        "not known",
    }
    assert run("list", "theorems").stdout.splitlines()[2].split()[:3] == ["path-sum", "Theorem", "1"]
    assert run("list", "theorems", "--format", "csv").stdout.count("\n") == len(PROOFS) + 1
