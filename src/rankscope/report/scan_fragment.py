"""A scan as a small piece of HTML for notebooks: verdict, a tiny curve, a table of layers. No script."""

from collections.abc import Sequence

from rankscope.plots.markup import Fragment, joined, tag
from rankscope.plots.scan_axes import means
from rankscope.plots.scan_entries import (
    FINAL,
    Entry,
    clipped,
    full_label,
    marked,
    number,
    of_stack,
    scan_entries,
    stacks_of,
)
from rankscope.plots.scan_panels import Line, headline, in_words
from rankscope.plots.sparkline import sparkline
from rankscope.plots.style import PALETTE
from rankscope.report.common import UNPRINTABLE
from rankscope.report.scan_verdict import BAD, GOOD, LOOK, UNKNOWN, StackVerdict, model_verdict
from rankscope.results import UNRESOLVED_MARK, Table

LAYERS_SHOWN = 40

SIGNS = {GOOD: ("✓", "#0b6b43"), BAD: ("▼", "#b3400a"), LOOK: ("◆", "#7a5200"), UNKNOWN: ("?", "#55606e")}

SHOWN = (
    "residual_ratio[frobenius,mean]",
    "residual_ratio[frobenius,mean,unit]",
    "cosine[off_diagonal]",
    "effective_rank[entropy]",
    "effective_rank[entropy,centered]",
)


def scan_summary_html(table: Table) -> str:
    """Verdict in words, then per stack its curve and at most 40 of its layers; works without JavaScript."""
    entries = scan_entries(table)
    verdict = model_verdict(table)
    by_stack = {one.stack: one for one in verdict.stacks}
    known = table.frame["model"].drop_nulls()
    model = (
        [tag("p", tag("bdi", clipped(str(known[0]), 160)), style="margin:0;opacity:.75")]
        if len(known)
        else []
    )
    stacks = stacks_of(entries)
    pieces = [_stack(of_stack(entries, one), one, by_stack.get(one), len(stacks) > 1) for one in stacks]
    whole = tag(
        "div",
        *model,
        _headline(verdict.kind, verdict.name, "1.15em"),
        tag("p", verdict.words, style="margin:.2em 0 .6em;max-width:48em"),
        *pieces,
        style="overflow-wrap:anywhere",
    )
    return UNPRINTABLE.sub("\ufffd", whole)


def _headline(kind: str, name: str, size: str) -> Fragment:
    sign, color = SIGNS[kind]
    style = f"margin:0;font-size:{size};font-weight:600;background:#fff;color:{color};display:inline-block"
    return tag("p", f"{sign} ", tag("bdi", name), style=style)


def _stack(entries: list[Entry], name: str, verdict: StackVerdict | None, is_named: bool) -> Fragment:
    heading = [tag("p", tag("b", tag("bdi", clipped(name))), style="margin:.8em 0 .1em")] if is_named else []
    if is_named and verdict:
        heading.append(_headline(verdict.kind, verdict.name, "1em"))
    if not entries:
        return joined(*heading)
    panel = headline(entries)
    keys = [
        tag("span", tag("b", "— " if place == 0 else "- - ", style=f"color:{PALETTE[place]}"), _ends(line))
        for place, line in enumerate(panel.lines[: len(PALETTE)])
    ]
    return tag(
        "div",
        *heading,
        tag("p", f"{panel.title} by layer: ", *keys, style="margin:.2em 0", title=in_words(panel)),
        sparkline(panel),
        _layers(entries, verdict),
    )


def _ends(line: Line) -> str:
    """The line with its first and its last number."""
    found = means(entry for entry in line.entries if entry.site != FINAL)
    return f"{line.name}" + (f" {number(found[0])} → {number(found[-1])}  " if found else "  ")


def _layers(entries: list[Entry], verdict: StackVerdict | None) -> Fragment:
    blocks = [entry for entry in entries if entry.site == "block"]
    found = {(entry.layer, entry.definition): entry for entry in blocks}
    shown = [one for one in SHOWN if any(entry.definition == one for entry in blocks)]
    layers = sorted({entry.layer for entry in blocks})
    kept = thinned(layers)
    names = {one.layer: one.name for one in verdict.layers} if verdict else {}
    head = tag("tr", *(tag("th", text) for text in ("layer", "verdict", *map(full_label, shown))))
    body = [
        tag(
            "tr",
            tag("td", str(layer)),
            tag("td", names.get(str(layer), "")),
            *(tag("td", marked(found[layer, one]) if (layer, one) in found else "") for one in shown),
        )
        for layer in kept
    ]
    notes = [f"{len(kept)} of {len(layers)} layers shown."] if len(kept) < len(layers) else []
    if any(not entry.is_resolved for entry in blocks):
        notes.append(f"{UNRESOLVED_MARK} not above the rounding floor in every text.")
    return joined(
        tag("table", tag("thead", head), tag("tbody", *body), style="text-align:right"),
        *([tag("p", " ".join(notes), style="margin:.2em 0;opacity:.75")] if notes else []),
    )


def thinned(layers: Sequence[int]) -> list[int]:
    """At most 40 layers: all, or every k-th and the last.

    >>> thinned(range(3))
    [0, 1, 2]
    """
    if len(layers) <= LAYERS_SHOWN:
        return list(layers)
    step = -(-len(layers) // (LAYERS_SHOWN - 1))
    return list(dict.fromkeys([*layers[::step], layers[-1]]))
