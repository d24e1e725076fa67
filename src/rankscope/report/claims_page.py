"""The findings as a self-contained HTML page."""

from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.plots.markup import Fragment, joined, tag
from rankscope.report.common import entries_of, origin_of, provenance_text, rendered
from rankscope.results import UNRESOLVED_MARK, Table


def claims_page(table: Table, *, title: str, command: str) -> str:
    """The page as HTML text: a table of verdicts, every finding whole, provenance."""
    claims = table.sections["claims"]
    wrong = sum(not one["as_expected"] for one in claims)
    facts = [f"{len(claims)} claims, {wrong} with a verdict that was not expected"]
    return rendered(
        "page.html",
        title=title,
        lead=joined(_verdicts(claims), *map(_finding, claims)),
        command=command,
        facts=facts,
        figures=[],
        summaries=[],
        mark=UNRESOLVED_MARK,
        definitions=[],
        config=entries_of(table.provenance.get("config", {})),
        origin=origin_of(table),
        provenance=provenance_text(table),
    )


def _verdicts(claims: Sequence[Mapping[str, Any]]) -> Fragment:
    rows = [
        (one["id"], told_verdict(one), one["number"]["text"], one["number"]["means"], one["title"])
        for one in claims
    ]
    body = _table(("claim", "verdict", "number", "what it is", "says"), rows)
    return tag("section", joined(tag("h2", "Verdicts"), body))


def told_verdict(one: Mapping[str, Any]) -> str:
    """The verdict, and what was expected where that is something else."""
    expected = "" if one["as_expected"] else f" (expected: {one['expected']})"
    return f"{one['verdict']}{expected}"


def _finding(one: Mapping[str, Any]) -> Fragment:
    numbers = [(number["text"], number["means"]) for number in one["numbers"]]
    numbers += [(entry["text"], entry["label"]) for entry in one["details"]]
    return tag(
        "section",
        tag("h2", one["id"]),
        tag("p", one["statement"]),
        tag("p", one["source"], class_="note"),
        tag("p", tag("b", told_verdict(one)), ". ", one["words"]),
        _table(("number", "what it is"), numbers),
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Fragment:
    top = tag("tr", joined(*(tag("th", name, scope="col") for name in header)))
    body = [tag("tr", joined(*(tag("td", cell) for cell in row))) for row in rows]
    return tag("div", tag("table", joined(tag("thead", top), tag("tbody", joined(*body)))), class_="wide")
