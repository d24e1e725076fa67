"""``rankscope certify`` as a person meets it: tables, files, pictures, thresholds, wrong input."""

import json
import math
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from kit import certify_tables as made
from kit.checkpoint_folders import bert, save, word_tokenizer
from kit.html_reader import Reader
from rankscope.cli import app
from rankscope.cli.certify_text import DIM, certify_text
from rankscope.errors import FileError
from rankscope.network import Spec
from rankscope.results import Table
from rankscope.studies.certify_found import lines_of
from rankscope.studies.certify_study import certify
from rankscope.studies.certify_words import standing_of, together

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


def test_json_is_the_table_of_the_library():
    told = json.loads(good(*RANDOM, "--variant", "san+skip", "--seed", 5, "--format", "json").stdout)
    wanted = certify(Spec.of(layers=3, heads=2, dim=8), variant="san+skip", seeds=(5,), tokens=6)
    assert told["schema"] == "rankscope/1"
    assert told["command"] == "certify"
    for name in ("bound", "lower", "measured", "upper", "vacuous", "assumptions"):
        assert [row[name] for row in told["rows"]] == wanted.frame[name].to_list()
    assert told["finding"] == wanted.sections["finding"]
    for row in told["rows"]:
        lower = -math.inf if row["lower"] is None else row["lower"]
        assert lower <= row["measured"] <= row["upper"]


def test_the_table_holds_bounds_verdict_and_what_failed():
    text = good(*RANDOM, "--explain").stdout
    assert text.startswith("a random network: san, random weights\n1 text of 6 tokens")
    for name in (
        F,
        "diameter[l2]",
        "residual[composite,mean]; printed bound: dong-2.3: Dong, Cordonnier, Loukas",
    ):
        assert re.search(rf"^{re.escape(name)}", text, re.M)
    assert re.search(r"^layer +lower +measured +upper", text, re.M)
    assert "Proven: " in text
    assert re.search(r"^1-3 +dong-2.3: logits below 1.256$", text, re.M)
    assert "what printed bounds are made of, block by block" in text
    assert "fails first: logits below 1.256 (found " in text
    assert "what printed bounds" not in good(*RANDOM).stdout


def test_only_the_definitions_asked_for():
    told = json.loads(good(*RANDOM, "--definition", "linf, columns", "--format", "json").stdout)
    assert {row["definition"] for row in told["rows"]} == {"diameter[linf]", "residual[l1,mean]"}
    assert list(told["finding"]["definitions"]) == ["diameter[linf]", "residual[l1,mean]"]


def test_a_model_on_texts_with_files_a_picture_and_a_report(folder, tmp_path):
    asked = (folder, "--text", "the cat sat on a mat", "--text", "it was small")
    result = good(
        *asked, "--output", tmp_path / "a.parquet", "--plot", tmp_path / "a.png", "--definition", "l2"
    )
    assert f"wrote {tmp_path / 'a.parquet'}" in result.stderr
    table = Table.load(tmp_path / "a.parquet")
    assert set(table.frame["sample"].to_list()) == {0, 1}
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    page = good(*asked, "--definition", "frobenius", "--format", "html").stdout
    assert Reader(page).open == []
    assert "tiny-bert" in page
    text = certify_text(table)
    assert "bounds hold of every text, measured is the geometric mean" in text
    assert "4 special tokens are in it" in text


def test_texts_as_lines_of_csv():
    lines = good(*RANDOM, "--format", "csv").stdout.splitlines()
    assert lines[0].endswith("gain_lower,gain_upper,enclosed_lower,enclosed_upper,error")
    assert len(lines) == 1 + 3 * 4


def test_what_is_required_must_be_proven():
    asked = (*RANDOM, "--variant", "san+skip", "--seed", 5)
    told = json.loads(good(*asked, "--format", "json").stdout)["finding"]["definitions"][F]
    proven = math.exp(told["lower"])
    assert run(*asked, "--require-lower", 0.99 * proven).exit_code == 0
    missed = run(*asked, "--require-lower", 1.01 * proven)
    assert missed.exit_code == 1
    assert f"is not proven: the lower bound of {F} over the input's is" in missed.stderr
    assert missed.stdout
    falls = (*RANDOM, "--seed", 5)
    most = math.exp(json.loads(good(*falls, "--format", "json").stdout)["finding"]["definitions"][F]["upper"])
    assert run(*falls, "--require-upper", 1.01 * most).exit_code == 0
    assert run(*falls, "--require-upper", 0.99 * most).exit_code == 1
    vacuous = run(*falls, "--require-lower", 1e-300)
    assert vacuous.exit_code == 1  # nothing proven does not meet a requirement
    assert "at layer 3, limit 1e-300" in vacuous.stderr
    assert run(*falls, "--require-lower", 1e-300, "--undecided", "ok").exit_code == 1


@pytest.mark.parametrize("side", ["lower", "upper"])
def test_a_bound_whose_number_was_lost_is_undecided(monkeypatch, side):
    table = certify(Spec(layers=3, heads=2, dim=8), tokens=6)
    told = table.sections["finding"]["definitions"][F]
    told |= {side: None, f"{side}_is_lost": True}
    monkeypatch.setattr("rankscope.cli.certify._run", lambda *_: table)
    result = run(*RANDOM, f"--require-{side}", 0.5)
    assert result.exit_code == 3
    assert f"--require-{side} 0.5 is undecided" in result.stderr
    assert run(*RANDOM, f"--require-{side}", 0.5, "--undecided", "fail").exit_code == 1


def test_a_lost_bound_of_one_text_is_lost_for_all():
    """Whichever text comes first: a comparison with NaN would let the other one speak."""
    good_one = standing_of(lines_of(made.standing_still(), {}, [F], (6, 8)))
    lost = replace(good_one, lower=math.nan, upper=math.nan)
    for order in ([good_one, lost], [lost, good_one]):
        told = together(order).told()
        assert told["lower_is_lost"]
        assert told["upper_is_lost"]
    assert not together([good_one, good_one]).told()["lower_is_lost"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no model was named"),
        (("minilm", "--layers", 3), "--layers belongs to a random network"),
        ((*RANDOM, "--definition", "spectral"), "unknown definition 'spectral'"),
        ((*RANDOM, "--definition", ","), "definitions: an empty list was given"),
        ((*RANDOM, "--gamma", 0), "--gamma 0.0"),
        ((*RANDOM, "--require-lower", 0), "--require-lower 0.0: expected a positive number"),
        ((*RANDOM, "--variant", "sam"), "unknown variant 'sam'"),
        ((*RANDOM, "--text", "a", "--texts", "b"), "give --texts FILE or --text TEXT, not both"),
        ((*RANDOM, "--text", "a"), "texts belongs to a model"),
        ((*RANDOM, "--plot", "a.pdf"), "known formats: .png"),
        ((*RANDOM, "--sede", 3), "No such option"),
        ((*RANDOM, "--format", "parquet"), "parquet is a binary format"),
    ],
)
def test_wrong_input_is_one_line(arguments, words):
    assert words in failed(*arguments)


def test_results_that_cannot_be_written_are_kept_aside(monkeypatch, tmp_path):
    def full(*_):
        raise FileError("the disk is full")

    monkeypatch.setattr("rankscope.results.write_atomically", full)
    said = failed(*RANDOM, "--output", tmp_path / "a.json")
    place = re.search(r"the disk is full; the results are in (\S+)", said)
    assert place is not None
    assert Table.load(place[1]).command == "certify"


def test_vacuous_lines_are_dim_on_a_terminal_and_nowhere_else():
    table = made.TABLES["lost"]()
    plain = certify_text(table)
    assert "\x1b" not in plain
    drawn = certify_text(table, is_terminal=True)
    dim = [line for line in drawn.split("\n") if line.startswith(DIM.partition("{}")[0])]
    assert len(dim) == 3 * 3
    assert all(line.removeprefix("\x1b[2m")[0] in "456" for line in dim)
    bare = drawn.replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert bare == plain


def test_numbers_beyond_floats_and_names_that_move_the_cursor():
    text = certify_text(made.TABLES["far"]())
    assert re.search(r"^9 +- +2\.97e-7693 +\S+e-7691", text, re.M)
    hostile = certify_text(made.table_from(made.standing_still(), model="a\x1b[31mb"))
    assert "\x1b" not in hostile
