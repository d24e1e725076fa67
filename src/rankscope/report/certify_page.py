"""The report about a certificate: the verdict first, then the picture, the bounds of every layer and what failed.

One HTML file without network and script: the page forbids both to itself, and everything from outside is escaped.
"""

from typing import Any

from rankscope.plots.certify_chart import certify_charts
from rankscope.plots.certify_panels import panels_of
from rankscope.plots.scan_entries import LONGEST, clipped
from rankscope.report.common import definitions_of, entries_of, mapping, origin_of, provenance_text, rendered
from rankscope.report.page import figure_of
from rankscope.results import Table
from rankscope.results.certify_lines import LINE_HEADER, bound_lines, explain_lines, lacking_lines

LONGEST_WORDS = 2000
MOST_TEXTS = 400
"""Texts that the page lists; the JSON holds all of them."""

Pairs = list[tuple[str, str]]


def certify_page(table: Table, *, title: str, command: str) -> str:
    """The page as HTML text, from the sections of the table alone."""
    panels = panels_of(table)
    about = mapping(table.sections.get("certify"))
    explain = table.sections.get("explain") or []
    printed = mapping(table.sections.get("printed"))
    headline, tone, words = _verdict(table)
    ids = table.frame["definition"].drop_nulls().unique(maintain_order=True).to_list()
    told = [name for name in mapping(table.sections.get("definitions")) if name not in ids]
    certificate = table.sections.get("certificate") or []
    return rendered(
        "certify.html",
        title=clipped(title, 160),
        command=command,
        facts=_facts(about),
        headline=headline,
        tone=tone,
        words=words,
        notes=[_short(one) for one in [*(about.get("warnings") or []), *(table.sections.get("notes") or [])]],
        figures=[figure_of(chart) for chart in certify_charts(table)],
        several=len(certificate) > 1,
        tables=[
            (
                panel.definition,
                clipped(str(printed.get(panel.definition, "")), LONGEST_WORDS),
                LINE_HEADER,
                bound_lines(panel.entries),
            )
            for panel in panels
        ],
        lacking=[(layers, _short(words)) for layers, words in lacking_lines(table.sections["bounds"])],
        explain=explain_lines(explain) if explain else None,
        texts=_texts(certificate) if len(certificate) > 1 else [],
        definitions=_shortened([one for one in definitions_of(table, [*ids, *told]) if one[1]]),
        about=_shortened([one for one in entries_of(about) if one[0] != "warnings"]),
        config=_shortened(entries_of(table.provenance.get("config", {}))),
        origin=_shortened(origin_of(table)),
        provenance=provenance_text(table),
    )


def _verdict(table: Table) -> tuple[str, str, list[str]]:
    """Headline, color and sentences: collapse proven, its absence proven, or nothing."""
    finding = mapping(table.sections.get("finding"))
    standings = list(mapping(finding.get("definitions")).values())
    words = [_short(one) for one in finding.get("words") or []]
    first = standings[0] if standings else {}
    if first.get("collapse_layer") is not None:
        return "Collapse is proven", "bad", words
    if first.get("lower") is not None:
        return "A lower bound is proven", "good", words
    if first and not first.get("upper_vacuous"):
        return "An upper bound is proven", "look", words
    return "Nothing is proven of the last layer", "unknown", words


def _facts(about: dict[str, Any]) -> list[str]:
    facts = [clipped(str(about[name])) for name in ("model", "variant", "weights") if about.get(name)]
    texts = int(about.get("texts", 1))
    facts.append(f"{texts:,} text{'s' if texts != 1 else ''} of {float(about.get('tokens', 0)):.4g} tokens")
    seeds = int(about.get("seeds", 1))
    return [*facts, f"{seeds:,} seeds"] if seeds > 1 else facts


def _texts(certificate: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Which text, its tokens and its verdict; the seed too where there are several."""
    several = len({one["seed"] for one in certificate}) > 1
    return [
        (
            f"{one['text']}, seed {one['seed']}" if several else str(one["text"]),
            str(one["tokens"]),
            _short(" ".join(one["verdict"])),
        )
        for one in certificate[:MOST_TEXTS]
    ]


def _short(text: Any) -> str:
    return clipped(str(text), LONGEST_WORDS)


def _shortened(entries: Pairs) -> Pairs:
    """Names and values that fit a page; the provenance holds them whole."""
    return [(clipped(name, 2 * LONGEST), clipped(value, LONGEST_WORDS)) for name, value in entries]
