"""The report of a scan: one HTML file with the verdict first, curves and heat maps that show their numbers on hover.

No network and no script: the page forbids both to itself, and everything from outside is escaped.
"""

from dataclasses import dataclass
from typing import Any

from rankscope.plots.heat_colors import shade_plain
from rankscope.plots.hover_chart import hover_chart
from rankscope.plots.hover_heat import head_heat, hover_heat, row_names
from rankscope.plots.hover_style import hover_style
from rankscope.plots.markup import Fragment
from rankscope.plots.scan_axes import means
from rankscope.plots.scan_entries import (
    FINAL,
    LONGEST,
    Entry,
    clipped,
    full_label,
    of_stack,
    scan_entries,
    stacks_of,
)
from rankscope.plots.scan_heat import heat_columns, largest_rank
from rankscope.plots.scan_panels import headline, site_panels
from rankscope.report.common import definitions_of, entries_of, mapping, origin_of, provenance_text, rendered
from rankscope.report.scan_verdict import LONGEST_WORDS, StackVerdict, model_verdict
from rankscope.results import UNRESOLVED_MARK, Table
from rankscope.results.tree_lines import tree_lines

COLUMNS_BESIDE = 16
"""Columns of one heat map; further definitions start another one below."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteHeat:
    """Heat maps of one site."""

    site: str
    tables: list[Fragment]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadHeat:
    """One map measure of all heads."""

    name: str
    definition: str
    table: Fragment


@dataclass(frozen=True, kw_only=True, slots=True)
class StackView:
    """All pictures of one stack, and its verdict if there is one."""

    name: str
    verdict: StackVerdict | None
    headline: Fragment
    charts: list[Fragment]
    heats: list[SiteHeat]
    heads: list[HeadHeat]


def scan_page(table: Table, *, title: str, command: str) -> str:
    """The page as HTML text, from the sections ``summary``, ``verdict``, ``scan`` and ``definitions`` of the table.

    It can be read on a phone, at a desk and in print. Rows of single texts are not in it.
    """
    entries = scan_entries(table)
    verdict = model_verdict(table)
    by_stack = {one.stack: one for one in verdict.stacks}
    stacks = [
        _stack(table, entries, stack, by_stack.get(stack), place)
        for place, stack in enumerate(stacks_of(entries))
    ]
    ids = list(dict.fromkeys(entry.definition for entry in entries))
    scan = mapping(table.sections.get("scan"))
    warnings = scan.get("warnings")
    return rendered(
        "scan.html",
        title=clipped(title, 160),
        command=command,
        facts=scan_facts(scan),
        warnings=[clipped(str(one), LONGEST_WORDS) for one in warnings] if isinstance(warnings, list) else [],
        verdict=verdict,
        stacks=stacks,
        is_single=len(stacks) == 1,
        has_heads=any(stack.heads for stack in stacks),
        texts=max((entry.texts for entry in entries), default=0),
        mark=UNRESOLVED_MARK,
        definitions=_shortened(definitions_of(table, ids)),
        tree=_tree(table),
        scan=_shortened(_scanned(table, scan)),
        config=_shortened(entries_of(table.provenance.get("config", {}))),
        origin=_shortened(origin_of(table)),
        provenance=provenance_text(table),
        hover_style=hover_style(),
    )


def scan_facts(scan: dict[str, Any]) -> list[str]:
    """What was scanned, in a few words each: family, dtype, size, texts."""
    facts = [clipped(str(scan[name])) for name in ("family", "dtype") if scan.get(name)]
    parameters, texts, tokens = (_count(scan.get(name)) for name in ("parameters", "texts", "tokens"))
    if parameters is not None:
        facts.append(f"{in_thousands(parameters)} parameters")
    if texts is not None:
        per_text = f" of {tokens:.0f} tokens" + (" on average" if texts > 1 else "") if tokens else ""
        facts.append(f"{texts:,.0f} text{'s' if texts != 1 else ''}{per_text}")
    return facts


def in_thousands(count: int | float) -> str:
    """A large count in a few letters.

    >>> in_thousands(124_439_808), in_thousands(7e9), in_thousands(512)
    ('124M', '7B', '512')
    """
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return f"{count:.0f}"


def _count(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _scanned(table: Table, scan: dict[str, Any]) -> list[tuple[str, str]]:
    """What the section ``scan`` knows, and of which loss the gradients are, if there are any."""
    gradients = entries_of(table.sections.get("gradients"))
    return [
        *((name, value) for name, value in entries_of(scan) if name != "warnings"),
        *((f"gradients, {name}", value) for name, value in gradients),
    ]


def _tree(table: Table) -> list[str]:
    """The lines of the tree, where the scan was asked for it; none where a file holds something else."""
    try:
        return [clipped(line, LONGEST_WORDS) for line in tree_lines(mapping(table.sections["tree"]))]
    except (KeyError, TypeError, ValueError):
        return []


def _shortened(entries: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names and values that fit a page; the provenance holds them whole."""
    return [(clipped(name, 2 * LONGEST), clipped(value, LONGEST_WORDS)) for name, value in entries]


def _stack(
    table: Table, entries: list[Entry], stack: str, verdict: StackVerdict | None, place: int
) -> StackView:
    own = of_stack(entries, stack)
    start = verdict.starts if verdict else None
    return StackView(
        name=stack,
        verdict=verdict,
        headline=hover_chart(headline(own), group=f"s{place}", start=start, tall=True) if own else Fragment(),
        charts=[
            hover_chart(panel, group=f"s{place}c{index}") for index, panel in enumerate(site_panels(own))
        ],
        heats=_heats(own, largest_rank(table, stack)),
        heads=_heads([entry for entry in entries if entry.stack == stack and entry.head is not None]),
    )


def _heats(entries: list[Entry], most: float | None) -> list[SiteHeat]:
    sites = [site for site in dict.fromkeys(entry.site for entry in entries) if site != FINAL]
    found = []
    for site in sites:
        columns = heat_columns(entries, site=site, most=most)
        rows = row_names([entry for column in columns for entry in column.entries.values()])
        pieces = [columns[start : start + COLUMNS_BESIDE] for start in range(0, len(columns), COLUMNS_BESIDE)]
        words = f"Means at site {clipped(site)}, a row per layer, a column per measure"
        found.append(SiteHeat(site=site, tables=[hover_heat(piece, rows, words=words) for piece in pieces]))
    return found


def _heads(entries: list[Entry]) -> list[HeadHeat]:
    found = []
    for definition in dict.fromkeys(entry.definition for entry in entries):
        own = [entry for entry in entries if entry.definition == definition]
        name = full_label(definition)
        words = f"{name}, a row per layer, a column per head"
        shade = shade_plain(own[0].measure, means(own))
        found.append(
            HeadHeat(name=name, definition=clipped(definition), table=head_heat(own, shade, words=words))
        )
    return found
