"""Norm and residual by path length, on one logarithmic axis."""

import math
from typing import Any

from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import alt
from rankscope.plots.paths_marks import (
    LENGTH_TITLE,
    dashed,
    legend_on_top,
    length_axis,
    rows_chart,
    tips,
    told,
)
from rankscope.plots.paths_sections import Length
from rankscope.plots.style import FLOOR_FILL, GRAY, PALETTE

SIZES = {"norm": PALETTE[2], "residual": PALETTE[3]}
HEIGHT = 190

DECADES_TO_FLOOR = 3.0
"""A rounding floor further than this below all sizes is left out: it would press the curves flat."""


def size_at(one: Length, name: str) -> float | None:
    """The logarithm to base ten of a norm or residual; zero stands at its rounding floor, if it has one."""
    value = getattr(one, name)
    if value == 0 and one.floor:
        value = one.floor
    return math.log10(value) if value is not None and value > 0 else None


def is_hollow(one: Length, name: str) -> bool:
    """Whether a norm or residual is not above its rounding floor; of the residual the section says so itself."""
    if name == "residual" and not one.resolved:
        return True
    value = getattr(one, name)
    return value is not None and one.floor is not None and value <= one.floor


def has_sizes(lengths: list[Length]) -> bool:
    """Whether any norm or residual has a place on a logarithmic axis."""
    return any(size_at(one, name) is not None for one in lengths for name in SIZES)


def size_ends(lengths: list[Length]) -> tuple[float, float, bool]:
    """Lower and upper end of the axis, as logarithms, and whether the rounding floor lies on it."""
    found = [at for one in lengths for name in SIZES if (at := size_at(one, name)) is not None]
    floors = [math.log10(one.floor) for one in lengths if one.floor]
    has_floor = bool(floors) and max(floors) > min(found) - DECADES_TO_FLOOR
    low = min([*found, *(floors if has_floor else [])])
    high = max([*found, *(floors if has_floor else [])])
    margin = 0.06 * (high - low) or 0.2
    return low - margin, high + margin, has_floor


def size_panel(lengths: list[Length], width: int) -> Any:
    """The panel: a line each for norm and residual, hollow where not above the rounding floor."""
    rows = [
        {"length": one.length, "size": name, "at": at, "hollow": is_hollow(one, name), **told(one)}
        for one in lengths
        for name in SIZES
        if (at := size_at(one, name)) is not None
    ]
    low, high, has_floor = size_ends(lengths)
    axis = log_axis(log_ticks(low, high), title="Frobenius norm", labelOverlap=False)
    y = alt.Y("at:Q", scale=alt.Scale(domain=[low, high], nice=False), axis=axis)
    x = length_axis([one.length for one in lengths], title=LENGTH_TITLE)
    step = width / len(lengths)
    marks = [*(_floor(lengths, x, y, step) if has_floor else []), *_curves(rows, x, y, step)]
    return alt.layer(*marks).properties(width=width, height=HEIGHT)


def _curves(rows: list[dict[str, Any]], x: Any, y: Any, step: float) -> list[Any]:
    scale = alt.Scale(domain=list(SIZES), range=list(SIZES.values()))
    shapes = alt.Scale(domain=list(SIZES), range=["circle", "square"])
    color = alt.Color("size:N", scale=scale, legend=legend_on_top())
    shape = alt.Shape("size:N", scale=shapes, legend=legend_on_top())
    base = rows_chart(rows).encode(x=x, y=y, color=color)
    marked = base.encode(shape=shape, tooltip=tips())
    look: dict[str, Any] = {"filled": True, "size": min(52.0, 4.0 * step), "opacity": 1}
    return [
        *dashed(base, "size", {"norm": [1, 0], "residual": [5, 3]}),
        marked.transform_filter("!datum.hollow").mark_point(**look),
        marked.transform_filter("datum.hollow")
        .mark_point(**look, fill="white", strokeWidth=1.6)
        .encode(stroke=alt.Stroke("size:N", scale=scale, legend=None)),
    ]


def _floor(lengths: list[Length], x: Any, y: Any, step: float) -> list[Any]:
    """A dash at the rounding floor of every length, named once."""
    rows = [{"length": one.length, "at": math.log10(one.floor)} for one in lengths if one.floor]
    data = rows_chart(rows).encode(x=x, y=y)
    name = rows_chart(rows[-1:]).encode(x=x, y=y)
    return [
        data.mark_tick(color=FLOOR_FILL, thickness=1.5, size=0.9 * step, orient="horizontal"),
        name.mark_text(
            text="rounding floor", align="right", dx=min(12.0, step / 2), dy=-8, fontSize=10.5, color=GRAY
        ),
    ]
