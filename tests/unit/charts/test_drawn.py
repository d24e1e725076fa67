"""Pictures of other code keep their size, are drawn when they are needed, and do nothing on a page."""

import base64
import re

import pytest

from rankscope.charts import Bar, Bars, Chart, CustomPicture
from rankscope.charts.svg import size_of
from rankscope.document import Document, Figure, Section
from rankscope.document.html import to_html
from rankscope.document.text import to_text

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="{}" height="{}"><rect id="a" width="9" height="9"/></svg>'
)
HOSTILE = '"><script>alert(1)</script>'


def drawn(width: int = 900, height: int = 300, title: str = "A sphere") -> CustomPicture:
    return CustomPicture(title=title, draw=lambda: SVG.format(width, height))


def page(picture: CustomPicture) -> Document:
    return Document(title="t", command="c", blocks=[Section("Picture", [Figure(picture)])])


def test_alone_it_is_what_was_drawn() -> None:
    assert str(Chart([drawn()]).svg()) == SVG.format(900, 300)
    assert size_of(drawn()) == (900, 300)


def test_beside_others_nothing_overlaps() -> None:
    bars = Bars(title="Bars", bars=[Bar("a", 1.0)])
    whole = str(Chart([drawn(), bars, drawn(700, 200)]).svg())
    height = size_of(bars)[1]
    assert re.findall(r"translate\(([0-9. ]+)\)", whole) == ["0 0", "0 300", f"0 {300 + height:g}"]
    assert whole.startswith(f'<svg xmlns="http://www.w3.org/2000/svg" width="900" height="{500 + height:g}"')


def test_on_a_page_it_is_an_image_that_can_do_nothing() -> None:
    made = to_html(page(drawn(title=HOSTILE)))
    assert "<script" not in made
    assert 'id="a"' not in made
    source = re.search(r'<img src="data:image/svg\+xml;base64,([^"]+)" width="900" height="300"', made)
    assert source is not None
    assert base64.b64decode(source[1]).decode() == SVG.format(900, 300)


def test_a_terminal_does_not_draw() -> None:
    def draw() -> str:
        raise AssertionError("drawn for a terminal")

    picture = CustomPicture(title="A sphere", draw=draw)
    assert "sphere" not in to_text(page(picture))
    with pytest.raises(AssertionError, match="drawn for a terminal"):
        to_html(page(picture))


def test_what_is_no_picture_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="'A sphere' is no SVG"):
        size_of(CustomPicture(title="A sphere", draw=lambda: "<p>none</p>"))
