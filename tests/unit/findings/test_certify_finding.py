"""The page and the picture of a certificate: every bound where it belongs, nothing from outside that runs."""

import json
import math
import re
from dataclasses import replace

import pytest

from kit import certify_tables as made
from kit.html_reader import Reader
from rankscope.document.text import to_text
from rankscope.findings.certify import CertifyFinding, CertifyView, Failed, told_apart
from rankscope.results.statistics import Outcome

F, C = "residual[frobenius,mean]", "residual[composite,mean]"
TEN = math.log(10)


@pytest.fixture(scope="module")
def findings():
    return {name: make() for name, make in made.FINDINGS.items()}


@pytest.mark.parametrize("name", list(made.FINDINGS))
def test_every_kind_of_certificate_makes_a_whole_page_a_text_and_a_picture(name, findings, tmp_path):
    found = findings[name]
    read = Reader(found.to_html())
    assert read.open == []
    assert read.handlers == []
    assert {tag for tag, _ in read.elements}.isdisjoint({"script", "iframe", "object", "form"})
    assert found.words[0] in read.words
    assert found.words[0] in str(found)
    for text in (found.to_html(), str(found), str(found.chart().svg())):
        assert not re.search(r"\bnan\b", text, re.IGNORECASE)
    found.save(tmp_path / "a.json")
    again = CertifyFinding.load(tmp_path / "a.json")
    assert again == found
    assert str(again) == str(found)


@pytest.mark.parametrize(
    ("name", "headline", "tone"),
    [
        ("collapsing", "Collapse is proven", "bad"),
        ("one_layer", "An upper bound is proven", "look"),
        ("standing", "Tokens are proven to stay apart", "good"),
        ("lost", "Bounds are proven up to layer 3", "unknown"),
    ],
)
def test_the_verdict(name, headline, tone, findings):
    assert findings[name].headline == (headline, tone)


def test_every_bound_of_every_layer_is_in_the_table_and_what_failed(findings):
    text = str(findings["texts"])
    assert re.search(r"^3 +3\.66 +14\.9 +\(182\)", text, re.M)
    assert re.search(r"^4 +- +15\.9 +-", text, re.M)
    assert re.search(rf"^4 +lower +this is needed and not shown to hold: {made.LOST}$", text, re.M)
    assert re.search(r"^1-4 +theorem dong-2\.3 +attention logits differ too much within a row$", text, re.M)
    assert "Printed bound: dong-2.3: Dong, Cordonnier, Loukas (2021), Theorem 2.3" in text
    assert "What printed bounds are made of" not in text
    shown = CertifyView(explain=True).document(findings["texts"])
    assert "What printed bounds are made of\nBlock by block, on the first text." in to_text(shown)
    assert "Not met first: logits below 1.256 (found 3.25, limit 1.256), in block 1." in to_text(shown)


def test_the_page_says_how_far_the_bounds_of_every_text_reach(findings):
    found = findings["texts"]
    (table,) = [
        block
        for one in found.document().blocks
        if getattr(one, "title", "") == "Texts"
        for block in one.blocks
    ]
    assert [len(row) for row in table.rows] == [6] * len(found.certificate)
    for row, one in zip(table.rows, found.certificate, strict=True):
        own = one.definitions[found.first.definition]
        assert row[1] == str(one.tokens)
        assert [row[2], row[4]] == [
            str(until) if until else "-" for until in (own.lower_until, own.upper_until)
        ]


def test_what_is_not_above_its_floor_is_marked_everywhere():
    certificate = made.standing_still()
    layers = [
        replace(layer, measured_floor={name: value + 1 for name, value in layer.measured.items()})
        if layer.layer == 2
        else layer
        for layer in certificate.layers
    ]
    found = made.finding_from(replace(certificate, layers=tuple(layers)), definitions=(F,))
    assert [one.resolved for one in found.bounds] == [True, True, False, True, True]
    assert [row["resolved"] for row in found.table.to_json()["rows"]] == [True, True, False, True, True]
    text = str(found)
    assert re.findall(r"^(\d) +\S+ +\S+\*", text, re.M) == ["2"]
    assert "*: not above its rounding floor" in text
    (panel,) = found.chart().pictures
    measured = next(line for line in panel.lines if line.name.startswith("measured"))
    assert [point.hollow for point in measured.points] == [False, False, True, False, False]
    assert "*: measured" not in str(made.finding_from(certificate, definitions=(F,)))
    assert "*" in to_text(CertifyView(explain=True).document(found)).partition("measured K")[2]


def test_vacuous_lines_are_dim_on_a_terminal_and_nowhere_else(findings):
    page = findings["lost"].document()
    plain, drawn = to_text(page), to_text(page, dims=True)
    assert "\x1b" not in plain
    dim = [line for line in drawn.split("\n") if line.startswith("\x1b[2m")]
    assert len(dim) == 3 * 3
    assert all(line.removeprefix("\x1b[2m")[0] in "456" for line in dim)
    assert drawn.replace("\x1b[2m", "").replace("\x1b[0m", "") == plain


def test_numbers_beyond_floats_are_written(findings):
    assert re.search(r"^9 +- +2\.97e-7693 +\S+e-7691", str(findings["far"]), re.M)


# picture


def curve(panel, name):
    return next(line.points for line in panel.lines if line.name.startswith(name))


def test_numbers_stand_at_their_powers_of_ten_and_vacuous_ones_are_gray(findings):
    found = findings["standing"]
    panel = found.chart().pictures[0]
    lines = [one for one in found.bounds if one.definition == F]
    for name, words in (("lower", "at least"), ("upper", "at most"), ("measured", "measured")):
        for point, line in zip(curve(panel, words), lines, strict=True):
            assert point.y == pytest.approx(getattr(line, name) / TEN, rel=1e-12)
            assert point.faint == (name == "upper" and line.upper_vacuous)


def test_the_band_ends_at_the_size_of_the_state_where_the_upper_bound_is_vacuous(findings):
    found = findings["lost"]
    panel, lines = found.chart().pictures[0], [one for one in found.bounds if one.definition == F]
    bands = [line for line in panel.lines if any(point.low is not None for point in line.points)]
    assert [[point.x for point in band.points] for band in bands] == [[0, 1, 2, 3], [3, 4, 5, 6]]
    assert [{point.faint for point in band.points} for band in bands] == [{False}, {True}]
    for point in (point for band in bands for point in band.points):
        line = lines[int(point.x)]
        assert point.high == pytest.approx(
            (line.trivial if line.upper_vacuous else line.upper) / TEN, rel=1e-12
        )
        assert point.low == pytest.approx(max(line.lower / TEN, panel.inside[0]), rel=1e-12)


def test_the_axis_holds_what_was_measured_and_not_what_explodes(findings):
    panel = findings["collapsing"].chart().pictures[2]
    printed = [point.y for point in curve(panel, "dong-2.3 (not proven)") if point.y is not None]
    assert max(printed) > panel.inside[1]
    for point in curve(panel, "measured"):
        assert panel.inside[0] <= point.y <= panel.inside[1]
    deep = findings["far"].chart().pictures[0]
    assert deep.inside[0] < -7000


def test_zero_has_no_place_and_is_told():
    zero = made.certificate_of([-math.inf] * 3, [-math.inf] * 3, [-math.inf] * 3, [1.0] * 3)
    found = made.finding_from(zero, definitions=(F,), printed={})
    assert "zero, which has no place on this axis: the upper bound of layers 0-2" in str(found.chart().svg())
    assert found.headline[0] == "Collapse is proven"
    assert found.words == ("Proven: at layer 2 all tokens are equal: the residual (Frobenius norm) is zero.",)


@pytest.mark.parametrize("layers", [1, 300])
def test_a_deep_network_and_a_long_name_fit(layers):
    certificate = made.standing_still(layers=layers)
    found = made.finding_from(certificate, model="name " * 40, definitions=(F,), printed={})
    assert Reader(found.to_html()).open == []
    assert len(found.document().title) < 200
    assert "<svg" in str(found.chart().svg())


def test_names_from_outside_stay_text():
    found = made.finding_from(made.standing_still(), model=made.HOSTILE, warnings=[made.HOSTILE])
    page = found.to_html(made_by=made.HOSTILE)
    assert "<script" not in page
    assert "onerror=alert(2)>" not in page.replace("&gt;", "")
    assert Reader(page).words.count("alert(1)") >= 3
    assert found.notes[0] == made.HOSTILE
    assert "\x1b" not in str(made.finding_from(made.standing_still(), model="a\x1b[31mb"))


# limits


def decided(found, **limits):
    return CertifyView(**limits).decisions(found)


def test_what_is_required_must_be_proven(findings):
    standing = findings["standing"]
    lower = math.exp(standing.standings[F].lower)
    (met,) = decided(standing, require_lower=0.99 * lower)
    assert (met.outcome, met.words) == (Outcome.CLEAR, "")
    (missed,) = decided(standing, require_lower=1.01 * lower)
    assert missed.outcome is Outcome.CROSSED
    assert f"the lower bound of {F} over the input's is 0.301 at layer 4" in missed.words
    falls = findings["collapsing"]
    upper = math.exp(falls.standings[F].upper)
    assert [one.outcome for one in decided(falls, require_lower=1e-300, require_upper=1.01 * upper)] == [
        Outcome.CROSSED,  # nothing proven does not meet a requirement
        Outcome.CLEAR,
    ]
    zero = made.finding_from(made.certificate_of([0.0] * 2, [0.0] * 2, [0.0, -math.inf], [1.0] * 2))
    assert decided(zero, require_upper=1e-300)[0].outcome is Outcome.CLEAR


@pytest.mark.parametrize("side", ["lower", "upper"])
def test_a_bound_whose_number_was_lost_is_undecided(side, findings):
    found = findings["standing"]
    lost = found.standings[F].model_copy(update={side: None})
    found = found.model_copy(update={"standings": {F: lost}})
    (one,) = decided(found, **{f"require_{side}": 0.5})
    assert one.outcome is Outcome.UNDECIDED
    assert f"--require-{side} 0.5 is undecided" in one.words
    assert all("None" not in words for words in found.words)
    assert json.loads(found.to_json())["standings"][F][side] is None


def test_numbers_that_fail_are_shown_to_fail():
    assert told_apart(1.0 + 3e-9, 1.0) == ("1.000000003", "1")
    infinite = Failed(of="certificate", name="branch", found=math.inf, limit=1.0)
    assert infinite.words == "branch (found inf, limit 1)"
    assert Failed.model_validate_json(infinite.model_dump_json()) == infinite
