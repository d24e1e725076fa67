"""The chart of what paths of each length achieve: lines, levels and intervals as the table says."""

import json
from pathlib import Path
from typing import Any

import pytest

import paths_tables
from rankscope.errors import ConfigError, UnknownNameError
from rankscope.plots import effectiveness_chart, save_figure
from rankscope.plots.paths_effect_points import effect_points, levels_of, paths_by_length
from rankscope.results import Table

RATIO = "residual_ratio[composite,mean]"


def points_of(table: Table, **more: Any) -> Any:
    return effect_points(table, **({"lines": None, "definitions": None} | more))


@pytest.mark.parametrize("make", [paths_tables.sorting, paths_tables.plain_sorting])
def test_the_chart_renders(make: Any, tmp_path: Path) -> None:
    chart: Any = effectiveness_chart(make())
    save_figure(chart, tmp_path / "effect.png")
    assert (tmp_path / "effect.png").stat().st_size > 20_000
    assert "at length 0" in chart.description


def test_usual_lines_are_the_largest_draw_and_no_single_paths() -> None:
    points = points_of(paths_tables.sorting())
    assert points["line"].unique(maintain_order=True).to_list() == [
        "frozen, all of a length", "frozen, up to this length", "isolated, 20 drawn", "official, 20 drawn",
    ]  # fmt: skip
    assert points["definition"].unique(maintain_order=True).to_list() == ["token_accuracy", RATIO]
    assert points["panel"].unique(maintain_order=True).to_list() == ["trained", "initial"]


def test_lines_and_definitions_can_be_named() -> None:
    table = paths_tables.sorting()
    points = points_of(table, lines=["isolated, each by itself"], definitions=["residual[frobenius,mean]"])
    assert points["line"].unique().to_list() == ["isolated, each by itself"]
    assert points["definition"].unique().to_list() == ["residual[frobenius,mean]"]
    with pytest.raises(UnknownNameError, match="no line 'isolated'; it has: frozen, all of a length"):
        points_of(table, lines=["isolated"])
    with pytest.raises(UnknownNameError, match="no definition 'accuracy'"):
        points_of(table, definitions=["accuracy"])


def test_intervals_are_those_of_the_table_or_reach_over_the_seeds() -> None:
    one = points_of(paths_tables.sorting(("trained",)))
    drawn = one.filter((one["line"] == "isolated, 20 drawn") & (one["length"] == 2)).row(0, named=True)
    assert (drawn["low"], drawn["high"]) == pytest.approx((0.95 * drawn["value"], 1.05 * drawn["value"]))
    exact = one.filter(one["line"] == "frozen, all of a length")
    assert exact["low"].null_count() == exact.height
    table = paths_tables.sorting(("initial",), seeds=(0, 1, 2))
    found = points_of(table, lines=["frozen, all of a length"], definitions=["token_accuracy"])
    frame = table.frame.filter((table.frame["mode"] == "frozen") & (table.frame["paths"] == "all"))
    frame = frame.filter(frame["definition"] == "token_accuracy")
    for row in found.iter_rows(named=True):
        values = frame.filter(frame["length"] == row["length"])["value"].to_list()
        assert len(values) == 3
        assert row["value"] == pytest.approx(sum(values) / 3)
        assert (row["low"], row["high"]) == (min(values), max(values))


def test_levels_come_from_either_kind_of_section() -> None:
    table = paths_tables.sorting()
    assert levels_of(table, "trained") == {
        "full model": 0.98, "random guess": 0.1, "own letter only": 0.36, "position only": 0.23,
    }  # fmt: skip
    assert levels_of(table, "initial")["full model"] == 0.11
    plain = paths_tables.plain_sorting()
    assert levels_of(plain, "all") == {"full model": 0.98, "naive": 0.1}
    assert levels_of(Table(frame=plain.frame), "all") == {}


def test_counts_come_from_either_kind_of_section() -> None:
    expected = dict(enumerate([1, 12, 60, 160, 240, 192, 64]))
    assert paths_by_length(paths_tables.sorting()) == expected
    plain = paths_tables.plain_sorting()
    assert paths_by_length(plain) == expected
    named = Table(frame=plain.frame, sections={"counts": {"0": 1, "1": 2 * 10**400}})
    assert paths_by_length(named) == {0: 1, 1: 2 * 10**400}
    assert "2.0e400" in json.dumps(effectiveness_chart(named).to_dict())


def test_points_that_are_not_resolved_are_hollow() -> None:
    points = points_of(paths_tables.sorting())
    hollow = points.filter(~points["resolved"])
    assert hollow.height
    assert hollow["definition"].unique().to_list() == [RATIO]
    assert (hollow["value"] <= 1e-2).all()


def test_an_interval_that_reaches_zero_stays_on_a_logarithmic_axis() -> None:
    frame = paths_tables.sorting(("trained",)).frame
    low = frame["low"].is_not_null().replace_strict({True: -1.0, False: None})
    chart = effectiveness_chart(Table(frame=frame.with_columns(low.alias("low"))))
    assert "NaN" not in json.dumps(chart.to_dict())


def test_tables_of_something_else_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="needs rows with length and mode, and the table has no column 'length'"
    ):
        effectiveness_chart(paths_tables.small())
    empty = paths_tables.sorting().where(mode="nothing")
    with pytest.raises(ConfigError, match="no row of the table has a length, a mode and a value"):
        effectiveness_chart(empty)
