"""The row nearest to all rows in l1, with a proof of how near: the certified 1-center of one matrix.

``min_c max_i sum_j |y_ij - c_j|`` is a linear program that is too large to hand over whole. Its dual has one
weight per row: for every ``w`` in the simplex the weighted column medians give

    sum_j min_c sum_i w_i |y_ij - c|  <=  min_c max_i sum_j |y_ij - c_j|,

with equality for the best ``w``. Any ``w`` therefore certifies from below and any ``c`` from above. Weights are
found by multiplicative updates, then by column generation: the small matrix game between the rows and the centers
met so far. Nothing here relies on the solver being right: both ends are evaluated afresh, with a margin for
rounding.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

ROUNDOFF = 2.0**-53
UPDATES = (
    40  # multiplicative updates before column generation, fewer for few rows; many matrices are done by then
)
ROUNDS = 60  # column generation rounds; five are usual at one percent


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """A matrix with its columns sorted once; axes of the sorted parts are (dim, tokens)."""

    rows: Array
    values: Array
    order: NDArray[np.intp]

    @property
    def margin(self) -> float:
        """Relative rounding of any sum of |y - c| below, of the weights and of centering, generously."""
        tokens, dim = self.rows.shape
        return float(2 * tokens + 2 * dim + 16) * ROUNDOFF

    def medians(self) -> Array:
        """Midpoint of the median interval of every column."""
        tokens = self.rows.shape[0]
        middle: Array = (self.values[:, (tokens - 1) // 2] + self.values[:, tokens // 2]) / 2
        return middle


@dataclass(frozen=True, kw_only=True, slots=True)
class OneCenter:
    """A center, the largest l1 distance of a row to it (``high``) and a certified lower bound on the best (``low``)."""

    center: Array
    low: float
    high: float
    weights: Array  # one per row, sum 1: the certificate of ``low``
    tried: tuple[Array, ...] = ()  # every center met on the way, for whoever minimizes something else as well


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """Bounds on every coordinate of the center."""

    low: Array
    high: Array


def sorted_columns(rows: Array) -> Columns:
    """The matrix with every column sorted."""
    values, order = torch.from_numpy(np.ascontiguousarray(rows.T)).sort(dim=1, stable=True)
    return Columns(rows=rows, values=values.numpy(), order=order.numpy())


def distances(columns: Columns, center: Array) -> tuple[Array, Array]:
    """Row sums and column sums of |y - c|."""
    apart = np.abs(columns.rows - center)
    return apart.sum(axis=1), apart.sum(axis=0)


def weighted_medians(columns: Columns, weights: Array, extra: Array | None = None) -> Array:
    """Per column a minimizer of ``sum_i (weights_i + extra_j) |y_ij - c|``."""
    dim, tokens = columns.values.shape
    # torch adds in the same order as numpy.cumsum, in an eighth of its time
    mass = torch.from_numpy(weights.take(columns.order)).cumsum(dim=1).numpy()
    half = np.full(dim, weights.sum() / 2)
    if extra is not None:
        mass += extra[:, None] * np.arange(1, tokens + 1)
        half += extra * tokens / 2
    place = np.minimum((mass < half[:, None]).sum(axis=1), tokens - 1)
    chosen: Array = columns.values[np.arange(dim), place]
    return chosen


def lower_bound(columns: Columns, weights: Array, extra: Array | None = None) -> float:
    """A number not above ``max_i row_i(c) + sum_j extra_j column_j(c)`` for any center ``c``.

    Rounding: a running sum of ``n`` weights is off by at most ``n u`` of their total, so the slope at the chosen
    median may miss zero by ``4 n u`` of the total, which costs at most that times the range of the column. Both
    this and the relative error of the sums are taken off.
    """
    center = weighted_medians(columns, weights, extra)
    of_rows, of_columns = distances(columns, center)
    value = float(weights @ of_rows)
    total = np.full(center.shape, weights.sum())
    tokens = columns.rows.shape[0]
    if extra is not None:
        value += float(extra @ of_columns)
        total = total + tokens * extra
    spread = float(total @ (columns.values[:, -1] - columns.values[:, 0]))
    return float(max(value * (1 - columns.margin) - 4 * tokens * ROUNDOFF * spread, 0.0))


def one_center(
    columns: Columns,
    *,
    tolerance: float,
    box: Box | None = None,
    weights: Array | None = None,
    seeds: tuple[Array, ...] = (),
) -> OneCenter:
    """The 1-center of the rows in l1, inside ``box`` if there is one.

    The search stops at ``high <= (1 + tolerance) * low``, or when its rounds are used up. With a box the medians are
    clipped to it, which keeps the lower bound valid inside the box; that ``low`` has no margin for rounding and only
    guides. ``weights`` and ``seeds`` (centers) start the search.
    """
    search = _Search(columns=columns, box=box, tolerance=tolerance)
    for seed in seeds:
        search.try_center(seed, keep=True)
    tokens = columns.rows.shape[0]
    search.try_weights(np.full(tokens, 1 / tokens) if weights is None else weights)
    if not search.done:
        _multiplicative_updates(search)
    if not search.done:
        _column_generation(search)
    low = lower_bound(columns, search.weights) if box is None else search.low
    return OneCenter(
        center=search.center,
        low=min(low, search.high),
        high=search.high * (1 + columns.margin),
        weights=search.weights,
        tried=tuple(search.centers),
    )


class _Search:
    """What the search has found so far."""

    def __init__(self, *, columns: Columns, box: Box | None, tolerance: float) -> None:
        self.columns, self.box = columns, box
        # A thousandth of the tolerance is left for the rounding margins taken off at the end.
        self.enough = 1 + 0.999 * tolerance
        self.done = False
        self.centers: list[Array] = []  # the pure strategies of the matrix game, and their row distances
        self.payoffs: list[Array] = []
        self.low, self.high = -1.0, np.inf
        self.weights = self.center = np.zeros(0)

    def try_center(self, center: Array, *, keep: bool) -> Array:
        """Row distances of ``center`` moved into the box, remembering it if it is the best."""
        if self.box is not None:
            center = np.clip(center, self.box.low, self.box.high)
        payoff: Array = np.abs(self.columns.rows - center).sum(axis=1)
        if payoff.max() < self.high:
            self.high, self.center = float(payoff.max()), center
        if keep:
            self.centers.append(center)
            self.payoffs.append(payoff)
        self.done = bool(self.high <= self.enough * self.low)
        return payoff

    def try_weights(self, weights: Array) -> Array:
        """Row distances of the best answer to ``weights``, remembering the weights if they certify more."""
        payoff = self.try_center(weighted_medians(self.columns, weights), keep=True)
        if float(weights @ payoff) > self.low:
            self.low, self.weights = float(weights @ payoff), weights
            self.done = bool(self.high <= self.enough * self.low)
        return payoff


def _multiplicative_updates(search: _Search) -> None:
    """Raise the weight of far rows again and again; the running average of the answers is a good center."""
    weights = search.weights
    logs = np.log(np.maximum(weights, 1e-6 / weights.size))
    mean, total = np.zeros_like(search.center), 0.0
    payoff = search.payoffs[-1]
    for step in range(1, min(UPDATES, 8 + 2 * weights.size)):
        mean, total = mean + step * search.centers[-1], total + step
        if step % 4 == 0:
            search.try_center(mean / total, keep=False)
            if search.done:
                return
        ahead = payoff - weights @ payoff
        logs = logs + ahead / max(float(np.abs(ahead).max()), 1e-300) / np.sqrt(step)
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        payoff = search.try_weights(weights)
        if search.done:
            return


def _column_generation(search: _Search) -> None:
    """Solve the game on the centers met so far, answer its weights with a new center, repeat."""
    for _ in range(ROUNDS):
        solution = _matrix_game(np.stack(search.payoffs))
        if solution is None:
            return
        mixture, weights = solution
        search.try_center(mixture @ np.stack(search.centers), keep=False)
        if search.done:
            return
        # Half way to the best weights so far: the game's own weights jump from corner to corner.
        search.try_weights((weights + search.weights) / 2)
        if search.done:
            return


def _matrix_game(payoffs: Array) -> tuple[Array, Array] | None:
    """Best mixture of centers against the worst row, and best weights on rows; None if the solver gives up."""
    from scipy.optimize import linprog  # here, not above: only two measures need it and it is slow to import

    count, tokens = payoffs.shape
    scale = float(payoffs.max())  # the solver's tolerances are absolute
    result = linprog(
        np.append(np.zeros(count), 1.0),
        A_ub=np.column_stack([payoffs.T / scale, -np.ones(tokens)]),
        b_ub=np.zeros(tokens),
        A_eq=np.append(np.ones(count), 0.0)[None],
        b_eq=[1.0],
        method="highs",
    )
    if result.status != 0 or result.x is None:
        return None
    mixture, weights = np.maximum(result.x[:count], 0.0), np.maximum(-result.ineqlin.marginals, 0.0)
    if mixture.sum() <= 0 or weights.sum() <= 0:
        return None
    return mixture / mixture.sum(), weights / weights.sum()
