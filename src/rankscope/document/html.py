"""A document as one HTML file: no network, no script, everything from outside escaped.

There is one shell for all pages. Its content policy forbids scripts, frames, forms and everything that is not in the
file itself, so that names from a model or a result file cannot do anything, whatever they contain.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import cache, singledispatch
from importlib.resources import files

from markupsafe import Markup

from rankscope.charts import CustomPicture
from rankscope.charts.markup import legal, tag, void
from rankscope.charts.specs import WIDTH
from rankscope.charts.svg import PAGE_STYLE, size_of, to_svg
from rankscope.core.words import clipped, sentence
from rankscope.document.blocks import (
    Beside,
    Block,
    Cell,
    Document,
    Facts,
    Figure,
    Lines,
    Notes,
    Prose,
    Section,
    Strip,
    Tabular,
    Tone,
    Verdict,
    for_reader,
    text_of,
)

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

LONGEST = 2000
"""Letters of one text on a page; provenance holds it whole."""

WIDE = 0.15
"""A stretch of a strip that covers this share of it has room for a word."""

_RING = "M22 12a10 10 0 1 1-20 0a10 10 0 1 1 20 0"

_SIGNS = {
    "good": f"{_RING}M7.5 12.5l3 3 6-6.5",
    "bad": "M3 5l6 7 4-3 8 10M21 12.5V19h-6.5",
    "look": "M12 2.5L22 20.5H2ZM12 9.5v5M12 17.7v.1",
    "unknown": f"{_RING}M9.2 9.2a2.9 2.9 0 1 1 4.3 2.5c-1 .6-1.5 1.2-1.5 2.3M12 17.3v.1",
}
"""Strokes of the sign beside a verdict, so that it does not depend on color."""


def to_html(document: Document) -> str:
    """The document as a page."""
    sections = [one for one in for_reader(document.blocks, "html") if isinstance(one, Section)]
    if document.definitions:
        sections.append(Section("Definitions", [Facts(document.definitions)]))
    plain = [one for one in for_reader(document.blocks, "html") if not isinstance(one, Section)]
    links = [tag("a", _words(one.title), href=f"#s{at}") for at, one in enumerate(sections)]
    navigation = tag("nav", *links, tag("a", "Provenance", href="#provenance"), aria_label="sections")
    header = tag(
        "header",
        tag("p", f"rankscope {document.command}", class_="over"),
        tag("h1", _words(document.title)),
        _list(document.facts, "facts"),
        navigation,
    )
    body = [
        *map(_html, plain),
        *(_section(one, f"s{at}") for at, one in enumerate(sections)),
        _provenance(document),
    ]
    footer = Markup("")
    if document.made_by:
        made = tag("pre", tag("code", document.made_by))
        footer = tag("footer", tag("p", "Made by", class_="label"), made)
    head = tag(
        "head",
        void("meta", charset="utf-8"),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        void("meta", http_equiv="Content-Security-Policy", content=POLICY),
        void("link", rel="icon", href="data:,"),
        tag("title", document.title),
        tag("style", _style()),
    )
    page = tag("html", head, tag("body", header, tag("main", *body), footer), lang="en")
    return str(legal(f"<!doctype html>\n{page}\n"))


def to_fragment(document: Document) -> str:
    """Verdict, facts and tables, for a notebook, which brings its own style."""
    kept = [
        one for one in document.blocks if isinstance(one, Verdict | Prose | Tabular | Facts | Figure | Beside)
    ]
    found = tag("div", tag("h3", _words(document.title)), _list(document.facts, "facts"), *map(_html, kept))
    return str(legal(found))


@cache
def _style() -> Markup:
    sheet = files("rankscope.document").joinpath("style.css").read_text(encoding="utf-8")
    return Markup(f"{sheet}\n{PAGE_STYLE}")  # noqa: S704  # both are ours


@singledispatch
def _html(block: Block) -> Markup:
    raise TypeError(f"no writer knows the block {type(block).__name__}")


@_html.register
def _(block: Verdict) -> Markup:
    # A sentence that begins with the heading, as it must where there is none, need not repeat it here.
    start = f"{block.title}: "
    said = [sentence(one.removeprefix(start)) if one.startswith(start) else one for one in block.sentences]
    words = [tag("p", _words(one)) for one in said]
    heading = tag("h2", _sign(block.tone), _words(block.title))
    return tag("section", heading, *words, class_=f"verdict {block.tone}")


def _sign(tone: Tone) -> Markup:
    path = tag("path", d=_SIGNS[tone])
    return tag("svg", path, class_="sign", viewBox="0 0 24 24", aria_hidden="true")


@_html.register
def _(block: Notes) -> Markup:
    return _list(block.lines, "warnings")


@_html.register
def _(block: Prose) -> Markup:
    title = [tag("h3", _words(block.title))] if block.title else []
    return Markup("").join([*title, *(tag("p", _words(one), class_="prose") for one in block.paragraphs)])


@_html.register
def _(block: Facts) -> Markup:
    heading = tag("h3", _words(block.title)) if block.kind == "pairs" else _label(block.title)
    pairs = [(tag("dt", _words(name)), tag("dd", _words(value))) for name, value in block.pairs]
    pieces = (
        [tag("div", *pair) for pair in pairs] if block.kind == "key" else [p for pair in pairs for p in pair]
    )
    return Markup("").join([heading if block.title else Markup(""), tag("dl", *pieces, class_=block.kind)])


def _label(words: str) -> Markup:
    return tag("p", _words(words), class_="label")


@_html.register
def _(block: Strip) -> Markup:
    whole = sum(one.many for one in block.stretches)
    pieces = [
        tag(
            "li",
            *([_sign(one.tone), _words(one.where.split()[-1])] if one.many >= WIDE * whole else []),
            class_=one.tone,
            style=f"--w:{one.many}",
        )
        for one in block.stretches
    ]
    said = ", ".join(f"{one.where}: {one.words}" for one in block.stretches)
    return Markup("").join(
        [
            _label(block.title),
            tag("ol", *pieces, class_="strip", aria_hidden="true"),
            tag("p", _words(said), class_="note"),
        ]
    )


@_html.register
def _(block: Lines) -> Markup:
    return tag("pre", tag("code", "\n".join(block.lines)))


@_html.register
def _(block: Beside) -> Markup:
    sides = [tag("div", *map(_html, for_reader(side, "html"))) for side in (block.left, block.right)]
    return tag("section", *sides, class_="beside")


@_html.register
def _(block: Tabular) -> Markup:
    shown = block.shown()
    kinds = [{"name": None, "number": "number", "words": "why"}[column.kind] for column in shown.columns]
    head = [
        tag("th", _words(one.name), scope="col", class_=kind)
        for one, kind in zip(shown.columns, kinds, strict=True)
    ]
    # Columns of sentences do not fit beside each other on a phone: there every cell takes a line, after its name.
    stacked = "why" in kinds
    names = [column.name if stacked else None for column in shown.columns]
    rows = [tag("tr", *map(_cell, row, kinds, names)) for row in shown.rows]
    table = tag(
        "table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="stacked" if stacked else None
    )
    title = tag("h3", _words(block.title)) if block.title else Markup("")
    note = tag("p", _words(block.note), class_="note") if block.note else Markup("")
    label = clipped(block.title or "table")
    return Markup("").join(
        [title, note, tag("div", table, class_="wide", tabindex=0, role="region", aria_label=label)]
    )


def _cell(cell: Cell | str, kind: str | None, column: str | None) -> Markup:
    faint = isinstance(cell, Cell) and cell.faint
    classes = " ".join(filter(None, [kind, "faint" if faint else None]))
    words = _words(text_of(cell))
    if isinstance(cell, Cell) and cell.tone is not None:
        words = tag("span", _sign(cell.tone), words, class_=f"pill {cell.tone}")
    return tag("td", words, class_=classes or None, data_column=column)


@_html.register
def _(block: Figure) -> Markup:
    if not isinstance(block.picture, CustomPicture):
        return tag("figure", tag("div", to_svg(block.picture), class_="wide plain"))
    # As an image, what other code drew can neither do anything nor mix its names with those of the page.
    source = b64encode(to_svg(block.picture).encode()).decode("ascii")
    width, height = map(round, size_of(block.picture))
    words = clipped(". ".join([block.picture.title, *block.picture.notes]), 400)
    image = void("img", src=f"data:image/svg+xml;base64,{source}", width=width, height=height, alt=words)
    return tag("figure", tag("div", image, class_="wide", tabindex=0, role="region", aria_label=words))


@_html.register
def _(block: Section) -> Markup:
    """A section inside of another one, or beside others that have no place in the navigation."""
    if block.folded:
        return tag("details", tag("summary", _words(block.title)), *_pieces(block))
    return tag("div", tag("h3", _words(block.title)), *_pieces(block))


def _section(block: Section, anchor: str | None) -> Markup:
    return tag("section", tag("h2", _words(block.title), id=anchor), *_pieces(block))


def _pieces(block: Section) -> list[Markup]:
    note = tag("p", _words(block.note), class_="note") if block.note else Markup("")
    pieces, figures = list[Markup](), list[Figure]()
    for one in for_reader(block.blocks, "html"):
        if isinstance(one, Figure) and not isinstance(one.picture, CustomPicture):
            figures.append(one)
            continue
        pieces += [_side_by_side(figures)] if figures else []
        figures = []
        pieces.append(_html(one))
    pieces += [_side_by_side(figures)] if figures else []
    return [note, *pieces]


def _side_by_side(figures: list[Figure]) -> Markup:
    """Narrow pictures three abreast, others two; one that is alone, or broad, over the whole width."""
    widest = max(one.picture.width for one in figures)
    kind = "charts" if widest == WIDTH else "charts small" if widest < WIDTH else "broad"
    return tag("div", *map(_html, figures), class_=kind if len(figures) > 1 or kind != "charts" else "single")


def _provenance(document: Document) -> Markup:
    """How the page can be made again: the configuration, then versions and seeds, then everything as JSON."""
    origin = dict(document.origin)
    config, versions = origin.pop("config", None), origin.pop("versions", None)
    made = origin | dict(versions if isinstance(versions, Mapping) else {})
    boxes = [
        tag("div", _html(Facts(_pairs(values), title)))
        for title, values in (("Configuration", config), ("Made with", made))
        if isinstance(values, Mapping) and values
    ]
    whole = json.dumps(document.origin, indent=2, ensure_ascii=False, default=str)
    details = tag(
        "details",
        tag("summary", "All of the provenance as JSON"),
        tag("pre", tag("code", whole)),
        class_="long",
    )
    return tag("section", tag("h2", "Provenance", id="provenance"), tag("div", *boxes, class_="two"), details)


def _pairs(values: Mapping[str, object]) -> list[tuple[str, str]]:
    """Names and values that say something: what was left open or is an object stands in the JSON below alone."""
    return [
        (str(name), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
        for name, value in values.items()
        if not (value is None or value is False or isinstance(value, Mapping) or value in ([], ()))
    ]


def _words(text: str) -> Markup:
    """Text that keeps its direction of writing to itself, cut where it is very long."""
    return tag("bdi", text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


def _list(lines: Iterable[str], kind: str) -> Markup:
    items = [tag("li", _words(line)) for line in lines]
    return tag("ul", *items, class_=kind) if items else Markup("")
