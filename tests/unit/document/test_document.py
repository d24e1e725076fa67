"""Documents: both writers show every block, nothing from outside becomes markup or moves a cursor."""

import re

import pytest

from kit.html_reader import Reader
from rankscope.charts import Bar, Bars, Line, Panel, Point
from rankscope.document import (
    Beside,
    Cell,
    Column,
    Document,
    Facts,
    Figure,
    Lines,
    Notes,
    Prose,
    Section,
    Strip,
    StripPiece,
    Tabular,
    Verdict,
    some,
)
from rankscope.document.html import POLICY, to_fragment, to_html
from rankscope.document.text import to_text

HOSTILE = '</style><script>alert(1)</script><img src=x onerror=y>\x1b[2J"'


def whole(words: str = "plain") -> Document:
    """A document with every kind of block, in which every text is ``words``."""
    panel = Panel(title=words, lines=[Line(name=words, points=[Point(0, 0.0, words), Point(1, -1.0, words)])])
    table = Tabular(
        columns=[Column(words, "name"), Column("number"), Column("empty", optional=True)],
        rows=[[words, Cell("1.5", faint=True), "-"], [words, "22", "-"]],
        title=words,
        note=words,
    )
    return Document(
        title=words,
        command="scan",
        facts=[words],
        blocks=some(
            Verdict(words, [words], "bad"),
            Notes([words]),
            Facts([(words, words)], words),
            table,
            Figure(panel),
            Section(words, [Figure(Bars(title=words, bars=[Bar(words, 1.0, words)])), table], note=words),
            Beside([Strip(words, [StripPiece(3, f"layers {words}", words, "look")])], [Lines([words])]),
            Section(words, [Section(words, [Facts([(words, words)], words, "figures")], folded=True)]),
            Section("for pages", [Notes(["seen in pages"])], only="html"),
            Section("for terminals", [Notes(["seen in terminals"])], only="text"),
        ),
        definitions=[(words, words)],
        origin={"config": {words: words}, "versions": {"torch": words}, "seeds": [1]},
        made_by=words,
    )


def test_text_shows_every_block_in_order_and_leaves_pictures_out() -> None:
    lines = to_text(whole("w")).splitlines()
    assert lines[:4] == ["w", "w", "", "w"]
    assert "w  number" in lines
    assert "w     1.5" in lines  # numbers stand to the right, the empty column is left out
    assert "seen in terminals" in lines
    assert "seen in pages" not in lines


def test_faint_rows_are_dimmed_on_a_terminal_alone() -> None:
    assert "\x1b[2mw     1.5\x1b[0m" in to_text(whole("w"), dims=True)
    assert "\x1b" not in to_text(whole("w"))


def test_a_page_has_every_block_and_a_link_to_every_section() -> None:
    page = to_html(whole("w"))
    read = Reader(page)
    assert POLICY in page.replace("&#39;", "'")
    links = [one["href"] for name, one in read.elements if name == "a"]
    ids = [one["id"] for name, one in read.elements if "id" in one]
    assert [link.removeprefix("#") for link in links] == ids
    assert "seen in pages" in read.words
    assert "seen in terminals" not in read.words
    assert len([name for name, one in read.elements if name == "svg" and one.get("class") == "chart"]) == 2
    assert [one.get("class") for name, one in read.elements if name == "td"][:2] == [None, "number faint"]


@pytest.mark.parametrize("made", [to_html, to_fragment, to_text])
def test_text_from_outside_stays_text(made) -> None:
    shown = made(whole(HOSTILE))
    assert "\x1b" not in shown
    if made is to_text:
        return
    names = {name for name, _ in Reader(shown).elements}
    assert not names & {"script", "img"}
    attributes = {key for _, one in Reader(shown).elements for key in one}
    assert not [key for key in attributes if key.startswith("on")]
    assert HOSTILE.replace("\x1b", "\ufffd") in Reader(shown).words or "alert(1)" in Reader(shown).words


def test_the_page_has_no_script_and_asks_for_nothing() -> None:
    page = to_html(whole())
    assert "<script" not in page
    assert not re.findall(r"(?:src|href)=\"(?!#|data:,)", page)
    assert "url(" not in page
    assert "@import" not in page


def test_blocks_that_are_not_there_are_left_out() -> None:
    one = Notes(["a"])
    assert some(one, None, False) == [one]


def test_lines_of_prose_end_between_words() -> None:
    words = [f"word{place}" for place in range(60)]
    page = Document(title="t", command="c", blocks=[Prose([" ".join(words), "second"], "1. agrees")])
    told = to_text(page)
    assert told.split() == ["t", "1.", "agrees", *words, "second"]
    assert max(map(len, told.splitlines())) <= 110
    assert all(line.startswith("   ") for line in told.splitlines()[3:])
    assert '<p class="prose"><bdi>second</bdi></p>' in to_html(page)
    apart = to_text(Document(title="t", command="c", blocks=[Prose(["first\x1b", "second"])]))
    assert apart == "t\n\nfirst?\n\nsecond\n"


def test_what_is_no_block_is_an_error() -> None:
    wrong = Document(title="a", command="scan", blocks=["text"])
    for made in (to_html, to_text):
        with pytest.raises(TypeError, match="no writer knows the block str"):
            made(wrong)


def test_key_facts_strips_and_folds() -> None:
    stretches = [StripPiece(3, "layers 0-2", "healthy", "good"), StripPiece(20, "layers 3-22", "bad", "bad")]
    page = Document(
        title="t",
        command="scan",
        blocks=[
            Verdict("Healthy", ["Healthy: tokens differ.", "encoder: more."], "good"),
            Beside(
                [
                    Facts([("starts at", "layer 3")], kind="key"),
                    Facts([("cosine", "0.5")], "Numbers", "figures"),
                ],
                [Strip("By layer", stretches)],
            ),
            Beside([Notes(["for pages alone"])], [], only="html"),
            Section(
                "Maps",
                [Section("Folded", [Lines(["a", "  b"])], folded=True), Section("Open", [Notes(["n"])])],
            ),
            Tabular(columns=[Column("verdict", "name")], rows=[[Cell("Healthy", tone="good")]]),
        ],
    )
    text = to_html(page)
    words = Reader(text).words
    assert "Healthy Tokens differ. encoder: more." in words  # the heading is not said twice
    assert '<dl class="key"><div><dt><bdi>starts at</bdi></dt>' in text
    assert '<dl class="figures">' in text
    assert re.findall(r'<li class="(\w+)" style="--w:(\d+)">', text) == [("good", "3"), ("bad", "20")]
    assert "layers 0-2: healthy, layers 3-22: bad" in words
    assert "<details><summary><bdi>Folded</bdi></summary>" in text
    assert "<pre><code>a\n  b</code></pre>" in text
    assert '<span class="pill good"><svg class="sign"' in text
    lines = to_text(page)
    assert "for pages alone" not in lines
    assert "By layer: layers 0-2: healthy, layers 3-22: bad" in lines
    assert "Healthy: tokens differ." in lines
    assert "starts at  layer 3" in lines
    assert "a\n  b" in lines


def test_what_was_left_open_is_not_among_the_pairs_of_a_configuration() -> None:
    asked = {"layers": 7, "mask": None, "split": False, "blocks": [], "seed": 0}
    page = to_html(Document(title="t", command="c", origin={"config": asked}))
    boxes = page.split("<details")[0]
    shown = {name for name in asked if f">{name}<" in boxes}
    assert shown == {"layers", "seed"}
