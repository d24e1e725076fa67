"""Truths of residuals, residual ratios and diameters of a token matrix that is given in balls.

The balls of a state are far smaller than the differences between its tokens, or there is no truth to speak of: that
is checked. Their midpoints are then written as integers times a common power of two, with 140 bits for the largest
entry, and everything that follows is integer arithmetic: sums, comparisons and square roots rounded down, each right
to more than 30 digits. Nothing here uses floats but the linear program of the 1-center, whose value has a slack.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isqrt

import numpy as np
from flint import arb, arb_mat, ctx
from scipy.optimize import linprog

from reference.ball_network import Ball, Matrix

Integers = list[list[int]]

BITS = 140
"""Bits of the largest entry of a matrix of integers."""

SHARP = 110
"""A matrix whose balls are not smaller than this many binary digits of its largest entry has no truth."""

NEAR = 1.01
"""A center in linf is certified by the library within one percent: every center that close is a right answer."""

SLACK = 1e-7
"""Relative error of the linear program."""

NORMS = ("l1", "linf", "composite", "frobenius", "spectral", "max")
CENTERS = ("mean", "median", "midrange", "linf", "best")
OWN = {"l1": "median", "frobenius": "mean", "spectral": "mean", "max": "midrange"}
"""The best center where it has a closed form."""


class LostDigitsError(ArithmeticError):
    """The balls are too large to hold the truth of a measure; more bits may help."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Truth:
    """Both ends of an interval that holds the truth; they are equal where it has a closed form."""

    low: Ball
    high: Ball

    def over(self, size: Ball) -> "Truth":
        return Truth(low=self.low / size, high=self.high / size)


def one(value: Ball) -> Truth:
    return Truth(low=value, high=value)


class Rows:
    """A token matrix as integers: ``entry = integer * 2**exponent``. A zero matrix has the exponent 0."""

    def __init__(self, state: Matrix) -> None:
        largest = max((entry.abs_lower() for row in state for entry in row), key=_magnitude)
        self.is_zero = all(entry.is_zero() for row in state for entry in row)
        if self.is_zero:
            self.entries, self.exponent = [[0] * len(row) for row in state], 0
            return
        top = _magnitude(largest)
        if top == -inf or not all(
            _magnitude(arb(entry.rad())) < top - SHARP for row in state for entry in row
        ):
            raise LostDigitsError("balls as large as what they hold")
        self.exponent = int(top) - BITS
        self.entries = [[_shifted(entry, self.exponent) for entry in row] for row in state]

    def real(self, integer: int) -> Ball:
        return arb(integer) * arb(2) ** self.exponent

    @cached_property
    def sizes(self) -> dict[str, Ball]:
        """All matrix norms."""
        return {name: self.real(_norm(name, self.entries)) for name in NORMS}


def measures(state: Matrix) -> dict[str, Truth]:
    """The truth of every residual, residual ratio and diameter; raises where the balls do not hold it.

    Ratios of a zero matrix are 0/0 and left out.
    """
    with ctx.workprec(_working(state)):
        tokens = len(state)
        means = [_sum(column) / tokens for column in zip(*state, strict=True)]
        rest = [[entry - mean for entry, mean in zip(row, means, strict=True)] for row in state]
        if tokens == 1:
            rest = [[arb(0)] * len(state[0])]
    with ctx.workprec(200):
        from_mean, whole = Rows(rest), Rows(state)
        found = _residuals(from_mean)
        if not whole.is_zero:
            found |= {
                name.replace("residual", "residual_ratio"): truth.over(whole.sizes[_norm_of(name)])
                for name, truth in found.items()
            }
        return found | _diameters(from_mean)


def nearly_zero(state: Matrix) -> dict[str, Truth]:
    """Residuals and diameters of tokens that are equal as far as their balls tell: at least zero, at most ``below``."""
    names = [f"residual[{norm},{center}]" for norm in NORMS for center in CENTERS]
    names += ["diameter[l1]", "diameter[l2]", "diameter[linf]"]
    return dict.fromkeys(
        names, Truth(low=arb(0), high=2 * below(state))
    )  # centers in linf may be one percent off


def below(state: Matrix) -> Ball:
    """A number that no residual in any norm exceeds, from any center between the tokens."""
    with ctx.workprec(_working(state)):
        spans = []
        for column in zip(*state, strict=True):
            middles, widest = [entry.mid() for entry in column], max((arb(e.rad()) for e in column), key=_key)
            spans.append(max(middles, key=_key) - min(middles, key=_key) + 2 * widest)
        return (_sum(spans) * len(state)).upper()


def _working(state: Matrix) -> int:
    """Bits with which a difference of entries of these balls keeps all the digits they hold."""
    return max(entry.bits() for row in state for entry in row) + 2 * BITS


def _norm_of(name: str) -> str:
    return name.partition("[")[2].partition(",")[0]


def _residuals(rows: Rows) -> dict[str, Truth]:
    tokens = len(rows.entries)
    wide = [[2 * tokens * entry for entry in row] for row in rows.entries]  # so that no center is a fraction
    columns = [sorted(column) for column in zip(*wide, strict=True)]
    centers = {
        "mean": [sum(column) // tokens for column in columns],
        "median": [(column[(tokens - 1) // 2] + column[tokens // 2]) // 2 for column in columns],
        "midrange": [(column[0] + column[-1]) // 2 for column in columns],
    }
    found, exact = {}, {}
    for center, row in centers.items():
        apart = [[entry - c for entry, c in zip(token, row, strict=True)] for token in wide]
        for norm in NORMS:
            exact[norm, center] = rows.real(_norm(norm, apart)) / (2 * tokens)
            found[f"residual[{norm},{center}]"] = one(exact[norm, center])
    best = {norm: one(exact[norm, center]) for norm, center in OWN.items()}
    radius = _radius(rows)
    best["linf"] = radius
    tried = [exact["composite", center] for center in centers]
    best["composite"] = Truth(low=(best["l1"].low * radius.low).sqrt(), high=min(tried, key=_key))
    for norm in NORMS:
        found[f"residual[{norm},best]"] = best[norm]
        found[f"residual[{norm},linf]"] = Truth(low=best[norm].low, high=_near(norm, radius, tokens))
    found["residual[linf,linf]"] = radius
    return found


def _near(norm: str, radius: Truth, tokens: int) -> Ball:
    """What a norm can be at most, if every row has an l1 length of at most ``NEAR`` radii.

    The largest column sum is at most the sum of all row sums, and |R|_2 <= |R|_F <= sqrt(n) max |r_i|_1.
    """
    reach = radius.high * arb(NEAR)
    return {
        "l1": reach * tokens,
        "linf": reach,
        "composite": reach * arb(tokens).sqrt(),
        "frobenius": reach * arb(tokens).sqrt(),
        "spectral": reach * arb(tokens).sqrt(),
        "max": reach,
    }[norm]


def _radius(rows: Rows) -> Truth:
    """Both ends of the smallest largest l1 distance to a center: a linear program in center, parts and radius."""
    if rows.is_zero:
        return one(arb(0))
    floats = np.array([[entry / 2**BITS for entry in row] for row in rows.entries])
    tokens, dim = floats.shape
    # Unknowns: center c, parts t_ij >= |x_ij - c_j|, radius r >= sum_j t_ij.
    unit = np.tile(np.eye(dim), (tokens, 1))
    parts, none = np.eye(tokens * dim), np.zeros((tokens * dim, 1))
    sums = np.kron(np.eye(tokens), np.ones((1, dim)))
    above = np.hstack([-unit, -parts, none])
    under = np.hstack([unit, -parts, none])
    radius = np.hstack([np.zeros((tokens, dim)), sums, -np.ones((tokens, 1))])
    flat = floats.reshape(-1)
    solved = linprog(
        np.concatenate([np.zeros(dim + tokens * dim), [1.0]]),
        A_ub=np.vstack([above, under, radius]),
        b_ub=np.concatenate([-flat, flat, np.zeros(tokens)]),
        bounds=[(None, None)] * dim + [(0, None)] * (tokens * dim + 1),
        method="highs",
    )
    value = arb(float(solved.fun)) * arb(2) ** (rows.exponent + BITS)
    return Truth(low=value * arb(1 - SLACK), high=value * arb(1 + SLACK))


def _diameters(rows: Rows) -> dict[str, Truth]:
    pairs = [
        [a - b for a, b in zip(first, other, strict=True)]
        for place, first in enumerate(rows.entries)
        for other in rows.entries[:place]
    ] or [[0]]
    return {
        "diameter[l1]": one(rows.real(max(sum(map(abs, pair)) for pair in pairs))),
        "diameter[l2]": one(rows.real(isqrt(max(sum(d * d for d in pair) for pair in pairs)))),
        "diameter[linf]": one(rows.real(max(max(map(abs, pair)) for pair in pairs))),
    }


def _norm(name: str, rows: Integers) -> int:
    match name:
        case "l1":
            return max(sum(map(abs, column)) for column in zip(*rows, strict=True))
        case "linf":
            return max(sum(map(abs, row)) for row in rows)
        case "composite":
            return isqrt(_norm("l1", rows) * _norm("linf", rows))
        case "frobenius":
            return isqrt(sum(entry * entry for row in rows for entry in row))
        case "spectral":
            return _spectral(rows)
        case "max":
            return max(abs(entry) for row in rows for entry in row)
    raise ValueError(f"no norm {name!r}")


def _spectral(rows: Integers) -> int:
    """The largest singular value, from traces of repeated squares of the Gram matrix.

    For G = t M with trace(M) = 1 the largest eigenvalue is t times that of M, which lies between trace(M^2) and 1;
    squaring M squares it. So log lambda(G) = log t_0 + log t_1 / 2 + log t_2 / 4 + ..., until trace(M^2) is one.
    """
    columns = list(zip(*rows, strict=True))
    short: Sequence[Sequence[int]] = rows if len(rows) <= len(columns) else columns
    gram = arb_mat([[sum(a * b for a, b in zip(p, q, strict=True)) for q in short] for p in short])
    if not any(entry for row in rows for entry in row):
        return 0
    with ctx.workprec(300):
        log = arb(0)
        for step in range(80):  # 2^-80 log(dim) is what is left out at most
            trace = gram.trace()
            log += trace.log() / 2**step
            gram = gram / trace
            gram = gram * gram
            if 1 - gram.trace() < arb(2) ** -80:
                break
        return int((log / 2).exp().mid().floor().unique_fmpz())


def _magnitude(ball: Ball) -> float:
    """The binary exponent of an exact number, minus infinity for zero and NaN for what is not finite."""
    if ball.is_zero():
        return -inf
    if not ball.is_finite():
        return float("nan")
    mantissa, exponent = ball.man_exp()
    return int(mantissa).bit_length() + int(exponent)


def _shifted(entry: Ball, exponent: int) -> int:
    mantissa, own = entry.mid().man_exp()
    shift = int(own) - exponent
    return int(mantissa) << shift if shift >= 0 else int(mantissa) >> -shift


def _sum(balls: Sequence[Ball]) -> Ball:
    total = arb(0)
    for ball in balls:
        total += ball
    return total


class _Key:
    """Orders exact balls; floats have not their range."""

    def __init__(self, ball: Ball) -> None:
        self.ball = ball.mid()

    def __lt__(self, other: "_Key") -> bool:
        return bool(self.ball < other.ball)

    def __gt__(self, other: "_Key") -> bool:
        return bool(self.ball > other.ball)


def _key(ball: Ball) -> _Key:
    return _Key(ball)
