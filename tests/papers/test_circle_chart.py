"""The chart of the circle, from a synthetic table."""

import json

import pytest

from rankscope.plots import svg
from rankscope.plots.recurrent_circle import DISTANCES, REACH, circle_chart, curve_points, endings_text
from rankscope.results import Table

WAY = [[0.3, 0.0, -0.3, 0.0], [0.0, 0.3, 0.0, -0.3]]
OUT = [[0.3, 0.0, -0.3, 0.0], [30.0, 30.0, -30.0, 0.0]]


def network(case, hidden, path, ending):
    return {"case": case, "hidden": hidden, "seed": 0, "path": path, "distance": [0.6, 0.6], "ending": ending}


def table():
    networks = [
        network(case, hidden, path, ending)
        for case, path, ending in (("san", OUT, "ran off"), ("skip", WAY, "apart"))
        for hidden in (32, 64)
    ]
    values = [1.0, 1e-3, 1e-20, 1e-3]
    columns = {
        "case": [case for case in ("san", "skip") for _ in range(16)],
        "hidden": [hidden for _ in range(2) for hidden in (32, 64) for _ in range(8)],
        "seed": 0,
        "step": list(range(4)) * 8,
        "measure": (["distance"] * 4 + ["mean"] * 4) * 4,
        "definition": "m",
        "value": values * 8,
        "floor": 1e-16,
    }
    config = {"hidden": [32, 64], "seeds": [0], "steps": 3, "points": 1000}
    sections = {"networks": networks, "cases": {"san": "attention alone", "skip": "with a skip"}}
    return Table.from_columns(columns, provenance={"config": config}, sections=sections)


def test_curves_end_at_the_first_number_below_its_floor():
    points = curve_points(table(), "distance", "san", DISTANCES)
    first = [row for row in points if row["line"] == "32 0"]
    assert [row["y"] for row in first] == pytest.approx([0.0, -3.0, -16.0])


def test_endings_are_counted():
    found = [{"ending": "merged"}, {"ending": "apart"}, {"ending": "merged"}]
    assert endings_text(found) == "2 merged, 1 apart"


def layers(chart):
    spec = chart.to_dict()
    _, *rows = spec["vconcat"]
    return spec, rows


def data(spec, layer):
    return json.loads(spec["datasets"][layer["data"]["name"]])


def test_a_panel_per_case_and_size_and_two_curves_per_case():
    spec, rows = layers(circle_chart(table()))
    assert [len(row["hconcat"]) for row in rows] == [2, 2, 2, 2]
    assert [panel["title"]["text"] for panel in rows[0]["hconcat"]] == ["attention alone", "with a skip"]
    assert rows[1]["hconcat"][0]["title"]["text"] == ""
    assert "1000 points" in " ".join(spec["title"]["subtitle"])


def test_ways_in_radii_with_start_and_end():
    spec, rows = layers(circle_chart(table()))
    away, held = rows[0]["hconcat"]
    way = [
        number
        for row in data(spec, held["layer"][1])
        if row["x"] + row["y"] < 0
        for number in (row["x"], row["y"])
    ]
    assert way == pytest.approx([-1.0, 0.0, 0.0, -1.0])
    assert len(data(spec, held["layer"][2])) == len(data(spec, held["layer"][3])) == 2
    # a way that leaves the panel is cut outside its frame and has no end in it
    assert max(abs(row["x"]) for row in data(spec, away["layer"][1])) == pytest.approx(3 * REACH)
    assert data(spec, away["layer"][3]) == []


def test_it_can_be_drawn():
    assert "with a skip" in svg(circle_chart(table()))
