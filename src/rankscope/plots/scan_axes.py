"""Where values stand on the axis of a scan: linear, or logarithmic where they span decades."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rankscope.plots.axes import Ticks, log_ticks
from rankscope.plots.curve_points import DECADES_FOR_LOG, DECADES_TO_FLOOR
from rankscope.plots.scan_entries import Entry, number
from rankscope.results.outcome import VANISHING

NEAR = 0.01
"""On a linear axis a floor below this share of the range is too small to be seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueAxis:
    """The value axis of one panel; its ends and ticks are logarithms to base ten if ``is_log``."""

    is_log: bool
    bottom: float
    top: float
    ticks: Ticks
    has_floor: bool
    """Whether the floor lies on the axis; further down it would press the curves flat."""

    def position(self, value: float, floor: float | None) -> float:
        """``value`` on the axis. On a logarithmic one zero stands at its floor, or at the lower end."""
        if not self.is_log:
            return value
        size = value if value > 0 else (floor or 0.0)
        return max(math.log10(size), self.bottom) if size > 0 else self.bottom

    def depth(self, value: float, floor: float | None = None) -> float:
        """How far below the upper end ``value`` stands, as a share of the axis, within 0 and 1."""
        share = (self.top - self.position(value, floor)) / (self.top - self.bottom)
        return min(1.0, max(0.0, share))

    def tick_depth(self, position: float) -> float:
        """The same for a position that is on the axis already."""
        return (self.top - position) / (self.top - self.bottom)


def value_axis(entries: Sequence[Entry], *, include: Sequence[float] = ()) -> ValueAxis:
    """An axis that holds all means, all spreads, and ``include``.

    Logarithmic if no value is negative and they span at least one and a half decades; zero is then not included.
    """
    values = [value for one in entries for value in (one.low, one.mean, one.high) if value is not None]
    floors = [one.floor for one in entries if one.floor is not None and one.mean is not None]
    sizes = [value for value in values if value > 0]
    if sizes and min(values) >= 0 and math.log10(max(sizes) / min(sizes)) >= DECADES_FOR_LOG:
        vanishes = bool(entries) and entries[0].measure in VANISHING
        reach = DECADES_TO_FLOOR if vanishes else 0.0
        return _log_axis(sizes, floors, [one for one in include if one > 0], reach)
    return _linear_axis([*values, *include] or [0.0, 1.0], floors)


def _log_axis(sizes: list[float], floors: list[float], include: list[float], reach: float) -> ValueAxis:
    low, high = math.log10(min(sizes)), math.log10(max([*sizes, *include]))
    known = [math.log10(floor) for floor in floors if floor > 0]
    has_floor = bool(known) and max(known) >= low - reach
    if has_floor:
        low, high = min(low, *known), max(high, *known)
    margin = 0.04 * (high - low)
    bottom, top = low - margin, high + margin
    return ValueAxis(is_log=True, bottom=bottom, top=top, ticks=log_ticks(bottom, top), has_floor=has_floor)


def _linear_axis(values: list[float], floors: list[float]) -> ValueAxis:
    low, high = min(values), max(values)
    if 0 < low <= 0.4 * high:
        low = 0.0
    has_floor = bool(floors) and max(floors) >= NEAR * (high - low) and max(floors) > 0
    if has_floor:
        high = max(high, *floors)
    margin = 0.04 * (high - low) or 0.05 * abs(high) or 0.05
    bottom, top = (low if low == 0 else low - margin), high + margin
    return ValueAxis(
        is_log=False, bottom=bottom, top=top, ticks=linear_ticks(bottom, top), has_floor=has_floor
    )


def linear_ticks(low: float, high: float, wanted: int = 6) -> Ticks:
    """Between about ``wanted`` round numbers of one step, 1, 2 or 5 times a power of ten, from ``low`` to ``high``.

    >>> linear_ticks(0.0, 1.04).labels
    ['0', '0.2', '0.4', '0.6', '0.8', '1']
    """
    least = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    counts = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    # Multiples of a decimal step carry rounding in their last digit; twelve digits are more than a label shows.
    positions = [float(f"{count * step:.12g}") for count in counts]
    return Ticks(positions=positions, labels=[number(position, 6) for position in positions])


def layer_ticks(last: int, most: int = 12) -> list[int]:
    """Layers from 0 to ``last`` in even steps, at most ``most + 1`` of them.

    >>> layer_ticks(48)
    [0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48]
    """
    return list(range(0, last + 1, max(1, math.ceil(last / most))))


def means(entries: Iterable[Entry]) -> list[float]:
    """All means that are numbers."""
    return [entry.mean for entry in entries if entry.mean is not None]
