"""Means, medians and shares over seeds with their intervals, what these say about levels, depths and rates."""

from collections.abc import Callable, Sequence

import numpy as np

from rankscope.core.words import number, percent, power
from rankscope.findings.base import Value
from rankscope.findings.blocks import LN10
from rankscope.results.statistics import mean_interval, median_interval, wilson

LEVEL = 0.95
FEWEST = 6
"""Below this many values not even the least and the greatest enclose the median in 95% of cases: 1 - 2 / 2^5 < 0.95."""


class Mean(Value):
    """A mean over seeds with a 95% interval (Student's t); the interval is missing for a single seed."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def middle(self) -> float:
        """The mean."""
        return self.mean

    def text(self, digits: int = 3) -> str:
        """``12.3 (11.9 to 12.7)``."""
        return _with_interval(self, lambda one: number(one, digits))

    def power(self, digits: int = 2) -> str:
        """``1e-37 (1e-38 to 1e-36)`` of logarithms to base ten, whose powers may lie far below floats."""
        return _with_interval(self, lambda log: power(log * LN10, digits=digits))


def mean_of(values: Sequence[float], level: float = LEVEL) -> Mean:
    """The mean of one number per seed.

    >>> mean_of([1.0, 2.0, 3.0]).text(), mean_of([-300.0, -302.0]).power()
    ('2 (-0.484 to 4.48)', '1e-301 (2e-314 to 5.1e-289)')
    """
    found = np.asarray(values, dtype=float)
    low, high = mean_interval(found, level) if len(found) > 1 else (None, None)
    return Mean(mean=float(found.mean()), low=low, high=high, count=len(found))


class Median(Value):
    """A median over seeds between two of the sorted values.

    From six seeds on these enclose the median of the population in at least 95% of cases. With fewer they are the
    least and the greatest, which is no 95% interval, and ``is_enough`` is false.
    """

    median: float
    low: float
    high: float
    count: int

    @property
    def middle(self) -> float:
        """The median."""
        return self.median

    def text(self, digits: int = 3) -> str:
        """``12.3 (11.9 to 12.7)``."""
        return _with_interval(self, lambda one: number(one, digits))

    def power(self, digits: int = 2) -> str:
        """``1e-37 (1e-38 to 1e-36)`` of logarithms to base ten, whose powers may lie far below floats."""
        return _with_interval(self, lambda log: power(log * LN10, digits=digits))

    @property
    def is_enough(self) -> bool:
        """Whether the values are enough for an interval."""
        return self.count >= FEWEST

    @property
    def sign(self) -> int | None:
        """1 or -1 if the interval lies to one side of zero, 0 if it does not, None for too few seeds."""
        if not self.is_enough:
            return None
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def median_of(values: Sequence[float]) -> Median:
    """The median of one number per seed.

    >>> median_of([5.0, 1.0, 2.0, 3.0, 4.0, 6.0]).text()
    '3.5 (1 to 6)'
    """
    found = np.asarray(values, dtype=float)
    low, high = median_interval(found, LEVEL)
    return Median(median=float(np.median(found)), low=low, high=high, count=len(found))


def _with_interval(one: Mean | Median, write: Callable[[float], str]) -> str:
    if one.low is None or one.high is None:
        return write(one.middle)
    return f"{write(one.middle)} ({write(one.low)} to {write(one.high)})"


def share_text(count: int, total: int) -> str:
    """A share with Wilson's interval.

    >>> share_text(5, 200)
    '5 of 200 (95% interval 1.07% to 5.72%)'
    """
    if not total:
        return "none"
    low, high = wilson(count, total)
    return f"{count} of {total} (95% interval {percent(low, 3)} to {percent(high, 3)})"


# --------------------------------------------------------------------------------------- intervals against levels


def side(mean: Mean, level: float) -> bool | None:
    """True if the whole interval lies above the level, False if below it, None if it does not say."""
    if mean.low is None or mean.high is None:
        return None
    return True if mean.low > level else False if mean.high < level else None


def within(mean: Mean, low: float, high: float) -> bool | None:
    """True if the whole interval lies between the levels, False if it lies outside of them, None if it does not say."""
    if mean.low is None or mean.high is None:
        return None
    if mean.low >= low and mean.high <= high:
        return True
    return False if mean.high < low or mean.low > high else None


def together(groups: Sequence[Sequence[float]]) -> list[Mean]:
    """Means with intervals that hold all at once in at least 95% of cases (Bonferroni).

    Of k groups each has Student's interval of level ``1 - 0.05 / k``. A rule that is met as soon as one of several
    means meets it reads these; one that all must meet needs no such care.

    >>> together([[1.0, 2.0, 3.0]])[0].text(), together([[1.0, 2.0, 3.0]] * 2)[0].text()
    ('2 (-0.484 to 4.48)', '2 (-1.58 to 5.58)')
    """
    return [mean_of(values, 1 - (1 - LEVEL) / len(groups)) for values in groups]


def all_within(groups: Sequence[Sequence[float]], limits: Sequence[tuple[float, float]]) -> bool | None:
    """True if every mean lies within its limits by its own interval, False if one lies outside by those of all at once.

    Without groups None.
    """
    if not groups:
        return None
    each = [within(mean_of(one), *pair) for one, pair in zip(groups, limits, strict=True)]
    if all(each):
        return True
    outside = [within(mean, *pair) is False for mean, pair in zip(together(groups), limits, strict=True)]
    return False if any(outside) else None


# ------------------------------------------------------------------------------------------------ curves of depth


def first_below(log10: Sequence[float], level: float) -> int | None:
    """The first layer at which a curve is below the level and stays there; None if it never does.

    >>> first_below([0.0, -4.0, -2.0, -4.0, -5.0], -3.0)
    3
    """
    above = [layer for layer, value in enumerate(log10) if not value < level]
    start = above[-1] + 1 if above else 0
    return start if start < len(log10) else None


def depths(curves: np.ndarray, level: float) -> list[int | None]:
    """``first_below`` of every seed, of curves ``layers seeds``."""
    return [first_below(curve.tolist(), level) for curve in curves.T]


def late_slope(log10: np.ndarray) -> float:
    """Decades per layer over the last half of a curve, by least squares."""
    half = log10[len(log10) // 2 :]
    return float(np.polyfit(np.arange(len(half)), half, 1)[0])


def late_order(log10: np.ndarray) -> float:
    """``log r_(l+1) / log r_l`` at the last layers that float64 holds: 3 where a layer cubes the residual."""
    return float(log10[-1] / log10[-2])


def shallower(one: int | None, other: int | None) -> bool:
    """Whether the first depth is smaller; one that was never reached is larger than any."""
    return one is not None and (other is None or one < other)


def accuracy_text(one: Mean) -> str:
    """Mean and interval of an accuracy; no interval leaves 0 to 1.

    >>> accuracy_text(mean_of([0.98, 1.0])), accuracy_text(mean_of([0.5]))
    ('0.99 (0.863 to 1)', '0.5')
    """
    if one.low is None or one.high is None:
        return number(one.mean)
    return f"{number(one.mean)} ({number(max(one.low, 0.0))} to {number(min(one.high, 1.0))})"


def seeds_text(count: int) -> str:
    """What a mean over so many seeds is.

    >>> seeds_text(3), seeds_text(1)
    ('mean over 3 seeds (95% interval)', 'one seed, too few for an interval')
    """
    return f"mean over {count} seeds (95% interval)" if count > 1 else "one seed, too few for an interval"
