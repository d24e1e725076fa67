"""How many directions a token matrix uses, from its singular values; of X itself or of X centered by its mean.

Every floor below bounds the change of the measure under a perturbation E with ``|E|_F <= delta``. By Weyl and
Mirsky the singular values then move by at most delta each, by delta together in l2 and by ``sqrt(r) delta``
together in l1, where r is how many there are. Once delta reaches the size of the matrix nothing is known about
it, and the floor is the largest value the measure can take. Centering is a projection, so the centered matrix
moves by no more than X does: near consensus that is more than all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.core.registry import unknown_name
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.measures.centers import mean_row, offsets_from, spread
from rankscope.measures.entropies import entropy, entropy_change
from rankscope.measures.norms import frobenius_norm, singular_values
from rankscope.measures.sharing import shared

RELATIVE_THRESHOLD = 1e-3
"""numerical_rank[relative] counts singular values above this share of the largest."""

ABSOLUTE_THRESHOLD = 0.5
"""numerical_rank[absolute] counts singular values above this number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spectrum:
    """Singular values in falling order, divided by ``scale`` so that they are of order one."""

    values: Tensor  # (*batch, r)
    scale: Tensor  # (*batch)

    @property
    def count(self) -> int:
        return int(self.values.shape[-1])

    @property
    def largest(self) -> Tensor:
        return self.values[..., 0]

    @property
    def length(self) -> Tensor:
        """Frobenius norm over ``scale``."""
        return self.values.square().sum(dim=-1).sqrt()


Value = Callable[[Spectrum], Tensor]
Floor = Callable[[Spectrum, Tensor], Tensor]  # the spectrum and delta over its scale


@shared
def spectrum(x: TokenMatrix, *, centered: bool) -> Spectrum:
    """Singular values of ``x``, or of ``x`` minus its mean row.

    Centering leaves rank at most n - 1, so at most n - 1 values are kept: the last one would be rounding.
    """
    if not centered:
        values, scale = singular_values(x)
        return Spectrum(values=values, scale=scale)
    values, scale = singular_values(offsets_from(x, mean_row))
    count = min(x.shape[-2] - 1, x.shape[-1])
    return Spectrum(values=values[..., :count], scale=scale * spread(x).scale)


def _unless_lost(delta: Tensor, size: Tensor, bound: Tensor, largest: float) -> Tensor:
    """``bound``, or the largest possible value where the perturbation is as large as the matrix."""
    return torch.where(delta >= size, largest, bound).clamp(max=largest)


def _entropy_rank(shares: Tensor) -> Tensor:
    return entropy(shares).exp().clamp(1.0, shares.shape[-1])


def entropy_rank_change(value: Tensor, moved: Tensor, count: int) -> Tensor:
    """Largest change of ``value = exp(entropy)`` when its ``count`` shares move by ``moved`` in total variation."""
    return value * torch.expm1(entropy_change(moved, count))


def _entropy_rank_floor(s: Spectrum, delta: Tensor, value: Tensor, moved: Tensor) -> Tensor:
    return _unless_lost(delta, s.length, entropy_rank_change(value, moved, s.count), float(s.count))


def _by_singular_values(s: Spectrum) -> Tensor:
    return _entropy_rank(s.values / s.values.sum(dim=-1, keepdim=True))


def _by_singular_values_floor(s: Spectrum, delta: Tensor) -> Tensor:
    return entropy_rank_floor(_by_singular_values(s), s.values.sum(dim=-1), s.length, s.count, delta)


def entropy_rank_floor(value: Tensor, total: Tensor, length: Tensor, count: int, delta: Tensor) -> Tensor:
    """That of the rank by singular values: ``total`` is their sum, ``length`` the root of the sum of their squares.

    Half the l1 distance of the shares is at most ``|sigma' - sigma|_1 / total``, both before and after rescaling.
    """
    moved = (count**0.5 * delta / total).nan_to_num(nan=1.0)
    return _unless_lost(delta, length, entropy_rank_change(value, moved, count), float(count))


def _by_eigenvalues(s: Spectrum) -> Tensor:
    return _entropy_rank(s.values.square() / s.values.square().sum(dim=-1, keepdim=True))


def _by_eigenvalues_floor(s: Spectrum, delta: Tensor) -> Tensor:
    # |sigma'^2 - sigma^2|_1 <= |sigma' - sigma|_2 |sigma' + sigma|_2 <= delta (2 length + delta)
    moved = delta * (2 * s.length + delta) / s.length.square()
    return _entropy_rank_floor(s, delta, _by_eigenvalues(s), moved.nan_to_num(nan=1.0))


def _ratio_change(top: Tensor, bottom: Tensor, power: int, delta: Tensor) -> Tensor:
    """Largest change of ``(top / bottom)^power`` when both move by at most delta."""
    value = (top / bottom) ** power
    above = ((top + delta) / (bottom - delta)) ** power - value
    below = value - ((top - delta).clamp(min=0) / (bottom + delta)) ** power
    return torch.maximum(above, below)


def _stable_rank(s: Spectrum) -> Tensor:
    return (s.length / s.largest).square().clamp(1.0, s.count)


def _stable_rank_floor(s: Spectrum, delta: Tensor) -> Tensor:
    change = _ratio_change(s.length, s.largest, 2, delta)
    return _unless_lost(delta, s.largest, change, float(s.count))


def _fourth(s: Spectrum) -> Tensor:
    """Schatten 4-norm: a norm below the Frobenius norm, so it moves by at most delta."""
    return s.values.pow(4).sum(dim=-1).pow(0.25)


def _participation(s: Spectrum) -> Tensor:
    return (s.length / _fourth(s)).pow(4).clamp(1.0, s.count)


def _participation_floor(s: Spectrum, delta: Tensor) -> Tensor:
    change = _ratio_change(s.length, _fourth(s), 4, delta)
    return _unless_lost(delta, _fourth(s), change, float(s.count))


def _relative_rank(s: Spectrum) -> Tensor:
    return (s.values > RELATIVE_THRESHOLD * s.values[..., :1]).sum(dim=-1).double()


def _relative_rank_floor(s: Spectrum, delta: Tensor) -> Tensor:
    """How many singular values could cross the threshold, which moves by its share of delta as well."""
    distance = (s.values - RELATIVE_THRESHOLD * s.values[..., :1]).abs()
    return (distance <= (1 + RELATIVE_THRESHOLD) * delta[..., None]).sum(dim=-1).double()


def _absolute_rank(s: Spectrum) -> Tensor:
    return (s.values * s.scale[..., None] > ABSOLUTE_THRESHOLD).sum(dim=-1).double()


def _absolute_rank_floor(s: Spectrum, delta: Tensor) -> Tensor:
    distance = (s.values * s.scale[..., None] - ABSOLUTE_THRESHOLD).abs()
    return (distance <= (delta * s.scale)[..., None]).sum(dim=-1).double()


def _smallest(s: Spectrum) -> Tensor:
    return s.values[..., -1] * s.scale


def _absolute_floor(s: Spectrum, delta: Tensor) -> Tensor:
    return delta * s.scale


def _smallest_ratio(s: Spectrum) -> Tensor:
    return s.values[..., -1] / s.largest


def _smallest_ratio_floor(s: Spectrum, delta: Tensor) -> Tensor:
    change = _ratio_change(s.values[..., -1], s.largest, 1, delta)
    return _unless_lost(delta, s.largest, change, 1.0)


def _distance(s: Spectrum) -> Tensor:
    return s.values[..., 1:].square().sum(dim=-1).sqrt() * s.scale


def _distance_ratio(s: Spectrum) -> Tensor:
    return s.values[..., 1:].square().sum(dim=-1).sqrt() / s.length


def _distance_ratio_floor(s: Spectrum, delta: Tensor) -> Tensor:
    change = _ratio_change(s.values[..., 1:].square().sum(dim=-1).sqrt(), s.length, 1, delta)
    return _unless_lost(delta, s.length, change, 1.0)


SPECTRAL: dict[tuple[str, str], tuple[Value, Floor]] = {
    ("effective_rank", "entropy"): (_by_singular_values, _by_singular_values_floor),
    ("effective_rank", "eigenvalues"): (_by_eigenvalues, _by_eigenvalues_floor),
    ("stable_rank", "frobenius"): (_stable_rank, _stable_rank_floor),
    ("participation_ratio", "eigenvalues"): (_participation, _participation_floor),
    ("numerical_rank", "relative"): (_relative_rank, _relative_rank_floor),
    ("numerical_rank", "absolute"): (_absolute_rank, _absolute_rank_floor),
    ("smallest_singular_value", "absolute"): (_smallest, _absolute_floor),
    ("smallest_singular_value", "ratio"): (_smallest_ratio, _smallest_ratio_floor),
    ("distance_to_rank_one", "frobenius"): (_distance, _absolute_floor),
    ("distance_to_rank_one", "ratio"): (_distance_ratio, _distance_ratio_floor),
}


def spectral_of(x: TokenMatrix, value: Value, centered: bool) -> PerMatrix:
    """A spectral measure of checked input; NaN where it is 0/0."""
    return value(spectrum(x, centered=centered))


def spectral_floor(x: TokenMatrix, relative: float | PerMatrix, floor: Floor, centered: bool) -> PerMatrix:
    """Its error bound when ``|E|_F <= relative |X|_F``: the norm of X, also when X is centered."""
    s = spectrum(x, centered=centered)
    # Capped: far below the state's own rounding the quotient could overflow, and everything is lost long before.
    delta = (relative * frobenius_norm(x) / s.scale).clamp(max=1e100)
    return floor(s, delta)


def _measured(name: str, tag: str, x: Tensor, centered: bool) -> Tensor:
    known = [second for first, second in SPECTRAL if first == name]
    if tag not in known:
        raise unknown_name(f"definition of {name}", tag, known)
    x = checked(x, tokens=2 if centered else 1)
    return spectral_of(x, SPECTRAL[name, tag][0], centered)


def effective_rank(x: Tensor, *, of: str, centered: bool = False) -> PerMatrix:
    """Exponential of the entropy of the singular values (``of="entropy"``) or of their squares (``of="eigenvalues"``).

    Shares p = sigma / sum(sigma), or sigma^2 / sum(sigma^2); ``exp(-sum p log p)`` is between 1 and min(n, d).

    >>> import torch
    >>> round(effective_rank(torch.eye(3), of="entropy").item(), 12)
    3.0
    """
    return _measured("effective_rank", of, x, centered)


def stable_rank(x: Tensor, *, centered: bool = False) -> PerMatrix:
    """Squared Frobenius norm over squared largest singular value, of X (not of X X^T)."""
    return _measured("stable_rank", "frobenius", x, centered)


def participation_ratio(x: Tensor, *, centered: bool = False) -> PerMatrix:
    """``(sum sigma^2)^2 / sum sigma^4``: how many eigenvalues of X^T X share the energy."""
    return _measured("participation_ratio", "eigenvalues", x, centered)


def numerical_rank(x: Tensor, *, threshold: str, centered: bool = False) -> PerMatrix:
    """How many singular values exceed 1e-3 of the largest (``"relative"``), or 0.5 (``"absolute"``)."""
    return _measured("numerical_rank", threshold, x, centered)


def smallest_singular_value(x: Tensor, *, size: str, centered: bool = False) -> PerMatrix:
    """Smallest of the min(n, d) singular values, ``"absolute"`` or as a ``"ratio"`` to the largest.

    Centered: of the min(n - 1, d) that can be positive.
    """
    return _measured("smallest_singular_value", size, x, centered)


def distance_to_rank_one(x: Tensor, *, size: str, centered: bool = False) -> PerMatrix:
    """Frobenius distance to the nearest matrix of rank one, ``"frobenius"`` or as a ``"ratio"`` to the norm.

    ``sqrt(sum of sigma_k^2, k >= 2)``. Rank one is weaker than consensus: tokens may be different multiples of
    one row.
    """
    return _measured("distance_to_rank_one", size, x, centered)
