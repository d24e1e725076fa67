"""The writer of pictures: everything that is given is drawn, in its place, legibly, and nothing else gets in."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.charts import (
    Bar,
    Bars,
    Chart,
    Grid,
    GridCell,
    Line,
    Panel,
    Plane,
    PlaneLine,
    Point,
    Spot,
    Square,
)
from rankscope.charts.axes import linear_axis, log_axis
from rankscope.charts.svg import LETTER, MOST_BOARDS, MOST_SPOTS, points_to_keep, to_svg
from rankscope.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '"><script>alert(1)</script>\x1b&'


def panel(lines: int = 3, points: int = 7, **more) -> Panel:
    made = [
        Line(
            name=f"line {at}",
            points=[Point(x, -0.3 * at * x, low=-0.3 * at * x - 0.1, high=0.0) for x in range(points)],
        )
        for at in range(1, lines + 1)
    ]
    return Panel(**({"title": "Tokens become equal", "lines": made} | more))


def read(picture) -> ElementTree.Element:
    return ElementTree.fromstring(str(to_svg(picture)))  # noqa: S314 - written by us


def still_texts(root: ElementTree.Element) -> list[ElementTree.Element]:
    """All texts but those of tips, which come and go; those that are turned are left out too."""
    hidden = {id(one) for group in root.iter(f"{SVG}g") if "class" in group.attrib or "transform" in group.attrib
              for one in group.iter(f"{SVG}text")}  # fmt: skip
    return [one for one in root.iter(f"{SVG}text") if id(one) not in hidden]


def box(text: ElementTree.Element) -> tuple[float, float, float, float]:
    size = float(text.attrib["font-size"])
    wide = LETTER * size * len(text.text or "")
    x, y = float(text.attrib["x"]), float(text.attrib["y"])
    start = {"start": x, "middle": x - wide / 2, "end": x - wide}[text.attrib.get("text-anchor", "start")]
    return start, y - size * 0.8, start + wide, y


def square(**more) -> Square:
    return Square(
        **({"name": "one", "extent": 2.0, "disk": 1.0, "rings": [(0.5, "0.5"), (1.5, "1.5")]} | more)
    )


PICTURES = {
    "panel": panel(),
    "deep": panel(lines=1, points=3, notes=["far down"]),
    "one point": Panel(title="One", lines=[Line(name="a", points=[Point(3, 0.5)])], scale="linear"),
    "many lines": panel(lines=60, points=4),
    "1e170 steps": Panel(title="Long", along="log", across="step", lines=[
        Line(name="a", points=[Point(10.0**at, -float(at)) for at in range(0, 171, 17)]),
    ]),
    "300 layers": panel(lines=2, points=301),
    "long names": panel(
        lines=2, title="a title of many words " * 12, notes=["a note " * 60], value="x" * 200, across="y" * 200,
        marks=[(3, "here it begins")],
    ),
    "grid": Grid(title="Heads", rows=[str(i) for i in range(12)], columns=[str(i) for i in range(60)], across="head",
                 cells=[[GridCell(0.5, "0.5") for _ in range(60)] for _ in range(12)], ends=("0", "1")),
    "grid of names": Grid(title="Measures", rows=["name " * 40] * 3, columns=["column " * 30] * 5,
                          cells=[[GridCell(None, "-", faint=True)] * 5] * 3),
    "narrow": panel(lines=4, points=17, width=400, places=[(16, "final")], notes=["a note of several words " * 4]),
    "broad grid": Grid(title="Measures", rows=[str(i) for i in range(18)], columns=["raw", "unit tokens"] * 8,
                       cells=[[GridCell(0.5, "2.8e-5*", faint=True)] * 16] * 18, width=1120,
                       groups=[("a name of many words that is cut", 2)] * 8, feet=[("dark", ["1e-5"] * 16)] * 2),
    "narrow grid": Grid(title="Heads", rows=["1", "2"], columns=[str(i) for i in range(12)], width=400,
                        cells=[[GridCell(0.5, "0.12")] * 12] * 2, across="head", ends=("0", "1"), groups=[("g", 12)]),
    "square grid": Grid(title="Mask", rows=[str(i) for i in range(64)], columns=[str(i) for i in range(64)],
                        across="key", cells=[[GridCell(0.5)] * 64] * 64, is_square=True, ends=("0", "1")),
    "bars": Bars(title="Parts", bars=[Bar("a", -2.0, "-2"), Bar("b" * 200, 1.0, "1" * 200, 0.5, 1.5), Bar("c", None)]),
    "plane": Plane(title="Circle", squares=[square(words=[(1.0, 1.0, "x1")])],
                   names=[("token 0", 0), ("token 1", "#123456")]),
    "three squares": Plane(
        title="Circles", squares=[square(name="a name " * 30, note="a note " * 30) for _ in range(3)],
        names=[("name " * 40, at) for at in range(6)], notes=["a note " * 40],
    ),
    "crowded rings": Plane(title="Rings", squares=[square(rings=[(at / 50, str(at)) for at in range(100)])]),
}  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_every_text_is_on_the_paper_and_no_two_touch(name: str) -> None:
    root = read(PICTURES[name])
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = [(one.text, box(one)) for one in still_texts(root)]
    for words, (left, top, right, bottom) in boxes:
        assert left >= -1, words
        assert top >= -1, words
        assert right <= width + 1, words
        assert bottom <= height, words
    for at, (words, one) in enumerate(boxes):
        for other_words, other in boxes[at + 1 :]:
            apart = (
                one[2] <= other[0]
                or other[2] <= one[0]
                or one[3] <= other[1] + 0.5
                or other[3] <= one[1] + 0.5
            )
            assert apart, (words, other_words)


@pytest.mark.parametrize(
    "picture",
    [
        panel(title=HOSTILE, notes=[HOSTILE], value=HOSTILE, across=HOSTILE, marks=[(1, HOSTILE)]),
        Panel(
            title="a", lines=[Line(name=HOSTILE, points=[Point(0, 0.0, HOSTILE), Point(1, -1.0, HOSTILE)])]
        ),
        Grid(
            title=HOSTILE,
            rows=[HOSTILE],
            columns=[HOSTILE],
            cells=[[GridCell(0.1, HOSTILE, HOSTILE)]],
            ends=(HOSTILE, ""),
        ),
        Bars(title=HOSTILE, bars=[Bar(HOSTILE, 1.0, HOSTILE, tip=HOSTILE)], value=HOSTILE),
        Plane(
            title=HOSTILE,
            squares=[
                square(
                    name=HOSTILE,
                    note=HOSTILE,
                    spots=[Spot(0.0, 0.0, HOSTILE, HOSTILE)],
                    words=[(0.0, 1.0, HOSTILE)],
                )
            ],
            names=[(HOSTILE, HOSTILE)],
            notes=[HOSTILE],
        ),
    ],
)
def test_whatever_text_comes_in_no_element_comes_out(picture) -> None:
    known = {"svg", "style", "rect", "g", "path", "circle", "text"}
    assert {one.tag.removeprefix(SVG) for one in read(picture).iter()} <= known
    assert "\x1b" not in to_svg(picture)


def test_points_stand_where_the_axis_says() -> None:
    root = read(
        Panel(title="a", lines=[Line(name="", points=[Point(0, 0.0), Point(1, -1.0), Point(2, -3.0)])])
    )
    dots = [one for one in root.iter(f"{SVG}circle") if one.attrib["r"] == "3.1"]
    assert len(dots) == 3
    x, y = ([float(dot.attrib[name]) for dot in dots] for name in ("cx", "cy"))
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)
    assert (y[2] - y[0]) / (y[1] - y[0]) == pytest.approx(
        3.0, rel=0.02
    )  # places are written with one decimal


def test_what_is_not_above_its_floor_is_hollow_and_what_is_beyond_the_axis_is_a_triangle() -> None:
    points = [Point(0, 0.0), Point(1, -1.0, hollow=True), Point(2, -400.0)]
    root = read(Panel(title="a", lines=[Line(name="", points=points)], inside=[0.0, -2.0]))
    holes = [one for one in root.iter(f"{SVG}circle") if "hole" in one.attrib.get("class", "")]
    assert len(holes) == 1
    assert len([one for one in root.iter(f"{SVG}path") if "h8l-4" in one.attrib["d"]]) == 1


def test_where_every_place_has_a_name_no_number_stands_between_them() -> None:
    dots = [Point(x, 0.5) for x in (1, 3, 7)]
    names = [(1, "1 x 42"), (3, "3 x 24"), (7, "7 x 16")]

    def below(places) -> set[str]:
        root = read(Panel(title="a", lines=[Line(name="", points=dots)], places=places, along="log"))
        texts = still_texts(root)
        bottom = (
            max(float(one.attrib["y"]) for one in texts if one.attrib.get("text-anchor") == "middle") - 18
        )
        return {str(one.text) for one in texts if float(one.attrib["y"]) == pytest.approx(bottom, abs=0.1)}

    assert below(names) == {"1 x 42", "3 x 24", "7 x 16"}
    assert below(names[:1]) == {"1 x 42", "2", "4"}  # powers of two up to the last place without a name


def test_the_band_of_a_point_alone_is_a_bar() -> None:
    lone, pair = Point(2, 0.5, low=0.2, high=0.7), [Point(0, 0.5), Point(1, 0.6)]
    lines = [Line(name="", points=[lone]), Line(name="", points=pair)]
    root = read(Panel(title="a", lines=lines, scale="linear", inside=[0.0, 1.0]))
    (bar,) = [one.attrib["d"] for one in root.iter(f"{SVG}path") if one.attrib.get("stroke-width") == "5"]
    x, top, bottom = map(float, re.fullmatch(r"M(\S+) (\S+)V(\S+)", bar).groups())
    dot = next(one for one in root.iter(f"{SVG}circle") if float(one.attrib["cx"]) == x)
    # 0.5 stands two fifths of the way down from 0.7 to 0.2; places are written with one decimal
    assert (float(dot.attrib["cy"]) - top) / (bottom - top) == pytest.approx(0.4, abs=0.01)


def test_a_curve_is_broken_where_there_is_no_number() -> None:
    points = [Point(0, 0.0), Point(1, -1.0), Point(2, None), Point(3, -1.0), Point(4, -2.0)]
    root = read(Panel(title="a", lines=[Line(name="", points=points)]))
    curves = [one.attrib["d"] for one in root.iter(f"{SVG}path") if one.attrib.get("stroke-width") == "1.8"]
    assert [way.count("L") for way in curves] == [1, 1]


@pytest.mark.parametrize(
    "picture", [Panel(title="a", lines=[]), Panel(title="a", lines=[Line(name="b", points=[Point(0, None)])]),
                Grid(title="a", rows=[], columns=[], cells=[]), Bars(title="a", bars=[])]
)  # fmt: skip
def test_a_picture_without_numbers_says_so(picture) -> None:
    assert re.search("There is no (number|cell) to draw", to_svg(picture))


def test_tips_can_be_reached_by_keyboard_and_say_every_value() -> None:
    root = read(panel(lines=2, points=4))
    columns = [one for one in root.iter(f"{SVG}g") if one.attrib.get("class") == "col"]
    assert len(columns) == 4
    assert all(one.attrib["tabindex"] == "0" for one in columns)
    assert "line 1" in columns[2].attrib["aria-label"]
    assert "line 2" in columns[2].attrib["aria-label"]
    assert 'class="col"' not in to_svg(panel(), tips=False)


def test_a_plane_has_one_unit_and_spots_stand_in_it() -> None:
    spots = [
        Spot(0.0, 0.0, "middle"),
        Spot(1.0, 0.0, "right", 1),
        Spot(0.0, 1.0, "up", 2, "ring"),
        Spot(3.0, 0.0),
    ]
    root = read(Plane(title="a", squares=[square(spots=[*spots, Spot(-1.0, -1.0, shape="cross")], rings=[])]))
    dots = [one for one in root.iter(f"{SVG}circle") if one.attrib["r"] == "3.6"]
    (x0, y0), (x1, y1), (x2, y2) = [(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in dots]
    disk = next(one for one in root.iter(f"{SVG}circle") if one.attrib.get("stroke-width") == "1.3")
    unit = float(disk.attrib["r"])
    # places are written with one decimal
    assert (x1 - x0, y1 - y0) == pytest.approx((unit, 0.0), abs=0.2)
    assert (x2 - x0, y2 - y0) == pytest.approx((0.0, -unit), abs=0.2)
    assert (float(disk.attrib["cx"]), float(disk.attrib["cy"])) == pytest.approx((x0, y0), abs=0.2)
    assert [("hole" in one.attrib.get("class", "")) for one in dots] == [False, False, True]
    tips = [one.attrib["aria-label"] for one in root.iter(f"{SVG}g") if one.attrib.get("class") == "col"]
    assert [one.split(". ")[1] for one in tips] == ["middle", "right", "up"]


def test_spots_that_touch_speak_together_and_very_many_do_not_fill_the_file() -> None:
    together = Plane(title="a", squares=[square(spots=[Spot(0.5, 0.5, f"token {at}") for at in range(5)])])
    assert str(to_svg(together)).count('class="col"') == 1
    many = [Spot(-2 + 4 * (at % 60) / 59, -2 + 4 * (at // 60) / 59, "token") for at in range(3600)]
    assert str(to_svg(Plane(title="a", squares=[square(spots=many)]))).count('class="col"') == MOST_SPOTS


def test_a_way_without_numbers_is_left_out() -> None:
    lost = PlaneLine([(float("nan"), 0.0), (float("inf"), 1.0)], 1)
    assert "nan" not in to_svg(Plane(title="a", squares=[square(ways=[lost])]))
    assert "There is nothing to draw" in to_svg(Plane(title="a", squares=[]))


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=2, max_size=30))
def test_a_thinned_line_passes_near_every_point(line) -> None:
    kept = points_to_keep(line, 0.05)
    assert (kept[0], kept[-1]) == (0, len(line) - 1)
    for at, (x, y) in enumerate(line):
        before, after = (line[max(k for k in kept if k <= at)], line[min(k for k in kept if k >= at)])
        shares = [k / 2000 for k in range(2001)]
        away = min(
            ((1 - t) * before[0] + t * after[0] - x) ** 2 + ((1 - t) * before[1] + t * after[1] - y) ** 2
            for t in shares
        )
        assert away**0.5 <= 0.05 + 2e-3  # the grid of shares is that coarse


def test_files(tmp_path) -> None:
    chart = Chart([panel(), PICTURES["bars"]])
    assert chart.save(tmp_path / "a.svg").read_text().startswith("<svg")
    assert chart.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert chart._repr_svg_() == str(chart.svg())
    with pytest.raises(ConfigError, match=r"cannot be written as \.pdf; use one of \.svg, \.png"):
        chart.save(tmp_path / "a.pdf")


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6))
def test_axes_hold_their_values_in_order(values: list[float]) -> None:
    for axis in (linear_axis(values), log_axis(values)):
        places = [axis.at(value) for value in sorted(values)]
        assert places == sorted(places)
        assert not any(axis.is_beyond(value) for value in values)
        ticks = [place for place, _ in axis.ticks]
        assert ticks == sorted(ticks)
        assert len({words for _, words in axis.ticks}) == len(ticks)
        assert all(0.0 <= place <= 1.0 for place in ticks)
        assert len(ticks) <= 24


def test_a_named_place_has_its_name_in_place_of_a_number() -> None:
    made = Panel(title="a", lines=[Line(name="", points=[Point(0, 0.0), Point(1, -1.0), Point(2.5, -2.0)])],
                 places=[(2.5, "final")])  # fmt: skip
    root = read(made)
    below = [one.text for one in still_texts(root) if one.attrib.get("text-anchor") == "middle"]
    assert below == ["0", "1", "final", "layer"]
    labels = [one.attrib["aria-label"] for one in root.iter(f"{SVG}g") if "aria-label" in one.attrib]
    assert [one.partition(".")[0] for one in labels] == ["layer 0", "layer 1", "final"]


def test_a_shade_fills_everything_below_its_line() -> None:
    floor = Line(name="floor", points=[Point(0, -1.0), Point(1, -2.0)], shade=True, dots=False)
    root = read(Panel(title="a", lines=[floor, Line(name="a", points=[Point(0, 0.0)])]))
    (way,) = [one.attrib["d"] for one in root.iter(f"{SVG}path") if "fill-opacity" in one.attrib]
    places = [(float(x), float(y)) for x, y in re.findall(r"(\d+\.\d) (\d+\.\d)", way)]
    bottom = max(float(y) for y in re.findall(r"V(\d+\.\d)", way))
    (start, first), *drawn = places
    assert first == bottom  # from the axis below
    assert way.endswith(f"V{bottom:.1f}Z")  # and back to it
    assert start <= drawn[0][0]
    assert drawn[0][1] < drawn[1][1] < bottom  # the higher floor stands higher


def test_many_cells_have_plain_tips_so_that_files_stay_small() -> None:
    def grid(rows: int) -> Grid:
        return Grid(title="a", rows=[str(i) for i in range(rows)], columns=["0"] * 10, across="head",
                    cells=[[GridCell(0.5, "0.5", "half")] * 10] * rows)  # fmt: skip

    few, many = read(grid(MOST_BOARDS // 10)), read(grid(MOST_BOARDS // 10 + 1))
    assert sum("tabindex" in one.attrib for one in few.iter()) == MOST_BOARDS
    assert not any("tabindex" in one.attrib for one in many.iter())
    titles = [one.text for one in many.iter(f"{SVG}title")]
    assert len(titles) == MOST_BOARDS + 10
    assert titles[0] == "layer 0, head 0: half"
    assert len(str(to_svg(grid(200)))) < 600_000


def test_feet_and_groups_of_a_grid_are_drawn() -> None:
    root = read(PICTURES["broad grid"])
    texts = [one.text for one in still_texts(root)]
    assert texts.count("dark") == 2
    assert texts.count("1e-5") == 32
    assert sum("a name of" in (one or "") for one in texts) == 8


def test_pictures_of_several_widths_stand_side_by_side() -> None:
    text = str(Chart([panel(width=400), panel(width=500)]).svg())
    assert 'width="1000"' in text
    assert "translate(500 0)" in text
    assert text.count('class="chart narrow"') == 2
    below = str(Chart([panel(width=400), panel(width=700)]).svg())  # one that is broad stands alone
    assert '<svg xmlns="http://www.w3.org/2000/svg" width="700"' in below
    assert 'class="chart broad"' in below


def test_lines_without_a_name_take_no_room_for_one() -> None:
    lines = [Line(name="", points=[Point(x, -float(at * x)) for x in range(3)]) for at in range(60)]
    bare, named = (
        float(read(panel(lines=n) if n else Panel(title="a", lines=lines)).attrib["height"]) for n in (0, 3)
    )
    assert bare == named
    assert "more lines" not in str(to_svg(Panel(title="a", lines=lines)))
    assert "and 20 more lines" in str(to_svg(panel(lines=60)))


def test_along_a_broad_axis_stand_powers_of_ten() -> None:
    root = read(PICTURES["1e170 steps"])
    places = {
        one.text: float(one.attrib["x"])
        for one in still_texts(root)
        if one.attrib.get("text-anchor") == "middle"
    }
    assert [f"1e{power}" for power in range(20, 170, 20)] == [
        name for name in places if name.startswith("1e")
    ]
    gaps = [places[f"1e{power + 20}"] - places[f"1e{power}"] for power in range(20, 160, 20)]
    assert max(gaps) - min(gaps) < 0.11  # places are written with one digit behind the point


def test_narrow_pictures_fill_the_width_of_two() -> None:
    text = str(Chart([panel(width=300) for _ in range(6)]).svg())
    assert 'width="1200"' in text
    assert "translate(900 0)" in text
    assert text.count("translate(0 ") == 2


def test_cells_of_a_square_grid_are_square() -> None:
    cells = [
        one for one in read(PICTURES["square grid"]).iter(f"{SVG}rect") if one.find(f"{SVG}title") is not None
    ]
    assert len(cells) == 64 * 64
    assert {one.attrib["width"] == one.attrib["height"] for one in cells} == {True}


def test_a_shade_reaches_half_a_place_beyond_both_ends() -> None:
    """Of points 1 to 3 on an axis from 0 to 4 the shade goes from 0.5 to 3.5."""
    line = Line(name="", points=[Point(x, 1.0) for x in (1, 2, 3)], shade=True)
    ends = Line(name="", points=[Point(0, 2.0), Point(4, 2.0)])
    root = read(Panel(title="t", lines=[line, ends], scale="linear"))
    (way,) = [one.attrib["d"] for one in root.iter(f"{SVG}path") if "fill-opacity" in one.attrib]
    start, first, *_, last = (float(x) for x, _ in re.findall(r"(\d+\.\d) (\d+\.\d)", way))
    end = max(float(x) for x in re.findall(r"H(\d+\.\d)", way))
    half = (last - first) / 4
    assert first - start == pytest.approx(half, abs=0.2)  # coordinates are written to 0.1
    assert end - last == pytest.approx(half, abs=0.2)


def test_notes_of_a_chart_are_drawn_without_a_title_too() -> None:
    panel = Panel(
        title="t", lines=[Line(name="", points=[Point(0, 1.0), Point(1, 2.0)])], value="v", across="x"
    )
    assert "a note of the whole chart" in str(Chart([panel], notes=["a note of the whole chart"]).svg())


# marks


def test_labels_of_marks_never_meet() -> None:
    points = [Point(step, 0.5 + 0.1 * (step % 2)) for step in range(60)]
    marks = [
        (10.0, "collapsing"),
        (10.0, "logits"),
        (11.0, "massive token"),
        (55.0, "growth"),
        (58.0, "x" * 80),
    ]
    panel = Panel(title="t", lines=[Line(name="", points=points)], scale="linear", marks=marks)
    svg = str(to_svg(panel))
    found = [
        (float(x), float(y), "end" if "end" in rest else "start", words)
        for x, y, rest, words in re.findall(r'<text[^>]*x="([\d.]+)" y="([\d.]+)"([^>]*)>([^<]*)</text>', svg)
        if words[:4] in {words[:4] for _, words in marks}
    ]
    assert len(found) == len(marks)
    boxes = []
    for x, y, way, words in found:
        wide = 0.5 * 10.5 * len(words)
        boxes.append((x - wide, x, y) if way == "end" else (x, x + wide, y))
    for at, (low, high, y) in enumerate(boxes):
        for other_low, other_high, other_y in boxes[:at]:
            assert abs(y - other_y) >= 10 or high < other_low or other_high < low, (found[at], boxes)


@pytest.mark.parametrize("value", [1e-9, 0.007, 0.7, 1.0, 3.14, 120.0, 4e7])
@pytest.mark.parametrize("spread", [1.0, 1.001, 1.1, 1.3, 2.0, 6.0])
def test_a_logarithmic_axis_always_says_where_values_are(value: float, spread: float) -> None:
    """Two ticks or more, also where all values are nearly the same."""
    axis = log_axis([math.log10(value), math.log10(value * spread)])
    assert len(axis.ticks) >= 2
    assert len({text for _, text in axis.ticks}) == len(axis.ticks)
    for place, text in axis.ticks:
        shown = axis.low + place * (axis.high - axis.low)
        assert math.log10(float(text)) == pytest.approx(shown, abs=2e-3)


def test_the_tip_of_a_bar_is_what_was_given_and_its_text_where_nothing_was() -> None:
    bars = Bars(title="t", bars=[Bar("a", 1.0, "one", tip="what a is"), Bar("b", 2.0, "two")])
    labels = re.findall(r'aria-label="([^"]*)"', str(to_svg(bars)))
    assert [one for one in labels if one.startswith("a")] == ["a. what a is"]
    assert [one for one in labels if one.startswith("b")] == ["b. two"]


def test_a_line_is_gray_exactly_where_it_may_be_rounding() -> None:
    """Three pieces: seen, rounding, seen; a piece shares its ends with its neighbours."""
    points = [Point(x, float(x), faint=2 <= x <= 4) for x in range(7)]
    svg = str(to_svg(Panel(title="t", lines=[Line(name="", points=points)], scale="linear")))
    curves = [one for one in re.findall(r'<path[^>]*fill="none"[^>]*>', svg) if " L" in one or "L" in one]
    assert len([one for one in curves if 'class="s' in one]) == 2, curves
    assert len([one for one in curves if 'class="s' not in one]) == 1, curves
