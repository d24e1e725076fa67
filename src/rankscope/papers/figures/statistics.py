"""Means, medians and shares over seeds with their intervals, depths of collapse, and rates."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from rankscope.core.words import number
from rankscope.findings.base import Value
from rankscope.results.statistics import wilson

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

    def section(self) -> dict[str, float | int | None]:
        """As JSON."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "count": self.count}

    def text(self, digits: int = 3) -> str:
        """``12.3 (11.9 to 12.7)``."""
        if self.low is None or self.high is None:
            return f"{self.mean:.{digits}g}"
        return f"{self.mean:.{digits}g} ({self.low:.{digits}g} to {self.high:.{digits}g})"


def mean_of(values: Sequence[float]) -> Mean:
    """The mean of one number per seed.

    >>> mean_of([1.0, 2.0, 3.0]).text()
    '2 (-0.484 to 4.48)'
    """
    found = np.asarray(values, dtype=float)
    if len(found) < 2:
        return Mean(mean=float(found.mean()), low=None, high=None, count=len(found))
    half = stats.t.ppf((1 + LEVEL) / 2, len(found) - 1) * found.std(ddof=1) / math.sqrt(len(found))
    mean = float(found.mean())
    return Mean(mean=mean, low=mean - float(half), high=mean + float(half), count=len(found))


class Median(Value):
    """A median over seeds between two of the sorted values.

    From six seeds on these enclose the median of the population in at least 95% of cases, whatever the distribution:
    the number of seeds below it is binomial with 1/2. With fewer they are the least and the greatest, which is no
    95% interval, and ``is_enough`` is false.
    """

    median: float
    low: float
    high: float
    count: int

    @property
    def middle(self) -> float:
        """The median."""
        return self.median

    @property
    def is_enough(self) -> bool:
        return self.count >= FEWEST

    @property
    def sign(self) -> int | None:
        """1 or -1 if the interval lies to one side of zero, 0 if it does not, None for too few seeds."""
        if not self.is_enough:
            return None
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def section(self) -> dict[str, float | int]:
        """As JSON."""
        return {"median": self.median, "low": self.low, "high": self.high, "count": self.count}


def median_of(values: Sequence[float]) -> Median:
    """The median of one number per seed.

    >>> found = median_of([5.0, 1.0, 2.0, 3.0, 4.0, 6.0])
    >>> found.median, found.low, found.high
    (3.5, 1.0, 6.0)
    """
    found = np.sort(np.asarray(values, dtype=float))
    outer = max(int(stats.binom.ppf((1 - LEVEL) / 2, len(found), 0.5)), 1)
    return Median(
        median=float(np.median(found)),
        low=float(found[outer - 1]),
        high=float(found[-outer]),
        count=len(found),
    )


def share_text(count: int, total: int) -> str:
    """``5 of 200 (95% interval 1.1% to 5.7%)``.

    >>> share_text(5, 200)
    '5 of 200 (95% interval 1.1% to 5.7%)'
    """
    if not total:
        return "none"
    low, high = wilson(count, total)
    return f"{count} of {total} (95% interval {low:.1%} to {high:.1%})"


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
