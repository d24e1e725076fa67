"""The page of an ablation: the usual page, with what was found in words and tables at its head."""

from collections.abc import Sequence
from typing import Any

from rankscope.plots.ablate_chart import ablate_charts, cuts_named
from rankscope.plots.markup import Fragment, joined, tag
from rankscope.report.common import UNPRINTABLE
from rankscope.report.page import page
from rankscope.results import Table
from rankscope.results.ablate_lines import blame_lines, headings, suggest_lines
from rankscope.results.tree_lines import proof_words


def ablate_page(table: Table, *, title: str, command: str) -> str:
    """The page as HTML text: findings, blame and suggestions, then figures, means per layer, provenance."""
    whole = page(cuts_named(table), ablate_charts(table), title=title, command=command)
    head = UNPRINTABLE.sub("\ufffd", str(_head(table)))
    return whole.replace("<main>", f"<main>\n{head}", 1)


def _head(table: Table) -> Fragment:
    sections = table.sections
    found = [tag("li", cut["words"]) for cut in sections["finding"]["cuts"]]
    pieces = [tag("h2", "What was found"), tag("ul", joined(*found))]
    about = sections["ablate"]
    pieces.append(tag("p", _rule(about), class_="note"))
    titles = headings(table.sections)
    for name, told in (("blame", blame_lines), ("suggest", suggest_lines)):
        if name in sections:
            pieces += [
                tag("h3", titles[name][:1].upper() + titles[name][1:]),
                tag("p", sections[name]["sentence"]),
            ]
            pieces.append(_table(*told(sections[name])))
    return tag("section", joined(*pieces))


def _rule(about: dict[str, Any]) -> str:
    proof = about["proof"]
    told = "" if proof is None else proof_words(proof)
    equal = f" {told[0].upper()}{told[1:]}." if told else ""
    warnings = "".join(f" {warning}." for warning in about["warnings"])
    return (
        f"{about['weights']} weights, {about['semantics']} semantics, {about['dtype']}; {about['special rule']}."
        f"{equal}{warnings}"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Fragment:
    top = tag("tr", joined(*(tag("th", name, scope="col") for name in header)))
    body = [tag("tr", joined(*(tag("td", cell) for cell in row))) for row in rows]
    return tag("div", tag("table", joined(tag("thead", top), tag("tbody", joined(*body)))), class_="wide")
