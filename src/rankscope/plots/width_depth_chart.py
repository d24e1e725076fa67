"""The figure ``width-depth``: accuracy against the number of layers at equal numbers of weights."""

import math
from typing import Any

from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.paths_marks import Row, finished, rows_chart
from rankscope.plots.style import GRAY, Look, look
from rankscope.results import Table

WIDTH, HEIGHT = 470, 270
ROOM = 0.08
"""Of the axis of layers to both sides, as a logarithm to base two."""

LABEL_ROOM = 0.05


def width_depth_chart(table: Table) -> Chart:
    """Mean and interval over seeds at every depth, single networks as small points; widths stand below the depths."""
    shapes, entries = table.sections["shapes"], table.sections["over_seeds"]
    variants = look(list(dict.fromkeys(one["variant"] for one in entries)))
    lines = {str(name): float(value) for name, value in table.sections["lines"].items()}
    rows = [_point(one, one["mean"], one["low"], one["high"]) for one in entries]
    single = [_point(one, one["value"], None, None) for one in table.frame.to_dicts()]
    least = min([row["low"] for row in rows] + [row["at"] for row in single])
    bottom = 0.0 if least < 0.5 else math.floor(20 * least - 1) / 20
    y = alt.Y(
        "at:Q",
        scale=alt.Scale(domain=[bottom, 1.0 + 0.02 * (1 - bottom)], nice=False, zero=False),
        axis=alt.Axis(title="token accuracy", format=".0%", domain=False),
    )
    marks = _marks(rows, single, y, _depths(shapes), variants)
    shown = {name: value for name, value in lines.items() if value > bottom}
    for name, value in shown.items():
        level = rows_chart([{"at": value, "words": name}])
        marks += [
            level.mark_rule(strokeDash=[6, 4], color=GRAY).encode(y=y),
            level.mark_text(align="left", dx=6, fontSize=10.5, color=GRAY).encode(
                x=alt.value(WIDTH), y=y, text="words:N"
            ),
        ]
    counts = [one["parameters"] for one in shapes]
    notes = [
        f"sorting, {table.sections['setting']['heads']} heads, no MLPs, {min(counts)} to {max(counts)} weights",
        f"{entries[0]['count']} seeds; bars: 95% interval of the mean; small: single networks",
    ]
    title = alt.TitleParams(
        "Width against depth at equal numbers of weights", subtitle=lines_of(notes, WIDTH + 60)
    )
    words = "Token accuracy against the number of layers, with widths chosen for equal numbers of weights."
    whole = alt.layer(*marks).properties(width=WIDTH, height=HEIGHT, title=title, description=words)
    return finished(whole)


def _point(one: Row, at: float, low: float | None, high: float | None) -> Row:
    return {
        "variant": one["variant"],
        "layers": one["layers"],
        "x": math.log2(one["layers"]),
        "at": at,
        "low": at if low is None else max(low, 0.0),
        "high": at if high is None else min(high, 1.0),
    }


def _depths(shapes: list[Row]) -> Any:
    """Depths by their logarithm; below each its width."""
    places = [round(math.log2(one["layers"]), 9) for one in shapes]
    labels = [[str(one["layers"]), f"x {one['dim']}"] for one in shapes]
    axis = alt.Axis(
        values=places,
        labelExpr=f"{labels}[indexof({places}, datum.value)]",
        title="layers x channels",
        grid=False,
        labelOverlap=False,
    )
    room = max(ROOM * (places[-1] - places[0]), 0.2)
    scale = alt.Scale(domain=[places[0] - room, places[-1] + room], nice=False, zero=False)
    return alt.X("x:Q", axis=axis, scale=scale)


def _marks(rows: list[Row], single: list[Row], y: Any, x: Any, variants: Look) -> list[Any]:
    is_shown = len(variants.names) > 1
    legend = alt.Legend(title=None, orient="top") if is_shown else None
    color = alt.Color(
        "variant:N", scale=alt.Scale(domain=variants.names, range=variants.colors), legend=legend
    )
    shape = alt.Shape(
        "variant:N", scale=alt.Scale(domain=variants.names, range=variants.shapes), legend=legend
    )
    base = rows_chart(rows).encode(x=x, color=color)
    dots = rows_chart(single).encode(x=x, y=y, color=color)
    return [
        dots.mark_point(size=10, opacity=0.55, filled=True),
        base.mark_rule(strokeWidth=1.7, opacity=0.7, clip=True).encode(y=alt.Y("low:Q"), y2="high:Q"),
        base.mark_line(strokeWidth=1.5).encode(y=y),
        base.mark_point(filled=True, size=64, opacity=1).encode(y=y, shape=shape),
    ]
