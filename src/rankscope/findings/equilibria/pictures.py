"""Pictures of what was found: multipliers, singular values, where starts end."""

import math
from collections.abc import Sequence

from rankscope.charts import Bar, Bars, Line, Panel, Picture, Plane, PlaneLine, Point, Spot, Square
from rankscope.core.words import clipped, count, number, percent, ranges
from rankscope.findings.blocks import even
from rankscope.findings.equilibria.found import EquilibriaFinding
from rankscope.findings.equilibria.paths import paths
from rankscope.findings.equilibria.values import ComponentValue, EquilibriumValue
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
    ("may be of length one, within its error", 4),
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
    shown = [
        f"{number(one.largest_multiplier, 4)} (token {clipped(ranges(one.tokens), 12)})"
        for one in components[:4]
    ]
    return f"largest {', '.join(shown)}{', ...' if len(components) > 4 else ''}"


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
