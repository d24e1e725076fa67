"""Tests against chance by plain loops; imports nothing of rankscope."""

import math
from collections.abc import Sequence
from itertools import permutations


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    center = mean(values)
    return sum((value - center) ** 2 for value in values) / (len(values) - 1)


def student_p(t: float, freedom: float, steps: int = 20_000) -> float:
    """Two-sided p: the area of Student's density beyond ``|t|``, by Simpson's rule after t = sqrt(freedom) tan a."""
    start = math.atan(abs(t) / math.sqrt(freedom))
    width = (math.pi / 2 - start) / steps
    # With that substitution the density is proportional to cos(a) ** (freedom - 1) on (-pi/2, pi/2).
    area = 0.0
    for k in range(steps + 1):
        weight = 1 if k in (0, steps) else 4 if k % 2 else 2
        area += weight * max(math.cos(start + k * width), 0.0) ** (freedom - 1)
    log_norm = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(math.pi)
    return 2 * math.exp(log_norm) * area * width / 3


def paired(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """Change, standard error and p, from the differences text by text."""
    gaps = [b - a for a, b in zip(before, after, strict=True)]
    error = math.sqrt(variance(gaps) / len(gaps))
    return mean(gaps), error, student_p(mean(gaps) / error, len(gaps) - 1)


def welch(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """Change, standard error and p, from two independent samples."""
    a, b = variance(before) / len(before), variance(after) / len(after)
    freedom = (a + b) ** 2 / (a**2 / (len(before) - 1) + b**2 / (len(after) - 1))
    change, error = mean(after) - mean(before), math.sqrt(a + b)
    return change, error, student_p(change / error, freedom)


def rejected(p: Sequence[float], alpha: float) -> list[bool]:
    """Benjamini and Hochberg as they wrote it: the k smallest, for the largest k with p_(k) <= k alpha / m."""
    ordered = sorted(p)
    most = 0
    for k in range(1, len(p) + 1):
        if ordered[k - 1] <= k * alpha / len(p):
            most = k
    return [most > 0 and one <= ordered[most - 1] for one in p]


def kendall(y: Sequence[float]) -> float:
    """Concordant minus discordant pairs over all pairs, for numbers without ties."""
    pairs = [(i, j) for i in range(len(y)) for j in range(i + 1, len(y))]
    return sum(1 if y[j] > y[i] else -1 for i, j in pairs) / len(pairs)


def kendall_p(y: Sequence[float]) -> float:
    """Share of all orders whose Kendall coefficient is at least as large in size."""
    found = abs(kendall(y))
    orders = list(permutations(range(len(y))))
    return sum(abs(kendall(order)) >= found - 1e-12 for order in orders) / len(orders)
