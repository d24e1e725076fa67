"""The fall of a residual ratio taken apart by hand: loops and quadrature in numpy, nothing of ours."""

import math
from collections.abc import Sequence

import mpmath
import numpy as np

Matrix = np.ndarray


def log_ratio(x: Matrix) -> float:
    """ln of the distance of the rows from their mean, over the size of the matrix."""
    apart = x - x.mean(axis=0)
    return 0.5 * math.log((apart**2).sum() / (x**2).sum())


def unit(x: Matrix) -> Matrix:
    return np.stack([row / math.sqrt(math.fsum(row**2)) for row in x])


def shares_of_growth(a: Matrix, pieces: Sequence[Matrix]) -> list[tuple[float, float]]:
    """Of ``ln |a + sum v|^2 / |a|^2`` what each piece adds, by size and by direction: integrals to 30 digits."""
    v = sum(pieces)
    with mpmath.workdps(30):
        dot = [
            [
                mpmath.fsum(
                    mpmath.mpf(float(p)) * mpmath.mpf(float(q)) for p, q in zip(x.flat, y.flat, strict=True)
                )
                for x in (a, v)
            ]
            for y in (a, v)
        ]
        q = lambda u: dot[0][0] + 2 * dot[0][1] * u + dot[1][1] * u * u  # noqa: E731
        along = mpmath.quad(lambda u: 2 / q(u), [0, 0.25, 0.5, 0.75, 1])
        size = mpmath.quad(lambda u: 2 * u / q(u), [0, 0.25, 0.5, 0.75, 1])
        return [(float((v * one).sum() * size), float((a * one).sum() * along)) for one in pieces]


def attention_pieces(
    h: Matrix, maps: Matrix, value: Matrix, out: Matrix, value_bias: Matrix, out_bias: Matrix
) -> dict[str, Matrix]:
    """One head: bias, answer to the mean, own values, averaging, row sums, each by its formula."""
    n = len(h)
    one = np.ones((n, 1))
    mean = h.mean(axis=0, keepdims=True)
    rest = h - mean
    return {
        "bias": one @ (value_bias[None] @ out + out_bias[None]),
        "common": one @ mean @ value @ out,
        "own": rest @ value @ out,
        "averaging": (maps - np.eye(n)) @ rest @ value @ out,
        "row-sums": (maps @ one - one) @ (mean @ value + value_bias[None]) @ out,
    }


def pre_norm_fall(x: Matrix, branches: Sequence[dict[str, Matrix]]) -> dict[str, float]:
    """Streams without norms and with whole skips: contributions by piece, on unit tokens, with quadrature."""
    found: dict[str, float] = {}

    def enter(name: str, value: float) -> None:
        found[name] = found.get(name, 0.0) + value

    for pieces in branches:
        new = x + sum(pieces.values())
        weights = 1 / np.sqrt((new**2).sum(axis=1, keepdims=True))
        base = weights * x
        enter("lengths", log_ratio(base) - log_ratio(unit(x)))
        weighed = {name: weights * one for name, one in pieces.items()}
        means = {name: one.mean(axis=0, keepdims=True) for name, one in weighed.items()}
        rests = {name: one - means[name] for name, one in weighed.items()}
        mean, rest = base.mean(axis=0, keepdims=True), base - base.mean(axis=0, keepdims=True)
        common = shares_of_growth(mean, list(means.values()))
        apart = shares_of_growth(rest, list(rests.values()))
        change = log_ratio(weights * new) - log_ratio(base)
        odds = sum(map(sum, apart)) - sum(map(sum, common))
        factor = change / odds
        for name, (size, along), (more, same) in zip(pieces, common, apart, strict=True):
            enter(name, factor * (more + same - size))
            enter("same-direction", -factor * along)
        x = new
    return found
