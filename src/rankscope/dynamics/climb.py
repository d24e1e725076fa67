"""Tokens of an equilibrium of ``W = I + w S`` one after the other, in any arithmetic.

``S`` moves every channel to the next. All here is in *graded* channels: ``g[m] = w^m x[d - m]``, the last channel ``d``
first. There ``x W`` is ``g[m] + g[m + 1]`` whatever ``w`` is, which enters only through lengths,
``|x|^2 = sum_m w^(-2m) g[m]^2``, and no entry falls out of the range of float64.

A token that reads others whose sum is ``s`` and itself rests where ``x (lambda I - W) = s W`` with ``lambda > 0``.
Its *level* is the number of channels from the last up to its first one that is not zero, the pivot.

- ``s = 0``: ``lambda = 1`` and x is the last unit vector or its opposite, level 1.
- ``lambda = 1``, a *climb*: ``g[m + 1] = -(s W)[m]``, and ``g[0]`` makes the length one, either sign. It exists where
  ``|s W| <= w``. Its level is one more than that of ``s``, its pivot minus that of ``s``, graded.
- any other ``lambda``, a *stay*: ``x = s W (lambda I - W)^-1`` keeps the level of ``s``. For ``lambda > 1`` the pivot
  keeps its sign, and a ``lambda`` with length one exists: the length goes from infinity, at 1, to zero.

So no token of any equilibrium has a level above one plus the highest level that it reads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Signs = Literal["stable", "positive"]
Graded = NDArray[Any]
"""Graded channels of one token: float64, or mpmath numbers as objects."""

_GRID = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Climbed:
    """Graded tokens ``tokens levels`` with the sign of every last channel that was chosen, 0 where none was."""

    graded: Graded
    signs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TooLong:
    """A climb that does not exist: the other channels of the token alone would be longer than one."""

    token: int
    length: float


def chain_levels(mask: NDArray[np.bool_], order: list[int]) -> list[int]:
    """For every token how many tokens the longest chain that ends at it has, each reading the one before."""
    levels = [1] * len(mask)
    for token in order:
        read = np.flatnonzero(mask[token])
        levels[token] = 1 + max((levels[other] for other in read.tolist() if other != token), default=0)
    return levels


def climb(
    mask: NDArray[np.bool_],
    order: list[int],
    rank: int,
    shear: Any,
    signs: Signs,
    number: Callable[[int], Any] = np.float64,
) -> Climbed | TooLong:
    """Tokens that rest: every one climbs until it is at the level of the rank, then stays.

    ``order`` has every token behind what it reads; ``number`` makes a number of the arithmetic, in which ``shear`` is.
    """
    targets = [min(level, rank) for level in chain_levels(mask, order)]
    weights = np.array([(1 / shear) ** (2 * m) for m in range(rank)])
    eps = _unit(number)
    graded = np.array([[number(0)] * rank for _ in mask])
    chosen = [0] * len(mask)
    for token in order:
        read = [other for other in np.flatnonzero(mask[token]).tolist() if other != token]
        if not read:
            graded[token, 0], chosen[token] = number(1), 1
            continue
        moved = through(graded[read].sum(axis=0))
        if max(targets[other] for other in read) == targets[token]:
            graded[token] = _staying(moved, weights, eps)
            continue
        graded[token, 1:] = -moved[:-1]
        left = 1 - _square(graded[token], weights)
        if left < -8 * len(read) * eps:
            return TooLong(token=token, length=float((1 - left) ** 0.5))
        graded[token, 0] = max(left, 0 * left) ** 0.5
        chosen[token] = 1 if signs == "positive" else _calmer_sign(graded[token], weights)
        graded[token, 0] *= chosen[token]
    return Climbed(graded=graded, signs=tuple(chosen))


def through(graded: Graded) -> Graded:
    """``x W`` for graded channels (last axis): each with the one before it in the order of W."""
    moved = graded.copy()
    moved[..., :-1] += graded[..., 1:]
    return moved


def own_roots(graded: Graded, weights: Graded) -> NDArray[np.complex128]:
    """The numbers mu with which a token answers to itself: a small change v of it returns as ``(1 + mu) v / lambda``.

    On the tangent space the derivative of a step by the token itself is ``W (I - x^T x) / lambda``; with ``N = w S``
    the characteristic polynomial of ``N (I - x^T x)`` is ``sum_j a_j mu^(d - j)``, ``a_j = x N^j x^T``, which vanishes
    from the level of the token on. Given up to that level; all others are 0.
    """
    size = len(graded)
    terms = [float((graded[j:] * graded[: size - j] * weights[: size - j]).sum()) for j in range(size)]
    return np.roots(terms).astype(np.complex128)


def _calmer_sign(graded: Graded, weights: Graded) -> int:
    """The sign of the last channel for which the largest multiplier is smaller; 1 if they are equal to rounding."""
    largest = []
    for sign in (1, -1):
        token = graded.copy()
        token[0] *= sign
        size = _level(token)
        largest.append(np.abs(1 + own_roots(token[:size], weights[:size])).max(initial=0.0))
    return -1 if largest[1] < largest[0] * (1 - 1e-9) else 1


def _level(graded: Graded) -> int:
    return int(np.flatnonzero(graded != 0)[-1]) + 1


def _staying(moved: Graded, weights: Graded, eps: Any) -> Graded:
    """``s W (lambda I - W)^-1`` of length one: lambda from a bracket in float64, then Newton steps if there are more
    digits to find."""
    offset = _offset(moved.astype(np.float64), weights.astype(np.float64))
    solved, slope = _solved(moved, moved[0] * 0 + offset)
    if moved.dtype != object:
        return solved
    offset = moved[0] * 0 + offset
    for _ in range(64):
        step = (_square(solved, weights) - 1) / (2 * (solved * slope * weights).sum())
        offset -= step
        solved, slope = _solved(moved, offset)
        if abs(step) <= 16 * eps * offset:
            break
    return solved


def _solved(moved: Graded, offset: Any) -> tuple[Graded, Graded]:
    """``s W (offset I - N)^-1`` and its derivative by the offset, ``offset = lambda - 1``."""
    solved, slope = moved.copy(), moved.copy()
    before, before_slope = moved[0] * 0, moved[0] * 0
    for m in reversed(range(len(moved))):
        before = (moved[m] + before) / offset
        before_slope = (before_slope - before) / offset
        solved[m], slope[m] = before, before_slope
    return solved, slope


def _offset(moved: Graded, weights: Graded) -> float:
    """The largest ``lambda - 1`` with length one on a fine grid, bisected; at ``w + |s W|`` the length is below one."""

    def square(offset: Graded) -> Graded:
        total, before = np.zeros_like(offset), np.zeros_like(offset)
        with np.errstate(over="ignore", invalid="ignore"):  # beyond the range is beyond one
            for m in reversed(range(len(moved))):
                before = (moved[m] + before) / offset
                total += weights[m] * before**2
        return np.nan_to_num(total, nan=np.inf)

    shear = 1 / np.sqrt(weights[1]) if len(weights) > 1 else 0.0
    high = shear + np.sqrt(_square(moved, weights)) + 1
    low = high
    while square(np.array([low]))[0] <= 1:
        low /= 2
    grid = np.geomspace(low, high, _GRID)
    last = int(np.flatnonzero(square(grid) > 1)[-1])
    low, high = grid[last], grid[last + 1]
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if square(np.array([middle]))[0] > 1 else (low, middle)
    return float(low)


def _square(graded: Graded, weights: Graded) -> Any:
    return (graded * graded * weights).sum()


def _unit(number: Callable[[int], Any]) -> Any:
    """The spacing of the numbers behind 1."""
    one = number(1)
    return np.finfo(np.float64).eps if isinstance(one, float) else one.context.eps
