"""Panels of the figures of Wu et al., made of rows by hand: lines, bands, rings and floors stand where they should."""

import polars as pl
import pytest
from scipy import stats

from rankscope.charts import Panel
from rankscope.papers.figures.wu_counterexample import (
    MOST_TEXTS,
    WeightPair,
    WuCounterexampleFound,
    WuCounterexampleSetting,
    chart,
)
from rankscope.papers.figures.wu_curves import RATIO, depth_panel
from rankscope.results import Table

MU = "residual[frobenius,mean]"


def frame(logs: list[list[float]], *, floats: list[float] | None = None, name: str = MU) -> pl.DataFrame:
    """Rows of one line: a list of seeds for layers 1, 2, ..."""
    rows = [
        {"definition": name, "mask": "full", "layer": layer, "log10_value": log}
        for layer, seeds in enumerate(logs, start=1)
        for log in seeds
    ]
    return pl.DataFrame(rows).with_columns(
        float_value=pl.Series(floats or [1.0] * len(rows)), float_floor=pl.lit(1e-6)
    )


def panel(rows: pl.DataFrame, **more: object) -> Panel:
    return depth_panel(rows, "mask", title="t", names=[("full", "complete")], **{"deepest": -20.0} | more)


def test_bands_are_intervals_of_the_mean_logarithm() -> None:
    logs = [-1.0, -2.0, -4.0]
    (point,) = panel(frame([logs])).lines[-1].points
    low, high = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert (point.low, point.high) == pytest.approx((low, high))
    assert point.y == pytest.approx(-7 / 3)
    assert point.x == 1


def test_bands_of_medians_are_order_statistics() -> None:
    (point,) = panel(frame([[-9.0, -1.0, -3.0, -2.0, -50.0, -4.0]]), by_median=True).lines[-1].points
    assert (point.low, point.y, point.high) == (-50.0, -3.5, -1.0)


def test_bands_of_ratios_end_at_one() -> None:
    scattered = [[-0.1, -9.0]]
    assert panel(frame(scattered)).lines[-1].points[0].high > 0
    assert panel(frame(scattered, name=RATIO)).lines[-1].points[0].high == 0


def test_exact_zeros_of_float32_have_no_ring_and_layer_0_no_place() -> None:
    rows = frame([[-1.0, -2.0], [-1.0, -2.0]], floats=[0.0, 1e-4, 0.0, 0.0])
    zero = rows.head(2).with_columns(layer=pl.lit(0, dtype=pl.Int64))
    floor, rings, line = panel(pl.concat([zero, rows])).lines
    assert [(point.x, point.y, point.hollow) for point in rings.points] == [(1, pytest.approx(-4.0), True)]
    assert rings.style == "none"
    assert [point.x for point in line.points] == [1, 2]
    assert floor.shade
    assert [point.y for point in floor.points] == pytest.approx([-6.0, -6.0])


def test_a_curve_that_leaves_the_axis_ends_there_for_good() -> None:
    found = panel(frame([[-1.0], [-30.0], [-1e60], [-2.0]]))
    assert [point.y for point in found.lines[-1].points] == [-1.0, -30.0]
    assert found.inside[0] == -20.0
    near = panel(frame([[-1.0], [-4.0]]))
    assert near.inside == pytest.approx((-6.0, 0.0))  # down to the floor of float32, up to its value 1


def test_a_floor_far_below_every_number_is_left_out() -> None:
    shallow = panel(frame([[-1.0], [-2.0]]))
    assert not any(line.shade for line in shallow.lines)
    assert shallow.inside == pytest.approx((-2.0, 0.0))
    assert panel(frame([[-0.1], [-0.2]])).inside == pytest.approx((-1.0, 0.0))  # a decade at least


@pytest.mark.parametrize("columns", [2, MOST_TEXTS + 1])
def test_maps_of_the_counterexample_have_a_cell_per_system(columns: int) -> None:
    """Cells without B have no color; many columns leave numbers to the tips."""
    about = {"least_shear": 1.0, "greatest_stable_shear": None, "log10_ratio_without_norm": -20.0}
    gone = dict.fromkeys(("stable", "multiplier", "measured_multiplier", "limit", "distance"))
    there = {
        "stable": True,
        "multiplier": 0.5,
        "measured_multiplier": 0.5,
        "limit": (0.0, 1.0),
        "distance": 0.1,
    }
    systems = [
        WeightPair(alpha=alpha / 100, shear=shear, exists=exists, share=0.25 * exists, **about, **one)
        for alpha in range(1, columns + 1)
        for shear, exists, one in (
            (2.0, True, there),
            (1.0, True, gone | {"stable": False}),
            (0.5, False, gone),
        )
    ]
    found = WuCounterexampleFound(
        setting=WuCounterexampleSetting(starts=4, steps=10, layers=8), systems=systems[::-1], example=()
    )
    made = chart(found, Table.from_columns({"measure": "m", "definition": "d", "value": [1.0], "floor": 0.0}))
    kept, plain = made.pictures
    assert made.title.startswith(f"The sphere keeps two tokens apart for {columns} of {3 * columns} weights")
    assert list(kept.rows) == ["w 2", "w 1", "w 0.5"]
    assert list(kept.columns) == [f"{alpha / 100:g}" for alpha in range(1, columns + 1)]
    texts = ["25%", "25%", ""] if columns == 2 else ["", "", ""]
    assert [row[0].text for row in kept.cells] == texts
    assert [row[0].share for row in kept.cells] == [1.0, 1.0, None]
    assert kept.cells[0][0].tip == "alpha 0.01, w 2: 1 of 4 starts; B attracts, multiplier 0.5"
    assert all(cell.share == 0.5 for row in plain.cells for cell in row)  # all equal: the middle of the scale
