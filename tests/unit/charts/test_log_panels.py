"""Layers on an axis of logarithms, and the heading over several pictures."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.charts import Bar, Bars, Chart, Line, Panel, Point
from rankscope.charts.axes import double_ticks
from rankscope.charts.svg import size_of, to_svg

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '"><script>alert(1)</script>'


def layers(*places: float, along: str = "log") -> Panel:
    return Panel(title="a", lines=[Line(name="", points=[Point(x, -x) for x in places])], along=along)


def read(markup: str) -> ET.Element:
    return ET.fromstring(markup)  # noqa: S314  # our own


def dots(panel: Panel) -> list[float]:
    return [float(one.attrib["cx"]) for one in read(to_svg(panel, tips=False)).iter(f"{SVG}circle")]


def names_below(panel: Panel) -> dict[str, float]:
    """What is written below the axis, and where."""
    texts = read(to_svg(panel, tips=False)).iter(f"{SVG}text")
    return {str(one.text): float(one.attrib["x"]) for one in texts if str(one.text).isdigit()}


def test_doubled_layers_stand_at_equal_distances() -> None:
    places = dots(layers(1, 2, 4, 8, 16))
    steps = [b - a for a, b in pairwise(places)]
    assert steps == pytest.approx([steps[0]] * 4, abs=0.2)  # places are written with one decimal
    assert steps[0] > 0
    plain = dots(layers(1, 2, 4, 8, 16, along="linear"))
    assert plain[-1] - plain[-2] == pytest.approx(
        8 * (plain[1] - plain[0]), abs=1.0
    )  # eight roundings of 0.1


def test_ticks_are_powers_of_two_below_their_layers() -> None:
    panel = layers(1, 2, 3, 24)
    below = names_below(panel)
    assert list(below) == ["1", "2", "4", "8", "16"]
    first, second, third, last = dots(panel)
    assert below["1"] == pytest.approx(first, abs=0.1)
    assert below["2"] == pytest.approx(second, abs=0.1)
    # layer 3 lies between 2 and 4 as its logarithm does
    share = (third - below["2"]) / (below["4"] - below["2"])
    assert share == pytest.approx(math.log2(3 / 2), abs=0.01)
    assert below["16"] < last
    assert "log scale" in to_svg(panel)


def test_a_single_layer_stands_in_the_middle() -> None:
    (one,) = dots(layers(7))
    assert 100 < one < 520
    assert names_below(layers(8)) == {"8": pytest.approx(dots(layers(8))[0], abs=0.1)}


def test_shades_end_with_the_axis() -> None:
    """Half a place beyond the ends has no meaning on an axis of logarithms."""
    points = [Point(1, -1.0), Point(16, -2.0)]
    root = read(to_svg(Panel(title="a", lines=[Line(name="", points=points, shade=True)], along="log")))
    (way,) = (one.attrib["d"] for one in root.iter(f"{SVG}path") if "fill-opacity" in one.attrib)
    xs = [float(x) for x in re.findall(r"[ML](\d+\.\d) ", way)] + [
        float(x) for x in re.findall(r"H(\d+\.\d)", way)
    ]
    places = [float(one.attrib["cx"]) for one in root.iter(f"{SVG}circle")]
    assert (min(xs), max(xs)) == (min(places), max(places))


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(2, 20))
def test_double_ticks_lie_inside_and_are_few(one: int, other: int, most: int) -> None:
    first, last = sorted((one, other))
    ticks = double_ticks(first, last, most)
    assert ticks == sorted(set(ticks))
    assert all(first <= tick <= last for tick in ticks)
    assert all(tick & (tick - 1) == 0 for tick in ticks)
    assert len(ticks) <= most
    factors = {b // a for a, b in pairwise(ticks)}
    assert len(factors) <= 1  # equal distances
    if len(double_ticks(first, last, 100)) <= most:
        assert ticks == [2**k for k in range(20) if first <= 2**k <= last]  # none is left out


def bars(width: int = 620) -> Bars:
    return Bars(title="Bars", bars=[Bar("a", 1.0)], width=width)


def test_a_heading_stands_over_all_pictures() -> None:
    chart = Chart([bars(), bars(), bars()], title="What is seen", notes=["a first note", "a second note"])
    root = read(str(chart.svg()))
    texts = {str(one.text): float(one.attrib["y"]) for one in root.findall(f"{SVG}text")}
    assert list(texts) == ["What is seen", "a first note", "a second note"]
    assert list(texts.values()) == sorted(texts.values())
    tops = [float(one.attrib["transform"].split()[1][:-1]) for one in root.findall(f"{SVG}g")]
    assert tops[0] == tops[1]  # two side by side
    assert min(tops) > max(texts.values())
    height = size_of(bars())[1]
    assert tops[2] == pytest.approx(tops[0] + height)
    assert float(root.attrib["height"]) == pytest.approx(tops[2] + height)
    assert root.attrib["width"] == "1240"


def test_without_a_title_nothing_moves() -> None:
    plain = read(str(Chart([bars(), bars()]).svg()))
    assert not plain.findall(f"{SVG}text")
    assert [one.attrib["transform"] for one in plain.findall(f"{SVG}g")] == [
        "translate(0 0)",
        "translate(620 0)",
    ]
    alone = Chart([bars()])
    assert str(alone.svg()) == str(to_svg(bars()))


def test_one_picture_with_a_heading_keeps_its_own_title() -> None:
    texts = [one.text for one in read(str(Chart([bars()], title="Whole").svg())).iter(f"{SVG}text")]
    assert texts[0] == "Whole"
    assert "Bars" in texts


def test_a_long_heading_is_broken_and_pushes_the_pictures_down() -> None:
    short, long = (
        read(str(Chart([bars()], title="word " * many, notes=["note " * many]).svg())) for many in (2, 80)
    )
    assert len(long.findall(f"{SVG}text")) > len(short.findall(f"{SVG}text"))
    assert float(long.attrib["height"]) > float(short.attrib["height"])
    (place,) = long.findall(f"{SVG}g")
    lowest = max(float(one.attrib["y"]) for one in long.findall(f"{SVG}text"))
    assert float(place.attrib["transform"].split()[1][:-1]) > lowest


def test_a_heading_is_escaped() -> None:
    made = str(Chart([bars()], title=HOSTILE, notes=[HOSTILE]).svg())
    assert "<script" not in made
    assert read(made).findall(f"{SVG}text")[0].text == HOSTILE
