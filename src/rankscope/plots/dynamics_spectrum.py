"""Multipliers of equilibria in the complex plane, singular values of their tokens and the threshold of the rank."""

import math
from collections.abc import Sequence
from typing import Any

from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import Chart, alt
from rankscope.plots.dynamics_marks import (
    empty_part,
    equilibrium_color,
    filled_lines,
    heading,
    notes_of,
    ring_rows,
)
from rankscope.plots.dynamics_sections import Equilibrium, equilibria_of, first_of
from rankscope.plots.paths_marks import Row, finished, legend_on_top, rows_chart
from rankscope.plots.scan_axes import linear_ticks
from rankscope.plots.scan_entries import number
from rankscope.plots.style import GRAY, INK, SHAPES
from rankscope.results import Table

NONE_FOUND = "no equilibrium was found"

KINDS = ("contracts", "neutral: length 1 within its error", "grows")
KIND_COLORS = ("#0072B2", "#E69F00", "#D55E00")
KIND_SHAPES = ("circle", "diamond", "triangle-up")

NEUTRAL = 1e-6
"""A multiplier whose length differs less from one is neutral, if the table says nothing of its error."""

SIDES = {1: 300, 2: 255, 3: 230}
MOST_PANELS = 3
MOST_LINES = 8
WIDTH, HEIGHT = 330, 230


def multipliers_chart(table: Table, *, title: str | None = None) -> Chart:
    """Eigenvalues of the Jacobian of one step, a panel per equilibrium (three at most), beside the unit circle.

    Inside it a deviation shrinks, outside it grows, on it one step cannot tell. Equal ones stand on each other.
    """
    return finished(multipliers_part(table, title=title))


def multipliers_part(table: Table, *, title: str | None = None, alone: bool = True) -> Any:
    """The same without settings, to be put beside other charts."""
    title = title or "Multipliers: eigenvalues of the Jacobian of one step"
    found = [one for one in equilibria_of(table) if one.multipliers]
    if not found:
        return empty_part(title, NONE_FOUND, SIDES[1])
    shown = first_of(found, MOST_PANELS)
    side = SIDES[len(shown)]
    reach = 1.12 * max(1.0, *(abs(one) for equilibrium in shown for one in equilibrium.multipliers))
    kinds = sorted({kind_of(value, one.tolerance) for one in shown for value in one.multipliers})
    panels = [_plane(one, side, reach, kinds) for one in shown]
    more = len(found) - len(shown)
    notes = notes_of(table, ["shaded: the unit disk"], alone=alone)
    notes += [f"{more} more equilibri{'a' if more > 1 else 'um'} not drawn"] if more else []
    whole: Any = panels[0] if len(panels) == 1 else alt.hconcat(*panels, spacing=16)
    return whole.properties(
        title=heading(title, notes, (side + 40) * len(shown)), description=multiplier_words(shown)
    )


def multiplier_words(found: Sequence[Equilibrium]) -> str:
    """Alternative text: the largest multiplier of every equilibrium and what it means."""
    sentences = ["Eigenvalues of the Jacobian in the complex plane."]
    for one in found:
        outside = sum(kind_of(value, one.tolerance) == 2 for value in one.multipliers)
        sentences.append(
            f"{one.name.capitalize()}: largest length {number(_largest(one), 5)}, {outside} of "
            f"{len(one.multipliers)} outside the unit circle, {one.verdict}."
        )
    return " ".join(sentences)


def kind_of(multiplier: complex, tolerance: float = NEUTRAL) -> int:
    """0 if a deviation shrinks, 1 if its length stays within the tolerance, 2 if it grows.

    >>> [kind_of(complex(one)) for one in (0.0572, 1 + 1e-9, 1.9428, -0.6 - 0.8j)]
    [0, 1, 2, 1]
    """
    length = abs(multiplier)
    return 1 if abs(length - 1) <= max(tolerance, NEUTRAL) else 0 if length < 1 else 2


def singular_values_chart(table: Table, *, title: str | None = None) -> Chart:
    """Singular values of the tokens of each equilibrium (eight at most) by their number, on a logarithmic axis.

    Hollow: not above the threshold of the rank, which is dashed. Zeros stand at the lower end of the axis.
    """
    return finished(singular_values_part(table, title=title))


def singular_values_part(table: Table, *, title: str | None = None, alone: bool = True) -> Any:
    """The same without settings, to be put beside other charts."""
    title = title or "Singular values of the tokens"
    found = [one for one in equilibria_of(table) if one.singular_values]
    if not found:
        return empty_part(title, NONE_FOUND, SIDES[1])
    shown = first_of(found, MOST_LINES)
    low, high = _ends(shown)
    # Beside each other, because equilibria often have nearly the same singular values.
    aside = [(at - (len(shown) - 1) / 2) * 0.4 / len(shown) for at in range(len(shown))]
    rows = [row for one, shift in zip(shown, aside, strict=True) for row in _value_rows(one, low, shift)]
    notes = notes_of(table, ["dashed: threshold of the rank", "hollow: not above it"], alone=alone)
    notes += ["zeros stand at the lower end"] if any(row["value"] == 0 for row in rows) else []
    notes += [f"{len(found) - len(shown)} more equilibria not drawn"] if len(found) > len(shown) else []
    last = max(len(one.singular_values) for one in shown)
    marks = [*_thresholds(shown, low, high, last), *_lines(rows, shown, low, high, last)]
    return alt.layer(*marks).properties(
        width=WIDTH, height=HEIGHT, title=heading(title, notes, WIDTH + 60),
        description=singular_words(shown),
    )  # fmt: skip


def singular_words(found: Sequence[Equilibrium]) -> str:
    """Alternative text: rank, smallest and largest singular value of every equilibrium."""
    sentences = ["Singular values on a logarithmic axis."]
    for one in found:
        above = [value for value in one.singular_values if value > (one.threshold or 0.0)]
        ends = f", from {number(max(above))} down to {number(min(above))}" if above else ""
        sentences.append(f"{one.name.capitalize()}: {len(above)} above the threshold{ends}.")
    return " ".join(sentences)


def _by_kind(kinds: list[int], marks: tuple[str, ...]) -> Any:
    return alt.Scale(domain=[KINDS[kind] for kind in kinds], range=[marks[kind] for kind in kinds])


def _plane(one: Equilibrium, side: int, reach: float, kinds: list[int]) -> Any:
    ticks = linear_ticks(-reach, reach, 5)
    scale = alt.Scale(domain=[-reach, reach], nice=False, zero=False)
    axis: dict[str, Any] = {"values": ticks.positions, "grid": True, "domain": False}
    x = alt.X("x:Q", scale=scale, axis=alt.Axis(title="real part", **axis))
    y = alt.Y("y:Q", scale=scale, axis=alt.Axis(title="imaginary part", **axis))
    circle = ring_rows(1.0)
    disk = rows_chart(circle).mark_line(
        filled=True, fill="#8fa6bd", fillOpacity=0.16, stroke="#8a8a8a", strokeWidth=1.3
    )
    points = rows_chart(_point_rows(one)).mark_point(
        size=85, filled=True, opacity=0.9, stroke="white", strokeWidth=0.6
    )
    legend = legend_on_top()
    tips = [
        alt.Tooltip("text:N", title="multiplier"),
        alt.Tooltip("length:N"),
        alt.Tooltip("count:Q", title="how many"),
    ]
    marks = [
        disk.encode(x=x, y=y, order="order:Q"),
        points.encode(
            x=x, y=y, tooltip=tips,
            color=alt.Color("kind:N", scale=_by_kind(kinds, KIND_COLORS), legend=legend),
            shape=alt.Shape("kind:N", scale=_by_kind(kinds, KIND_SHAPES), legend=legend),
        ),
        _largest_label(one, x, y),
    ]  # fmt: skip
    title = alt.TitleParams(
        f"{one.name}: {one.verdict}", subtitle=_panel_lines(one, side), fontSize=12, subtitleFontSize=10.5,
        offset=4, fontWeight="normal",
    )  # fmt: skip
    return alt.layer(*marks, width=side, height=side, title=title)


def _point_rows(one: Equilibrium) -> list[Row]:
    """A row per multiplier, equal ones counted; neutral and growing ones last, on top of the others."""
    counts: dict[tuple[complex, int], int] = {}
    for value in one.multipliers:
        place = complex(round(value.real, 6), round(value.imag, 6)), kind_of(value, one.tolerance)
        counts[place] = counts.get(place, 0) + 1
    rows = [
        {
            "x": value.real,
            "y": value.imag,
            "kind": KINDS[kind],
            "text": _complex_words(value),
            "length": number(abs(value), 5),
            "count": count,
        }
        for (value, kind), count in counts.items()
    ]
    return sorted(rows, key=lambda row: KINDS.index(str(row["kind"])))


def _largest_label(one: Equilibrium, x: Any, y: Any) -> Any:
    """The length of the largest multiplier beside it, on the side towards the middle."""
    top = max(one.multipliers, key=lambda value: (round(abs(value), 9), value.imag))
    count = sum(abs(value - top) < NEUTRAL for value in one.multipliers)
    times = f" ({count} times)" if count > 1 else ""
    rows = [{"x": top.real, "y": top.imag, "text": number(abs(top), 4) + times}]
    right = top.real > 0
    mark = rows_chart(rows).mark_text(
        align="right" if right else "left",
        dx=-8 if right else 8,
        dy=-9,
        fontSize=11,
        fontWeight="bold",
        color=INK,
    )
    return mark.encode(x=x, y=y, text="text:N")


def _panel_lines(one: Equilibrium, side: int) -> list[str]:
    """The largest multiplier by component, in words, two lines at most."""
    if len(one.groups) < 2:
        return [f"largest length {number(_largest(one), 4)}"]
    parts = [f"{_tokens_words(tokens)}: {number(largest, 4)}" for tokens, largest in one.groups]
    lines = filled_lines(["largest by component", *parts], side)
    return lines if len(lines) <= 2 else [lines[0], f"{lines[1]} · ..."]


def _tokens_words(tokens: tuple[int, ...]) -> str:
    """
    >>> _tokens_words((3,)), _tokens_words((0, 1, 2)), _tokens_words((0, 2))
    ('token 3', 'tokens 0 to 2', 'tokens 0, 2')
    """
    if len(tokens) == 1:
        return f"token {tokens[0]}"
    if tokens == tuple(range(tokens[0], tokens[-1] + 1)):
        return f"tokens {tokens[0]} to {tokens[-1]}"
    return f"tokens {', '.join(map(str, tokens[:4]))}{', ...' if len(tokens) > 4 else ''}"


def _complex_words(value: complex) -> str:
    if value.imag == 0:
        return number(value.real, 5)
    return f"{number(value.real, 5)} {'+' if value.imag > 0 else '-'} {number(abs(value.imag), 5)}i"


def _largest(one: Equilibrium) -> float:
    return max(abs(value) for value in one.multipliers)


def _ends(shown: Sequence[Equilibrium]) -> tuple[float, float]:
    values = [value for one in shown for value in one.singular_values if value > 0]
    values += [one.threshold for one in shown if one.threshold]
    logs = [math.log10(value) for value in values] or [0.0]
    low, high = min(logs), max(logs)
    margin = 0.06 * (high - low) or 0.5
    return low - margin, high + margin


def _value_rows(one: Equilibrium, low: float, shift: float) -> list[Row]:
    return [
        {
            "number": at,
            "x": at + shift,
            "y": math.log10(value) if value > 0 else low,
            "value": value,
            "text": number(value, 5),
            "hollow": value <= (one.threshold or 0.0),
            "name": one.name,
        }
        for at, value in enumerate(one.singular_values, start=1)
    ]


def _axes(low: float, high: float, last: int) -> tuple[Any, Any]:
    numbers = range(1, last + 1, max(1, math.ceil(last / 12)))
    domain = [0.6, last + 0.4]
    bottom = alt.Axis(title="number of the singular value", values=list(numbers), format="d", grid=False)
    x = alt.X("x:Q", axis=bottom, scale=alt.Scale(domain=domain, nice=False, zero=False))
    left = log_axis(log_ticks(low, high), title="singular value (log scale)", domain=False)
    return x, alt.Y("y:Q", axis=left, scale=alt.Scale(domain=[low, high], nice=False, zero=False))


def _lines(rows: list[Row], shown: Sequence[Equilibrium], low: float, high: float, last: int) -> list[Any]:
    x, y = _axes(low, high, last)
    names = [one.name for one in shown]
    colors = [equilibrium_color(one.index) for one in shown]
    legend = alt.Legend(
        title=None, orient="bottom", columns=2, symbolSize=80, symbolOpacity=1, symbolStrokeWidth=1.5
    )
    color = alt.Color("name:N", scale=alt.Scale(domain=names, range=colors), legend=legend)
    shapes = [SHAPES[one.index % len(SHAPES)] for one in shown]
    shape = alt.Shape("name:N", scale=alt.Scale(domain=names, range=shapes), legend=legend)
    fill = alt.Fill("name:N", scale=alt.Scale(domain=names, range=colors), legend=None)
    base = rows_chart(rows).encode(x=x, y=y, color=color)
    tips = [
        alt.Tooltip("name:N", title="of"),
        alt.Tooltip("number:Q"),
        alt.Tooltip("text:N", title="singular value"),
    ]
    point = base.mark_point(size=52, strokeWidth=1.5, opacity=1).encode(
        shape=shape, fill=alt.when("datum.hollow").then(alt.value("white")).otherwise(fill), tooltip=tips
    )
    return [base.mark_line(strokeWidth=1.4, opacity=0.7), point]


def _thresholds(shown: Sequence[Equilibrium], low: float, high: float, last: int) -> list[Any]:
    """One gray line, or one per equilibrium in its color where they differ by more than the eye would see."""
    known = [(one, math.log10(one.threshold)) for one in shown if one.threshold]
    if not known:
        return []
    logs = [log for _, log in known]
    is_one = max(logs) - min(logs) < 0.02 * (high - low)
    _, y = _axes(low, high, last)
    # A mark each: colors of their own as an encoding would take away the legend of the points.
    return [
        rows_chart([{"y": log}])
        .mark_rule(strokeDash=[5, 3], strokeWidth=1.2, color=GRAY if is_one else equilibrium_color(one.index))
        .encode(y=y)
        for one, log in (known[:1] if is_one else known)
    ]
