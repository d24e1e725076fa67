"""What the pictures of dynamics share: token colors, square panels, lines with few points, notes broken into lines."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rankscope.plots.backend import alt
from rankscope.plots.dynamics_sections import Array, Equilibrium, system_facts, system_note
from rankscope.plots.heat_colors import viridis
from rankscope.plots.paths_marks import Row, rows_chart
from rankscope.plots.style import GRAY, INK, LETTER_WIDTH, PALETTE
from rankscope.results import Table

NAMED_TOKENS = 8
"""Up to so many tokens have an entry each in the legend; more are told by a ramp of colors."""

BRIGHTEST = 0.88
"""The end of viridis is too faint for a line on paper."""

FINE = 1e-3
"""A point nearer than this to the line between its neighbors, in units of the circle's radius, is left out."""

UNKNOWN = "#b0b0b0"

CROSS = "M-1,-1L1,1M-1,1L1,-1"

PANEL_SIDES = {1: 400, 2: 350, 3: 310}
MOST_STARTS = 3

HINTS = ["hollow: start", "filled: end"]


def token_color(tokens: int) -> Any:
    """Color by token, dark for the first: a sequence, because tokens have an order. Equilibria have other colors."""
    if tokens <= NAMED_TOKENS:
        # Two tokens need not take both ends of the ramp: the bright one is faint as a line.
        bright = min(BRIGHTEST, 0.4 + 0.08 * tokens)
        colors = [viridis(bright * token / max(tokens - 1, 1)) for token in range(tokens)]
        legend = alt.Legend(title="token", symbolType="circle", symbolSize=90, symbolOpacity=1)
        scale = alt.Scale(domain=list(range(tokens)), range=colors)
        return alt.Color("token:O", scale=scale, legend=legend)
    ramp = alt.Scale(
        domain=[0, tokens - 1], scheme=alt.SchemeParams(name="viridis", extent=[0, BRIGHTEST]), nice=False
    )
    values = sorted({round(share * (tokens - 1)) for share in (0, 0.25, 0.5, 0.75, 1)})
    bar = alt.Legend(title="token", type="gradient", gradientLength=120, values=values, format="d")
    return alt.Color("token:Q", scale=ramp, legend=bar)


def equilibrium_color(index: int | None) -> str:
    """The color of an equilibrium in every picture; gray for none."""
    return UNKNOWN if index is None else PALETTE[index % len(PALETTE)]


def square(field: str, extent: float) -> Any:
    """A position from ``-extent`` to ``extent`` in a square panel without axes."""
    channel = alt.X if field == "x" else alt.Y
    scale = alt.Scale(domain=[-extent, extent], nice=False, zero=False)
    return channel(f"{field}:Q", axis=None, scale=scale)


def directions(tokens: Array) -> Array:
    """Tokens brought to length one; zeros stay."""
    lengths = np.linalg.norm(tokens, axis=-1, keepdims=True)
    found: Array = np.divide(tokens, lengths, out=np.zeros_like(tokens), where=lengths > 0)
    return found


def ring_rows(radius: float, name: str = "") -> list[Row]:
    """A circle as a closed line; 72 pieces look round up to some 500 pixels."""
    turns = np.linspace(0, 2 * np.pi, 73)
    return [
        {"x": round(radius * math.cos(t), 4), "y": round(radius * math.sin(t), 4), "order": at, "line": name}
        for at, t in enumerate(turns)
    ]


def line_rows(points: Array, **about: object) -> list[Row]:
    """A line through those points (``points 2``), without those that hardly bend it."""
    return [
        {"x": round(float(points[at, 0]), 4), "y": round(float(points[at, 1]), 4), "order": at, **about}
        for at in simplified(points, FINE)
    ]


def simplified(line: Array, tolerance: float) -> list[int]:
    """Which points to keep so that none is farther than ``tolerance`` from the line (Douglas and Peucker 1973).

    >>> simplified(np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [2.0, 1.0]]), 0.01)
    [0, 2, 3]
    """
    kept, open_pieces = {0, len(line) - 1}, [(0, len(line) - 1)]
    while open_pieces:
        first, last = open_pieces.pop()
        if last - first < 2:
            continue
        distances = _from_piece(line[first + 1 : last], line[first], line[last])
        farthest = int(np.argmax(distances))
        if distances[farthest] > tolerance:
            middle = first + 1 + farthest
            kept.add(middle)
            open_pieces += [(first, middle), (middle, last)]
    return sorted(kept)


def _from_piece(points: Array, start: Array, end: Array) -> Array:
    """Distances of points from the straight piece between two others."""
    along = end - start
    length = float(along @ along)
    share = np.clip((points - start) @ along / length, 0, 1) if length > 0 else np.zeros(len(points))
    found: Array = np.linalg.norm(points - start - share[:, None] * along, axis=1)
    return found


def path_marks(
    rows: Sequence[Row], color: Any, extent: float, *, opacity: float = 0.9, width: float = 1.7
) -> Any:
    """Lines along ``order``, one per ``line``, in the color of their token."""
    mark = rows_chart(rows).mark_line(strokeWidth=width, opacity=opacity, strokeJoin="round", clip=True)
    return mark.encode(
        x=square("x", extent), y=square("y", extent), color=color, detail="line:N", order="order:Q"
    )


def end_marks(
    starts: Sequence[Row], ends: Sequence[Row], color: Any, extent: float, *, size: int
) -> list[Any]:
    """Hollow points where tokens start, filled ones where they end; as strong as their ``strength`` says."""
    place = {"x": square("x", extent), "y": square("y", extent), "color": color}
    place["opacity"] = alt.Opacity("strength:Q", scale=None, legend=None)
    tips = [alt.Tooltip("token:N"), alt.Tooltip("step:Q"), alt.Tooltip("where:N", title="at")]
    hollow = rows_chart(starts).mark_point(size=size, strokeWidth=1.7, fill="white")
    filled = rows_chart(ends).mark_point(size=size, filled=True, stroke="white", strokeWidth=0.8)
    return [hollow.encode(**place, tooltip=tips), filled.encode(**place, tooltip=tips)]


def cross_marks(rows: Sequence[Row], extent: float) -> list[Any]:
    """Crosses at tokens of equilibria, large enough to show around the point of a token that ends there."""
    if not rows:
        return []
    tips = [
        alt.Tooltip("what:N", title="at rest"),
        alt.Tooltip("token:N"),
        alt.Tooltip("where:N", title="at"),
    ]
    mark = rows_chart(rows).mark_point(shape=CROSS, size=120, strokeWidth=1.5, stroke=INK)
    strength = alt.Opacity("strength:Q", scale=None, legend=None)
    return [mark.encode(x=square("x", extent), y=square("y", extent), opacity=strength, tooltip=tips)]


def labels(rows: Sequence[Row], extent: float, *, size: float = 9.5, dy: float = 0) -> list[Any]:
    """Small gray words at places. Twice: a white rim keeps them legible on lines."""
    if not rows:
        return []
    base = rows_chart(rows).encode(x=square("x", extent), y=square("y", extent), text="label:N")
    rim = base.mark_text(
        fontSize=size, dy=dy, color="white", stroke="white", strokeWidth=3, strokeOpacity=0.9
    )
    return [rim, base.mark_text(fontSize=size, dy=dy, color=GRAY)]


def once(rows: Iterable[Row]) -> list[Row]:
    """Rows whose places differ, to two digits."""
    found: dict[tuple[float, float], Row] = {}
    for row in rows:
        found.setdefault((round(row["x"], 2), round(row["y"], 2)), row)
    return list(found.values())


def place_words(token: Array) -> str:
    """The entries of a token, the first four of them."""
    shown = ", ".join(f"{entry:.4g}" for entry in token[:4])
    return f"({shown}{', ...' if len(token) > 4 else ''})"


def panel_title(number: int, found: Equilibrium | None) -> Any:
    """Which start a panel shows and where it ends."""
    name = f"start {number}"
    words = name if found is None else f"{name}: ends near {found.name}"
    return alt.TitleParams(words, fontSize=12, offset=2, anchor="middle", fontWeight="normal")


def beside(panels: Sequence[Any], heading: Any, words: str) -> Any:
    """Panels in a row under one title, with one legend."""
    whole: Any = panels[0] if len(panels) == 1 else alt.hconcat(*panels, spacing=14)
    # In place: altair's own method would copy all panels first.
    whole.title, whole.description = heading, words
    return whole


def empty_part(title: str, words: str, width: int) -> Any:
    """A panel that says why there is nothing in it."""
    text = rows_chart([{"text": words}]).mark_text(fontSize=12, color=GRAY, fontStyle="italic")
    place = {"x": alt.value(width / 2), "y": alt.value(45), "text": "text:N"}
    whole: Any = text.encode(**place).properties(width=width, height=90)
    return whole.properties(title=heading(title, [], width), description=f"{title}: {words}.")


def heading(title: str, notes: Sequence[str], width: int) -> Any:
    """A title over notes that fill lines of so many pixels."""
    return alt.TitleParams(title, subtitle=filled_lines(notes, width))


def notes_of(table: Table, notes: Sequence[str], *, alone: bool) -> list[str]:
    """The notes; where a picture stands alone, between the facts of the system and what it says of separate limits."""
    note = system_note(table)
    return [*system_facts(table), *notes, *([note] if note else [])] if alone else list(notes)


def filled_lines(notes: Sequence[str], width: int) -> list[str]:
    """The notes with dots between them, broken between words into lines of so many pixels.

    >>> filled_lines(["6 tokens", "dim 4", "mask causal"], 100)
    ['6 tokens · dim 4', 'mask causal']
    """
    # A note is kept whole where it fits into a line: spaces that do not break hold it together.
    letters = max(int(width / LETTER_WIDTH), 16)
    joined = [note.replace(" ", "\u00a0") if len(note) <= letters else note for note in notes if note]
    lines = textwrap.wrap(" · ".join(joined), letters, break_on_hyphens=False)
    return [line.replace("\u00a0", " ").strip("· ") for line in lines]
