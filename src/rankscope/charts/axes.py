"""Axes: where values stand between 0 and 1, and which of them are written.

On a logarithmic axis a value is given by its logarithm to base ten, so 1e-45677 has a place too. Where values fall
through more than ``DEEP`` decades, the axis is *deep*: 1, 10, 100, ... decades stand at equal distances.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.core.words import number

DEEP = 60.0
"""Decades beyond which an axis is deep."""

WANTED = 7
"""About this many ticks stand on an axis."""

BROAD = 1e6
"""Ends of a logarithmic axis with this ratio or more have powers of ten between them, others powers of two."""

MARGIN = 0.05
"""Free space beyond the outermost values, as a share of the axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """From values to the unit interval. ``ticks`` are places between 0 and 1 with what is written there."""

    low: float
    high: float
    is_deep: bool
    ticks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """Where a value stands, cut off at the ends."""
        place = deep(value) if self.is_deep else value
        return min(max((place - self.low) / (self.high - self.low), 0.0), 1.0)

    def is_beyond(self, value: float) -> bool:
        """Whether a value lies outside the ends."""
        place = deep(value) if self.is_deep else value
        return not self.low <= place <= self.high


def deep(decades: float) -> float:
    """Where a power of ten stands on a deep axis.

    >>> deep(0.0), round(deep(-9.0), 3), round(deep(-99.0), 3)
    (0.0, -1.0, -2.0)
    """
    return math.copysign(math.log10(1 + abs(decades)), decades)


def linear_axis(values: Sequence[float]) -> Axis:
    """An axis that holds the values; it starts at zero where they reach near to it.

    >>> [text for _, text in linear_axis([0.1, 1.0]).ticks]
    ['0', '0.2', '0.4', '0.6', '0.8', '1']
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    starts_at_zero = 0 <= low <= 0.4 * high
    margin = MARGIN * (high - low) or MARGIN * abs(high) or MARGIN
    low, high = 0.0 if starts_at_zero else low - margin, high + margin
    step = _round_step((high - low) / WANTED)
    counts = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    # A multiple of a decimal step carries rounding in its last digit: twelve digits are more than a label shows.
    places = [float(f"{many * step:.12g}") for many in counts]
    digits = 2 + max(0, math.ceil(math.log10(max(abs(low), abs(high), step) / step)))
    return Axis(low, high, False, tuple(((one - low) / (high - low), number(one, digits)) for one in places))


def log_axis(logs: Sequence[float]) -> Axis:
    """An axis that holds numbers with these logarithms to base ten.

    >>> [text for _, text in log_axis([-16.0, 0.0]).ticks]
    ['1e-15', '1e-12', '1e-9', '1e-6', '0.001', '1']
    >>> [text for _, text in log_axis([-2000.0, 0.0]).ticks]
    ['1e-1000', '1e-100', '1e-10', '0.1', '1']
    >>> [text for _, text in log_axis([-0.15, -0.14]).ticks]
    ['0.65', '0.7', '0.75', '0.8']
    """
    low, high = min(logs, default=-1.0), max(logs, default=0.0)
    if low < -DEEP or high > DEEP:
        ends = deep(low), deep(high)
        margin = MARGIN * max(ends[1] - ends[0], 0.2)
        bottom, top = ends[0] - margin, ends[1] + margin
        known = [0, *(sign * 10**k for k in range(19) for sign in (-1, 1))]
        ticks = sorted((deep(float(e)), _power(float(e))) for e in known if bottom <= deep(float(e)) <= top)
        return Axis(bottom, top, True, tuple(((at - bottom) / (top - bottom), text) for at, text in ticks))
    margin = MARGIN * max(high - low, 1.0)
    low, high = low - margin, high + margin
    if high - low < 3:  # powers of ten alone would be too few
        factors = (1.0, 2.0, 5.0) if high - low > 0.7 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
        places = [
            math.log10(factor) + exponent
            for exponent in range(math.floor(low), math.floor(high) + 1)
            for factor in factors
        ]
    else:
        step = max(1, _round_step((high - low) / WANTED, factors=(1, 2, 3, 5, 10)))
        places = [float(e) for e in range(int(step * math.ceil(low / step)), math.floor(high) + 1, int(step))]
    inside = [one for one in places if low <= one <= high]
    if len(inside) < 2:  # the ends are so near to each other that even steps will do
        first, last = 10.0**low, 10.0**high
        step = _round_step((last - first) / WANTED)
        counts = range(math.ceil(first / step), math.floor(last / step) + 1)
        inside = [math.log10(many * step) for many in counts]
    return Axis(low, high, False, tuple(((one - low) / (high - low), _power(one)) for one in inside))


def count_ticks(first: float, last: float, most: int = 12) -> list[int]:
    """Whole numbers between two ends in even steps, at most about ``most`` of them.

    >>> count_ticks(0, 48)
    [0, 5, 10, 15, 20, 25, 30, 35, 40, 45]
    """
    step = max(1, int(_round_step((last - first) / most)))
    return list(range(math.ceil(first / step) * step, math.floor(last) + 1, step))


def double_ticks(first: float, last: float, most: int = 12) -> list[int]:
    """Powers of two between two ends, or of a power of two where they would be more than ``most``.

    >>> double_ticks(1, 100), double_ticks(3, 1e6)[:3]
    ([1, 2, 4, 8, 16, 32, 64], [4, 16, 64])
    """
    low, high = math.ceil(math.log2(first) - 1e-9), math.floor(math.log2(last) + 1e-9)
    step = max(1, math.ceil((high - low + 1) / most))
    return [2**power for power in range(low, high + 1, step) if power >= 0]


def decade_ticks(first: float, last: float, most: int = 9) -> list[tuple[float, str]]:
    """Powers of ten between two ends in even steps, with what is written there.

    >>> [text for _, text in decade_ticks(1.0, 1e26)]
    ['1', '1e5', '1e10', '1e15', '1e20', '1e25']
    """
    low, high = math.ceil(math.log10(first) - 1e-9), math.floor(math.log10(last) + 1e-9)
    step = max(1, int(_round_step((high - low + 1) / most)))
    return [(10.0**power, _power(float(power))) for power in range(-(-low // step) * step, high + 1, step)]


def _round_step(least: float, factors: Sequence[int] = (1, 2, 5, 10)) -> float:
    """The smallest of these multiples of a power of ten that is at least ``least``."""
    scale = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(factor * scale for factor in factors if factor * scale >= least * (1 - 1e-9))


def _power(log10: float) -> str:
    whole = round(log10)
    if abs(log10 - whole) > 1e-9:
        return number(float(f"{10.0**log10:.3g}"))
    return number(10.0**whole, 1) if -3 <= whole <= 3 else f"1e{whole}"
