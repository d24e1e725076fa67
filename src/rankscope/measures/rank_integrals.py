"""Effective ranks of tokens and of centered tokens from one tridiagonal matrix each, without eigenvalues.

Of the singular values sigma of X only two sums are needed. With ``f(u) = sum ln (1 + sigma^2 e^(-2u))``,

    sum sigma = 1/pi int e^u f(u) du,    sum sigma ln sigma = 1/pi int (u + 1) e^u f(u) du,

since ``int e^(a v) ln (1 + e^(-2v)) dv = (pi / a) / sin (pi a / 2)`` for 0 < a < 2, which is pi with slope -pi at 1.
The integrand is analytic for ``|Im u| < pi / 2``, so that the trapezoid rule is right to about ``2 exp(-pi^2 / h)``.

*f from pivots.* ``f(u) = ln det (T + e^2u) - 2 r u``, T the tridiagonal form of a Gram matrix of r rows: the
determinant is a product of pivots, ``d_i = a_i + e^2u - b_i^2 / d_(i+1)`` from the last row up, all nodes and texts
at once.

*Centered tokens.* J X with ``J = 1 - e e^T``, e the unit vector of equal entries. T is made with e as its first
vector (a reflection takes e to the first axis; the reduction leaves the first axis alone). Then J takes the first
row and column away: the same pivots without the last one. With more tokens than channels the smaller Gram matrix is
X^T X, and that of JX is ``X^T X - n m m^T``, m the mean token: T begins at m, its first entry is lowered by ``n
|m|^2``, and only the last pivot changes.

*What the Gram matrix costs.* Its eigenvalues are off by some e, singular values by ``min(sqrt e, e / sigma)`` each,
since ``|s' - s| (s' + s) <= e``. The sum of these is at most ``2 e Q`` with ``Q = 1/pi int e^-u (ln det)' du`` over
e^u >= sqrt e, as ``1/pi int 2 / (sigma^2 + s^2) ds`` from sqrt e on is at least ``1 / (2 max(sigma, sqrt e))``. Q is
a sum over the same nodes, from below.

*No full rank.* An eigenvalue of zero may come out below it, and a pivot with it. Such a T is taken again as T + e:
all its eigenvalues are above zero then, and within 2 e of what they should be. Channels of a layer norm are of this
kind (without their shift they sum to zero), so that with more tokens than channels every state is.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankscope.core.numerics import SMALL, unit_roundoff

GRAM_UNITS = 32.0
"""Rounding of an eigenvalue of a Gram matrix, in units of round-off of its trace; ten times what random signs give, a
bound in practice."""

STEP = 0.35
"""Distance of nodes: the trapezoid rule is then right to 1e-12."""

LOWEST, HIGHEST = -24.0, 4.6
"""First and last node, singular values being shares of the Frobenius norm. Beyond them f is replaced by its limits:
linear, exact unless a singular value is below 1e-10; two terms of its series, right to 1e-12."""

TAIL = 400
"""Nodes of either tail, summed beforehand."""

TOGETHER = 8
"""Pivots that are multiplied before a logarithm is taken: each is between 1e-21 and 1e5."""

REACH = 2.1
"""The 2 of ``2 e Q``, and what Q lacks above the last node."""

_NODES = np.arange(round((HIGHEST - LOWEST) / STEP) + 1) * STEP + LOWEST
_SQUARES = np.exp(2 * _NODES)
_ERROR = GRAM_UNITS * unit_roundoff(torch.float64)


def _weights(nodes: np.ndarray) -> np.ndarray:
    """Of both integrals."""
    found: np.ndarray = np.stack([np.exp(nodes), (nodes + 1) * np.exp(nodes)]) * (STEP / math.pi)
    return found


_INSIDE = _weights(_NODES)
_ABOVE = _weights(_NODES[-1] + STEP * np.arange(1, TAIL))
_ABOVE_SQUARES = np.exp(-2 * (_NODES[-1] + STEP * np.arange(1, TAIL)))
_FIRST, _SECOND = (_ABOVE * _ABOVE_SQUARES).sum(axis=1), (_ABOVE * _ABOVE_SQUARES**2).sum(axis=1) / 2
_BELOW = _weights(_NODES[0] - STEP * np.arange(1, TAIL))
_LEVEL, _SLOPE = _BELOW.sum(axis=1), (_BELOW * (2 * STEP * np.arange(1, TAIL))).sum(axis=1)

_START = int(np.searchsorted(_NODES, 0.5 * math.log(_ERROR))) - 1
_RISES = np.exp(-_NODES[_START:-1]) / math.pi


class Sums(NamedTuple):
    """What ranks and their floors are made of, one number per matrix, in shares of the Frobenius norm of X."""

    total: Tensor  # sum of the singular values
    logs: Tensor  # sum of sigma ln sigma
    length: Tensor  # root of the sum of their squares
    lost: Tensor  # how far the Gram matrix may have moved the singular values, together
    terms: int  # how many there are


def rank_sums(x: Sequence[Tensor]) -> tuple[Sums, Sums]:
    """The sums of matrices ``(tokens, dim)`` of one shape, and of their centered tokens.

    NaN where a matrix is zero or not finite, and where a pivot is lost to rounding twice.
    """
    texts, (tokens, dim) = len(x), x[0].shape
    size = min(tokens, dim)
    diagonal, beside = np.empty((size, texts)), np.empty((size - 1, texts))
    lowered = np.zeros(texts)
    paper = np.empty((tokens, dim))
    with one_thread(size * size):
        for text, matrix in enumerate(x):
            torch.from_numpy(paper).copy_(matrix)
            diagonal[:, text], beside[:, text], lowered[text] = _tridiagonal(paper)
    with np.errstate(all="ignore"):  # what is not a number says so
        trace = diagonal.sum(axis=0)
        scale = np.where(trace > 0, trace, np.nan)
        diagonal, beside, lowered = diagonal / scale, (beside / scale) ** 2, lowered / scale
        first, second = _both(diagonal, beside, lowered, _ERROR, is_wide=tokens <= dim)
        lost = (first.total.isnan() | second.total.isnan()).numpy()
        if lost.any():
            those = (diagonal[:, lost] + _ERROR, beside[:, lost], lowered[lost])
            again = _both(*those, 2 * _ERROR, is_wide=tokens <= dim)
            first, second = (_filled(*pair, lost) for pair in zip((first, second), again, strict=True))
        return first, second


def _both(
    diagonal: np.ndarray, beside: np.ndarray, lowered: np.ndarray, error: float, *, is_wide: bool
) -> tuple[Sums, Sums]:
    """The sums of the matrices and of their centered tokens; ``is_wide`` if the first row of T is what centering takes
    away. NaN where a pivot was lost to rounding."""
    size = len(diagonal)
    rest, whole, less = _log_determinants(diagonal, beside, lowered)
    first = _sums(whole, diagonal, beside, size, error)
    if is_wide:
        return first, _sums(rest, diagonal[1:], beside[1:], size - 1, error)
    lower = np.concatenate([diagonal[:1] - lowered, diagonal[1:]])
    return first, _sums(less, lower, beside, size, error)


def _filled(sums: Sums, again: Sums, lost: np.ndarray) -> Sums:
    """The sums, with those of another run where a number was lost."""
    places = torch.from_numpy(np.flatnonzero(lost))
    is_lost = torch.isnan(sums.total[places])
    where = places[is_lost]
    for whole, part in zip(sums[:4], again[:4], strict=True):
        whole[where] = part[is_lost]
    return sums


@contextmanager
def one_thread(entries: int) -> Iterator[None]:
    """One thread for scipy's library inside the block if a matrix has at most ``SMALL`` entries."""
    with _libraries().limit(limits=1 if entries <= SMALL else torch.get_num_threads()):
        yield


@cache
def _libraries() -> Any:
    import scipy.linalg  # noqa: F401 - its library must be there to be told
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(internal_api="openblas")


def _tridiagonal(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Diagonal, what is beside it, and ``n |m|^2`` if that is what centering takes from the first entry."""
    from scipy.linalg import blas, lapack  # here, not above: slow to import, and most commands take no rank

    tokens, dim = x.shape
    if tokens <= dim:
        gram, start, mean = blas.dsyrk(1.0, x.T, trans=1, lower=1), np.full(tokens, tokens**-0.5), 0.0
    else:
        gram, start = blas.dsyrk(1.0, x.T, lower=1), x.mean(axis=0)
        length = float(blas.dnrm2(start))
        mean = tokens * length * length
        start = start / length if length > 0 else start
    size = len(gram)
    if not np.isfinite(gram.trace()) or size == 1:
        return gram.diagonal().copy(), np.zeros(size - 1), mean
    start[0] += math.copysign(1.0, start[0])
    length = float(blas.dnrm2(start))
    start /= length
    turned = blas.dsymv(2.0, gram, start, lower=1)
    turned -= (start @ turned) * start
    gram = blas.dsyr2(-1.0, start, turned, lower=1, a=gram, overwrite_a=1)
    _, diagonal, beside, _, _ = lapack.dsytrd(gram, lower=1, lwork=_room(size), overwrite_a=1)
    return diagonal, beside, mean


@cache
def _room(size: int) -> int:
    from scipy.linalg import lapack

    return int(lapack.dsytrd_lwork(size, lower=1)[0])


def _log_determinants(
    diagonal: np.ndarray, beside: np.ndarray, lowered: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``ln det (T + e^2u)`` without the first row, with it, and with a lower first entry; ``(texts, nodes)`` each."""
    pivots = diagonal[:, :, None] + _SQUARES
    share, below = np.empty(pivots.shape[1:]), pivots[-1]
    for row in range(len(beside) - 1, -1, -1):
        np.divide(beside[row][:, None], below, out=share)
        below = pivots[row]
        below -= share
    rest, logs = pivots[1:], np.zeros_like(share)
    if len(rest):
        products = np.multiply.reduceat(rest, np.arange(0, len(rest), TOGETHER), axis=0)
        # the product of two pivots below zero is above it, so that each is looked at
        logs = np.where(rest.min(axis=0) > 0, np.log(products).sum(axis=0), np.nan)
    return logs, logs + np.log(below), logs + np.log(below - lowered[:, None])


def _sums(logs: np.ndarray, diagonal: np.ndarray, beside: np.ndarray, count: int, error: float) -> Sums:
    """Both integrals, from logarithms of determinants and the traces of the matrix and of its square."""
    trace, second = diagonal.sum(axis=0), (diagonal**2).sum(axis=0) + 2 * beside.sum(axis=0)
    f = logs - 2 * count * _NODES
    inside, above = f @ _INSIDE.T, np.outer(trace, _FIRST) - np.outer(second, _SECOND)
    total, weighted = (inside + above + np.outer(f[:, 0], _LEVEL) + count * _SLOPE).T
    lost = REACH * error * (np.diff(logs[:, _START:], axis=1) @ _RISES)
    return Sums(
        total=torch.from_numpy(total),
        logs=torch.from_numpy(weighted),
        length=torch.from_numpy(np.sqrt(trace)),
        lost=torch.from_numpy(lost),
        terms=count,
    )
