"""Curves of the split pass: positions far below the smallest float, floors of both precisions, legible ticks."""

import pytest

from rankscope.plots import save_figure, split_curves
from rankscope.plots.split_curves import deep_ticks, placed
from rankscope.results import Table


def table(lowest: float, dtype: str = "float64") -> Table:
    layers = list(range(7))
    logs = [lowest * layer / 6 for layer in layers]
    return Table.from_columns(
        {
            **{"variant": "san", "mask": "full", "norm": "none", "seed": 0, "layer": layers, "site": "block"},
            **{"measure": "residual_ratio", "definition": "residual_ratio[composite,mean]"},
            **{
                "value": [10.0**log if log > -300 else 0.0 for log in logs],
                "log10_value": logs,
                "floor": 0.0,
            },
            **{"float_value": [max(10.0 ** max(log, -300), 1e-16) for log in logs], "float_floor": 1e-14},
        },
        provenance={"config": {"tokens": 4, "dim": 8, "heads": 1, "dtype": dtype}},
    )


def points(chart: object) -> list[dict[str, object]]:
    found = chart.to_dict()
    return found["data"].get("values") or found["datasets"][found["data"]["name"]]


@pytest.mark.parametrize("lowest", [-9.0, -40.0, -100_000.0])
def test_every_point_has_a_place_and_the_picture_renders(lowest: float, tmp_path: object) -> None:
    chart = split_curves(table(lowest))
    ys = [point["y"] for point in points(chart)]
    assert ys == sorted(ys, reverse=True)
    assert ys[-1] == pytest.approx(placed(lowest) if lowest < -60 else lowest)
    save_figure(chart, tmp_path / "split.png")
    assert (tmp_path / "split.png").stat().st_size > 5_000


def test_floors_of_both_precisions_whatever_the_run_was_in() -> None:
    for dtype, double in (("float64", -14.0), ("float32", -14.0 - 29 * 0.30103)):
        point = points(split_curves(table(-20.0, dtype)))[0]
        assert point["floor53"] == pytest.approx(double, abs=1e-4)
        assert point["floor24"] == pytest.approx(double + 29 * 0.30103, abs=1e-4)


def test_a_deep_axis_has_a_label_at_every_tick() -> None:
    ticks = deep_ticks(-108_913.0, 1.4)
    assert ticks.labels == ["1e-100000", "1e-10000", "1e-1000", "1e-100", "1e-10", "1e-1", "1", "1e1"]
    assert len(set(ticks.positions)) == len(ticks.positions)
    assert all(len(str(position)) < 12 for position in ticks.positions), "short enough to survive as text"
