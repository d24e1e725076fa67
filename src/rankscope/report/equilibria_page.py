"""The report about the equilibria of a system: what was found in words, pictures, tables, provenance.

One HTML file without network and script: the page forbids both to itself, and everything from outside is escaped.
"""

from collections.abc import Sequence
from typing import Any

from rankscope.plots.dynamics_chart import equilibria_charts
from rankscope.plots.markup import Fragment, joined, tag
from rankscope.plots.scan_entries import clipped
from rankscope.report.common import definitions_of, entries_of, mapping, origin_of, provenance_text, rendered
from rankscope.report.page import figure_of
from rankscope.results import UNRESOLVED_MARK, Table
from rankscope.results.equilibria_lines import (
    BASIN_HEADER,
    LIST_HEADER,
    LIST_LEGEND,
    basin_lines,
    fact_lines,
    headline,
    list_lines,
    token_lines,
    which_words,
)

MOST_EQUILIBRIA = 100
"""Equilibria that the page lists; the JSON holds all of them."""

LONGEST_WORDS = 2000


def equilibria_page(table: Table, *, title: str, command: str) -> str:
    """The page as HTML text, from the sections of the table alone."""
    ids = table.frame["definition"].drop_nulls().unique(maintain_order=True).to_list()
    return rendered(
        "page.html",
        title=clipped(title, 200),
        command=command,
        facts=_facts(table),
        lead=_lead(table),
        figures=[figure_of(chart) for _, chart in equilibria_charts(table)],
        summaries=[],
        mark=UNRESOLVED_MARK,
        definitions=definitions_of(table, ids),
        config=_shortened(entries_of(table.provenance.get("config", {}))),
        origin=origin_of(table),
        provenance=provenance_text(table),
    )


def _shortened(entries: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Values that fit a page; the provenance holds them whole."""
    return [(name, clipped(value, LONGEST_WORDS)) for name, value in entries]


def _facts(table: Table) -> list[str]:
    told = mapping(table.sections.get("system"))
    facts = [f"X \N{LEFTWARDS ARROW} norm(A X W): {clipped(headline(told), LONGEST_WORDS)}"]
    return [*facts, clipped(str(told["note"]), LONGEST_WORDS)] if told.get("note") else facts


def _lead(table: Table) -> Fragment:
    told, config = table.sections, mapping(table.provenance.get("config"))
    pieces = [_equilibrium(told.get("equilibrium"), config.get("rank"))]
    basins = mapping(told.get("basins"))
    if basins.get("shares"):
        words = f"Where {basins['starts']:,} random starts are after at most {basins['steps']:,} steps."
        pieces.append(_section("Random starts", tag("p", words), _table(BASIN_HEADER, basin_lines(basins))))
    found = told.get("equilibria") or []
    if len(found) > 1:
        lines = _table(LIST_HEADER, list_lines(found, told.get("equilibrium"), MOST_EQUILIBRIA))
        pieces.append(_section("All equilibria", lines, tag("p", LIST_LEGEND, class_="note")))
    notes = [tag("li", clipped(str(one), LONGEST_WORDS)) for one in told.get("notes") or []]
    if notes:
        pieces.append(_section("Notes", tag("ul", joined(*notes))))
    return joined(*pieces)


def _equilibrium(one: dict[str, Any] | None, rank: int | None) -> Fragment:
    if one is None:
        return _section("No equilibrium was found", tag("p", "How the starts ended is below."))
    pairs = [
        joined(tag("dt", name), tag("dd", clipped(words, LONGEST_WORDS))) for name, words in fact_lines(one)
    ]
    return _section(
        which_words(one, rank).capitalize(),
        tag("dl", joined(*pairs), class_="pairs"),
        _table(*token_lines(one)),
    )


def _section(title: str, *content: Fragment) -> Fragment:
    return tag("section", tag("h2", title), *content)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Fragment:
    top = tag("tr", joined(*(tag("th", name, scope="col") for name in header)))
    body = [tag("tr", joined(*(tag("td", cell) for cell in row))) for row in rows]
    whole = tag("table", joined(tag("thead", top), tag("tbody", joined(*body))))
    return tag("div", whole, class_="wide", tabindex=0, role="region", aria_label=str(header[0]))
