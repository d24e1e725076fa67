"""The chart of a scan: a line raw and on unit tokens per stack, spread, floor, hollow points."""

import math

import pytest

from kit import scan_tables
from rankscope.errors import ConfigError
from rankscope.plots import description, save_figure, scan_curves, svg
from rankscope.results import Table

RAW, UNIT = "residual_ratio[frobenius,mean]", "residual_ratio[frobenius,mean,unit]"


def marks_of(panel):
    """Layers of one panel by what they draw."""
    found = {}
    for layer in panel["layer"]:
        field = layer["encoding"].get("y", {}).get("field", "")
        found[f"{layer['mark']['type']}:{field}"] = layer
    return found


def data_of(spec, layer):
    data = layer["data"]
    return data["values"] if "values" in data else spec["datasets"][data["name"]]


def test_points_are_the_means_over_texts():
    table = scan_tables.massive_token()
    spec = scan_curves(table).to_dict()
    points = data_of(spec, marks_of(spec)["point:y"])
    for name, definition in (("raw", RAW), ("unit tokens", UNIT)):
        expected = [
            one
            for one in table.sections["summary"]
            if one["definition"] == definition and one["site"] == "block"
        ]
        drawn = [point for point in points if point["series"] == name]
        assert [point["layer"] for point in drawn] == list(range(31))
        assert [point["y"] for point in drawn] == [one["mean"] for one in expected]
        assert [point["low"] for point in drawn] == [one["min"] for one in expected]
        assert [point["hollow"] for point in drawn] == [one["resolved"] < 1 for one in expected]


def test_a_collapse_is_drawn_in_logarithms_with_its_floor_and_start():
    table = scan_tables.collapsing(30)
    spec = scan_curves(table).to_dict()
    marks = marks_of(spec)
    assert list(marks) == ["area:floor", "line:floor", "text:", "rule:", "area:low", "line:y", "point:y"]
    points = [one for one in data_of(spec, marks["point:y"]) if one["series"] == "raw"]
    means = [
        one["mean"]
        for one in table.sections["summary"]
        if one["definition"] == RAW and one["site"] == "block"
    ]
    assert [point["y"] for point in points] == pytest.approx([math.log10(mean) for mean in means], rel=1e-12)
    assert data_of(spec, marks["rule:"]) == [{"layer": 3}]
    assert marks["point:y"]["encoding"]["y"]["axis"]["title"] == "mean over texts (log scale)"
    assert any("hollow" in line for line in spec["title"]["subtitle"])


def test_every_stack_has_a_panel():
    spec = scan_curves(scan_tables.two_stacks()).to_dict()
    assert [panel["title"]["text"] for panel in spec["concat"]] == ["encoder", "decoder"]
    assert "rule:" not in marks_of(spec["concat"][0])
    assert "rule:" in marks_of(spec["concat"][1])


def test_the_heading_says_what_was_scanned():
    spec = scan_curves(scan_tables.massive_token()).to_dict()
    assert spec["title"]["text"] == "SmolLM2-135M: residual ratio, frobenius by layer"
    assert spec["title"]["subtitle"][0].startswith(f"{RAW} · 8 texts · bfloat16")
    assert "raw: 0." in description(scan_curves(scan_tables.massive_token()))
    assert scan_curves(scan_tables.healthy(), title="Mine").to_dict()["title"]["text"].startswith("Mine: ")


@pytest.mark.parametrize("name", ["two stacks", "hostile"])
def test_the_chart_renders_and_names_stay_text(name):
    drawn = svg(scan_curves(scan_tables.SCANS[name]()))
    assert "<script" not in drawn
    assert "<img" not in drawn


def test_the_chart_is_saved_as_a_picture(tmp_path):
    save_figure(scan_curves(scan_tables.healthy()), tmp_path / "scan.png")
    assert (tmp_path / "scan.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_that_is_no_scan_is_refused():
    with pytest.raises(ConfigError, match="section 'summary'"):
        scan_curves(Table.from_records([]))
    with pytest.raises(ConfigError, match="nothing to draw"):
        scan_curves(Table(frame=Table.from_records([]).frame, sections={"summary": []}))
