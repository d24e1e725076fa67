"""The picture says what the table says: points are read back from the drawing and compared with the means."""

import re

import pytest

from kit import scan_tables
from kit.html_reader import Reader
from rankscope.plots.hover_chart import hover_chart
from rankscope.plots.hover_style import hover_style
from rankscope.plots.scan_entries import number, of_stack, scan_entries
from rankscope.plots.scan_panels import headline, site_panels
from rankscope.plots.sparkline import sparkline
from rankscope.results import Table

NUMBER = r"-?[\d.]+(?:e-?\d+)?"


def panels_of(table, stack="blocks"):
    return site_panels(of_stack(scan_entries(table), stack))


def changed(table, change):
    summary = [change(dict(one)) for one in table.sections["summary"]]
    return Table(frame=table.frame, sections=table.sections | {"summary": summary})


def drawn_points(text, style, kind="dots"):
    """Positions of one line's points, from 0 to 1 from the left and from the top."""
    path = re.search(rf'<path class="{kind} s{style}" d="([^"]*)"', text).group(1)
    pairs = re.findall(rf"[ML]({NUMBER}) ({NUMBER})", path)
    return [(float(x) / 1000, float(y) / 1000) for x, y in pairs]


def value_at(share, axis):
    position = axis.top - share * (axis.top - axis.bottom)
    return 10**position if axis.is_log else position


@pytest.mark.parametrize("name", ["healthy", "collapsing", "massive token"])
def test_points_stand_at_their_values_and_layers(name):
    for panel in panels_of(scan_tables.SCANS[name]()):
        text, axis = hover_chart(panel, group="g"), panel.axis()
        decades = axis.top - axis.bottom
        for style, line in enumerate(panel.lines):
            points = drawn_points(text, style)
            assert len(points) == len(line.entries)
            for (x, y), entry in zip(points, line.entries, strict=True):
                place = panel.places - 1 if entry.site == "final" else entry.layer - panel.first + 0.5
                # Coordinates carry four digits.
                assert x == pytest.approx(place / panel.places, abs=1e-3)
                if axis.is_log:
                    assert value_at(y, axis) == pytest.approx(entry.mean, rel=2e-3 * decades)
                else:
                    assert value_at(y, axis) == pytest.approx(entry.mean, abs=1e-3 * decades)


def test_the_band_goes_from_the_smallest_to_the_largest_text():
    panel = panels_of(scan_tables.healthy())[0]
    axis = panel.axis()
    points = drawn_points(hover_chart(panel, group="g"), 1, "band")
    entries = panel.lines[1].entries
    up, down = points[: len(entries)], points[len(entries) :][::-1]
    for (_, high), (_, low), entry in zip(up, down, entries, strict=True):
        assert value_at(high, axis) == pytest.approx(entry.high, abs=1e-3)
        assert value_at(low, axis) == pytest.approx(entry.low, abs=1e-3)


def test_unresolved_points_are_hollow_and_only_those():
    panel = headline(of_stack(scan_entries(scan_tables.collapsing(30)), "blocks"))
    text = hover_chart(panel, group="g")
    holes = re.findall(r'<path class="holes" d="([^"]*)"', text)
    expected = [sum(not entry.is_resolved for entry in line.entries) for line in panel.lines]
    assert [path.count("M") for path in holes] == expected
    assert all(expected)
    assert "Hollow: not above the rounding floor in every text." in text
    healthy = hover_chart(panels_of(scan_tables.healthy())[0], group="g")
    assert 'class="holes"' not in healthy


def test_the_floor_is_drawn_and_named():
    panel = headline(of_stack(scan_entries(scan_tables.collapsing()), "blocks"))
    text, axis = hover_chart(panel, group="g"), panel.axis()
    path = re.search(r'<path class="floor" d="([^"]*)"', text).group(1)
    first = float(re.match(rf"M{NUMBER} ({NUMBER})", path).group(1)) / 1000
    assert value_at(first, axis) == pytest.approx(panel.entries[0].floor, rel=0.05)
    assert "rounding floor</span>" in text


def test_floors_that_differ_are_drawn_for_every_line():
    def raised(one):
        return one | ({"floor": 40 * one["floor"]} if one["definition"].endswith("unit]") else {})

    panel = headline(of_stack(scan_entries(changed(scan_tables.collapsing(), raised)), "blocks"))
    text = hover_chart(panel, group="g")
    assert text.count('<path class="floor s') == len(panel.lines)


def test_a_floor_below_the_axis_is_mentioned():
    panel = headline(of_stack(scan_entries(scan_tables.two_stacks()), "decoder"))
    assert "lies below this axis" in hover_chart(panel, group="g")


def test_a_missing_number_leaves_a_gap():
    def without(one):
        gone = one["layer"] == 5 and one["site"] == "block"
        return one | ({"mean": None, "min": None, "max": None, "resolved": 0.0} if gone else {})

    panel = headline(of_stack(scan_entries(changed(scan_tables.healthy(), without)), "blocks"))
    text = hover_chart(panel, group="g")
    line = re.search(r'<path class="line s0" d="([^"]*)"', text).group(1)
    assert line.count("M") == 2
    band = re.search(r'<path class="band s0" d="([^"]*)"', text).group(1)
    assert band.count("Z") == 2
    assert len(drawn_points(text, 0)) == 13  # twelve layers and the final norm
    assert "2 points without a number are not drawn." in text


def test_every_column_tells_all_lines_of_its_layer():
    panel = panels_of(scan_tables.healthy())[0]
    columns = re.findall(r"<label[^>]*>.*?</label>", hover_chart(panel, group="g7"))
    assert len(columns) == 14  # layers 0 to 12 and the final norm
    words = Reader(columns[4]).words
    here = {entry.site: entry for entry in panel.entries if entry.layer == 4}
    assert words.startswith("layer 4 block")
    for site in ("block", "attention", "mlp"):
        entry = here[site]
        spread = f"± {number(entry.std, 2)} · {number(entry.low, 2)} to {number(entry.high, 2)}"
        assert f"{site} {number(entry.mean)} {spread}" in words
    assert "rounding floor 3.8e-6" in words
    assert Reader(columns[-1]).words.startswith("after the final norm final")
    assert Reader(columns[0]).words.startswith("layer 0 block")


def test_a_chart_is_one_group_of_radio_buttons():
    read = Reader(hover_chart(panels_of(scan_tables.healthy())[0], group="g7"))
    assert len(read.of("input", type="radio", name="g7")) == 14
    assert len(read.of("div", role="radiogroup")) == 1
    assert not [one for _, one in read.elements if "tabindex" in one]


def test_a_single_text_has_no_spread():
    def single(one):
        return one | {"texts": 1, "std": None, "min": one["mean"], "max": one["mean"]}

    panel = panels_of(changed(scan_tables.healthy(), single))[0]
    words = Reader(hover_chart(panel, group="g")).words
    assert "±" not in words
    assert " to " not in words.replace("use", "")


def test_the_start_is_marked_where_it_is():
    panel = headline(of_stack(scan_entries(scan_tables.collapsing()), "blocks"))
    text = hover_chart(panel, group="g", start=3)
    assert f"left:{100 * 3.5 / panel.places:.4g}%" in text
    assert "starts at layer 3" in text
    assert "starts at" not in hover_chart(panel, group="g")
    assert "starts at" not in hover_chart(panel, group="g", start=99)


def test_hostile_names_stay_text():
    table = scan_tables.hostile()
    for stack in scan_tables.HOSTILE:
        for panel in panels_of(table, stack):
            read = Reader(hover_chart(panel, group="g"))
            assert read.open == []
            assert {name for name, _ in read.elements} <= {
                *("figure", "figcaption", "b", "code", "span", "i", "bdi", "div", "svg", "path"),
                *("label", "input", "small", "p"),
            }
            assert read.handlers == []


def test_the_style_sheet_fetches_nothing():
    assert not re.search(r"url\(|@import|https?:", hover_style())


def test_a_sparkline_draws_every_layer_of_every_line():
    panel = headline(of_stack(scan_entries(scan_tables.collapsing(30)), "blocks"))
    text = sparkline(panel)
    lines = re.findall(r'points="([^"]*)"', text)
    assert [len(line.split()) for line in lines] == [31, 31]
    heights = [float(pair.split(",")[1]) for pair in lines[0].split()]
    assert heights[3:16] == sorted(heights[3:16])  # it falls, until the floor
    assert text.count("<circle") == sum(not one.is_resolved for one in panel.entries if one.site != "final")
