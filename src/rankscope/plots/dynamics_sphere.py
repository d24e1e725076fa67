"""Tokens of dimension three and more on the unit sphere, seen from outside: paths, starts, ends, equilibria."""

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
    cross_marks,
    directions,
    end_marks,
    heading,
    labels,
    line_rows,
    notes_of,
    once,
    panel_title,
    path_marks,
    place_words,
    ring_rows,
    square,
    token_color,
)
from rankscope.plots.dynamics_project import View, graticule, moving, sides, view_of
from rankscope.plots.dynamics_sections import (
    Array,
    Equilibrium,
    Paths,
    chosen_starts,
    crossed,
    known_equilibria,
    nearest,
    paths_of,
)
from rankscope.plots.paths_marks import Row, finished, rows_chart
from rankscope.plots.paths_words import MINUS, percent
from rankscope.plots.style import GRAY
from rankscope.results import Table

EXTENT = 1.18
FAR = 0.28
"""How strong lines and points on the far side are."""

EDGE = 1e-9
"""Depth below which a point at the rim counts as near."""


def sphere_chart(table: Table, *, title: str | None = None) -> Chart:
    """Tokens in three or more dimensions, a panel per recorded start (three at most, those that end farthest apart).

    Tokens are drawn by their directions. Three dimensions are seen as they are; of more, the three principal
    directions of all recorded tokens, and the subtitle says what share of the squared length they hold.
    """
    return finished(sphere_part(table, title=title))


def sphere_part(table: Table, *, title: str | None = None, alone: bool = True) -> Any:
    """The same without settings, to be put beside other charts."""
    paths = paths_of(table)
    dim = paths.states.shape[-1]
    if dim < 3:
        raise ConfigError(
            f"the picture on the sphere needs tokens of dimension 3 or more, these have {dim}; circle_chart draws "
            "dimension 2"
        )
    shown = chosen_starts(paths, MOST_STARTS)
    equilibria = known_equilibria(table)
    drawn = directions(paths.states[shown])
    view = view_of(drawn.reshape(-1, dim), moving(drawn))
    side = PANEL_SIDES[len(shown)]
    panels = [_panel(view, drawn[at], paths, start, equilibria, side) for at, start in enumerate(shown)]
    title = title or (
        "Tokens on the sphere, step by step" if dim == 3 else f"Tokens on the sphere in {dim} dimensions"
    )
    return beside(
        panels,
        heading(
            title,
            notes_of(table, _notes(paths, view, bool(equilibria)), alone=alone),
            (side + 14) * len(shown) + 60,
        ),
        f"{circle_words(paths, shown, equilibria)} {_view_words(view, dim)}.",
    )


def _notes(paths: Paths, view: View, has_crosses: bool) -> list[str]:
    notes = [_view_words(view, paths.states.shape[-1])]
    if not paths.is_on_sphere:
        notes.append("directions of the tokens; their lengths are not shown")
    return [*notes, *HINTS, "faint: far side", *(["cross: equilibrium"] if has_crosses else [])]


def _view_words(view: View, dim: int) -> str:
    if dim == 3:
        return "seen from outside"
    return f"three principal directions, which hold {percent(view.share, 3)} of the squared length"


def _panel(
    view: View, states: Array, paths: Paths, start: int, equilibria: list[Equilibrium], side: int
) -> Any:
    tokens, dim = states.shape[1:]
    color = token_color(tokens)
    seen = view.seen(states)
    lines = _path_rows(seen)
    size = 75 if tokens <= 16 else 36
    ends = [_end_rows(seen[at], paths, start, at) for at in (0, -1)]
    crosses = [
        {
            **_place(spot),
            "strength": 1.0 if spot[2] >= -EDGE else 0.45,
            "token": token,
            "what": one.name,
            "where": place_words(state[token]),
        }
        for one in crossed(equilibria, paths.states[start, -1])
        for state in one.both
        for token, spot in enumerate(view.seen(directions(state)))
    ]
    width = 1.8 if tokens <= 16 else 1.1
    marks = _ball(view, dim)
    for near, strength in ((False, FAR), (True, 0.9)):
        if own := [row for row in lines if row["near"] == near]:
            marks.append(path_marks(own, color, EXTENT, opacity=strength, width=width))
    marks += cross_marks(once(crosses), EXTENT)
    marks += end_marks(ends[0], ends[1], color, EXTENT, size=size)
    title = panel_title(paths.numbers[start], nearest(paths.states[start, -1], equilibria))
    return alt.layer(*marks, width=side, height=side, view=alt.ViewConfig(stroke=None), title=title)


def _path_rows(seen: Array) -> list[Row]:
    """Paths of all tokens in pieces that lie on one side."""
    return [
        row
        for token in range(seen.shape[1])
        for number, (near, piece) in enumerate(sides(seen[:, token, 2]))
        for row in line_rows(seen[piece, token, :2], line=f"{token} {number}", token=token, near=near)
    ]


def _ball(view: View, dim: int) -> list[Any]:
    """The outline, the near half of the graticule, and the ends of the three axes."""
    rows = list[Row]()
    for number, line in enumerate(graticule(view)):
        for part, (near, piece) in enumerate(sides(line[:, 2])):
            if near:
                rows += line_rows(line[piece, :2], line=f"{number} {part}", kind="net")
    rows += [{**row, "kind": "rim"} for row in ring_rows(1.0, "rim")]
    mark = rows_chart(rows).mark_line(strokeJoin="round").encode(
        x=square("x", EXTENT), y=square("y", EXTENT), detail="line:N", order="order:Q",
        color=alt.condition("datum.kind == 'rim'", alt.value("#8a8a8a"), alt.value("#e4e4e4")),
        strokeWidth=alt.condition("datum.kind == 'rim'", alt.value(1.4), alt.value(0.8)),
    )  # fmt: skip
    name = "x" if dim == 3 else "p"
    # Of every axis the end on the near side.
    spots: list[Row] = [
        {**_place(sign * end), "label": f"{MINUS if sign < 0 else ''}{name}{number}"}
        for number, end in enumerate(view.axes, start=1)
        for sign in (1.0 if end[2] >= -EDGE else -1.0,)
    ]
    dots = rows_chart(spots).mark_point(size=10, filled=True, color=GRAY, opacity=1)
    return [
        mark,
        dots.encode(x=square("x", EXTENT), y=square("y", EXTENT)),
        *labels([{**spot, **_outwards(spot["x"], spot["y"])} for spot in spots], EXTENT, size=10.0),
    ]


def _outwards(x: float, y: float) -> dict[str, float]:
    """A place beside a point, away from the middle: tokens often end right on an axis."""
    length = math.hypot(x, y)
    right, up = (x / length, y / length) if length > 0.05 else (0.0, 1.0)
    return {"x": x + 0.1 * right, "y": y + 0.1 * up}


def _end_rows(spots: Array, paths: Paths, start: int, at: int) -> list[Row]:
    """Points of tokens, far ones first so that near ones cover them."""
    return [
        {
            **_place(spots[token]),
            "strength": 1.0 if spots[token, 2] >= -EDGE else 0.45,
            "token": int(token),
            "step": float(paths.steps[at]),
            "where": place_words(paths.states[start, at, token]),
        }
        for token in np.argsort(spots[:, 2])
    ]


def _place(spot: Array) -> dict[str, float]:
    return {"x": round(float(spot[0]), 5), "y": round(float(spot[1]), 5)}
