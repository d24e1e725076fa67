"""Is a difference more than chance? Errors, tests, corrections and trends, as functions of arrays.

What scipy has comes from scipy. It is imported inside the functions, because it is slow to import and most commands
need no statistics.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95% interval of Wilson (1927) for a share of which ``count`` of ``total`` were seen.

    >>> [round(end, 4) for end in wilson(5, 200)]
    [0.0107, 0.0572]
    """
    from scipy import stats

    found = stats.binomtest(count, total).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


def mean_interval(values: Floats, level: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean of at least two values.

    >>> [round(end, 3) for end in mean_interval(np.array([1.0, 2.0, 3.0]))]
    [-0.484, 4.484]
    """
    from scipy import stats

    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1) * stats.sem(values))
    middle = float(values.mean())
    return middle - half, middle + half


def median_interval(values: Floats, level: float = 0.95) -> tuple[float, float]:
    """Two of the values that enclose the median of the population, whatever the distribution.

    The number of values below it is binomial with 1/2, so the k-th from either end encloses it unless fewer than k
    values lie to that side: k is the largest for which both tails together stay below ``1 - level``. Where there is
    none, because values are fewer than six, it is 1.

    >>> median_interval(np.array([5.0, 1.0, 2.0, 3.0, 4.0, 6.0]))
    (1.0, 6.0)
    """
    from scipy import stats

    ordered = np.sort(values)
    outer = max(int(stats.binom.ppf((1 - level) / 2, len(ordered), 0.5)), 1)
    return float(ordered[outer - 1]), float(ordered[-outer])


@dataclass(frozen=True, kw_only=True, slots=True)
class Error:
    """Standard error of a difference of means and its degrees of freedom; NaN where there is no spread."""

    size: Floats
    freedom: Floats


def paired_error(std: Floats, pairs: Floats, texts: Floats) -> Error:
    """Standard error of a mean difference, from the spread of the differences text by text: ``s / sqrt(texts)``.

    ``std`` is that of the ``pairs`` texts with rows of their own, which may be fewer than all ``texts``.
    """
    return Error(size=std / np.sqrt(texts), freedom=pairs - 1)


def welch_error(std_a: Floats, texts_a: Floats, std_b: Floats, texts_b: Floats) -> Error:
    """Standard error of a difference between means over different texts, ``sqrt(s_a^2/n_a + s_b^2/n_b)``.

    Degrees of freedom after Welch and Satterthwaite. On the same texts it is too large rather than too small,
    because models that read the same text move together.
    """
    a, b = std_a**2 / texts_a, std_b**2 / texts_b
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = (a + b) ** 2 / (a**2 / (texts_a - 1) + b**2 / (texts_b - 1))
    # Both spreads zero: any number of degrees says the same.
    return Error(size=np.sqrt(a + b), freedom=np.where((a + b) == 0, texts_a + texts_b - 2, freedom))


def p_values(change: Floats, error: Error) -> Floats:
    """Two-sided p of Student's t for ``change / error``; NaN where there is no error to divide by.

    A spread of zero leaves no room for chance: p is 0 if anything changed and 1 if nothing did.
    """
    from scipy import stats

    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(change) / error.size
        p = 2 * stats.t.sf(t, error.freedom)
    p = np.where(error.size == 0, np.where(change == 0, 1.0, 0.0), p)
    return np.where(np.isfinite(error.size) & np.isfinite(change) & (error.freedom > 0), p, np.nan)


def adjusted(p: Floats) -> Floats:
    """p-values after Benjamini and Hochberg (1995): calling all below alpha keeps the expected share of false
    calls below alpha, and if nothing changed at all, any call has probability alpha at most.

    The k-th smallest of m becomes the smallest of ``p_j m / j`` over j >= k; NaN is no test and stays.

    >>> adjusted(np.array([0.01, 0.04, 0.03, np.nan])).round(3).tolist()
    [0.03, 0.04, 0.04, nan]
    """
    from scipy import stats

    tested = ~np.isnan(p)
    result = np.full(p.shape, np.nan)
    if tested.any():
        result[tested] = stats.false_discovery_control(p[tested], method="bh")
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class Trend:
    """How a number moves over a series.

    ``tau`` and ``p`` are Kendall's (exact for short series without ties), ``slope`` the median of the slopes between
    all pairs (Theil and Sen), ``agreeing`` of ``moves`` successive changes have the sign of the slope.
    """

    tau: float
    p: float
    slope: float
    agreeing: int
    moves: int


def trend(x: Floats, y: Floats) -> Trend | None:
    """The trend of ``y`` over ascending ``x``; None if nothing moves or fewer than three are known.

    >>> found = trend(np.arange(4.0), np.array([4.0, 3.0, 2.0, 1.0]))
    >>> (round(found.tau, 6), found.slope, found.agreeing)
    (-1.0, -1.0, 3)
    """
    known = np.isfinite(y)
    x, y = x[known], y[known]
    if len(y) < 3 or np.all(y == y[0]):
        return None
    from scipy import stats

    kendall = stats.kendalltau(x, y)
    slope = float(stats.theilslopes(y, x).slope)
    moves = np.diff(y)
    return Trend(
        tau=float(kendall.statistic),
        p=float(kendall.pvalue),
        slope=slope,
        agreeing=int(np.sum(np.sign(moves) == np.sign(slope))) if slope else 0,
        moves=len(moves),
    )
