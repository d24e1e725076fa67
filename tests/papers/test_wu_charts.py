"""Charts of the figures: made of synthetic tables, checked by what they hold."""

import math

import polars as pl
import pytest
from scipy import stats

from rankscope.plots.wu_curves import depth_axis, panel_of, summarized


def frame(logs, *, floats=None):
    return pl.DataFrame(
        {
            "definition": "m",
            "norm": "none",
            "mask": "full",
            "layer": [1] * len(logs),
            "log10_value": logs,
            "float_value": floats or [1.0] * len(logs),
            "float_floor": 1e-6,
        }
    )


def test_bands_are_intervals_of_the_mean_logarithm():
    logs = [-1.0, -2.0, -4.0]
    (row,) = summarized(frame(logs), "mask").to_dicts()
    low, high = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert (row["low"], row["high"]) == pytest.approx((low, high))
    assert row["y"] == pytest.approx(-7 / 3)
    assert row["x"] == 0.0


def test_bands_of_medians_are_order_statistics():
    (row,) = summarized(frame([-9.0, -1.0, -3.0, -2.0, -50.0, -4.0]), "mask", by_median=True).to_dicts()
    assert (row["low"], row["y"], row["high"]) == (-50.0, -3.5, -1.0)


def test_bands_of_ratios_end_at_one():
    scattered = frame([-0.1, -9.0])
    (row,) = summarized(scattered, "mask").to_dicts()
    assert row["high"] > 0
    (row,) = summarized(scattered.with_columns(definition=pl.lit("residual_ratio[x]")), "mask").to_dicts()
    assert row["high"] == 0


def test_marks_at_the_ends_have_room():
    low, high = depth_axis(64, is_last=True).to_dict()["scale"]["domain"]
    assert low < 0
    assert high > math.log10(64)


def test_exact_zeros_of_float32_have_no_point():
    (row,) = summarized(frame([-1.0, -2.0], floats=[0.0, 1e-4]), "mask").to_dicts()
    assert row["float_y"] == pytest.approx(-4.0)
    (row,) = summarized(frame([-1.0, -2.0], floats=[0.0, 0.0]), "mask").to_dicts()
    assert row["float_y"] is None


def test_a_curve_that_leaves_the_axis_ends_there():
    points = pl.DataFrame(
        {
            "series": "full",
            "layer": [1, 2, 3, 4],
            "x": [math.log10(layer) for layer in (1, 2, 3, 4)],
            "y": [-1.0, -30.0, -1e60, None],
            "low": [-1.0, -31.0, -2e60, None],
            "high": [-1.0, -29.0, 1e60, None],
            "float_y": [-1.0, -7.0, None, None],
            "floor": [-6.0] * 4,
        }
    )
    panel = panel_of(points, "", deepest=-20.0)
    assert panel.bottom == -20.0
    assert [row["y"] is None for row in panel.points] == [False, False, True, True]
    assert panel.points[1]["y"] == -30.0
    assert all(row["high"] is None or row["high"] <= panel.top for row in panel.points)
