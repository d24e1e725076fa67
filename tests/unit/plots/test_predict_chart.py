"""The picture of predictions: a line per depth, proven bounds on a logarithmic axis."""

import math
from typing import Any

import pytest

from rankscope.errors import ConfigError
from rankscope.plots import description, svg
from rankscope.plots.predict_chart import BOUNDS, predict_chart
from rankscope.results import Table

FORECAST = {
    "model": "m",
    "tokens": 8,
    "threshold": 0.9,
    "depths": [{"layers": 2}, {"layers": 3}],
}
APRIORI = {"model": "m", "spread": 0.5, "keeps_apart": False, "critical_spread": 1.2}


def cosines(layers: int, dim: int, variant: str) -> list[dict[str, Any]]:
    return [
        {
            "statement": "forecast",
            "variant": variant,
            "layers": layers,
            "dim": dim,
            "layer": layer,
            "value": layer / 4,
        }
        | {"measure": "cosine", "definition": "cosine[off_diagonal]", "floor": 0.0}
        for layer in range(layers + 1)
    ]


def bounds(**logs: float | None) -> list[dict[str, Any]]:
    names = ("lower", "upper", "critical", "gain_lower", "gain_upper")
    return [
        {"statement": "a-priori", "layer": layer, "value": None, "floor": 0.0, "measure": "diameter"}
        | {"definition": "diameter[l2]", **{name: logs.get(name) for name in names}}
        for layer in (1, 2)
    ]


def table(rows: list[dict[str, Any]], **sections: Any) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Table.from_columns({name: [row.get(name) for row in rows] for name in names}, sections=sections)


def values(chart: Any) -> list[dict[str, Any]]:
    """All points of a chart, wherever its data stand."""
    spec = chart.to_dict()
    layers = [spec, *spec.get("layer", []), *spec.get("vconcat", [])]
    held = [*spec.get("datasets", {}).values(), *(one.get("data", {}).get("values", []) for one in layers)]
    return [point for points in held for point in points]


def test_a_line_for_every_depth_and_width() -> None:
    rows = [*cosines(2, 8, "2 layers"), *cosines(3, 8, "3 layers"), *cosines(3, 4, "3 layers, dim 4")]
    chart = predict_chart(table(rows, forecast=FORECAST))
    points = [point for point in values(chart) if "variant" in point]
    assert {point["variant"] for point in points} == {"2 layers", "3 layers", "3 layers, dim 4"}
    assert "depths 2, 3" in description(chart)
    assert "Forecast for untrained weights" in svg(chart)


def test_bounds_stand_at_their_logarithms_and_what_is_unproven_is_left_out() -> None:
    rows = bounds(upper=-1000.0, critical=0.25)
    points = [point for point in values(predict_chart(table(rows, apriori=APRIORI))) if "series" in point]
    upper = [point["y"] for point in points if point["series"] == BOUNDS["upper"] and point["layer"]]
    assert upper == pytest.approx([-1000 / math.log(10)] * 2)
    assert {point["series"] for point in points} == {BOUNDS["upper"], BOUNDS["critical"]}
    assert min(point["y"] for point in points if point["layer"] == 0) == pytest.approx(math.log10(0.5))


def test_gains_are_drawn_where_no_spread_is_given() -> None:
    about = APRIORI | {"spread": None, "keeps_apart": True}
    chart = predict_chart(table(bounds(gain_lower=-0.5, gain_upper=0.5), apriori=about))
    assert {point["series"] for point in values(chart)} == {BOUNDS["gain_lower"], BOUNDS["gain_upper"]}
    assert "no input collapses" in svg(chart)


def test_both_are_drawn_below_each_other() -> None:
    rows = [*cosines(2, 8, "2 layers"), *bounds(upper=-1.0)]
    text = svg(predict_chart(table(rows, forecast=FORECAST, apriori=APRIORI)))
    assert "mean token cosine" in text
    assert "largest distance of two tokens" in text


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nothing to draw"):
        predict_chart(table(bounds(), apriori=APRIORI))
