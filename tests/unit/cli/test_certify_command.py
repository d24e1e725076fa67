"""``rankscope certify`` as a person meets it: tables, files, pictures, thresholds, wrong input."""

import json
import math
import re

import pytest
from click.testing import CliRunner

from kit.checkpoint_folders import bert, save, word_tokenizer
from kit.html_reader import Reader
from rankscope.cli import app
from rankscope.findings.certify import CertifyFinding
from rankscope.network import Spec
from rankscope.results import Table
from rankscope.studies.certify import certify

RANDOM = ("--layers", 3, "--heads", 2, "--dim", 8, "--tokens", 6)
F = "residual[frobenius,mean]"


def run(*arguments):
    return CliRunner().invoke(app, ["certify", *map(str, arguments)])


def good(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def failed(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny-bert"
    return save(bert(seed=1, initializer_range=0.1), path, tokenizer=word_tokenizer())


def test_json_is_the_finding_of_the_library(tmp_path):
    asked = (*RANDOM, "--variant", "san+skip", "--seed", 5)
    told = json.loads(good(*asked, "--format", "json").stdout)
    wanted = certify(Spec.of(layers=3, heads=2, dim=8), variant="san+skip", seeds=(5,), tokens=6)
    assert told["schema"] == "rankscope/2"
    assert told["command"] == "certify"
    for name in ("bound", "lower", "measured", "upper", "upper_is_zero", "vacuous", "assumptions"):
        assert [row[name] for row in told["rows"]] == wanted.table.frame[name].to_list()
    assert told["standings"] == json.loads(wanted.to_json())["standings"]
    assert told["words"] == list(wanted.words)
    for row in told["rows"]:
        lower = -math.inf if row["lower"] is None else row["lower"]
        assert lower <= row["measured"] <= row["upper"]
    good(*asked, "--output", tmp_path / "a.json")
    assert CertifyFinding.load(tmp_path / "a.json").bounds == wanted.bounds


def test_the_conclusion_comes_first_then_bounds_and_what_failed():
    text = good(*RANDOM, "--explain").stdout
    about = (
        "Proven bounds on how far apart tokens are: a random network\nattention alone (san), random weights, "
        "computed in float64\n"
        "1 text of 6 tokens, entries drawn from a Gaussian\n"
    )
    assert text.startswith(f"{about}\nProven: ")
    assert text.split("\n\n")[2].startswith("How to read this\n")
    for name in (F, "diameter[l2]"):
        assert re.search(rf": {re.escape(name)}$", text, re.M)
    assert "Printed bound: dong-2.3: Dong, Cordonnier, Loukas" in text
    assert re.search(r"^layer +lower +measured +upper", text, re.M)
    assert re.search(
        r"^1-3 +upper \(Theorem 2.3 of Dong.*: dong-2.3\) +attention logits differ too much within a row$",
        text,
        re.M,
    )
    assert "What printed bounds are made of" in text
    assert "Not met first: logits below 1.256 (found " in text
    assert "What printed bounds" not in good(*RANDOM).stdout


@pytest.mark.parametrize("name", ["--definitions", "--definition"])
def test_only_the_definitions_asked_for(name):
    told = json.loads(good(*RANDOM, name, "linf, columns", "--format", "json").stdout)
    assert {row["definition"] for row in told["rows"]} == {"diameter[linf]", "residual[l1,mean]"}
    assert list(told["standings"]) == ["diameter[linf]", "residual[l1,mean]"]


def test_a_model_on_texts_with_files_a_picture_and_a_report(folder, tmp_path):
    asked = (folder, "--text", "the cat sat on a mat", "--text", "it was small")
    result = good(
        *asked, "--output", tmp_path / "a.parquet", "--plot", tmp_path / "a.png", "--definitions", "l2"
    )
    assert f"wrote {tmp_path / 'a.parquet'}" in result.stderr
    assert set(Table.load(tmp_path / "a.parquet").frame["sample"].to_list()) == {0, 1}
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    page = good(*asked, "--definitions", "frobenius", "--format", "html").stdout
    assert Reader(page).open == []
    assert "tiny-bert" in page
    text = good(*asked, "--definitions", "l2").stdout
    assert "lower, upper: the smallest lower bound and the largest upper bound of the 2 texts" in text
    assert "4 special tokens that scan and ablate leave out" in text


def test_texts_as_lines_of_csv():
    lines = good(*RANDOM, "--format", "csv").stdout.splitlines()
    assert lines[0].endswith("gain_upper_is_zero,enclosed_lower,enclosed_upper,enclosed_upper_is_zero,error")
    assert len(lines) == 1 + 3 * 4


def test_what_is_required_must_be_proven():
    asked = (*RANDOM, "--variant", "san+skip", "--seed", 5, "--definitions", "frobenius")
    proven = math.exp(json.loads(good(*asked, "--format", "json").stdout)["standings"][F]["lower"])
    assert run(*asked, "--require-lower", 0.99 * proven).exit_code == 0
    missed = run(*asked, "--require-lower", 1.01 * proven)
    assert missed.exit_code == 1
    assert f"is not proven: the lower bound of {F} over the input's is" in missed.stderr
    assert missed.stdout
    vacuous = run(*RANDOM, "--seed", 5, "--joint-side", 0, "--require-lower", 1e-300, "--undecided", "ok")
    assert vacuous.exit_code == 1  # nothing proven does not meet a requirement
    assert "at layer 3, limit 1e-300" in vacuous.stderr


def test_a_bound_whose_number_was_lost_exits_with_3(monkeypatch):
    found = certify(layers=3, heads=2, dim=8, tokens=6)
    lost = found.standings[F].model_copy(update={"lower": None})
    lost = found.model_copy(update={"standings": {F: lost}})
    monkeypatch.setattr("rankscope.studies.certify.certify", lambda **_: lost)
    assert run(*RANDOM, "--require-lower", 0.5).exit_code == 3
    assert run(*RANDOM, "--require-lower", 0.5, "--undecided", "fail").exit_code == 1
    assert run(*RANDOM, "--require-lower", 0.5, "--undecided", "ok").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no model was named"),
        (("minilm", "--layers", 3), "--layers belongs to a random network"),
        ((*RANDOM, "--definition", "spectral"), "unknown definition 'spectral'"),
        ((*RANDOM, "--definitions", ","), "definitions: an empty list was given"),
        ((*RANDOM, "--gamma", 0), "--gamma 0"),
        ((*RANDOM, "--require-lower", 0), "--require-lower 0"),
        ((*RANDOM, "--require-upper", "inf"), "--require-upper inf"),
        ((*RANDOM, "--variant", "sam"), "unknown variant 'sam'"),
        ((*RANDOM, "--text", "a"), "--text belongs to a model"),
        ((*RANDOM, "--plot", "a.pdf"), "known formats: .svg"),
        ((*RANDOM, "--sede", 3), "No such option"),
        ((*RANDOM, "--format", "parquet"), "parquet is a binary format"),
        ((*RANDOM, "--explain", "--format", "json"), "--explain has no effect on json"),
    ],
)
def test_wrong_input_is_one_line(arguments, words):
    assert words in failed(*arguments)
