"""What paths of each length achieve on a task: accuracy, residual and how many there are, below each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from rankscope.core.words import whole
from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.paths_effect_points import (
    ACCURACIES,
    ACCURACY,
    REFIT,
    chance_of,
    effect_points,
    levels_of,
    paths_by_length,
)
from rankscope.plots.paths_marks import (
    LENGTH_TITLE,
    MOST_LABELS,
    Row,
    dashed,
    finished,
    legend_on_top,
    rows_chart,
)
from rankscope.plots.paths_words import percent
from rankscope.plots.scan_entries import clipped, full_label, number
from rankscope.plots.style import GRAY, Look, look
from rankscope.results import Table

WIDTHS = {1: 600, 2: 420}
NARROW = 300
ACCURACY_HIGH, OTHER_HIGH, COUNTS_HIGH = 270, 170, 70
COUNT_FILL = "#d4d8de"
APART = 4.0
"""Pixels between the intervals of two lines at one length."""

BELOW_ONE = -0.3
"""Where the axis of counts starts, as a logarithm, so that a single path is seen too."""

LOWEST = -400.0
"""Below the logarithm of every float."""

LABEL_WIDTH = 44
NEAR_LEVELS = 0.05
"""Levels nearer to each other than this have their names above and below."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What all panels share."""

    lines: Look
    lengths: list[int]
    width: int


def effectiveness_chart(
    table: Table,
    *,
    lines: Sequence[str] | None = None,
    definitions: Sequence[str] | None = None,
    title: str | None = None,
) -> Chart:
    """Accuracy against path length, one line per way of keeping paths, with residual and number of paths below.

    Rows that differ in ``seed`` alone are one point with a band, the 95% interval of its mean.

    Rows have ``length``, ``mode``, ``definition`` (``token_accuracy``, ``residual...``), ``value``, and where they
    apply ``low`` and ``high``, ``paths`` and ``summed``; see ``effect_points`` for what is drawn without ``lines`` and
    ``definitions``. Dashed: the full model and naive answers, from the sections ``full`` or ``models``, ``naive`` or
    ``baselines``. Numbers of paths are in the section ``counts`` or ``lengths``. A column ``weights`` or ``variant``
    that varies makes panels beside each other. Hollow: not above the rounding floor.
    """
    points = effect_points(table, lines=lines, definitions=definitions)
    names = points["panel"].unique(maintain_order=True).to_list()
    counts = paths_by_length(table)
    setup = Setup(
        lines=look(points["line"].unique(maintain_order=True).to_list()),
        lengths=sorted({*points["length"].to_list(), *counts}),
        width=WIDTHS.get(len(names), NARROW),
    )
    known = points["definition"].unique(maintain_order=True).to_list()
    drawn = [*(name for name in ACCURACIES if name in known), *(n for n in known if n not in ACCURACIES)]
    columns = []
    for name in names:
        panels = [_panel(points, table, setup, definition, name) for definition in drawn]
        panels += [_counts(counts, setup)] if counts else []
        column = alt.vconcat(*panels, spacing=12).resolve_scale(color="shared", shape="shared")
        over = alt.TitleParams(
            f"{name} weights" if name in ("trained", "initial") else name, fontSize=12.5, anchor="middle"
        )
        columns.append(column.properties(title=over) if len(names) > 1 else column)
    whole: Any = alt.hconcat(*columns, spacing=34)
    notes = [clipped(str(one)) for one in table.frame["model"].drop_nulls().unique(maintain_order=True)]
    notes += _of_intervals(points)
    notes += [] if points["resolved"].all() else ["hollow: not above the rounding floor"]
    words = lines_of(notes, setup.width * len(names) + 60)
    heading = alt.TitleParams(title or "What paths of each length achieve", subtitle=words)
    return finished(whole.properties(title=heading, description=_in_words(points)))


def _of_intervals(points: pl.DataFrame) -> list[str]:
    known = points.drop_nulls(["low", "high"])
    seeds = known.filter(pl.col("seeds") > 1)["seeds"].to_list()
    bands = [f"bands: 95% interval of the mean over {max(seeds)} seeds of training"] if seeds else []
    return bands + (["bars: 95% interval of the mean over draws"] if len(seeds) < known.height else [])


def _x(setup: Setup, *, title: bool) -> Any:
    """Lengths as numbers, so that looks can stand a little beside them."""
    shown = setup.lengths[:: math.ceil(len(setup.lengths) / MOST_LABELS)]
    axis = alt.Axis(
        title=LENGTH_TITLE if title else None, values=shown, format="d", grid=False, labelOverlap=False
    )
    scale = alt.Scale(
        domain=[setup.lengths[0] - 0.5, setup.lengths[-1] + 0.5], nice=False, zero=False, padding=0
    )
    return alt.X("x:Q", axis=axis, scale=scale)


def _panel(points: pl.DataFrame, table: Table, setup: Setup, definition: str, panel: str) -> Any:
    own = points.filter(pl.col("definition") == definition)
    sizes = _sizes(own)
    is_log = definition not in ACCURACIES and bool(sizes)
    rows = [_row(point, is_log) for point in own.filter(pl.col("panel") == panel).iter_rows(named=True)]
    rules = levels_of(table, panel) if definition in ACCURACIES else {}
    if definition == REFIT and (chance := chance_of(table, panel)) is not None:
        # a classifier that is fitted beats guessing even on labels in random order, where it is scored on what it fits
        rules = {name: level for name, level in rules.items() if name != "naive"} | {
            "shuffled labels": chance
        }
    y = _log_scale(sizes, definition) if is_log else _linear_scale(own, definition, list(rules.values()))
    marks = [*_rules(rules, y, setup.width), *_lines(rows, setup, y, has_legend=definition == ACCURACY)]
    height = ACCURACY_HIGH if definition in ACCURACIES else OTHER_HIGH
    return alt.layer(*marks).properties(width=setup.width, height=height)


def _sizes(own: pl.DataFrame) -> list[float]:
    """What a logarithmic axis must hold: values that are resolved, and the rounding floors of those that are not."""
    seen = own.select(
        pl.when(pl.col("resolved")).then(pl.col("value")).otherwise(pl.col("floor")).alias("seen")
    )
    return [value for value in seen["seen"].drop_nulls().to_list() if value > 0]


def _row(point: Row, is_log: bool) -> Row:
    values = {name: point[name] for name in ("value", "low", "high")}
    if is_log:
        values = {name: None if one is None else _logarithm(one) for name, one in values.items()}
    text = percent(point["value"], 3) if point["definition"] in ACCURACIES else number(point["value"])
    about = {"length": point["length"], "line": point["line"], "text": text}
    ends = {"at": values["value"], "low": values["low"], "high": values["high"]}
    return {**about, **ends, "hollow": not point["resolved"], "band": point["seeds"] > 1}


def _logarithm(value: float) -> float:
    """To base ten; of nothing, or of an interval that reaches below it, the lower end of every axis."""
    return math.log10(value) if value > 0 else LOWEST


def _log_scale(sizes: list[float], definition: str) -> Any:
    low, high = math.log10(min(sizes)), math.log10(max(sizes))
    margin = 0.06 * (high - low) or 0.2
    low, high = low - margin, high + margin
    axis = log_axis(log_ticks(low, high), title=full_label(definition), labelOverlap=False)
    return alt.Y("at:Q", axis=axis, scale=alt.Scale(domain=[low, high], nice=False, clamp=True))


def _linear_scale(own: pl.DataFrame, definition: str, levels: list[float]) -> Any:
    if definition in ACCURACIES:
        axis = alt.Axis(title=ACCURACIES[definition], format="~%", values=[0, 0.2, 0.4, 0.6, 0.8, 1])
        return alt.Y("at:Q", axis=axis, scale=alt.Scale(domain=[0, 1.02], nice=False))
    ends = [0.0, *levels, *own["value"].to_list()]
    scale = alt.Scale(domain=[min(ends), max(ends) or 1.0])
    return alt.Y("at:Q", axis=alt.Axis(title=full_label(definition)), scale=scale)


def _rules(rules: dict[str, float], y: Any, width: int) -> list[Any]:
    """Dashed levels, named behind the right end; of two near ones the lower name moves down."""
    marks = []
    ordered = sorted(rules.items(), key=lambda one: one[1])
    for place, (words, level) in enumerate(ordered):
        following = ordered[place + 1][1] if place + 1 < len(ordered) else math.inf
        dy = 9 if following - level < NEAR_LEVELS else 0
        row = rows_chart([{"at": level, "words": f"{words} {percent(level, 3)}"}])
        text = row.mark_text(align="left", dx=6, dy=dy, fontSize=10.5, color=GRAY)
        marks += [
            row.mark_rule(strokeDash=[6, 4], color=GRAY, strokeWidth=1.2).encode(y=y),
            text.encode(x=alt.value(width), y=y, text="words:N"),
        ]
    return marks


def _lines(rows: list[Row], setup: Setup, y: Any, *, has_legend: bool) -> list[Any]:
    """Lines, intervals and points; lines stand a little apart, so that their intervals can be told from each other."""
    looks, x = setup.lines, _x(setup, title=False)
    step = APART * (setup.lengths[-1] - setup.lengths[0] + 1) / setup.width
    middle = (len(looks.names) - 1) / 2
    for row in rows:
        row["x"] = row["length"] + step * (looks.names.index(row["line"]) - middle)
    legend = legend_on_top() if has_legend else None
    colors = alt.Scale(domain=looks.names, range=looks.colors)
    color = alt.Color("line:N", scale=colors, legend=legend)
    shape = alt.Shape("line:N", scale=alt.Scale(domain=looks.names, range=looks.shapes), legend=legend)
    titles = {"line": "paths", "length": "length", "text": "value"}
    tips = [alt.Tooltip(f"{field}:N", title=title) for field, title in titles.items()]
    base = rows_chart([row for row in rows if row["at"] is not None]).encode(x=x, y=y, color=color)
    known = [row for row in rows if row["low"] is not None and row["high"] is not None]
    dots = base.encode(shape=shape, tooltip=tips)
    look: dict[str, Any] = {"filled": True, "size": 58, "opacity": 1}
    bars = rows_chart([row for row in known if not row["band"]]).mark_rule(strokeWidth=1.6, opacity=0.7)
    bands = rows_chart([row for row in known if row["band"]]).mark_area(opacity=0.15)
    ends = {"x": x, "y": alt.Y("low:Q"), "y2": "high:Q", "color": color}
    hollow = dots.transform_filter("datum.hollow").mark_point(**look, fill="white", strokeWidth=1.6)
    return [
        bands.encode(**ends),
        bars.encode(**ends),
        *dashed(base, "line", dict(zip(looks.names, looks.dashes, strict=True))),
        dots.transform_filter("!datum.hollow").mark_point(**look),
        hollow.encode(stroke=alt.Stroke("line:N", scale=colors, legend=None)),
    ]


def _counts(counts: dict[int, int], setup: Setup) -> Any:
    """Faint bars: how many paths of each length there are, on a logarithmic axis."""
    # math.log10 takes an integer of any size, a float would overflow.
    rows: list[Row] = [
        {"x": length, "at": math.log10(count), "zero": BELOW_ONE, "text": whole(count)}
        for length, count in counts.items()
        if count > 0
    ]
    high = 1.3 * max([0.5, *(row["at"] for row in rows)])
    axis = log_axis(log_ticks(BELOW_ONE, high), title="paths", labelOverlap="greedy")
    y = alt.Y("at:Q", axis=axis, scale=alt.Scale(domain=[BELOW_ONE, high], nice=False))
    base = rows_chart(rows).encode(x=_x(setup, title=True), y=y)
    step = setup.width / len(setup.lengths)
    bars = base.mark_bar(color=COUNT_FILL, size=min(44.0, 0.7 * step)).encode(y2="zero:Q")
    texts = base.mark_text(dy=-7, fontSize=10, color=GRAY).encode(text="text:N")
    marks = [bars, texts] if step > LABEL_WIDTH else [bars]
    return alt.layer(*marks).properties(width=setup.width, height=COUNTS_HIGH)


def _in_words(points: pl.DataFrame) -> str:
    """Alternative text: for every mode where the accuracy starts and ends."""
    own = points.filter(pl.col("definition") == ACCURACY)
    found = []
    for (panel, line), part in own.group_by("panel", "line", maintain_order=True):
        first, last = part.row(0, named=True), part.row(part.height - 1, named=True)
        where = "" if panel == "all" else f"{panel}, "
        found.append(
            f"{where}{line}: {percent(first['value'])} at length {first['length']}, "
            f"{percent(last['value'])} at length {last['length']}"
        )
    return "Token accuracy by path length. " + "; ".join(found) + "."
