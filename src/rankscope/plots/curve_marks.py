"""The marks of a figure of curves: floor, bands, lines, points, panels."""

import math
from typing import Any

import polars as pl

from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import alt
from rankscope.plots.curve_points import Panels
from rankscope.plots.style import FLOOR_FILL, GRAY, LETTER_WIDTH, Look

WIDTHS = {1: 520, 2: 400, 3: 305}
NARROW = 240
HEIGHTS = {1: 300, 2: 235}
LOW = 200
WRAP_AT = 4
"""Panels along one direction only are wrapped after this many."""


def figure(panels: Panels, series: Look, *, title: str, facts: str) -> Any:
    """One chart of one definition: a panel per mask and normalization, as far as they vary."""
    width, height, total = panel_size(panels.points)
    marks = [*_floor(panels, series, height), *_curves(panels, series)]
    layered = alt.layer(*marks).properties(width=width, height=height)
    heading = alt.TitleParams(title, subtitle=_subtitle(panels, facts, total))
    return in_panels(layered, panels.points, heading)


def panel_size(points: pl.DataFrame) -> tuple[int, int, int]:
    """Width and height of one panel, and the width of all of them."""
    columns, rows = grid(points["mask"].n_unique(), points["norm"].n_unique())
    width, height = WIDTHS.get(columns, NARROW), HEIGHTS.get(rows, LOW)
    return width, height, width * columns + 60


def in_panels(layered: Any, points: pl.DataFrame, heading: Any) -> Any:
    """The marks over ``points``, repeated for every mask and normalization that varies."""
    masks = points["mask"].unique(maintain_order=True).to_list()
    norms = points["norm"].unique(maintain_order=True).to_list()
    # Vega-Lite ignores the label expression of a row header, so the words stand in the data.
    words = [pl.format(f"{name} {{}}", name).alias(f"{name}_panel") for name in ("mask", "norm")]
    data = alt.InlineData(values=points.with_columns(words).to_dicts())
    if len(masks) == len(norms) == 1:
        return layered.properties(data=data, title=heading)
    faceted = layered.facet(data=data, **facets(masks, norms)).properties(title=heading)
    # Wrapped panels carry their own layer axes: a shared one would also be drawn under an empty place.
    return faceted.resolve_axis(x="independent") if is_wrapped(len(masks), len(norms)) else faceted


def grid(masks: int, norms: int) -> tuple[int, int]:
    """How many panels stand beside each other and how many above each other."""
    if masks > 1 and norms > 1:
        return masks, norms
    if 1 < norms <= WRAP_AT:
        return 1, norms
    count = max(masks, norms)
    columns = min(count, WRAP_AT)
    return columns, math.ceil(count / columns)


def is_wrapped(masks: int, norms: int) -> bool:
    return min(masks, norms) == 1 and max(masks, norms) > WRAP_AT


def facets(masks: list[str], norms: list[str]) -> dict[str, Any]:
    # A list of names keeps the order of the table; Vega would sort them by letter.
    fields: dict[str, dict[str, Any]] = {
        name: {
            "field": f"{name}_panel", "type": "nominal", "title": None,
            "sort": [f"{name} {value}" for value in values], "header": alt.Header(labelLimit=400),
        }
        for name, values in (("mask", masks), ("norm", norms))
        if len(values) > 1
    }  # fmt: skip
    if len(fields) == 2:
        return {"column": alt.Column(**fields["mask"]), "row": alt.Row(**fields["norm"])}
    name, options = fields.popitem()
    if is_wrapped(len(masks), len(norms)):
        return {"facet": alt.Facet(**options), "columns": WRAP_AT}
    return {"column": alt.Column(**options)} if name == "mask" else {"row": alt.Row(**options)}


def _curves(panels: Panels, series: Look) -> list[Any]:
    """Bands, lines and points; a point of which some row is not resolved is filled with white."""
    color = by_series(alt.Color, series, series.colors, in_legend=True)
    shape = by_series(alt.Shape, series, series.shapes, in_legend=True)
    dash = by_series(alt.StrokeDash, series, series.dashes, in_legend=False)
    fill = by_series(alt.Fill, series, series.colors, in_legend=False)
    named = {
        "series:N": "network",
        "layer:Q": "layer",
        "shown:N": "mean",
        "count:Q": "rows",
        "hollow:N": "unresolved",
    }
    base = alt.Chart().encode(x=_layers(panels))
    band = base.mark_area(opacity=0.16).encode(y=_values(panels, "low"), y2="high:Q", color=color)
    line = base.mark_line(strokeWidth=1.8).encode(y=_values(panels, "y"), color=color, strokeDash=dash)
    point = base.mark_point(size=38, strokeWidth=1.4, opacity=1).encode(
        y=_values(panels, "y"),
        color=color,
        shape=shape,
        fill=alt.when("datum.hollow").then(alt.value("white")).otherwise(fill),
        tooltip=[alt.Tooltip(field, title=name) for field, name in named.items()],
    )
    has_band = bool((panels.points["count"] > 1).any())
    return [band, line, point] if has_band else [line, point]


def _floor(panels: Panels, series: Look, height: int) -> list[Any]:
    """A dashed line over a shaded area; a line per network where their floors differ."""
    if not panels.has_floor:
        return []
    base = alt.Chart().encode(x=_layers(panels))
    lowest = _values(panels, "floor", aggregate="min")
    area = base.mark_area(color=FLOOR_FILL, opacity=0.2).encode(y=lowest, y2="max(below):Q")
    line = base.mark_line(strokeDash=[4, 3], strokeWidth=1.1, color=GRAY)
    if panels.floors_differ:
        color = by_series(alt.Color, series, series.colors, in_legend=True)
        line = line.encode(y=_values(panels, "floor"), color=color, opacity=alt.value(0.75))
    else:
        line = line.encode(y=lowest)
    words = "rounding floors, one per line" if panels.floors_differ else "rounding floor"
    # One point per panel carries the label; at the lower left no curve can be, they start above the floor.
    label = (
        alt.Chart()
        .transform_aggregate(rows="count()")
        .mark_text(text=words, align="left", baseline="bottom", color=GRAY, fontSize=10.5, fontStyle="italic")
        .encode(x=alt.value(6), y=alt.value(height - 2))
    )
    return [area, line, label]


def by_series(channel: Any, series: Look, marks: list[Any], *, in_legend: bool) -> Any:
    """A channel that tells the series apart. Color and shape share the one legend of the figure."""
    longest = max(map(len, series.names))
    legend = alt.Legend(
        orient="bottom",
        title=None,
        columns=max(1, min(len(series.names), round(110 / (longest + 6)))),
        symbolSize=90,
        symbolOpacity=1,
        symbolStrokeWidth=0,
    )
    scale = alt.Scale(domain=series.names, range=marks)
    return channel("series:N", scale=scale, legend=legend if in_legend else None)


def _layers(panels: Panels) -> Any:
    return layer_axis(*panels.layers)


def layer_axis(first: int, last: int) -> Any:
    """Layers along x, with at most fourteen integer ticks."""
    step = max(1, math.ceil((last - first) / 13))
    domain = [first, last] if last > first else [first - 0.5, first + 0.5]
    axis = alt.Axis(
        title="layer", values=list(range(first, last + 1, step)), format="d", grid=False, labelFlush=False
    )
    return alt.X("layer:Q", axis=axis, scale=alt.Scale(domain=domain, nice=False, zero=False))


def _values(panels: Panels, field: str, *, aggregate: str | None = None) -> Any:
    scale = alt.Scale(domain=[panels.bottom, panels.top], nice=False, zero=False)
    several = bool((panels.points["count"] > 1).any())
    kind = ("geometric mean" if panels.is_log else "mean") if several else "value"
    if panels.is_log:
        axis = log_axis(log_ticks(panels.bottom, panels.top), title=f"{kind} (log scale)", domain=False)
    else:
        axis = alt.Axis(title=kind, tickCount=6, domain=False)
    shorthand = f"{aggregate}({field}):Q" if aggregate else f"{field}:Q"
    return alt.Y(shorthand, scale=scale, axis=axis)


def _subtitle(panels: Panels, facts: str, width: int) -> list[str]:
    notes = [facts] if facts else []
    if bool((panels.points["count"] > 1).any()):
        notes.append("band: minimum to maximum")
    if bool(panels.points["hollow"].any()):
        notes.append("hollow: not above the rounding floor in every run")
    if not panels.has_floor and bool((panels.points["floor"] != 0).any()):
        notes.append(
            f"the rounding floor {'lies below this axis' if panels.is_log else 'is too small to draw'}"
        )
    if panels.has_zeros and not panels.grounded:
        notes.append("zeros stand at their floor")
    if panels.grounded:
        notes.append("zeros stand at the lower end of the axis")
    if panels.missing:
        notes.append(f"{panels.missing} points without a number are not drawn")
    return lines_of(notes, width)


def lines_of(notes: list[str], width: int) -> list[str]:
    """The notes with dots between them, broken into lines that fit so many pixels where possible."""
    letters = int(width / LETTER_WIDTH)
    lines: list[str] = []
    for note in notes:
        joined = f"{lines[-1]} · {note}" if lines else note
        if lines and len(joined) <= letters:
            lines[-1] = joined
        else:
            lines.append(note)
    return lines
