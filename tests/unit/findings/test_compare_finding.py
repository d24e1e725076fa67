"""The page and the picture of a comparison, also of scans that give them little to show."""

from dataclasses import replace

import polars as pl
import pytest

from kit.compare_tables import DEFINITIONS, random_scan
from rankscope.charts import Panel
from rankscope.findings.compare import CompareFinding
from rankscope.results import Table
from rankscope.results.statistics import Outcome
from rankscope.studies.compare import compare

UNIT = DEFINITIONS[1]


def falls(definition: str, layer: int, site: str) -> float:
    return -0.1 * layer if definition == UNIT else 0.0


def without_numbers(table: Table) -> Table:
    nothing = pl.lit(None, dtype=pl.Float64)
    frame = table.frame.with_columns(nothing.alias("value"), nothing.alias("log10_value"))
    return Table(frame=frame, command="scan")


def at_the_end(layers: int) -> Table:
    """What is measured after the last block alone."""
    table = random_scan("m", layers=layers, seed=layers)
    return Table(frame=table.frame.filter(pl.col("layer") == layers), command="scan")


CASES = {
    "one layer": lambda: compare(random_scan("a", layers=0), random_scan("b", layers=0, seed=1)),
    "one text": lambda: compare(random_scan("a", tokens=(9,)), random_scan("b", tokens=(9,), seed=1)),
    "no number": lambda: compare(without_numbers(random_scan("a")), without_numbers(random_scan("b"))),
    "no number after": lambda: compare(random_scan("a"), without_numbers(random_scan("b"))),
    "below the floors": lambda: compare(
        random_scan("a", dtype="bfloat16", change=lambda *_: -0.69),
        random_scan("b", dtype="bfloat16", seed=1, change=lambda *_: -0.69),
    ),
    "negative": lambda: compare(
        random_scan("a", change=lambda *_: -2.0), random_scan("b", seed=1, change=falls)
    ),
    "300 layers": lambda: compare(
        *(
            random_scan(name, layers=300, tokens=(9, 9), definitions=(UNIT,), seed=k)
            for k, name in enumerate("ab")
        )
    ),
    "60 heads alone": lambda: compare(
        random_scan("a", heads=60, definitions=()), random_scan("b", heads=60, definitions=(), seed=1)
    ),
    "long names": lambda: compare(random_scan("a" * 200), random_scan("b" * 200, seed=1, change=falls)),
    "last blocks alone": lambda: compare(
        random_scan("a", layers=2, sites=("final",)), random_scan("b", layers=9, sites=("final",), seed=1)
    ),
    "nothing in common with one": lambda: compare(
        random_scan("a", stacks=("text",)),
        random_scan("b", stacks=("vision",), seed=1),
        random_scan("c", stacks=("text",), seed=2, change=falls),
    ),
    "nothing in common with the last": lambda: compare(
        random_scan("a", stacks=("text",)),
        random_scan("b", stacks=("text",), seed=1),
        random_scan("c", stacks=("vision",), seed=2, change=falls),
    ),
    "no layer in both": lambda: compare(at_the_end(2), at_the_end(9)),
    "many scans": lambda: compare(
        *(random_scan(f"s{k}", seed=k, change=falls if k > 5 else lambda *_: 0.0) for k in range(9))
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_page_picture_and_text_of_odd_scans(case: str) -> None:
    found = CASES[case]()
    assert found.words[0] in str(found)
    assert found.words[0].endswith(".")
    pictures = found.chart().pictures
    assert pictures
    assert str(found.chart().svg()).count("<svg") >= 1
    assert found.to_html().count("<figure") == len(pictures)


def test_a_panel_has_the_baseline_in_gray_and_means_as_points() -> None:
    found = compare(random_scan("a"), random_scan("b", seed=1, change=falls))
    panel = found.chart().pictures[0]
    assert isinstance(panel, Panel)
    assert panel.notes[0] == UNIT
    base, after = panel.lines
    assert (base.name, base.color, after.name) == ("a", -1, "b")
    rows = found.table.where(definition=UNIT).frame.sort("layer")
    assert [10**point.y for point in base.points] == pytest.approx(rows["before"].to_list(), rel=1e-12)
    assert [10**point.y for point in after.points] == pytest.approx(rows["after"].to_list(), rel=1e-12)
    spread = [10**point.high - 10**point.y for point in after.points]
    assert spread == pytest.approx(rows["spread"].to_list(), rel=1e-6)
    assert "significant" in after.points[-1].tip
    assert "not significant" in after.points[0].tip


def test_panels_show_different_measures_first() -> None:
    def move(definition: str, layer: int, site: str) -> float:
        return {"residual_ratio": -0.3, "cosine": 0.1}.get(definition.partition("[")[0], 0.0)

    found = compare(random_scan("a"), random_scan("b", seed=1, change=move))
    shown = [panel.notes[0] for panel in found.chart().pictures]
    assert [one.partition("[")[0] for one in shown[:2]] == ["residual_ratio", "cosine"]
    assert len(shown) == len(set(shown)) == 4


def test_what_is_not_above_its_floor_is_a_ring() -> None:
    """Each scan against its own floor, not against the sum of both, which is that of the change."""
    low = {"change": lambda *_: -0.62}  # about 0.08, below the floor of bfloat16 (0.125) alone
    a, b = random_scan("a", **low), random_scan("b", seed=1, dtype="bfloat16", **low)
    found = compare(a, b, measures=["residual_ratio"])
    base, after = found.chart().pictures[0].lines
    assert not any(point.hollow for point in base.points)
    assert all(point.hollow for point in after.points)


def test_of_many_scans_an_even_choice_is_drawn_with_the_last_one() -> None:
    found = CASES["many scans"]()
    names = [line.name for line in found.chart().pictures[2].lines]  # behind two of the last block
    assert names[0] == "s0"
    assert names[-1] == "s8"
    assert len(names) == 6
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("after", "heading", "tone", "outcome"),
    [
        ({"seed": 1, "change": falls}, "Changed", "look", Outcome.CROSSED),
        ({"seed": 1}, "No change beyond the spread over texts", "good", Outcome.CLEAR),
        ({"seed": 1, "verdict": "cone"}, "The verdict changed", "look", Outcome.CLEAR),
    ],
)
def test_headings_and_decisions(after: dict, heading: str, tone: str, outcome: Outcome) -> None:
    found = compare(random_scan("a"), random_scan("b", **after))
    assert found.heading.startswith(heading)
    assert found.tone == tone
    assert found.decision.outcome is outcome
    assert bool(found.decision.words) is (outcome is not Outcome.CLEAR)


def test_one_text_is_never_called_changed() -> None:
    found: CompareFinding = CASES["one text"]()
    assert found.heading == "Changed, perhaps by chance"
    assert found.decision.outcome is Outcome.UNDECIDED
    copy = compare(random_scan("a", tokens=(9,)), random_scan("b", tokens=(9,)))
    assert (copy.heading, copy.tone) == ("Nothing changed beyond rounding", "unknown")
    assert copy.decision.outcome is Outcome.CLEAR


def test_where_nothing_can_be_compared_that_is_said() -> None:
    found = CASES["no number"]()
    assert found.heading == "Nothing could be compared"
    assert (
        found.words[0]
        == "None of 20 numbers could be compared from scan #1 to scan #2: 0/0 or overflow on one side."
    )
    assert found.tone == "unknown"
    assert "There is no number to draw" in found.to_html()


def test_where_two_of_the_scans_have_nothing_in_common_that_is_said() -> None:
    found = CASES["nothing in common with the last"]()
    assert found.words[0] == "a and c have no stack, layer, site and definition in common."
    assert [one.numbers for one in found.compare.against] == [20, 0]
    assert "Only in c: stack vision." in found.notes
    other = CASES["nothing in common with one"]()
    assert [len(line.points) for line in other.chart().pictures[2].lines] == [5, 5]
    alone = CASES["no layer in both"]()
    assert alone.table.frame["at"].unique().to_list() == ["last block"]
    assert "only the last blocks are compared" in alone.to_html()


def test_definitions_that_are_no_object_are_left_aside() -> None:
    a = random_scan("a")
    found = compare(replace(a, sections=a.sections | {"definitions": 3}), random_scan("b", seed=1))
    assert set(found.definitions) == set(DEFINITIONS)
