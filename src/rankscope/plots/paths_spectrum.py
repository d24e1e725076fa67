"""The spectrum of paths: what all paths of each length give to the output, next to how many paths there are."""

import math
from collections.abc import Mapping
from typing import Any

from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.paths_colors import ADDS, TAKES
from rankscope.plots.paths_marks import finished, legend_on_top, length_axis, rows_chart, tips, told
from rankscope.plots.paths_sections import Length, lengths_of, name_of, places_of
from rankscope.plots.paths_sizes import has_sizes, size_panel
from rankscope.plots.paths_words import count_words, of_heads, percent, short_percent
from rankscope.plots.scan_axes import linear_ticks
from rankscope.plots.scan_entries import clipped
from rankscope.plots.style import GRAY, INK
from rankscope.results import Table

STEP, NARROWEST, WIDEST = 46, 430, 880
SHARES_HIGH, SIZES_HIGH = 250, 190
WIDEST_BAR = 40.0
LABEL_WIDTH = 34
LEAST_WRITTEN = 5e-4
"""Shares below are seen to be nothing; their number is in the note."""

NEAR_LABELS = 0.07
"""Labels of two bars that end nearer than this, relative to the largest bar of paths, run into each other."""

SHARED_AXIS = 0.3
"""Paths and shares of the output have one axis if the largest share of paths reaches this part of it."""

ADDED, TAKEN = "adds to the output", "works against it"
PATHS_FILL, PATHS_INK = "#d4d8de", "#808892"


def spectrum_chart(table: Table, *, title: str | None = None) -> Chart:
    """By length: signed shares of the output as bars, all paths of that length as gray ones, sizes below.

    Shares sum to one, so a negative one works against the output. Norm and residual (Frobenius, token mean
    subtracted) stand on a logarithmic axis. Hollow: not above the rounding floor.
    """
    return finished(spectrum_part(table, title=title))


def spectrum_part(table: Table, *, title: str | None = None) -> Any:
    """The same without settings, to be put beside other charts."""
    lengths = lengths_of(table)
    width = round(min(max(STEP * len(lengths), NARROWEST), WIDEST))
    parts = [_shares(lengths, width)]
    if has_sizes(lengths):
        parts.append(size_panel(lengths, width))
    whole: Any = alt.vconcat(*parts, spacing=16).resolve_scale(color="independent", shape="independent")
    heading = title or "What paths of each length give to the output"
    words = lines_of(spectrum_facts(table, lengths), width + 60)
    return whole.properties(
        title=alt.TitleParams(heading, subtitle=words), description=spectrum_words(lengths)
    )


def spectrum_facts(table: Table, lengths: list[Length]) -> list[str]:
    """The model, its heads, how many paths it has and how long they are on average."""
    total = sum(one.paths for one in lengths)
    mean = sum(one.length * one.path_share for one in lengths)
    name = clipped(name_of(table))
    heads = [of_heads(places_of(table))] if table.sections.get("sites") else []
    counted = f"{count_words(total)} path{'s' if total != 1 else ''}, {mean:.4g} heads long on average"
    return [*([name] if name else []), *heads, counted]


def spectrum_words(lengths: list[Length]) -> str:
    """Alternative text: which lengths carry the output, which work against it, how long paths are."""
    known = [one for one in lengths if one.share is not None]
    best = max(known, key=lambda one: one.share or 0.0, default=None)
    most = max(lengths, key=lambda one: one.path_share)
    sentences = [f"Shares of the output by path length, {lengths[0].length} to {lengths[-1].length}."]
    if best is not None:
        sentences.append(f"Length {best.length} has the largest share, {percent(best.share)}.")
    against = [f"{one.length} ({percent(one.share)})" for one in known if (one.share or 0.0) < 0]
    if against:
        sentences.append(f"Negative shares at lengths {', '.join(against[:8])}.")
    sentences.append(f"Of all paths, {percent(most.path_share)} have length {most.length}.")
    return " ".join(sentences)


def written(values: Mapping[int, float], step: float) -> set[int]:
    """Lengths whose value is written out: all where bars are wide, else those that no bar nearby exceeds.

    >>> sorted(written({0: 0.1, 1: 0.5, 2: 0.3, 3: -0.2, 4: 0.3}, step=10.0))
    [1, 3]
    """
    apart = math.ceil(LABEL_WIDTH / step)
    found: set[int] = set()
    for length in sorted(values, key=lambda one: -abs(values[one])):
        value = values[length]
        near = [other for other in values if 0 < abs(other - length) < apart and values[other] * value > 0]
        is_peak = all(abs(values[other]) <= abs(value) for other in near)
        if is_peak and not found.intersection(near) and abs(value) >= LEAST_WRITTEN:
            found.add(length)
    return found


def share_ends(lengths: list[Length]) -> tuple[float, float, float]:
    """Lower and upper end of the axis of shares, and how many times a share of paths is enlarged on it."""
    shares = [one.share or 0.0 for one in lengths]
    paths = max(one.path_share for one in lengths)
    low, high = min(0.0, *shares), max(0.0, *shares)
    is_shared = not paths or paths >= SHARED_AXIS * max(high, -low)
    enlarged = 1.0 if is_shared else SHARED_AXIS * 2 * max(high, -low) / paths
    high = max(high, enlarged * paths) or (1.0 if low == 0 else 0.0)
    return low - 0.09 * (high - low if low < 0 else 0.0), high + 0.09 * (high - low), enlarged


def paths_words(enlarged: float) -> str:
    """What the gray bars are."""
    words = "of all paths, how many have this length"
    return words if enlarged == 1 else f"{words} (drawn {enlarged:.2g} times as high)"


def _shares(lengths: list[Length], width: int) -> Any:
    low, high, enlarged = share_ends(lengths)
    step = width / len(lengths)
    rows = _share_rows(lengths, enlarged, step)
    ticks = linear_ticks(low, high, 6)
    axis = alt.Axis(title="share of the output", format="~%", values=ticks.positions)
    y: dict[str, Any] = {"scale": alt.Scale(domain=[low, high], nice=False), "axis": axis}
    base = rows_chart(rows).encode(x=length_axis([one.length for one in lengths], title=None), tooltip=tips())
    paths = base.mark_bar(color=PATHS_FILL, size=min(1.5 * WIDEST_BAR, 0.94 * step))
    names = [ADDED, TAKEN, paths_words(enlarged)]
    color = alt.Scale(domain=names, range=[ADDS, TAKES, PATHS_FILL])
    bars = base.mark_bar(size=min(WIDEST_BAR, 0.6 * step)).encode(
        y=alt.Y("share:Q", **y),
        color=alt.Color("kind:N", scale=color, legend=legend_on_top()),
        stroke=alt.Stroke("edge:N", scale=None),
        strokeWidth=alt.StrokeWidth("edge_width:Q", scale=None),
        fillOpacity=alt.FillOpacity("filled:Q", scale=None, legend=None),
    )
    zero = alt.Chart().mark_rule(color=GRAY, strokeWidth=1).encode(y=alt.datum(0))
    texts = [
        base.transform_filter(f"datum.{field} != '' && datum.sign * {sign} >= 0")
        .mark_text(
            baseline="top" if sign < 0 else "bottom", dy=4 if sign < 0 else -4, fontSize=10.5, color=ink
        )
        .encode(y=alt.Y(f"{at}:Q", **y), text=f"{field}:N")
        for field, at, sign, ink in (
            ("text", "share", 1, INK),
            ("text", "share", -1, INK),
            ("paths_label", "paths_at", 0, PATHS_INK),
        )
    ]
    marks = [paths.encode(y=alt.Y("paths_at:Q", **y)), bars, zero, *texts]
    return alt.layer(*marks).properties(width=width, height=SHARES_HIGH)


def _share_rows(lengths: list[Length], enlarged: float, step: float) -> list[dict[str, Any]]:
    named = written({one.length: one.share for one in lengths if one.share is not None}, step)
    # Where a bar of the output ends near the gray one, two numbers would stand on each other.
    near = NEAR_LABELS * max(enlarged * one.path_share for one in lengths)
    free = [one for one in lengths if abs(enlarged * one.path_share - max(one.share or 0.0, 0.0)) > near]
    counted = written({one.length: one.path_share for one in free}, step)
    return [
        {
            "length": one.length,
            "share": one.share,
            "kind": TAKEN if (one.share or 0.0) < 0 else ADDED,
            "sign": -1 if (one.share or 0.0) < 0 else 1,
            "edge": TAKES if (one.share or 0.0) < 0 else ADDS,
            "edge_width": 0.0 if one.resolved else 1.4,
            "filled": 1.0 if one.resolved else 0.0,
            "paths_at": enlarged * one.path_share,
            "text": short_percent(one.share, sign="") if one.length in named else "",
            "paths_label": percent(one.path_share) if one.length in counted else "",
            **told(one),
        }
        for one in lengths
    ]
