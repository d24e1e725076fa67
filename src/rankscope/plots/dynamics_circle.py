"""Tokens of dimension two over many steps: on the circle as a spiral in time, without a norm as paths in the plane."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankscope.errors import ConfigError
from rankscope.plots.axes import power_of_ten
from rankscope.plots.backend import Chart, alt
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
from rankscope.results import Table

EXTENT = 1.16
OUTSIDE = 1.085
"""Crosses stand so far out, beside the ends and not under them."""

INNER = 0.3
"""Radius of the start; the last step stands at 1."""

CROSSES = {True: "cross outside the circle: equilibrium", False: "cross: equilibrium"}

TURN = math.radians(6)
"""A token that turns farther within a recorded step is drawn along the arc, not along a chord through other times."""

DECADES_FOR_LOG = 1.5
"""Lengths that span more decades stand at their logarithm."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Picture:
    """Places in the panel ``starts steps tokens 2`` and what the rings say: radius and label, outermost last."""

    places: Array
    rings: tuple[tuple[float, str], ...]
    is_spiral: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Radii:
    """Lengths brought to the radius 0 to 1 of a panel; as logarithms from ``low`` to ``high`` if ``is_log``."""

    low: float
    high: float
    is_log: bool

    def placed(self, tokens: Array) -> Array:
        """Tokens at the same angle and the radius of their length; those of length zero in the middle."""
        lengths = np.linalg.norm(tokens, axis=-1, keepdims=True)
        known = np.maximum(lengths, 1e-300)
        share = (np.log10(known) - self.low) / (self.high - self.low) if self.is_log else known / self.high
        found: Array = np.where(lengths > 0, tokens / known * np.clip(share, 0, None), 0.0)
        return found


def circle_chart(table: Table, *, title: str | None = None) -> Chart:
    """Tokens in two dimensions, a panel per recorded start (three at most, those that end farthest apart).

    With tokens of one length the angle is theirs and the radius is time: from the start inside, with the logarithm of
    the step, to the last step on the circle. Without a norm tokens stand where they are. Crosses are tokens of
    equilibria.
    """
    return finished(circle_part(table, title=title))


def circle_part(table: Table, *, title: str | None = None, alone: bool = True) -> Any:
    """The same without settings, to be put beside other charts."""
    paths = paths_of(table)
    if paths.states.shape[-1] != 2:
        raise ConfigError(
            f"the picture on the circle needs tokens of dimension 2, these have {paths.states.shape[-1]}; "
            "sphere_chart draws dimension 3 and more"
        )
    shown = chosen_starts(paths, MOST_STARTS)
    equilibria = known_equilibria(table)
    radii = None if paths.is_on_sphere else _radii(paths)
    picture = _spiral(paths) if radii is None else _plane(paths, radii)
    side = PANEL_SIDES[len(shown)]
    panels = [_panel(picture, radii, paths, start, equilibria, side) for start in shown]
    notes = [*picture.notes, *HINTS, *([CROSSES[picture.is_spiral]] if equilibria else [])]
    where = "on the circle" if picture.is_spiral else "in the plane"
    title = title or f"Tokens {where}, step by step"
    return beside(
        panels,
        heading(title, notes_of(table, notes, alone=alone), (side + 14) * len(shown) + 60),
        circle_words(paths, shown, equilibria),
    )


def circle_words(paths: Paths, shown: list[int], equilibria: list[Equilibrium]) -> str:
    """Alternative text: how many tokens move over how many steps, and where each start ends."""
    tokens = paths.states.shape[2]
    sentences = [
        f"Paths of {tokens} token{'s' if tokens != 1 else ''} of dimension {paths.states.shape[3]} from step "
        f"{paths.steps[0]:.0f} to step {paths.steps[-1]:.0f}."
    ]
    for start in shown:
        end = paths.states[start, -1]
        found = nearest(end, equilibria)
        near = "" if found is None else f", near {found.name} ({found.verdict})"
        listed = "; ".join(place_words(token) for token in end[:4])
        more = "" if tokens <= 4 else f" and {tokens - 4} more"
        sentences.append(f"Start {paths.numbers[start]} ends at {listed}{more}{near}.")
    return " ".join(sentences)


def time_radius(steps: Array) -> Array:
    """Radius of each step, from ``INNER`` at the first to 1 at the last, with the logarithm of one plus the step."""
    logs = np.log1p(steps - steps[0])
    found: Array = np.full_like(logs, 1.0) if logs[-1] == 0 else INNER + (1 - INNER) * logs / logs[-1]
    return found


def _spiral(paths: Paths) -> Picture:
    radius = time_radius(paths.steps)
    last = float(paths.steps[-1] - paths.steps[0])
    powers = [10**power for power in range(int(math.log10(last)) + 1)] if last >= 1 else []
    marked = [(float(time_radius(np.array([0.0, step, last]))[1]), step) for step in powers]
    inner = [
        (at, f"{step:,}" if step < 100_000 else f"1e{len(str(step)) - 1}") for at, step in marked if at < 0.93
    ]
    inner = [*inner[:-1], (inner[-1][0], f"step {inner[-1][1]}")] if inner else []
    ends = ((INNER, ""), *inner, (1.0, "")) if last else ((1.0, ""),)
    return Picture(
        places=directions(paths.states) * radius[:, None, None],
        rings=ends,
        is_spiral=True,
        notes=(f"radius: time, from the start inside to step {paths.steps[-1]:,.0f} on the circle",)
        if last
        else (),
    )


def _plane(paths: Paths, radii: Radii) -> Picture:
    rings: list[tuple[float, str]] = []
    if radii.is_log:
        step = max(1, math.ceil((radii.high - radii.low) / 4))
        first = step * math.ceil((radii.low + 1e-9) / step)
        powers = range(first, math.floor(radii.high) + 1, step)
        rings = [((power - radii.low) / (radii.high - radii.low), power_of_ten(power)) for power in powers]
    else:
        rounded = 10.0 ** math.floor(math.log10(radii.high))
        unit = next(factor * rounded for factor in (5, 2, 1) if factor * rounded <= radii.high)
        rings = [(share * unit / radii.high, f"{share * unit:g}") for share in (0.5, 1.0)]
    words = "radius: length of the token" + (", log scale" if radii.is_log else "")
    return Picture(places=radii.placed(paths.states), rings=tuple(rings), is_spiral=False, notes=(words,))


def _radii(paths: Paths) -> Radii:
    lengths = np.linalg.norm(paths.states, axis=-1)
    known = lengths[lengths > 0]
    if not known.size:
        return Radii(low=0.0, high=1.0, is_log=False)
    low, high = float(known.min()), float(known.max())
    if math.log10(high / low) <= DECADES_FOR_LOG:
        return Radii(low=0.0, high=high, is_log=False)
    low, high = math.log10(low), math.log10(high)
    return Radii(low=low - 0.12 * (high - low), high=high, is_log=True)


def _panel(
    picture: Picture,
    radii: Radii | None,
    paths: Paths,
    start: int,
    equilibria: list[Equilibrium],
    side: int,
) -> Any:
    tokens = paths.states.shape[2]
    color = token_color(tokens)
    places = picture.places[start]
    lines = [
        row
        for token in range(tokens)
        for row in line_rows(
            _along_arcs(places[:, token]) if picture.is_spiral else places[:, token],
            line=str(token),
            token=token,
        )
    ]
    ends = [_end_rows(places, paths, start, at) for at in (0, -1)]
    crosses = [
        {
            **_place(spot),
            "strength": 1.0,
            "token": token,
            "what": one.name,
            "where": place_words(state[token]),
        }
        for one in crossed(equilibria, paths.states[start, -1])
        for state in one.both
        for token, spot in enumerate(OUTSIDE * directions(state) if radii is None else radii.placed(state))
    ]
    size = 75 if tokens <= 16 else 36
    marks = [
        *_rings(picture, start, side),
        path_marks(lines, color, EXTENT, width=1.8 if tokens <= 16 else 1.1),
        *cross_marks(once(crosses), EXTENT),
        *end_marks(ends[0], ends[1], color, EXTENT, size=size),
    ]
    title = panel_title(paths.numbers[start], nearest(paths.states[start, -1], equilibria))
    return alt.layer(*marks, width=side, height=side, view=alt.ViewConfig(stroke=None), title=title)


def _rings(picture: Picture, start: int, side: int) -> list[Any]:
    """Rings of time or length with their labels; the outer circle of a spiral is strong."""
    if not picture.rings:
        return []
    rows = [row for number, (at, _) in enumerate(picture.rings) for row in ring_rows(at, str(number))]
    strong = str(len(picture.rings) - 1) if picture.is_spiral else ""
    mark = rows_chart(rows).mark_line().encode(
        x=square("x", EXTENT), y=square("y", EXTENT), detail="line:N", order="order:Q",
        color=alt.condition(f"datum.line == '{strong}'", alt.value("#8a8a8a"), alt.value("#dedede")),
        strokeWidth=alt.condition(f"datum.line == '{strong}'", alt.value(1.4), alt.value(0.9)),
    )  # fmt: skip
    named = _apart(picture.rings, side)
    turn = free_direction([at for at, _ in named], picture.places[start].reshape(-1, 2))
    spots = [{"x": at * math.cos(turn), "y": at * math.sin(turn), "label": label} for at, label in named]
    return [mark, *labels(spots, EXTENT)]


def free_direction(radii: list[float], points: Array) -> float:
    """The angle, above or below the middle, at which labels at those radii are farthest from all points."""
    # Upwards and downwards only: beside the middle, labels of neighboring rings would touch.
    turns = np.radians([sign * (45.0 + 15 * step) for sign in (-1, 1) for step in range(7)])
    if not radii:
        return float(turns[0])
    spots = np.stack([np.cos(turns), np.sin(turns)], axis=1)[:, None] * np.array(radii)[:, None]
    # Labels are about three times as wide as high.
    apart = (spots[:, :, None] - points) * np.array([0.4, 1.0])
    return float(turns[np.argmax(np.linalg.norm(apart, axis=-1).min(axis=(1, 2)).round(3))])


def _apart(rings: tuple[tuple[float, str], ...], side: int) -> list[tuple[float, str]]:
    """Labels from the outside in, those that would stand on another left out."""
    gap, found = 13 * 2 * EXTENT / side, list[tuple[float, str]]()
    for at, label in reversed(rings):
        if label and (not found or found[-1][0] - at >= gap):
            found.append((at, label))
    return found


def _along_arcs(line: Array) -> Array:
    """The line with points put in where it turns far: angle and radius change evenly, the short way round."""
    angles, radii = np.unwrap(np.arctan2(line[:, 1], line[:, 0])), np.linalg.norm(line, axis=1)
    pieces = np.maximum(np.ceil(np.abs(np.diff(angles)) / TURN).astype(int), 1)
    at = np.concatenate([[0.0], *[k + np.arange(1, n + 1) / n for k, n in enumerate(pieces)]])
    number = np.arange(len(line))
    angle, radius = np.interp(at, number, angles), np.interp(at, number, radii)
    found: Array = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return found


def _end_rows(places: Array, paths: Paths, start: int, at: int) -> list[Row]:
    return [
        {
            **_place(spot),
            "strength": 1.0,
            "token": token,
            "step": float(paths.steps[at]),
            "where": place_words(paths.states[start, at, token]),
        }
        for token, spot in enumerate(places[at])
    ]


def _place(spot: Array) -> dict[str, float]:
    return {"x": round(float(spot[0]), 5), "y": round(float(spot[1]), 5)}
