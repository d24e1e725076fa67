"""The residual ratio of a scan by layer, as a chart: raw and on unit tokens, a panel per stack."""

from typing import Any

from rankscope.plots.axes import log_axis
from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import by_series, layer_axis, lines_of
from rankscope.plots.scan_axes import ValueAxis
from rankscope.plots.scan_entries import (
    FINAL,
    Entry,
    clipped,
    marked,
    number,
    of_stack,
    scan_entries,
    stacks_of,
)
from rankscope.plots.scan_panels import Line, Panel, headline, in_words
from rankscope.plots.style import FLOOR_FILL, GRAY, Look, configured, look
from rankscope.results import Table

WIDTHS = {1: 520, 2: 400}
NARROW = 305
HEIGHT = 290
BESIDE = 3
"""Panels that stand beside each other; further stacks start a new line."""


def scan_curves(table: Table, *, title: str | None = None) -> Chart:
    """Residual ratio against layer after every block, of the tokens as they are and on unit tokens.

    The line is the mean over texts with a band from the smallest to the largest, the rounding floor a dashed line
    over a shade. A point is hollow if some text is not above its floor; a zero stands at its floor on an axis of
    logarithms. The layer at which the verdict sees collapse start is a vertical line.
    """
    entries = scan_entries(table)
    stacks = stacks_of(entries)
    panels = {stack: headline(of_stack(entries, stack)) for stack in stacks} or {"": headline([])}
    series = look(list(dict.fromkeys(line.name for panel in panels.values() for line in panel.lines)))
    width = WIDTHS.get(len(panels), NARROW)
    charts = [
        _figure(
            panel,
            series,
            width=width,
            start=start_of(table, stack),
            heading=clipped(stack) if len(panels) > 1 else "",
        )
        for stack, panel in panels.items()
    ]
    whole: Any = charts[0] if len(charts) == 1 else alt.concat(*charts, columns=BESIDE, spacing=30)
    notes = lines_of(_notes(table, list(panels.values())), width * min(len(panels), BESIDE) + 60)
    named = clipped(title or _model(table) or "scan")
    heading = alt.TitleParams(
        f"{named}: {next(iter(panels.values())).title} by layer", subtitle=notes, limit=900, anchor="start"
    )
    words = " ".join(in_words(panel) for panel in panels.values())
    return configured(whole.properties(title=heading, description=words))


def start_of(table: Table, stack: str) -> int | None:
    """The layer at which the verdict on that stack says that collapse starts."""
    verdict = table.sections.get("verdict")
    found = verdict.get("stacks") if isinstance(verdict, dict) else None
    for one in found if isinstance(found, list) else []:
        if isinstance(one, dict) and one.get("stack") == stack and isinstance(one.get("starts"), int):
            return int(one["starts"])
    return None


def _figure(panel: Panel, series: Look, *, width: int, start: int | None, heading: str) -> Any:
    axis = panel.axis()
    points = [point for line in panel.lines for point in _points(line, axis)]
    floors = [
        {"layer": entry.layer, "floor": axis.position(entry.floor, None), "bottom": axis.bottom}
        for entry in panel.entries
        if entry.floor is not None and entry.site != FINAL
    ]
    base = alt.Chart(alt.InlineData(values=points)).encode(x=layer_axis(panel.first, panel.last))
    color = by_series(alt.Color, series, series.colors, in_legend=True)
    shape = by_series(alt.Shape, series, series.shapes, in_legend=True)
    dash = by_series(alt.StrokeDash, series, series.dashes, in_legend=False)
    fill = by_series(alt.Fill, series, series.colors, in_legend=False)
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("series", "layer", "mean", "range", "texts")]
    marks = [
        *(_floor(floors, panel, axis) if axis.has_floor else []),
        *_start(start, panel),
        base.mark_area(opacity=0.16).encode(y=_values(axis, "low"), y2="high:Q", color=color),
        base.mark_line(strokeWidth=1.8).encode(y=_values(axis, "y"), color=color, strokeDash=dash),
        base.mark_point(size=38, strokeWidth=1.4, opacity=1).encode(
            y=_values(axis, "y"),
            color=color,
            shape=shape,
            fill=alt.when("datum.hollow").then(alt.value("white")).otherwise(fill),
            tooltip=tooltip,
        ),
    ]
    layered = alt.layer(*marks).properties(width=width, height=HEIGHT)
    return (
        layered.properties(title=alt.TitleParams(heading, fontSize=13, limit=width)) if heading else layered
    )


def _points(line: Line, axis: ValueAxis) -> list[dict[str, Any]]:
    return [
        {
            "series": line.name,
            "layer": entry.layer,
            "y": axis.position(mean, entry.floor),
            "low": axis.position(low if low is not None else mean, entry.floor),
            "high": axis.position(high if high is not None else mean, entry.floor),
            "hollow": not entry.is_resolved,
            "mean": marked(entry),
            "range": f"{number(low)} to {number(high)}",
            "texts": entry.texts,
        }
        for entry, mean, low, high in _numbered(line)
    ]


def _numbered(line: Line) -> list[tuple[Entry, float, float | None, float | None]]:
    kept = [entry for entry in line.entries if entry.site != FINAL]
    return [(entry, entry.mean, entry.low, entry.high) for entry in kept if entry.mean is not None]


def _floor(floors: list[dict[str, Any]], panel: Panel, axis: ValueAxis) -> list[Any]:
    base = alt.Chart(alt.InlineData(values=floors)).encode(x=layer_axis(panel.first, panel.last))
    lowest = _values(axis, "floor", aggregate="min")
    label = alt.Chart(alt.InlineData(values=[{}])).mark_text(
        text="rounding floor", align="left", baseline="bottom", color=GRAY, fontSize=10.5, fontStyle="italic"
    )
    return [
        base.mark_area(color=FLOOR_FILL, opacity=0.2).encode(y=lowest, y2="max(bottom):Q"),
        base.mark_line(strokeDash=[4, 3], strokeWidth=1.1, color=GRAY).encode(y=lowest),
        label.encode(x=alt.value(6), y=alt.value(HEIGHT - 2)),
    ]


def _start(start: int | None, panel: Panel) -> list[Any]:
    if start is None or not panel.first <= start <= panel.last:
        return []
    base = alt.Chart(alt.InlineData(values=[{"layer": start}])).encode(x=layer_axis(panel.first, panel.last))
    is_right = 2 * start > panel.first + panel.last
    text = base.mark_text(
        text=f"starts at layer {start}", align="right" if is_right else "left", baseline="top",
        dx=-5 if is_right else 5, color=GRAY, fontSize=10.5,
    ).encode(y=alt.value(4))  # fmt: skip
    return [base.mark_rule(color=GRAY, strokeWidth=1), text]


def _values(axis: ValueAxis, field: str, *, aggregate: str | None = None) -> Any:
    scale = alt.Scale(domain=[axis.bottom, axis.top], nice=False, zero=False)
    if axis.is_log:
        drawn = log_axis(axis.ticks, title="mean over texts (log scale)", domain=False)
    else:
        drawn = alt.Axis(title="mean over texts", values=axis.ticks.positions, domain=False)
    return alt.Y(f"{aggregate}({field}):Q" if aggregate else f"{field}:Q", scale=scale, axis=drawn)


def _notes(table: Table, panels: list[Panel]) -> list[str]:
    entries = [entry for panel in panels for entry in panel.entries]
    texts = max((entry.texts for entry in entries), default=0)
    scan = table.sections.get("scan")
    dtype = scan.get("dtype") if isinstance(scan, dict) else None
    notes = [
        clipped(panels[0].definition),
        f"{texts} text{'s' if texts != 1 else ''}",
        *([str(dtype)] if dtype else []),
    ]
    if texts > 1:
        notes.append("band: minimum to maximum")
    if any(not entry.is_resolved and entry.mean is not None for entry in entries):
        notes.append("hollow: not above the rounding floor in every text")
    if any(entry.floor for entry in entries) and not any(panel.axis().has_floor for panel in panels):
        notes.append("the rounding floor lies below this axis")
    missing = sum(entry.mean is None for entry in entries)
    return [*notes, *([f"{missing} points without a number are not drawn"] if missing else [])]


def _model(table: Table) -> str:
    known = table.frame["model"].drop_nulls()
    return clipped(str(known[0])) if len(known) else ""
