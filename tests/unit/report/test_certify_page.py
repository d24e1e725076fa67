"""The report about a certificate: verdict first, every bound of every layer, nothing from outside that runs."""

import pytest

from kit import certify_tables as made
from kit.html_reader import Reader
from rankscope.report.certify_page import certify_page
from rankscope.results.certify_lines import bound_lines

COMMAND = f"rankscope certify {made.HOSTILE}"


TABLES = {
    "collapsing": (made.collapsing(),),
    "one_layer": (made.collapsing(layers=1),),
    "standing": (made.standing_still(),),
    "lost": (made.lost_midway(),),
}


def table_of(*certificates, **more):
    return made.table_from(*certificates, definitions=("residual[composite,mean]",), **more)


def page_of(table, **more):
    return certify_page(table, **({"title": "What is proven", "command": "rankscope certify gpt2"} | more))


@pytest.fixture(scope="module")
def pages():
    return {name: page_of(table_of(*certificates)) for name, certificates in TABLES.items()}


@pytest.mark.parametrize("name", list(TABLES))
def test_every_kind_of_table_makes_a_whole_page(name, pages):
    read = Reader(pages[name])
    assert read.open == []
    assert read.handlers == []
    assert {tag for tag, _ in read.elements}.isdisjoint({"script", "iframe", "object", "form"})
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for link in read.of("a"):
        assert link["href"][1:] in ids
    assert all(image["src"].startswith("data:image/svg+xml;base64,") for image in read.of("img"))
    assert "default-src 'none'" in read.of("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("collapsing", "Collapse is proven"),
        ("one_layer", "An upper bound is proven"),
        ("standing", "A lower bound is proven"),
        ("lost", "Nothing is proven of the last layer"),
    ],
)
def test_the_verdict_comes_first(name, headline, pages):
    table, words = table_of(*TABLES[name]), Reader(pages[name]).words
    parts = [headline, *table.sections["finding"]["words"], "Picture", "Layer by layer", "Provenance"]
    places = [words.find(part, 0 if part == headline else words.find(headline)) for part in parts]
    assert -1 not in places
    assert places == sorted(places)


def test_every_bound_of_every_layer_is_told_and_what_failed():
    table = table_of(made.standing_still(), made.standing_still(), made.lost_midway(layers=4))
    words = Reader(page_of(table)).words
    for line in bound_lines(table.sections["bounds"]):
        assert " ".join(line) in words
    assert f"4 certificate: {made.LOST}" in words
    assert "1-4 dong-2.3: logits below 1.256" in words
    assert "2 8 Blocks prove nothing beyond layer 3" in words
    assert "Printed bound: Dong, Cordonnier, Loukas (2021), Theorem 2.3" in words


def test_names_from_outside_stay_text():
    hostile = table_of(made.standing_still(), model=made.HOSTILE, warnings=[made.HOSTILE])
    text = page_of(hostile, title=made.HOSTILE, command=COMMAND)
    assert "<script" not in text
    assert "onerror=alert(2)>" not in text.replace("&gt;", "")
    assert Reader(text).words.count("alert(1)") >= 3
