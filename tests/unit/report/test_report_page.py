"""The page tells what was run, stands alone, and escapes everything that comes from outside."""

import re
import subprocess
import sys
from base64 import b64decode
from html.parser import HTMLParser

import pytest

from rankscope.plots import description, layer_curves
from rankscope.report import page
from rankscope.results import Table

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
RATIO = "residual_ratio[composite,mean]"


def table_of(**more):
    columns = {
        "measure": "residual_ratio", "definition": RATIO, "variant": ["san"] * 4 + ["transformer"] * 4,
        "layer": [0, 0, 1, 1] * 2, "seed": [0, 1] * 4, "mask": "full", "norm": "none",
        "value": [1.0, 0.5, 1e-3, 1e-17, 1.0, 0.6, 0.9, 0.5], "floor": 1e-14,
    }  # fmt: skip
    about = {name: more.pop(name) for name in ("provenance", "sections") if name in more}
    return Table(frame=Table.from_columns(columns | more).frame, **about)


class Reader(HTMLParser):
    """Elements with their attributes, and the text outside of style elements."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def test_the_page_says_what_was_run_and_what_came_out():
    table = table_of(
        model="random",
        provenance={
            "rankscope": "0.1.0",
            "config": {"dim": 64, "masks": ["full"]},
            "versions": {"torch": "2.13"},
        },
        sections={"definitions": {RATIO: "how far tokens are from being equal"}},
    )
    read = Reader(page(table, [layer_curves(table)], title="Collapse", command="rankscope collapse --dim 64"))
    assert read.open == []
    for words in (
        "Collapse", "rankscope collapse --dim 64", "8 numbers, 1 of them not above their rounding floor",
        "variant: san, transformer", "2 seeds", "how far tokens are from being equal", "dim 64", "torch 2.13",
        "rankscope 0.1.0",
    ):  # fmt: skip
        assert words in read.words


def test_the_summary_marks_means_of_unresolved_numbers():
    text = page(table_of(), [], title="t", command="c")
    rows = re.findall(r'<tr><th scope="row">.*?</tr>', text, re.DOTALL)
    cells = [re.findall(r'<td class="([^"]*)">([^<]*)</td>', row) for row in rows]
    assert cells == [
        [("number", "7.1e-01"), ("number unresolved", "1.0e-10*")],  # geometric means
        [("number", "7.7e-01"), ("number", "6.7e-01")],
    ]


def test_every_definition_has_a_table_of_its_own():
    both = Table.concat([table_of(), table_of(definition="residual[frobenius,mean]", measure="residual")])
    read = Reader(page(both, [], title="t", command="c"))
    assert len(read.of("table")) == 2
    assert read.words.count("residual[frobenius,mean]") == 2  # over its table and among the definitions


def test_figures_are_pictures_with_words_and_their_own_size():
    chart = layer_curves(table_of())
    (image,) = Reader(page(table_of(), [chart], title="t", command="c")).of("img")
    head, data = image["src"].split(",", 1)
    drawn = b64decode(data).decode()
    assert head == "data:image/svg+xml;base64"
    assert f'width="{image["width"]}" height="{image["height"]}"' in drawn
    assert image["alt"] == description(chart)


def test_everything_from_outside_is_escaped():
    table = table_of(
        model=HOSTILE,
        variant=HOSTILE,
        mask=HOSTILE,
        definition=HOSTILE,
        provenance={HOSTILE: HOSTILE, "config": {HOSTILE: [HOSTILE]}, "versions": {HOSTILE: HOSTILE}},
        sections={"definitions": {HOSTILE: HOSTILE}},
    )
    text = page(table, [layer_curves(table)], title=HOSTILE, command=HOSTILE)
    read = Reader(text)
    assert read.of("script") == []
    assert len(read.of("img")) == 1
    assert not [name for _, attributes in read.elements for name in attributes if name.startswith("on")]
    assert HOSTILE in read.words  # shown, as text
    assert "<script" not in b64decode(read.of("img")[0]["src"].split(",", 1)[1]).decode()


def test_the_page_needs_no_network_and_no_javascript():
    table = table_of()
    text = page(table, [layer_curves(table)], title="t", command="c")
    read = Reader(text)
    addresses = [attributes.get(name, "") for _, attributes in read.elements for name in ("src", "href")]
    assert all(address.startswith("data:") for address in addresses if address)
    assert not re.search(r"url\(|@import|https?://", text)
    assert read.of("script") == read.of("link") == []
    policy = [attributes["content"] for attributes in read.of("meta") if "http-equiv" in attributes]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_the_page_fits_phones_and_paper():
    text = page(table_of(), [], title="t", command="c")
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "@media print" in text
    assert "@media (max-width" in text


@pytest.mark.parametrize(
    "provenance", [{}, {"config": "text", "versions": 3}, {"config": {"spec": {"deep": [1, {}]}}}]
)
def test_odd_or_missing_provenance_is_no_obstacle(provenance):
    assert "Provenance" in page(table_of(provenance=provenance), [], title="t", command="")


def test_an_empty_table_gives_a_page():
    read = Reader(page(Table.from_records([]), [], title="Nothing", command=""))
    assert "0 numbers" in read.words
    assert read.of("table") == []


def run(code):
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)  # noqa: S603


def test_a_missing_template_engine_names_the_extra():
    run(
        "import sys\nsys.modules['jinja2'] = None\nfrom rankscope.errors import MissingExtraError\n"
        "try:\n    import rankscope.report\nexcept MissingExtraError as error:\n"
        "    assert \"pip install 'rankscope[plots]'\" in str(error)\nelse:\n    raise AssertionError('not raised')"
    )
