"""Is a difference more than chance, what is the mean of a layer, is a number past a limit?

What scipy has comes from scipy. It is imported inside the functions, because it is slow to import and most commands
need no statistics.
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rankscope.results.table import Table, log10_of, unknown_column

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


def benjamini_hochberg(p: Floats) -> Floats:
    """p-values after Benjamini and Hochberg (1995): calling all below alpha keeps the expected share of false
    calls below alpha, and if nothing changed at all, any call has probability alpha at most.

    The k-th smallest of m becomes the smallest of ``p_j m / j`` over j >= k; NaN is no test and stays.

    >>> benjamini_hochberg(np.array([0.01, 0.04, 0.03, np.nan])).round(3).tolist()
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


UNRESOLVED_MARK = "*"
"""Follows a cell of ``pivot`` in which at least one row is not above its rounding floor."""

GROUP = ("model", "variant", "semantics", "mask", "norm", "site", "head", "definition")
"""Rows that differ in one of these are never averaged; run, seed and sample are."""

LINE = ("variant", "mask", "norm", "definition")

FACTORS = ("residual", "residual_ratio", "diameter")
"""Measures that layers multiply: their means are geometric, in the split pass and in the ordinary one."""

MEANS = "geometric mean of residuals, ratios and diameters, arithmetic mean of everything else"
"""What a cell of ``pivot`` is, for legends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerMean:
    """What is read of a row of ``layer_summary``, which says what its columns are."""

    layer: int
    count: int
    share_resolved: float
    log10_mean: float | None
    log10_min: float | None
    log10_max: float | None
    log10_most: float | None


def layer_summary(table: Table, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """One row per network, definition and layer: what the seeds and samples say together.

    Columns: the group (model, variant, semantics, mask, norm, site, head, definition, then ``by``) and
    ``layer``; ``count`` of rows; ``mean``, ``min``, ``max``, ``std`` (``n - 1`` in the denominator) of the
    values that are not null; ``share_resolved`` of all rows; ``floor``, their mean. In logarithms to base ten
    of the sizes: ``log10_mean`` (of the geometric mean), ``log10_min``, ``log10_max``, ``log10_floor``.
    There a zero stands at its floor, since no more is known of it; with a floor of zero too it is left out. Negative
    values have no logarithms, so where there is one these columns are null.
    ``log10_most``: the same mean with the floor in place of every number below it, null where a row has no number.
    Columns added to a table are averaged over unless ``by`` names them.
    """
    check_columns(table, by)
    frame, value = with_sizes(table.frame), pl.col("value")
    most, has_logs = pl.max_horizontal("size", "log10_floor"), (value >= 0).all()
    return (
        frame.sort("layer", maintain_order=True)
        .group_by(*GROUP, *by, "layer", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            value.mean().alias("mean"),
            value.min().alias("min"),
            value.max().alias("max"),
            value.std().alias("std"),
            pl.col("resolved").mean().alias("share_resolved"),
            pl.col("floor").mean(),
            pl.when(has_logs).then(pl.col("size").mean()).alias("log10_mean"),
            pl.when(has_logs).then(pl.col("size").min()).alias("log10_min"),
            pl.when(has_logs).then(pl.col("size").max()).alias("log10_max"),
            pl.col("log10_floor").mean(),
            pl.when(has_logs & value.is_not_null().all()).then(most.mean()).alias("log10_most"),
        )
    )


def with_sizes(frame: pl.DataFrame) -> pl.DataFrame:
    """With ``size``, the logarithm of a value or, of a zero, of its floor, and ``log10_floor``."""
    floor = log10_of(frame["floor"])
    if "log10_floor" in frame.columns:  # the split pass has floors below the smallest float
        floor = frame["log10_floor"].cast(pl.Float64).fill_null(floor)
    size = pl.col("log10_value").fill_null(pl.when(pl.col("value") == 0).then(floor))
    return frame.with_columns(size.alias("size"), floor.alias("log10_floor"))


def is_split(table: Table) -> bool:
    """Whether a table comes from the split pass: the ordinary one stands beside it."""
    return "float_value" in table.frame.columns


def check_columns(table: Table, names: Sequence[str]) -> None:
    for name in names:
        if name not in table.frame.columns:
            raise unknown_column(name, table.frame.columns)


VANISHING = frozenset({"residual_ratio", "residual", "diameter"})
"""Measures that go to zero with collapse, down to their floor; of the others it only bounds the error."""

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


class Outcome(StrEnum):
    """What can be said of a limit that the user set."""

    CROSSED = "crossed"
    CLEAR = "not crossed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Everything a number may be, both ends included; NaN where nothing is known of it."""

    low: float
    high: float

    def within(self, least: float, most: float) -> "Span":
        """The part of it that a measure can take: a share is never above one, whatever its floor."""
        return Span(low=min(max(self.low, least), most), high=max(min(self.high, most), least))


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What became of one limit, with a line that names layer, value, floor and limit; no words where it is clear."""

    outcome: Outcome
    words: str = ""


def span_of(value: float | None, floor: float | None, *, vanishes: bool, resolved: float = 1.0) -> Span:
    """What a measured number, or a mean of which the share ``resolved`` is above the floor, may be in truth.

    A measure that vanishes is the number itself where it is above its floor, and anything from zero to the floor
    where it is not. In a mean of both, every unresolved term may be off by its own floor, so the mean by the mean
    floor. The floor of any other measure is an absolute error.

    >>> span_of(0.5, 1e-6, vanishes=True), span_of(1e-9, 1e-6, vanishes=True, resolved=0.0)
    (Span(low=0.5, high=0.5), Span(low=0.0, high=1e-06))
    """
    if value is None or not math.isfinite(value):
        return Span(low=math.nan, high=math.nan)
    error = math.inf if floor is None or math.isnan(floor) else abs(floor)
    if not vanishes:
        return Span(low=value - error, high=value + error)
    if resolved >= 1.0:
        return Span(low=value, high=value)
    if resolved <= 0.0:
        return Span(low=0.0, high=max(error, value))
    return Span(low=max(0.0, value - error), high=value + error)


def judge_span(span: Span, sign: str, limit: float) -> Outcome:
    """Crossed if the comparison holds of everything in the span, clear if it holds of nothing in it.

    A comparison with a limit holds of everything between two numbers if it holds of both, so the ends decide.

    >>> judge_span(Span(low=0.0, high=1e-6), "<", 0.01), judge_span(Span(low=0.0, high=1e-6), "<", 1e-9)
    (<Outcome.CROSSED: 'crossed'>, <Outcome.UNDECIDED: 'undecided'>)
    """
    if math.isnan(span.low) or math.isnan(span.high):
        return Outcome.UNDECIDED
    holds = {OPERATORS[sign](end, limit) for end in (span.low, span.high)}
    if len(holds) > 1:
        return Outcome.UNDECIDED
    return Outcome.CROSSED if holds == {True} else Outcome.CLEAR


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Of several: one that is crossed outweighs one that is undecided, which outweighs all that are clear."""
    found = set(outcomes)
    return next(
        (one for one in (Outcome.CROSSED, Outcome.UNDECIDED) if one in found),
        Outcome.CLEAR,
    )
