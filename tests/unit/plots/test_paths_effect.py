"""The chart of what paths of each length achieve: lines, levels and intervals as the table says."""

import json
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kit import paths_tables
from rankscope.errors import ConfigError, UnknownNameError
from rankscope.plots import effectiveness_chart, save_figure
from rankscope.plots.paths_effect_points import effect_points, levels_of, paths_by_length
from rankscope.results import Table

RATIO, REFIT = "residual_ratio[composite,mean]", "refit_accuracy"


def points_of(table: Table, **more: Any) -> Any:
    return effect_points(table, **({"lines": None, "definitions": None} | more))


@pytest.mark.parametrize("make", [paths_tables.effect, paths_tables.plain_effect])
def test_the_chart_renders(make: Any, tmp_path: Path) -> None:
    chart: Any = effectiveness_chart(make())
    save_figure(chart, tmp_path / "effect.png")
    assert (tmp_path / "effect.png").stat().st_size > 20_000
    assert "at length 0" in chart.description


def test_usual_lines_are_the_largest_draw_and_no_single_paths() -> None:
    points = points_of(paths_tables.effect())
    drawn = points.filter(points["definition"] != REFIT)
    assert drawn["line"].unique(maintain_order=True).to_list() == [
        "frozen, all of a length", "frozen, up to this length", "isolated, 20 drawn", "official, 20 drawn",
    ]  # fmt: skip
    fresh = points.filter(points["definition"] == REFIT)
    assert set(fresh["line"]) == {"frozen, all of a length", "isolated, all of a length"}
    assert set(points["definition"]) == {"token_accuracy", REFIT, RATIO}
    assert points["panel"].unique(maintain_order=True).to_list() == ["trained", "initial"]


def test_lines_and_definitions_can_be_named() -> None:
    table = paths_tables.effect()
    points = points_of(table, lines=["isolated, each by itself"], definitions=["residual[frobenius,mean]"])
    assert points["line"].unique().to_list() == ["isolated, each by itself"]
    assert points["definition"].unique().to_list() == ["residual[frobenius,mean]"]
    with pytest.raises(UnknownNameError, match="no line 'isolated'; it has: frozen, all of a length"):
        points_of(table, lines=["isolated"])
    with pytest.raises(UnknownNameError, match="no definition 'accuracy'"):
        points_of(table, definitions=["accuracy"])


def test_intervals_are_those_of_the_table_or_of_the_mean_over_seeds() -> None:
    one = points_of(paths_tables.effect(("trained",)))
    drawn = one.filter((one["line"] == "isolated, 20 drawn") & (one["length"] == 2)).row(0, named=True)
    assert (drawn["low"], drawn["high"]) == pytest.approx((0.95 * drawn["value"], 1.05 * drawn["value"]))
    exact = one.filter(one["line"] == "frozen, all of a length")
    assert exact["low"].null_count() == exact.height
    table = paths_tables.effect(("initial",), seeds=(0, 1, 2))
    found = points_of(table, lines=["frozen, all of a length"], definitions=["token_accuracy"])
    frame = table.frame.filter((table.frame["mode"] == "frozen") & (table.frame["paths"] == "all"))
    frame = frame.filter(frame["definition"] == "token_accuracy")
    for row in found.iter_rows(named=True):
        values = frame.filter(frame["length"] == row["length"])["value"].to_list()
        assert len(values) == row["seeds"] == 3
        mean = sum(values) / 3
        assert row["value"] == pytest.approx(mean)
        # 4.3027 is the quantile of Student's t with two degrees of freedom
        reach = 4.302653 * math.sqrt(sum((value - mean) ** 2 for value in values) / 2 / 3)
        assert (row["low"], row["high"]) == pytest.approx((mean - reach, mean + reach), rel=1e-6)


def test_residuals_of_several_seeds_have_geometric_means() -> None:
    frame = paths_tables.effect(("trained",), seeds=(0, 1)).frame
    apart = frame.with_columns((frame["value"] * 100.0 ** frame["seed"].cast(float)).alias("value"))
    wanted = {"lines": ["frozen, all of a length"], "definitions": [RATIO]}
    row = points_of(Table(frame=apart), **wanted).row(0, named=True)
    one = points_of(paths_tables.effect(("trained",)), **wanted).row(0, named=True)
    assert row["value"] == pytest.approx(10 * one["value"])
    assert 0 < row["low"] < row["value"] < row["high"]
    zero = apart.with_columns(
        pl.when(pl.col("seed") == 0).then(0.0).otherwise(pl.col("value")).alias("value")
    )
    row = points_of(Table(frame=zero), **wanted).row(0, named=True)
    assert row["low"] is row["high"] is None


def marks_of(chart: Any) -> set[str]:
    """All kinds of marks of a chart, as far down as they are."""
    if isinstance(chart, dict):
        own = chart.get("mark")
        kinds = {own["type"]} if isinstance(own, dict) else set()
        return kinds.union(*(marks_of(value) for value in chart.values()))
    return set().union(*map(marks_of, chart)) if isinstance(chart, list) else set()


def test_seeds_are_bands_and_draws_of_one_seed_are_bars() -> None:
    one = effectiveness_chart(paths_tables.effect(("trained",))).to_dict()
    several = effectiveness_chart(paths_tables.effect(("trained",), seeds=(0, 1, 2))).to_dict()
    assert "bars: 95% interval of the mean over draws" in json.dumps(one)
    assert "mean over 3 seeds of training" in json.dumps(several)
    assert "bars" not in json.dumps(several["title"])
    assert "area" in marks_of(several)


def test_bands_of_shares_end_at_zero_and_one() -> None:
    frame = paths_tables.effect(("trained",), seeds=(0, 1)).frame
    far = frame.with_columns((frame["value"] * (0.2 + frame["seed"])).clip(0, 1).alias("value"))
    points = points_of(Table(frame=far), definitions=["token_accuracy"])
    assert (points["low"].min(), points["high"].max()) == (0.0, 1.0)


def test_levels_come_from_either_kind_of_section() -> None:
    table = paths_tables.effect()
    assert levels_of(table, "trained") == {
        "full model": 0.98, "naive": 0.1, "without letters": 0.23, "own letter alone": 0.36,
    }  # fmt: skip
    assert levels_of(table, "initial")["full model"] == 0.11
    plain = paths_tables.plain_effect()
    assert levels_of(plain, "all") == {"full model": 0.98, "naive": 0.1}
    assert levels_of(Table(frame=plain.frame), "all") == {}


def test_counts_come_from_either_kind_of_section() -> None:
    expected = dict(enumerate([1, 12, 60, 160, 240, 192, 64]))
    assert paths_by_length(paths_tables.effect()) == expected
    plain = paths_tables.plain_effect()
    assert paths_by_length(plain) == expected
    named = Table(frame=plain.frame, sections={"counts": {"0": 1, "1": 2 * 10**400}})
    assert paths_by_length(named) == {0: 1, 1: 2 * 10**400}
    assert "2.0e400" in json.dumps(effectiveness_chart(named).to_dict())


def test_points_that_are_not_resolved_are_hollow() -> None:
    points = points_of(paths_tables.effect())
    hollow = points.filter(~points["resolved"])
    assert hollow.height
    assert hollow["definition"].unique().to_list() == [RATIO]
    assert (hollow["value"] <= 1e-2).all()


def test_an_interval_that_reaches_zero_stays_on_a_logarithmic_axis() -> None:
    frame = paths_tables.effect(("trained",)).frame
    low = frame["low"].is_not_null().replace_strict({True: -1.0, False: None})
    chart = effectiveness_chart(Table(frame=frame.with_columns(low.alias("low"))))
    assert "NaN" not in json.dumps(chart.to_dict())


def test_tables_of_something_else_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="needs rows with length and mode, and the table has no column 'length'"
    ):
        effectiveness_chart(Table(frame=paths_tables.effect().frame.drop("length")))
    empty = paths_tables.effect().where(mode="nothing")
    with pytest.raises(ConfigError, match="no row of the table has a length, a mode and a value"):
        effectiveness_chart(empty)
