"""A figure of a paper as a self-contained HTML page: the verdict point by point, the picture, notes, provenance."""

from collections.abc import Sequence

from rankscope.plots import Chart
from rankscope.plots.markup import Fragment, joined, tag
from rankscope.report.common import definitions_of, entries_of, origin_of, provenance_text, rendered
from rankscope.report.page import figure_of
from rankscope.results import UNRESOLVED_MARK, Table

Told = tuple[str, str, str, str]
"""Where a statement comes from, the statement, what was measured, and whether they agree."""


def figure_page(
    table: Table, charts: Sequence[Chart], verdict: Sequence[Told], *, title: str, source: str, command: str
) -> str:
    """The page as HTML text, made from the verdict in words and the section ``notes``; all text is escaped."""
    ids = table.frame["definition"].drop_nulls().unique(maintain_order=True).to_list()
    return rendered(
        "page.html",
        title=title,
        lead=joined(_verdict(verdict), _notes(table.sections["notes"])),
        command=command,
        facts=[f"source: {source}", f"{table.frame.height:,} numbers"],
        figures=[figure_of(chart) for chart in charts],
        summaries=[],
        mark=UNRESOLVED_MARK,
        definitions=definitions_of(table, ids),
        config=entries_of(table.provenance.get("config", {})),
        origin=origin_of(table),
        provenance=provenance_text(table),
    )


def _verdict(points: Sequence[Told]) -> Fragment:
    header = ("statement", "measured", "")
    rows = [(f"{label}: {statement}", measured, judged) for label, statement, measured, judged in points]
    top = tag("tr", joined(*(tag("th", name, scope="col") for name in header)))
    body = [tag("tr", joined(*(tag("td", cell) for cell in row))) for row in rows]
    table = tag("table", joined(tag("thead", top), tag("tbody", joined(*body))))
    return tag("section", tag("h2", "Verdict"), tag("div", table, class_="wide"))


def _notes(notes: Sequence[str]) -> Fragment:
    if not notes:
        return Fragment("")
    return tag("section", tag("h2", "Notes"), tag("ul", joined(*(tag("li", one) for one in notes))))
