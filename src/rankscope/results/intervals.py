"""Intervals of shares."""

import math

CONFIDENCE = 1.959963984540054
"""Quantile of the normal distribution for a two-sided interval of 95%."""


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95% interval of Wilson (1927) for a share of which ``count`` of ``total`` were seen.

    With z the normal quantile and p = count / total, its ends are
    (p + z^2/2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n).

    >>> [round(end, 4) for end in wilson(5, 200)]
    [0.0107, 0.0572]
    """
    share, square = count / total, CONFIDENCE**2 / total
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(share * (1 - share) * square + square**2 / 4) / (1 + square)
    return max(0.0, middle - half) if count else 0.0, min(1.0, middle + half) if count < total else 1.0
