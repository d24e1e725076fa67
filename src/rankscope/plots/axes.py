"""Axes over many orders of magnitude. The position is the logarithm itself, so 1e-45677 has a place too."""

import json
import math
from dataclasses import dataclass

from rankscope.plots.backend import alt

TICKS_WANTED = 8

DECIMAL_RANGE = (-3, 4)
"""Exponents between which a short axis is labeled 0.02 and not 2e-2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticks:
    """Positions on the axis, which are logarithms to base ten, and what is written there."""

    positions: list[float]
    labels: list[str]


def power_of_ten(exponent: int) -> str:
    """The power as text, in plain letters: raised digits are missing from the font that vl-convert brings.

    >>> power_of_ten(-16)
    '1e-16'
    """
    return f"1e{exponent}" if exponent else "1"


def log_ticks(low: float, high: float) -> Ticks:
    """Ticks of an axis from ``10**low`` to ``10**high``: powers of ten, and 2 and 5 times them if it is short.

    >>> log_ticks(-16.2, 0.1).labels
    ['1e-15', '1e-12', '1e-9', '1e-6', '1e-3', '1']
    """
    if high - low < 3:
        return _short_ticks(low, high)
    step = _step((high - low) / TICKS_WANTED)
    exponents = range(step * math.ceil(low / step), math.floor(high) + 1, step)
    return Ticks(positions=[float(e) for e in exponents], labels=[power_of_ten(e) for e in exponents])


def log_axis(ticks: Ticks, **options: object) -> "alt.Axis":
    """An axis with exactly those ticks and labels."""
    # Looked up by position: Vega would write the logarithm, and its own log scale ends at 1e-308.
    label = f"{json.dumps(ticks.labels)}[indexof({json.dumps(ticks.positions)}, datum.value)]"
    return alt.Axis(values=ticks.positions, labelExpr=label, **options)  # type: ignore[arg-type]


def _step(least: float) -> int:
    """The smallest of 1, 2, 3, 5 times a power of ten that is at least ``least``."""
    scale: int = 10 ** max(math.floor(math.log10(least)), 0)
    return next(factor * scale for factor in (1, 2, 3, 5, 10) if factor * scale >= least)


def _short_ticks(low: float, high: float) -> Ticks:
    exponents = range(math.floor(low), math.floor(high) + 1)
    factors = (1.0, 2.0, 5.0) if high - low > 0.7 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    pairs = [(math.log10(factor) + e, factor, e) for e in exponents for factor in factors]
    inside = [(position, factor, e) for position, factor, e in pairs if low <= position <= high]
    return Ticks(
        positions=[position for position, _, _ in inside],
        labels=[_number(factor, exponent) for _, factor, exponent in inside],
    )


def _number(factor: float, exponent: int) -> str:
    if DECIMAL_RANGE[0] <= exponent <= DECIMAL_RANGE[1]:
        return f"{factor * 10.0**exponent:g}"
    return f"{factor:g}e{exponent}"
