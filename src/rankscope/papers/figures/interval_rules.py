"""What the interval of a mean over seeds says about levels, for one mean and for several looked at together."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from rankscope.papers.figures.statistics import LEVEL, Mean, mean_of


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
    tail = (1 - LEVEL) / (2 * max(len(groups), 1))
    found = []
    for values in groups:
        mean, count = mean_of(values), len(values)
        if count < 2:
            found.append(mean)
            continue
        half = float(stats.t.ppf(1 - tail, count - 1) * np.std(values, ddof=1) / math.sqrt(count))
        found.append(Mean(mean=mean.mean, low=mean.mean - half, high=mean.mean + half, count=count))
    return found


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
