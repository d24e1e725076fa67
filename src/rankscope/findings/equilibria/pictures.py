"""Pictures of what was found: multipliers, singular values, where starts end, and paths of tokens step by step.

Tokens of one dimension are drawn as values over steps, those of two on a circle or in the plane, those of more on a
sphere seen from outside: the three principal directions of all recorded tokens.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rankscope.charts import Bar, Bars, Line, Panel, Picture, Plane, PlaneLine, Point, Spot, Square
from rankscope.charts.colors import BLIND_SAFE, viridis
from rankscope.core.words import count, number, percent, power
from rankscope.findings.blocks import LN10, even
from rankscope.findings.equilibria.finding import EquilibriaFinding
from rankscope.findings.equilibria.values import ComponentValue, EquilibriumValue, Trajectories
from rankscope.results.statistics import wilson

MOST_PLANES = 3
MOST_LINES = 6
MOST_VALUES = 64
"""Equilibria whose multipliers and whose singular values are drawn, and how many of the latter."""

MOST_BARS = 12
MOST_POINTS = 400
"""Endings, and starts on the map of starts, that are drawn."""

NEUTRAL = 1e-6
"""A multiplier whose length differs less from one is drawn as neutral, even if its error is smaller."""

KINDS: tuple[tuple[str, int], ...] = (
    ("shrinks", 0),
    ("length one within its error", 4),
    ("grows", 1),
)
"""What a multiplier does to a small change, with its color."""


def all_of(finding: EquilibriaFinding) -> list[Picture]:
    """Every picture that there is."""
    found = [
        *paths(finding),
        multipliers(finding),
        singular_values(finding),
        endings(finding),
        *basins(finding),
    ]
    return [one for one in found if one is not None] or [
        Plane(title="Equilibria", squares=(), notes=["No equilibrium was found, and no start was run."])
    ]


# ------------------------------------------------------------------------------------------ multipliers and values


def first_places(finding: EquilibriaFinding, most: int) -> list[int]:
    """The first that many equilibria, among them the one that is shown, in the order of the list."""
    places = range(len(finding.equilibria))
    return sorted(sorted(places, key=lambda at: (at != finding.place, at))[:most])


def kind_of(multiplier: complex, tolerance: float = NEUTRAL) -> int:
    """0 if a small change shrinks, 1 if its length stays within the tolerance, 2 if it grows.

    >>> [kind_of(complex(one)) for one in (0.0572, 1 + 1e-9, 1.9428, -0.6 - 0.8j)]
    [0, 1, 2, 1]
    """
    length = abs(multiplier)
    return 1 if abs(length - 1) <= max(tolerance, NEUTRAL) else 0 if length < 1 else 2


def multipliers(finding: EquilibriaFinding) -> Plane | None:
    """Eigenvalues of the Jacobian of one step in the complex plane, for three equilibria at most.

    Inside the unit circle a small change shrinks, outside it grows, on it one step cannot tell.
    """
    shown = first_places(finding, MOST_PLANES)
    if not shown:
        return None
    known = {at: _known_multipliers(finding.equilibria[at]) for at in shown}
    reach = 1.12 * max(1.0, *(abs(one) for found in known.values() for one in found), 0.0)
    squares = [_multiplier_square(finding, at, known[at], reach) for at in shown]
    more = len(finding.equilibria) - len(shown)
    notes = ["Eigenvalues of the Jacobian of one step in the complex plane. Shaded: the unit disk."]
    notes += [f"{count(more, 'more equilibrium', 'more equilibria')} not drawn."] if more else []
    kinds = {
        kind_of(one, finding.equilibria[at].multiplier_error or 0.0) for at in shown for one in known[at]
    }
    return Plane(
        title="Multipliers", squares=squares, names=[KINDS[kind] for kind in sorted(kinds)], notes=notes
    )


def _known_multipliers(one: EquilibriumValue) -> list[complex]:
    return [complex(re, im) for re, im in one.multipliers if re is not None and im is not None]


def _multiplier_square(finding: EquilibriaFinding, at: int, known: list[complex], reach: float) -> Square:
    one = finding.equilibria[at]
    counts = dict[tuple[complex, int], int]()
    for value in known:
        key = complex(round(value.real, 6), round(value.imag, 6)), kind_of(value, one.multiplier_error or 0.0)
        counts[key] = counts.get(key, 0) + 1
    spots = [
        Spot(
            value.real,
            value.imag,
            f"{complex_words(value)}, length {number(abs(value), 5)}"
            + (f", {many} times" if many > 1 else ""),
            KINDS[kind][1],
        )
        for (value, kind), many in sorted(counts.items(), key=lambda pair: pair[0][1])
    ]
    unit = next(
        step for step in (1, 2, 5, 10, 20, 50, 10.0 ** math.ceil(math.log10(reach))) if 4 * step >= reach
    )
    rings = [(float(unit * k), number(float(unit * k))) for k in range(1, 5) if unit * k <= reach]
    axes = [
        PlaneLine([(-reach, 0.0), (reach, 0.0)], -1, True),
        PlaneLine([(0.0, -reach), (0.0, reach)], -1, True),
    ]
    return Square(
        name=f"{finding.name(at)}: {one.attraction}",
        note=_largest_words(one.components),
        extent=reach,
        ways=axes,
        spots=spots,
        rings=rings,
        turn=math.radians(225),
        disk=1.0,
        is_shaded=True,
    )


def _largest_words(components: Sequence[ComponentValue]) -> str:
    shown = [number(one.largest_multiplier, 4) for one in components[:4]]
    return f"largest by token: {', '.join(shown)}{', ...' if len(components) > 4 else ''}"


def complex_words(value: complex) -> str:
    """
    >>> complex_words(0.5 + 0j), complex_words(0.25 - 0.5j)
    ('0.5', '0.25 - 0.5i')
    """
    if value.imag == 0:
        return number(value.real, 5)
    return f"{number(value.real, 5)} {'+' if value.imag > 0 else '-'} {number(abs(value.imag), 5)}i"


def singular_values(finding: EquilibriaFinding) -> Panel | None:
    """Singular values of the tokens of each equilibrium by their number; rings are not above the threshold."""
    shown = first_places(finding, MOST_LINES)
    if not shown:
        return None
    longest = max(len(finding.equilibria[at].singular_values) for at in shown)
    lines = [_value_line(finding, at) for at in shown]
    numbers = (1.0, float(min(longest, MOST_VALUES)))
    threshold = max(finding.equilibria[at].rank_threshold for at in shown)
    if threshold > 0:
        level = [Point(x, math.log10(threshold)) for x in numbers]
        lines.append(Line(name="threshold", points=level, style="dashed", color=-1, dots=False))
    # What is far below the threshold is rounding: it stands at the lower end, and does not stretch the axis.
    known = [value for at in shown for value in finding.equilibria[at].singular_values if value > threshold]
    inside = [math.log10(value) for value in known] + ([math.log10(threshold) - 1] if threshold > 0 else [])
    notes = ["Dashed: threshold of the rank, the largest of them. Ring: not above its threshold."]
    lowest = 10 ** min(inside, default=0.0)
    if any(value < lowest for at in shown for value in finding.equilibria[at].singular_values):
        notes.append("A triangle at the lower end: far below the threshold, or zero.")
    if len(finding.equilibria) > len(shown):
        notes.append(
            f"{count(len(finding.equilibria) - len(shown), 'more equilibrium', 'more equilibria')} not drawn."
        )
    if longest > MOST_VALUES:
        notes.append(f"The first {MOST_VALUES} of {longest} values.")
    return Panel(
        title="Singular values of the tokens",
        lines=lines,
        value="singular value",
        across="number",
        inside=inside,
        notes=[" ".join(notes)],
    )


def _value_line(finding: EquilibriaFinding, at: int) -> Line:
    one, points = finding.equilibria[at], []
    for place, value in enumerate(one.singular_values[:MOST_VALUES], start=1):
        is_above = value > one.rank_threshold
        words = f"{finding.name(at)}: {number(value, 4)}{'' if is_above else ', not above its threshold'}"
        log = math.log10(value) if value > 0 else -math.inf
        points.append(Point(float(place), log, words, hollow=not is_above))
    return Line(name=finding.name(at), points=points)


# --------------------------------------------------------------------------------------------- where starts end


def endings(finding: EquilibriaFinding) -> Bars | None:
    """Shares of the random starts by where they ended, with 95% intervals of Wilson."""
    many = finding.basins.starts
    if not finding.basins.shares or not many:
        return None
    merged = dict[str, int]()
    for one in finding.basins.shares:
        if one.equilibrium is not None:
            name = finding.name(one.equilibrium)
        else:
            name = finding.ended(one) + ("" if one.rank is None else f", rank {one.rank}")
        merged[name] = merged.get(name, 0) + one.count
    named = sorted(merged.items(), key=lambda pair: -pair[1])
    if len(named) > MOST_BARS:
        rest = named[MOST_BARS - 1 :]
        named = [*named[: MOST_BARS - 1], (f"{len(rest)} other endings", sum(some for _, some in rest))]
    bars = []
    for name, some in named:
        low, high = wilson(some, many)
        text = f"{some:,} of {many:,}, {percent(some / many)}"
        words = f"{text}, 95% interval {percent(low)} to {percent(high)}"
        bars.append(Bar(name, some / many, text, low=low, high=high, tip=words))
    return Bars(
        title=f"Where {count(many, 'random start')} end{'s' * (many == 1)}",
        bars=bars,
        value="share of the starts",
        notes=["Whiskers: 95% interval (Wilson)."],
    )


def basins(finding: EquilibriaFinding) -> list[Panel]:
    """For two tokens in the plane: every start at its two angles, in the color of where it ends."""
    angles, limits = finding.basins.start_angles, finding.basins.limit
    if not angles or limits is None:
        return []
    chosen = even(len(angles), MOST_POINTS)
    lines = []
    for limit in sorted({limits[at] for at in chosen}, key=lambda one: (one is None, one or 0)):
        name = "no equilibrium" if limit is None else finding.name(limit)
        degrees = sorted(
            tuple((math.degrees(one) + 180) % 360 - 180 for one in angles[at])
            for at in chosen
            if limits[at] == limit
        )
        points = [Point(a, b, f"{number(a)}, {number(b)}: {name}") for a, b in degrees]
        lines.append(Line(name=name, points=points, style="none", color=-1 if limit is None else limit % 6))
    notes = [f"{len(chosen):,} of {len(angles):,} starts."] if len(chosen) < len(angles) else []
    return [
        Panel(
            title="Where starts end, by the angles of their two tokens",
            lines=lines,
            value="angle of token 1, degrees",
            across="angle of token 0, degrees",
            scale="linear",
            inside=(-180.0, 180.0),
            notes=notes,
        )
    ]


Array = NDArray[np.float64]

MOST_STARTS = 3
"""Recorded starts that are drawn: those that end farthest apart."""

MOST_PATHS = 48
"""Tokens whose paths are drawn."""

MOST_CROSSES = 24
"""More tokens of equilibria than this would hide the paths."""

LARGEST = 1e150
"""Entries beyond this are not drawn: lengths are computed from squares, which then leave the range of floats."""

NEAR = 0.05
"""A start that ends nearer to an equilibrium than this, relative to its longest token, is said to end near it."""

SAME_LENGTH = 1e-3
"""Tokens whose lengths differ by less, relatively, lie on one sphere: norms add a small number under their root."""

DECADES_FOR_LOG = 1.5
"""Lengths that span more decades stand at their logarithm."""

INNER = 0.3
"""Radius of the start in the picture on the circle; the last step stands at 1."""

OUTSIDE = 1.085
"""Crosses stand this far out of the circle, beside the ends and not under them."""

TURN = math.radians(6)
"""A token that turns farther within a recorded step is drawn along the arc, not along a chord through other times."""

EXTENT = 1.18
"""Half the side of a picture, where the radius of the circle or the sphere is one."""

HINTS = "Ring: start. Dot: end."


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RecordedPaths:
    """Recorded states ``starts steps tokens dim`` of finite numbers, the numbers of their steps and of the starts."""

    steps: Array
    states: Array
    numbers: tuple[int, ...]

    @property
    def is_on_sphere(self) -> bool:
        """Whether all tokens have one length from the first recorded step on; the start itself may have another."""
        moved = self.states[:, 1:] if self.states.shape[1] > 1 else self.states
        lengths = np.linalg.norm(moved, axis=-1)
        return bool(lengths.min() > 0 and lengths.max() - lengths.min() <= SAME_LENGTH * lengths.max())


def paths_of(found: Trajectories | None) -> RecordedPaths | None:
    """The recorded states up to where one leaves the range of what can be drawn; None where there is none."""
    if found is None or not found.starts:
        return None
    states = np.array(found.starts, dtype=np.float64)  # None becomes NaN
    known: NDArray[np.bool_] = np.asarray((np.abs(states) <= LARGEST).all(axis=(0, 2, 3)))
    last = len(found.steps) if known.all() else int(np.argmin(known))
    if last == 0:
        return None
    return RecordedPaths(
        steps=np.array(found.steps[:last], dtype=np.float64), states=states[:, :last], numbers=found.numbers
    )


def paths(finding: EquilibriaFinding) -> list[Picture]:
    """Paths of the tokens of a few starts, in the picture that fits their dimension."""
    recorded = paths_of(finding.trajectories)
    if recorded is None:
        return []
    shown = chosen_starts(recorded)
    dim, tokens = recorded.states.shape[-1], recorded.states.shape[-2]
    drawn = even(tokens, MOST_PATHS)
    notes = [HINTS]
    if len(drawn) < tokens:
        notes.append(f"{len(drawn)} of {tokens} tokens are drawn.")
    if dim == 1:
        return [_over_steps(finding, recorded, start, drawn, notes) for start in shown]
    make = _circles if dim == 2 else _spheres
    return [make(finding, recorded, shown, drawn, notes)]


def chosen_starts(recorded: RecordedPaths, most: int = MOST_STARTS) -> list[int]:
    """At most that many starts that end far apart: the first, then always the one farthest from all taken."""
    ends = recorded.states[:, -1].reshape(len(recorded.states), -1)
    taken, apart = [0], np.linalg.norm(ends - ends[0], axis=1)
    while len(taken) < min(most, len(ends)):
        apart[taken] = -1.0
        taken.append(int(np.argmax(apart)))
        apart = np.minimum(apart, np.linalg.norm(ends - ends[taken[-1]], axis=1))
    return sorted(taken)


def token_color(token: int, tokens: int) -> int | str:
    """Numbered colors where they suffice, otherwise a ramp, because tokens have an order.

    The dark and the bright end of the ramp are left out: one is faint on a dark page, the other on paper.
    """
    return token if tokens <= len(BLIND_SAFE) else viridis(0.2 + 0.65 * token / (tokens - 1))


def _names(drawn: Sequence[int], tokens: int) -> list[tuple[str, int | str]]:
    shown = [drawn[at] for at in even(len(drawn), 6)]
    return [(f"token {token}", token_color(token, tokens)) for token in shown]


def both(one: EquilibriumValue) -> list[Array]:
    """The tokens, and those of opposite sign where they are at rest as well."""
    tokens = np.array(one.tokens)
    return [tokens, -tokens] if one.mirrored else [tokens]


def nearest(finding: EquilibriaFinding, state: Array) -> int | None:
    """The place of the equilibrium whose tokens all lie near those of the state; None if there is none."""
    distances = [
        min(float(np.linalg.norm(tokens - state, axis=-1).max()) for tokens in both(one))
        for one in finding.equilibria
    ]
    if not distances:
        return None
    best = int(np.argmin(distances))
    size = float(np.linalg.norm(np.array(finding.equilibria[best].tokens), axis=-1).max())
    return best if distances[best] <= NEAR * size else None


def marked_equilibria(finding: EquilibriaFinding, end: Array) -> list[int]:
    """Equilibria marked beside a path: all if they are few, otherwise the one it ends at and the one that is shown."""
    many = sum(len(one.tokens) * len(both(one)) for one in finding.equilibria)
    if many <= MOST_CROSSES:
        return list(range(len(finding.equilibria)))
    return sorted({at for at in (nearest(finding, end), finding.place) if at is not None})


def _square_name(finding: EquilibriaFinding, recorded: RecordedPaths, start: int) -> str:
    near = nearest(finding, recorded.states[start, -1])
    name = f"start {recorded.numbers[start]}"
    return name if near is None else f"{name}: ends near {finding.name(near)}"


def _tip(recorded: RecordedPaths, start: int, at: int, token: int) -> str:
    return f"token {token}, step {recorded.steps[at]:.0f}: {place_words(recorded.states[start, at, token])}"


def place_words(token: Iterable[float]) -> str:
    """The entries of a token, the first four of them."""
    entries = list(token)
    return f"({', '.join(number(one) for one in entries[:4])}{', ...' if len(entries) > 4 else ''})"


def directions(tokens: Array) -> Array:
    """Tokens brought to length one; zeros stay."""
    lengths = np.linalg.norm(tokens, axis=-1, keepdims=True)
    found: Array = np.divide(tokens, lengths, out=np.zeros_like(tokens), where=lengths > 0)
    return found


def _pairs(line: Array) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in line]


# one dimension: values over steps


def _over_steps(
    finding: EquilibriaFinding, recorded: RecordedPaths, start: int, drawn: Sequence[int], notes: list[str]
) -> Panel:
    places = np.log10(1 + recorded.steps)
    lines = []
    for token in drawn:
        values = recorded.states[start, :, token, 0]
        points = [
            Point(float(x), float(y), f"token {token}, step {step:.0f}: {number(float(y))}")
            for x, y, step in zip(places, values, recorded.steps, strict=True)
        ]
        lines.append(Line(name=f"token {token}", points=points))
    levels = {
        round(float(v), 6)
        for place in marked_equilibria(finding, recorded.states[start, -1])
        for state in both(finding.equilibria[place])
        for v in state.ravel()
    }
    ends = [float(places[0]), float(places[-1])]
    lines += [
        Line(name="", points=[Point(x, level) for x in ends], style="dashed", color=-1, dots=False)
        for level in sorted(levels)
    ]
    return Panel(
        title=f"Tokens on the line: {_square_name(finding, recorded, start)}",
        lines=lines,
        value="value",
        across="log10(1 + step)",
        scale="linear",
        notes=[*notes[1:], *(["Dashed: tokens of equilibria."] if levels else [])],
    )


# two dimensions: a spiral in time on the circle, or paths in the plane


@dataclass(frozen=True, kw_only=True, slots=True)
class Radii:
    """Lengths brought to the radius 0 to 1; as logarithms from ``low`` to ``high`` if ``is_log``."""

    low: float
    high: float
    is_log: bool

    @classmethod
    def of(cls, lengths: Array) -> "Radii":
        """Those that hold all lengths."""
        known = lengths[lengths > 0]
        if not known.size:
            return cls(low=0.0, high=1.0, is_log=False)
        low, high = float(known.min()), float(known.max())
        if math.log10(high) - math.log10(low) <= DECADES_FOR_LOG:
            return cls(low=0.0, high=high, is_log=False)
        low, high = math.log10(low), math.log10(high)
        return cls(low=low - 0.12 * (high - low), high=high, is_log=True)

    def placed(self, tokens: Array) -> Array:
        """Tokens at the same angle and the radius of their length; those of length zero in the middle."""
        lengths = np.linalg.norm(tokens, axis=-1, keepdims=True)
        known = np.maximum(lengths, 1e-300)
        share = (np.log10(known) - self.low) / (self.high - self.low) if self.is_log else known / self.high
        found: Array = np.where(lengths > 0, tokens / known * np.clip(share, 0, None), 0.0)
        return found

    def rings(self) -> list[tuple[float, str]]:
        """Round lengths, at most about four."""
        if self.is_log:
            step = max(1, math.ceil((self.high - self.low) / 4))
            first = step * math.ceil((self.low + 1e-9) / step)
            powers = range(first, math.floor(self.high) + 1, step)
            return [((one - self.low) / (self.high - self.low), power(one * LN10)) for one in powers]
        scale = 10.0 ** math.floor(math.log10(self.high))
        unit = next(factor * scale for factor in (5, 2, 1) if factor * scale <= self.high)
        return [(share * unit / self.high, number(share * unit)) for share in (0.5, 1.0)]


def time_radius(steps: Array) -> Array:
    """Radius of each step, from ``INNER`` at the first to 1 at the last, with the logarithm of one plus the step."""
    logs = np.log1p(steps - steps[0])
    found: Array = np.full_like(logs, 1.0) if logs[-1] == 0 else INNER + (1 - INNER) * logs / logs[-1]
    return found


def along_arcs(line: Array) -> Array:
    """The line with points put in where it turns far: angle and radius change evenly, the short way round."""
    angles, radii = np.unwrap(np.arctan2(line[:, 1], line[:, 0])), np.linalg.norm(line, axis=1)
    pieces = np.maximum(np.ceil(np.abs(np.diff(angles)) / TURN).astype(int), 1)
    at = np.concatenate([[0.0], *[k + np.arange(1, n + 1) / n for k, n in enumerate(pieces)]])
    order = np.arange(len(line))
    angle, radius = np.interp(at, order, angles), np.interp(at, order, radii)
    found: Array = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return found


def free_direction(radii: Sequence[float], points: Array) -> float:
    """The angle, above or below the middle, at which words at those radii are farthest from all points."""
    # Upwards and downwards only: beside the middle, words of neighboring rings would touch.
    turns = np.radians([sign * (45.0 + 15 * step) for sign in (-1, 1) for step in range(7)])
    if not radii:
        return float(turns[0])
    spots = np.stack([np.cos(turns), np.sin(turns)], axis=1)[:, None] * np.array(radii)[:, None]
    # Words are about three times as wide as high.
    apart = (spots[:, :, None] - points) * np.array([0.4, 1.0])
    return float(turns[np.argmax(np.linalg.norm(apart, axis=-1).min(axis=(1, 2)).round(3))])


def _time_rings(steps: Array) -> list[tuple[float, str]]:
    """Powers of ten among the steps that do not crowd each other; the innermost ring is the start."""
    last = float(steps[-1] - steps[0])
    powers = [10**exponent for exponent in range(int(math.log10(last)) + 1)] if last >= 1 else []
    placed = [(float(time_radius(np.array([0.0, step, last]))[1]), step) for step in powers]
    rings = [(INNER, "")] if last else []
    for at, step in placed:
        if at < 0.93 and at - rings[-1][0] >= 0.09:
            rings.append((at, f"step {step}" if step < 100_000 else f"step 1e{len(str(step)) - 1}"))
    return rings


def _circles(
    finding: EquilibriaFinding, recorded: RecordedPaths, shown: list[int], drawn: list[int], notes: list[str]
) -> Plane:
    is_spiral = recorded.is_on_sphere
    radii = None if is_spiral else Radii.of(np.linalg.norm(recorded.states, axis=-1))
    tokens = recorded.states.shape[2]
    if radii is None:
        places = directions(recorded.states) * time_radius(recorded.steps)[:, None, None]
        rings = _time_rings(recorded.steps)
        notes = [
            f"Radius: time, from the start inside to step {recorded.steps[-1]:,.0f} on the circle.",
            *notes,
        ]
    else:
        places, rings = radii.placed(recorded.states), radii.rings()
        notes = [f"Radius: length of the token{', log scale' if radii.is_log else ''}.", *notes]
    squares = []
    for start in shown:
        own = places[start]
        ways = [
            PlaneLine(
                _pairs(along_arcs(own[:, token]) if is_spiral else own[:, token]), token_color(token, tokens)
            )
            for token in drawn
        ]
        ends = [
            Spot(
                *_pairs(own[at, token][None])[0],
                _tip(recorded, start, at, token),
                token_color(token, tokens),
                "dot" if at else "ring",
            )
            for at in (0, -1)
            for token in drawn
        ]
        crosses = _crosses(
            finding,
            recorded.states[start, -1],
            lambda state: OUTSIDE * directions(state) if radii is None else radii.placed(state),
        )
        squares.append(
            Square(
                name=_square_name(finding, recorded, start),
                extent=EXTENT,
                ways=ways,
                spots=[*crosses, *ends],
                rings=rings,
                turn=free_direction([at for at, words in rings if words], own.reshape(-1, 2)),
                disk=1.0 if is_spiral else None,
            )
        )
    if any(spot.shape == "cross" for square in squares for spot in square.spots):
        notes = [*notes, f"Cross{' outside the circle' if is_spiral else ''}: equilibrium."]
    where = "on the circle" if is_spiral else "in the plane"
    return Plane(
        title=f"Tokens {where}, step by step", squares=squares, names=_names(drawn, tokens), notes=notes
    )


def _crosses(finding: EquilibriaFinding, end: Array, place: Callable[[Array], Array]) -> list[Spot]:
    """The tokens of equilibria, each place once; those on the far side of a sphere are faint."""
    found = dict[tuple[float, float], Spot]()
    for at in marked_equilibria(finding, end):
        for state in both(finding.equilibria[at]):
            for token, spot in enumerate(place(state)):
                words = f"{finding.name(at)}, token {token}: {place_words(state[token])}"
                faint = len(spot) > 2 and bool(spot[2] < -EDGE)
                x, y = float(spot[0]), float(spot[1])
                found.setdefault((round(x, 2), round(y, 2)), Spot(x, y, words, -1, "cross", faint))
    return list(found.values())


# three dimensions and more: a sphere seen from outside

TILTS = (15, 30, 45, -15, -30)
"""Degrees above the equator from which the sphere may be seen; earlier ones are taken where several show as much."""

TURNS = 36
"""Directions around the axis that are tried."""

MOVES = 0.02
"""A token that moves farther within a recorded step is under way."""

SPREAD = 0.5
"""How much a wide spread in the picture counts against paths on the near side when a view is chosen."""

EDGE = 1e-9
"""Depth below which a point at the rim counts as near."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SphereView:
    """An orthographic view: ``basis`` (``3 dim``) has the directions right, up and towards the reader as rows.

    ``share`` is the part of the squared length of what is drawn that lies in these three directions; ``axes`` (``3 3``)
    are the three directions before they were turned, seen in this view, one per row.
    """

    basis: Array
    axes: Array
    share: float

    def seen(self, points: Array) -> Array:
        """Right, up and depth of every point ``... dim``; depth is positive on the near side."""
        found: Array = points @ self.basis.T
        return found


def view_of(points: Array, shown: Array) -> SphereView:
    """The view of unit vectors ``points dim``: coordinates in three dimensions, principal directions in more.

    Principal directions are taken about zero, not about the mean, because the sphere has its center there. The view is
    the one of a fixed list that has most of ``shown`` on the near side and far apart.
    """
    dim = points.shape[1]
    basis = np.eye(3) if dim == 3 else principal(points)
    kept, size = points @ basis.T, float(np.sum(points**2))
    turns = [2 * math.pi * turn / TURNS for turn in range(TURNS)]
    views = [rotation(turn, math.radians(tilt)) for tilt in TILTS for turn in turns]
    turn = max(views, key=lambda view: round(_size_in_view(shown @ basis.T @ view.T), 3))
    return SphereView(
        basis=turn @ basis, axes=turn.T.copy(), share=float(np.sum(kept**2)) / size if size > 0 else 1.0
    )


def moving(states: Array) -> Array:
    """Of paths ``starts steps tokens dim`` the points that count for the view: starts, ends, and where they move."""
    apart = np.linalg.norm(np.diff(states, axis=1), axis=-1) > MOVES
    first = np.ones_like(states[:, :1, :, 0], dtype=bool)
    kept = np.concatenate([first, apart[:, :-1], first], axis=1) if states.shape[1] > 1 else first
    found: Array = states[kept]
    return found


def principal(points: Array) -> Array:
    """Three orthonormal rows that hold most of the squared length of the points; signs make their sums positive."""
    _, columns = np.linalg.eigh(points.T @ points)
    first: Array = columns[:, :-4:-1].T
    return first * np.where((points @ first.T).sum(axis=0) < 0, -1.0, 1.0)[:, None]


def rotation(turn: float, tilt: float) -> Array:
    """Rows right, up and near of a view from the longitude ``turn`` and the latitude ``tilt``, in radians."""
    near = [math.cos(tilt) * math.cos(turn), math.cos(tilt) * math.sin(turn), math.sin(tilt)]
    right = [-math.sin(turn), math.cos(turn), 0.0]
    return np.array([right, np.cross(near, right), near])


def graticule(view: SphereView) -> list[Array]:
    """Meridians and parallels, 30 degrees apart, as lines ``points 3`` in the view."""
    around, along = np.linspace(0, 2 * np.pi, 61), np.linspace(-np.pi / 2, np.pi / 2, 31)
    lines = [(around, np.full_like(around, math.radians(latitude))) for latitude in range(-60, 61, 30)]
    lines += [(np.full_like(along, math.radians(longitude)), along) for longitude in range(0, 360, 30)]
    return [
        np.stack([np.cos(b) * np.cos(a), np.cos(b) * np.sin(a), np.sin(b)], axis=1) @ view.axes
        for a, b in lines
    ]


def sides(depth: Array) -> list[tuple[bool, slice]]:
    """Runs of points on one side, near or far; each but the last also holds the first point of the next one.

    >>> [(near, piece.start, piece.stop) for near, piece in sides(np.array([0.2, 0.1, -0.3, -0.1, 0.4]))]
    [(True, 0, 3), (False, 2, 5), (True, 4, 5)]
    """
    is_near = depth >= 0
    cuts = [0, *(np.flatnonzero(np.diff(is_near)) + 1).tolist(), len(depth)]
    return [(bool(is_near[first]), slice(first, min(last + 1, len(depth)))) for first, last in pairwise(cuts)]


def _size_in_view(seen: Array) -> float:
    near = float(np.mean(np.clip(seen[:, 2], -0.3, 0.3))) / 0.3
    return near + SPREAD * math.sqrt(float(np.var(seen[:, :2], axis=0).sum()))


def _spheres(
    finding: EquilibriaFinding, recorded: RecordedPaths, shown: list[int], drawn: list[int], notes: list[str]
) -> Plane:
    tokens, dim = recorded.states.shape[2:]
    states = directions(recorded.states[shown])
    view = view_of(states.reshape(-1, dim), moving(states))
    net = _net(view)
    squares = [
        Square(
            name=_square_name(finding, recorded, start),
            extent=EXTENT,
            disk=1.0,
            ways=[*net, *_paths_on(view.seen(states[at]), drawn)],
            spots=[
                *_crosses(finding, recorded.states[start, -1], lambda state: view.seen(directions(state))),
                *_ends_on(view.seen(states[at]), recorded, start, drawn),
            ],
            words=_axis_words(view, "x" if dim == 3 else "p"),
        )
        for at, start in enumerate(shown)
    ]
    if dim > 3:
        held = f"Three principal directions, which hold {percent(view.share, 3)} of the squared length."
        notes = [held, *notes]
    if not recorded.is_on_sphere:
        notes = ["Directions of the tokens; their lengths are not shown.", *notes]
    notes = [*notes, "Faint: far side."]
    if any(spot.shape == "cross" for square in squares for spot in square.spots):
        notes.append("Cross: equilibrium.")
    where = "on the sphere" if dim == 3 else f"on the sphere in {dim} dimensions"
    return Plane(
        title=f"Tokens {where}, step by step",
        squares=squares,
        names=_names(drawn, tokens),
        notes=[" ".join(notes)],
    )


def _net(view: SphereView) -> list[PlaneLine]:
    """The near half of the meridians and parallels."""
    return [
        PlaneLine(_pairs(line[piece, :2]), -1, True)
        for line in graticule(view)
        for near, piece in sides(line[:, 2])
        if near
    ]


def _paths_on(seen: Array, drawn: list[int]) -> list[PlaneLine]:
    """Paths ``steps tokens 3`` in pieces that lie on one side; far ones first, so that near ones cover them."""
    tokens = seen.shape[1]
    found = [
        PlaneLine(_pairs(seen[piece, token, :2]), token_color(token, tokens), not near)
        for token in drawn
        for near, piece in sides(seen[:, token, 2])
    ]
    return sorted(found, key=lambda way: not way.faint)


def _ends_on(seen: Array, recorded: RecordedPaths, start: int, drawn: list[int]) -> list[Spot]:
    tokens = seen.shape[1]
    found = [
        Spot(
            float(seen[at, token, 0]),
            float(seen[at, token, 1]),
            _tip(recorded, start, at, token),
            token_color(token, tokens),
            "dot" if at else "ring",
            bool(seen[at, token, 2] < -EDGE),
        )
        for at in (0, -1)
        for token in drawn
    ]
    return sorted(found, key=lambda spot: not spot.faint)


def _axis_words(view: SphereView, letter: str) -> list[tuple[float, float, str]]:
    """Of every axis the end on the near side, named beside it, away from the middle: tokens often end on an axis."""
    found = []
    for place, end in enumerate(view.axes, start=1):
        sign = 1.0 if end[2] >= -EDGE else -1.0
        x, y = float(sign * end[0]), float(sign * end[1])
        length = math.hypot(x, y)
        right, up = (x / length, y / length) if length > 0.05 else (0.0, 1.0)
        found.append((x + 0.1 * right, y + 0.1 * up, f"{'-' if sign < 0 else ''}{letter}{place}"))
    return found
