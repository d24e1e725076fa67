"""Ridges of path lengths of published models, from rows with name, length and share."""

import json
from typing import Any

import pytest

from kit import paths_tables
from rankscope.errors import ConfigError
from rankscope.plots import length_distribution_chart, svg


def parts_of(spec: Any) -> list[dict[str, Any]]:
    """A chart and all that it is put together from, however deep."""
    inner = [one for name in ("layer", "hconcat", "vconcat") for one in spec.get(name, [])]
    return [spec, *(part for one in inner for part in parts_of(one))]


def rows_of(chart: Any, field: str) -> list[dict[str, Any]]:
    """The rows of the first layer whose rows have that field."""
    spec = chart.to_dict()
    for part in parts_of(spec):
        held = part.get("data", {})
        values = held.get("values", spec.get("datasets", {}).get(held.get("name"), []))
        rows = json.loads(values) if isinstance(values, str) else values
        if rows and field in rows[0]:
            return rows
    raise AssertionError(f"no rows with {field}")


def test_ridges_are_sorted_by_mean_length_and_named() -> None:
    rows = [
        {"name": name, "length": length, "share": count / (1 + heads) ** layers}
        for name, heads, layers in (("GPT-3", 96, 96), ("<b>&'", 2, 3), ("BERT", 12, 12))
        for length, count in enumerate(paths_tables.counts_of([heads] * layers))
    ]
    chart = length_distribution_chart(rows)
    lines = rows_of(chart, "mean")
    assert [line["name"] for line in lines] == ["<b>&'", "BERT", "GPT-3"]
    assert [line["mean"] for line in lines] == pytest.approx([2, 144 / 13, 96 * 96 / 97])
    assert [line["align"] for line in lines] == ["left", "left", "right"]
    assert "&lt;b&gt;" in svg(chart)
    with pytest.raises(ConfigError, match="has no share"):
        length_distribution_chart([{"name": "a", "length": 1}])
    with pytest.raises(ConfigError, match="nothing to draw"):
        length_distribution_chart([])
