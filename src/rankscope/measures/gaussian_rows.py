"""What Gaussian rows of the same number and width would show: the yardstick of every number about embeddings.

N rows of d independent N(0, 1) entries use all directions evenly, and still no measure of N of them reads d: 64 rows
span at most 64 directions, and of 512 rows in 384 dimensions the last direction holds a hundredth of the first. What
a number means is therefore its distance to the number of Gaussian rows of the same N and d.
"""

from functools import lru_cache

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal
from scipy.special import chndtr, gammainc, gammaincinv, hyp0f1

SEED = 20230
"""Of the draws below. They are part of the definition: the yardstick is the same in every run."""

DRAWS = 16
"""Spectra that are averaged. Of 16 rows and more the effective rank varies between draws by less than five percent."""

QUANTILES = 512
"""Distances from the center at which a row is asked for its neighbours."""


def gaussian_singular_values(rows: int, dim: int, *, generator: np.random.Generator) -> np.ndarray:
    """Singular values of one ``rows x dim`` matrix of N(0, 1) entries, in falling order, without drawing the matrix.

    Householder reflections from both sides turn such a matrix into a bidiagonal one whose entries are independent:
    with m = min and M = max of the two sizes, the diagonal is chi of M, M - 1, ..., M - m + 1 degrees of freedom and
    the other diagonal chi of m - 1, ..., 1 (Dumitriu and Edelman, Matrix models for beta ensembles, 2002). Reflections
    keep singular values. They are the positive eigenvalues of the tridiagonal matrix of zeros that has the entries of
    both diagonals in turn beside its own (Golub and Kahan). A million rows cost as little as d.
    """
    small, large = min(rows, dim), max(rows, dim)
    if small == 0:
        return np.zeros(0)
    diagonal = np.sqrt(generator.chisquare(large - np.arange(small)))
    beside = np.empty(2 * small - 1)
    beside[::2] = diagonal
    if small > 1:
        beside[1::2] = np.sqrt(generator.chisquare(np.arange(small - 1, 0, -1)))
    eigenvalues = eigvalsh_tridiagonal(np.zeros(2 * small), beside)
    return np.maximum(eigenvalues[::-1][:small], 0.0)


@lru_cache(maxsize=256)
def gaussian_spectra(rows: int, dim: int) -> np.ndarray:
    """Singular values of several draws, one per line."""
    generator = np.random.default_rng([SEED, rows, dim])
    draws = DRAWS if min(rows, dim) <= 1024 else 2
    found = np.stack([gaussian_singular_values(rows, dim, generator=generator) for _ in range(draws)])
    found.flags.writeable = False  # it is shared between callers
    return found


@lru_cache(maxsize=256)
def gaussian_squares(rows: int, dim: int) -> np.ndarray:
    """Squares of singular values as shares of their sum, each the mean over draws."""
    squares = gaussian_spectra(rows, dim) ** 2
    found: np.ndarray = (squares / squares.sum(axis=1, keepdims=True)).mean(axis=0)
    found.flags.writeable = False
    return found


def gaussian_uniformity(dim: int) -> float:
    """``log E exp(-2 |u - v|^2)`` of two random directions.

    With c the cosine of the two, ``|u - v|^2 = 2 - 2c``, and ``E exp(4 c)`` of a random direction is the hypergeometric
    function ``0F1(d/2, 4)``.

    >>> round(gaussian_uniformity(384), 3)
    -3.979
    """
    return float(-4.0 + np.log(hyp0f1(dim / 2, 4.0)))


def gaussian_duplicates(rows: int, dim: int, within: float) -> float:
    """Expected share of Gaussian rows that have another one nearer than ``within`` of the median distance of a pair.

    The squared distance of a pair is twice a chi-square of d degrees of freedom, and from a row at a distance r of the
    center a noncentral one with r^2: a row far out has fewer others near it. So the share is a mean over rows, taken at
    evenly spaced quantiles of r^2.

    >>> gaussian_duplicates(512, 384, 0.01), gaussian_duplicates(100, 1, 0.01) > 0.3
    (0.0, True)
    """
    middle = 4 * float(gammaincinv(dim / 2, 0.5))
    places = 2 * gammaincinv(dim / 2, (np.arange(QUANTILES) + 0.5) / QUANTILES)
    chances = chndtr(within**2 * middle, dim, places)
    chance = float(gammainc(dim / 2, within**2 * middle / 4))  # of any pair: what the chances are on average
    chances *= chance / max(float(chances.mean()), np.finfo(np.float64).tiny)
    return float(abs(np.expm1((rows - 1) * np.log1p(-chances)).mean()))


@lru_cache(maxsize=256)
def gaussian_channel(rows: int, dim: int) -> float:
    """Expected share of the sum of squares that the largest of the d channels holds."""
    squares = np.random.default_rng([SEED, rows, dim, 1]).chisquare(rows, size=(64, dim))
    return float((squares.max(axis=1) / squares.sum(axis=1)).mean())
