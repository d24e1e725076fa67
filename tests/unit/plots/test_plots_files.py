"""Figures are saved atomically, work offline, and nothing in them can run."""

import json
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from rankscope.errors import FileError
from rankscope.plots import FIGURE_FORMATS, save_figure, svg
from rankscope.plots.backend import alt
from rankscope.plots.style import configured, look

HOSTILE = "</script><script>alert(1)</script>"


def chart_of(variant="san", layers=3):
    """A line over layers."""
    rows = [{"variant": variant, "layer": layer, "value": 0.5} for layer in range(layers)]
    line = alt.Chart(alt.Data(values=rows)).mark_line().encode(x="layer:Q", y="value:Q", color="variant:N")
    return configured(line.properties(description="Curves over layers."))


class Elements(HTMLParser):
    """All elements of a page as a browser finds them: what stands inside a script is not one."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, attrs))


def test_the_page_works_offline_and_holds_the_data(tmp_path):
    save_figure(chart_of(HOSTILE), tmp_path / "f.html")
    page = (tmp_path / "f.html").read_text()
    found = Elements()
    found.feed(page)
    assert [tag for tag, _ in found.seen if tag in ("script", "link", "img", "iframe")] == [
        "script",
        "script",
    ]
    assert not [name for _, attributes in found.seen for name, _ in attributes if name in ("src", "href")]
    assert "\\u003c/script>\\u003cscript>alert(1)" in page
    assert 'role="img" aria-label="Curves over layers."' in page
    assert len(page) > 400_000  # the drawing code itself is inside


def test_the_chart_is_saved_as_it_is(tmp_path):
    save_figure(chart_of(), tmp_path / "f.json")
    assert json.loads((tmp_path / "f.json").read_text()) == chart_of().to_dict()


def test_the_svg_holds_text_and_no_scripts(tmp_path):
    save_figure(chart_of(HOSTILE), tmp_path / "F.SVG")
    drawn = (tmp_path / "F.SVG").read_text()
    assert drawn == svg(chart_of(HOSTILE))
    assert drawn.startswith("<svg")
    assert "<script" not in drawn


@pytest.mark.parametrize("name", ["f.gif", "f", "f.pdf"])
def test_an_unknown_extension_lists_the_known_ones(tmp_path, name):
    with pytest.raises(FileError, match=f"known formats: {', '.join(FIGURE_FORMATS)}"):
        save_figure(chart_of(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(FileError, match="there is no folder"):
        save_figure(chart_of(), tmp_path / "none" / "f.svg")


def test_hundreds_of_series_still_differ():
    marks = look([str(i) for i in range(280)])
    looks = zip(marks.colors, map(tuple, marks.dashes), marks.shapes, strict=True)
    assert len(set(looks)) == 280


def run(code):
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)  # noqa: S603


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_a_missing_extra_names_itself(missing):
    run(
        f"import sys\nsys.modules[{missing!r}] = None\nfrom rankscope.errors import MissingExtraError\n"
        "try:\n    import rankscope.plots\nexcept MissingExtraError as error:\n"
        "    assert \"pip install 'rankscope[plots]'\" in str(error)\nelse:\n    raise AssertionError('not raised')"
    )
