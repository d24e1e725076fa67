"""Equation residual and singular values of graded tokens, in float64 or with as many digits as asked for.

A matrix of rank 16 built with ``w = 10`` has a singular value near 1e-16 of the largest, which float64 cannot tell from
zero; with enough digits it is a number like any other.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOAT_DIGITS = 15
_GUARD = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Spectrum:
    """Base-10 logarithms of the singular values, falling, and of the threshold above which they count."""

    log10_values: tuple[float, ...]
    log10_threshold: float

    @property
    def rank(self) -> int:
        return sum(value > self.log10_threshold for value in self.log10_values)


def context(digits: int) -> Any:
    """An mpmath context of its own with that many decimal digits; the global one stays as it is."""
    from mpmath import MPContext  # type: ignore[import-untyped]

    found = MPContext()
    found.dps = digits
    return found


def channels(graded: NDArray[Any], shear: Any) -> NDArray[Any]:
    """Ordinary channels, last one last, of graded ones: ``x[d - m] = g[m] / w^m``."""
    powers = np.array([(1 / shear) ** m for m in range(graded.shape[-1])])
    ordinary: NDArray[Any] = (graded * powers)[..., ::-1]
    return ordinary


def equation_residual(x: NDArray[Any], mask: NDArray[np.bool_], shear: Any) -> float:
    """Largest entry of ``|step(x) - x|`` for uniform attention, ``W = I + w S`` and the unit sphere."""
    worst = 0.0
    for token, row in enumerate(mask):
        mean = x[row].sum(axis=0) / int(row.sum())
        moved = mean.copy()
        moved[1:] += shear * mean[:-1]
        length = (moved * moved).sum() ** 0.5
        worst = max(worst, float(np.abs(moved / length - x[token]).max()))
    return worst


def float_spectrum(x: NDArray[np.float64]) -> Spectrum:
    """Singular values in float64; the threshold is ``max(tokens, dim) eps sigma_1``."""
    values = np.linalg.svd(x, compute_uv=False)
    threshold = max(x.shape) * np.finfo(np.float64).eps * values[0]
    with np.errstate(divide="ignore"):
        logs = np.log10(values)
    return Spectrum(log10_values=tuple(logs.tolist()), log10_threshold=float(np.log10(threshold)))


def extended_spectrum(x: NDArray[Any], digits: int, *, dim: int) -> Spectrum:
    """Singular values of a matrix of mpmath numbers, whose channels before these, up to ``dim``, are zero.

    They are roots of eigenvalues of the Gram matrix, found with twice the digits. The threshold is
    ``max(tokens, dim) eps sigma_1`` with the eps of ``digits``.
    """
    wide = context(2 * digits + _GUARD)
    entries = np.vectorize(wide.mpf, otypes=[object])(x)
    tokens, kept = entries.shape
    gram = entries.T @ entries if kept <= tokens else entries @ entries.T
    found = wide.eigsy(wide.matrix(gram.tolist()), eigvals_only=True)
    values = sorted(found, reverse=True)
    logs = [float(wide.log10(value) / 2) if value > 0 else -np.inf for value in values]
    logs += [-np.inf] * (min(tokens, dim) - len(logs))
    eps = max(tokens, dim) * wide.mpf(context(digits).eps)
    return Spectrum(log10_values=tuple(logs), log10_threshold=logs[0] + float(wide.log10(eps)))
