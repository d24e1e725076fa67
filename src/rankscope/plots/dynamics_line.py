"""Tokens of dimension one: their values over the steps."""

import math
from typing import Any

import numpy as np

from rankscope.errors import ConfigError
from rankscope.plots.backend import Chart, alt
from rankscope.plots.dynamics_circle import circle_words
from rankscope.plots.dynamics_marks import (
    HINTS,
    MOST_STARTS,
    PANEL_SIDES,
    beside,
    heading,
    notes_of,
    panel_title,
    token_color,
)
from rankscope.plots.dynamics_sections import (
    Array,
    Paths,
    chosen_starts,
    known_equilibria,
    nearest,
    paths_of,
)
from rankscope.plots.paths_marks import finished, rows_chart
from rankscope.plots.style import INK
from rankscope.results import Table

HEIGHT = 220


def line_chart(table: Table, *, title: str | None = None) -> Chart:
    """Tokens in one dimension, value against step, a panel per recorded start; dashed: tokens of equilibria."""
    return finished(line_part(table, title=title))


def line_part(table: Table, *, title: str | None = None, alone: bool = True) -> Any:
    """The same without settings, to be put beside other charts."""
    paths = paths_of(table)
    if paths.states.shape[-1] != 1:
        raise ConfigError(
            f"values over steps are drawn of tokens of dimension 1, these have {paths.states.shape[-1]}; "
            "circle_chart draws dimension 2, sphere_chart more"
        )
    shown, equilibria = chosen_starts(paths, MOST_STARTS), known_equilibria(table)
    side = PANEL_SIDES[len(shown)]
    levels = sorted({round(float(v), 6) for one in equilibria for state in one.both for v in state.ravel()})
    panels = [
        _panel(paths, start, levels, side).properties(
            title=panel_title(paths.numbers[start], nearest(paths.states[start, -1], equilibria))
        )
        for start in shown
    ]
    notes = notes_of(table, [*HINTS, *(["dashed: equilibrium"] if levels else [])], alone=alone)
    return beside(
        panels,
        heading(title or "Tokens on the line, step by step", notes, (side + 50) * len(shown) + 60),
        circle_words(paths, shown, equilibria),
    )


def step_axis(steps: Array, field: str = "at") -> Any:
    """Steps by their logarithm, the start one place before the first: position ``log10(1 + step)``."""
    last = float(np.log10(1 + steps[-1]))
    powers = [0, *(10**power for power in range(max(math.floor(last + 1e-9), 0) + 1))]
    shown = [step for step in powers if step <= steps[-1]]
    every = max(1, math.ceil((len(shown) - 1) / 5))
    shown = [shown[0], *shown[1::every]]
    positions = [round(math.log10(1 + step), 9) for step in shown]
    texts = [f"{step:,}" if step < 100_000 else f"1e{len(str(step)) - 1}" for step in shown]
    label = f"{texts}[indexof({positions}, datum.value)]"
    axis = alt.Axis(title="step (log scale)", values=positions, labelExpr=label, grid=False, labelFlush=False)
    scale = alt.Scale(domain=[0, max(last, *positions) or 1.0], nice=False, zero=False)
    return alt.X(f"{field}:Q", axis=axis, scale=scale)


def step_places(steps: Array) -> list[float]:
    """Where steps stand on that axis."""
    return [round(float(at), 9) for at in np.log10(1 + steps)]


def _panel(paths: Paths, start: int, levels: list[float], side: int) -> Any:
    values, places = paths.states[start, :, :, 0], step_places(paths.steps)
    low, high = float(min(values.min(), *levels, 0)), float(max(values.max(), *levels, 0))
    margin = 0.07 * (high - low) or 1.0
    y = alt.Y(
        "value:Q",
        axis=alt.Axis(title="value", tickCount=5),
        scale=alt.Scale(domain=[low - margin, high + margin]),
    )
    color, x = token_color(values.shape[1]), step_axis(paths.steps)
    rows = [
        {"at": place, "step": float(step), "value": float(value), "token": token}
        for place, step, state in zip(places, paths.steps, values, strict=True)
        for token, value in enumerate(state)
    ]
    lines = rows_chart(rows).mark_line(strokeWidth=1.7).encode(x=x, y=y, color=color, detail="token:N")
    ends = [
        rows_chart([row for row in rows if row["at"] == places[at]])
        .mark_point(size=60, opacity=1, strokeWidth=1.6, **look)
        .encode(
            x=x,
            y=y,
            color=color,
            tooltip=[alt.Tooltip("token:N"), alt.Tooltip("step:Q"), alt.Tooltip("value:Q")],
        )
        for at, look in ((0, {"fill": "white"}), (-1, {"filled": True}))
    ]
    rest = rows_chart([{"value": level} for level in levels]).mark_rule(
        strokeDash=[5, 3], color=INK, opacity=0.6
    )
    return alt.layer(*([rest.encode(y=y)] if levels else []), lines, *ends).properties(
        width=side, height=HEIGHT
    )
