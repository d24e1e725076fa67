"""The picture of a certificate: every number where it belongs, vacuous ones gray, none beyond the axis unmarked."""

import json
import math
from itertools import pairwise

import pytest

from kit import certify_tables as made
from rankscope.errors import ConfigError
from rankscope.plots import save_figure, svg
from rankscope.plots.certify_chart import certify_chart, certify_charts
from rankscope.plots.certify_panels import (
    LABEL_GAP,
    arrow_rows,
    band_rows,
    label_rows,
    line_rows,
    panels_of,
    pieces,
)
from rankscope.results import Table

TEN = math.log(10)


@pytest.mark.parametrize(
    "certificate", [made.collapsing(layers=9), made.lost_midway(), made.collapsing(layers=1)]
)
def test_every_kind_of_certificate_is_drawn(certificate, tmp_path):
    table = made.table_from(certificate, definitions=("residual[composite,mean]",))
    chart = certify_chart(table)
    save_figure(chart, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert len(drawn) > 10_000
    assert "<script" not in drawn
    assert "NaN" not in drawn
    assert chart.description.startswith("Proven bounds of residual[composite,mean] by layer. ")
    assert table.sections["finding"]["words"][0] in chart.description


def test_panels_stand_beside_each_other_or_alone():
    table = made.TABLES["standing"]()
    assert len(certify_chart(table).hconcat) == 3
    assert [chart.title.text for chart in certify_charts(table)] == [
        "residual, frobenius", "diameter, l2", "residual, composite",
    ]  # fmt: skip


def test_numbers_stand_at_their_powers_of_ten():
    panel = panels_of(made.TABLES["standing"]())[0]
    for name, flag in (("lower", "lower_vacuous"), ("upper", "upper_vacuous")):
        for row in line_rows(panel, name, flag):
            entry = panel.entries[row["layer"]]
            low, high = panel.ends
            assert row["y"] == pytest.approx(min(max(entry[name] / TEN, low), high), rel=1e-12)
            assert row["gray"] == entry[flag]


def test_on_a_deep_axis_a_cubed_residual_falls_along_a_line():
    panel = panels_of(made.TABLES["far"]())[0]
    assert panel.is_deep
    assert "1e-1000" in panel.ticks.labels
    places = [panel.at(entry["measured"], 0.0) for entry in panel.entries]
    steps = [before - after for before, after in pairwise(places)][4:]
    assert steps == pytest.approx([math.log10(3)] * len(steps), abs=0.02)  # the constant of the start fades


def test_the_band_ends_at_the_size_of_the_state_where_the_upper_bound_is_vacuous():
    panel = panels_of(made.TABLES["lost"]())[0]
    rows = band_rows(panel)
    for row in rows:
        entry = panel.entries[row["layer"]]
        top = entry["trivial"] if entry["upper_vacuous"] else entry["upper"]
        assert row["high"] == pytest.approx(top / TEN, rel=1e-12)
        assert row["low"] == (panel.bottom if entry["lower"] is None else panel.at(entry["lower"], 0.0))
    assert [(row["layer"], row["vacuous"]) for row in rows] == [
        *((layer, False) for layer in range(4)),
        *((layer, True) for layer in range(3, 7)),
    ]


def test_what_is_beyond_the_axis_is_marked_at_its_edge():
    panel = panels_of(made.TABLES["lost"]())[2]
    arrows = arrow_rows(panel)
    beyond = {
        (name, entry["layer"])
        for entry in panel.entries
        for name in ("lower", "upper", "bound")
        if entry[name] is not None and not panel.ends[0] <= entry[name] / TEN <= panel.ends[1]
    }
    assert {(row["what"], row["layer"]) for row in arrows} == beyond
    assert ("bound", 6) in beyond
    assert {row["shape"] for row in arrows} == {"triangle-up"}
    assert {row["y"] for row in arrows} == {panel.ends[1]}


@pytest.mark.parametrize("name", list(made.TABLES))
def test_labels_keep_apart(name):
    for panel in panels_of(made.TABLES[name]()):
        rows = label_rows(panel, 250)
        gap = LABEL_GAP * (panel.top - panel.bottom) / 250
        for above, below in pairwise(rows):
            assert above["y"] - below["y"] >= gap * (1 - 1e-9)
        assert {row["what"] for row in rows} >= {"measured", "upper", "lower"}


def test_labels_say_what_is_not_proven():
    lost, _, composite = panels_of(made.TABLES["lost"]())
    assert {row["text"] for row in label_rows(lost, 250)} == {
        "measured 12.2", "no lower bound", "no upper bound",
    }  # fmt: skip
    assert any(row["text"].startswith("dong-2.3 (unproven) ") for row in label_rows(composite, 250))


def test_pieces_of_a_single_layer():
    assert pieces([{"layer": 0, "x": True}], "x") == [(0, True, [{"layer": 0, "x": True}])]


def test_names_from_outside_stay_text():
    table = made.table_from(made.standing_still(), model=made.HOSTILE, definitions=("diameter[l2]",))
    drawn = svg(certify_chart(table))
    assert "<script" not in drawn
    assert "<img" not in drawn


def test_a_table_of_something_else_is_refused():
    with pytest.raises(ConfigError, match="give the table that 'rankscope certify' made"):
        certify_chart(Table(frame=made.TABLES["standing"]().frame))


def test_the_chart_is_json_without_nan(tmp_path):
    texts = (made.standing_still(), made.standing_still(), made.lost_midway(layers=4))
    save_figure(certify_chart(made.table_from(*texts, definitions=("diameter[l2]",))), tmp_path / "a.json")
    spec = json.loads((tmp_path / "a.json").read_text())
    assert "3 texts: the bounds hold of every one" in " ".join(spec["title"]["subtitle"])
