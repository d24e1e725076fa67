"""Matrix norms of token matrices, safe from overflow and underflow."""

from collections.abc import Callable

import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.core.registry import unknown_name
from rankscope.core.types import PerMatrix, PerToken, TokenMatrix
from rankscope.measures.sharing import shared

SAFE = (1e-100, 1e100)
"""Squares of float64 numbers add up to the square of a number between these without overflow, and without a loss."""


def unit_scale(x: TokenMatrix) -> tuple[TokenMatrix, PerMatrix]:
    """``x`` divided by a power of two so that its largest entry lies in [1, 2), and that power.

    A power of two changes no digit, so ``y * scale`` is ``x`` to the last bit; squares of ``y`` neither overflow
    nor vanish. The zero matrix keeps the scale 1.
    """
    largest = x.abs().amax(dim=(-2, -1))
    mantissa, _ = torch.frexp(largest)
    scale = torch.where(largest > 0, largest / (2 * mantissa), torch.ones_like(largest))
    return x / scale[..., None, None], scale


def l1_norm(x: TokenMatrix) -> PerMatrix:
    """Largest column sum of |x|: the sum runs over tokens."""
    return x.abs().sum(dim=-2).amax(dim=-1)


def linf_norm(x: TokenMatrix) -> PerMatrix:
    """Largest row sum of |x|: the sum runs over features."""
    return x.abs().sum(dim=-1).amax(dim=-1)


def composite_norm(x: TokenMatrix) -> PerMatrix:
    """Geometric mean of the largest column sum and the largest row sum of |x|.

    Homogeneous and submultiplicative, but the triangle inequality fails. Two square roots rather than one of the
    product, which could overflow.
    """
    return l1_norm(x).sqrt() * linf_norm(x).sqrt()


@shared
def frobenius_norm(x: TokenMatrix) -> PerMatrix:
    """Square root of the sum of squares."""
    plain: Tensor = torch.linalg.vector_norm(x.flatten(-2), dim=-1)
    if bool(((plain > SAFE[0]) & (plain < SAFE[1])).all()):
        return plain
    y, scale = unit_scale(x)
    return y.square().sum(dim=(-2, -1)).sqrt() * scale


@shared
def singular_values(x: TokenMatrix) -> tuple[Tensor, PerMatrix]:
    """Singular values in falling order, divided by a power of two so that they are of order one, and that power."""
    y, scale = unit_scale(x)
    # of a tall matrix they take less than half the time of those of a wide one
    return torch.linalg.svdvals(y.mT if y.shape[-2] < y.shape[-1] else y), scale


def spectral_norm(x: TokenMatrix) -> PerMatrix:
    """Largest singular value."""
    values, scale = singular_values(x)
    return values[..., 0] * scale


def max_norm(x: TokenMatrix) -> PerMatrix:
    """Largest |entry|."""
    return x.abs().amax(dim=(-2, -1))


NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "l1": l1_norm,
    "linf": linf_norm,
    "composite": composite_norm,
    "frobenius": frobenius_norm,
    "spectral": spectral_norm,
    "max": max_norm,
}


def norm_named(norm: str) -> Callable[[Tensor], Tensor]:
    """The matrix norm of that name, as a function that assumes checked input."""
    if norm not in NORMS:
        raise unknown_name("matrix norm", norm, NORMS)
    return NORMS[norm]


def matrix_norm(x: Tensor, *, norm: str) -> PerMatrix:
    """Norm of every matrix: l1 (columns), linf (rows), composite, frobenius, spectral or max.

    >>> import torch
    >>> matrix_norm(torch.tensor([[3.0, 0.0], [3.0, 2.0]]), norm="l1").item()
    6.0
    """
    return norm_named(norm)(checked(x))


def row_lengths(x: TokenMatrix) -> PerToken:
    """Euclidean length of every token."""
    largest = x.abs().amax(dim=-1, keepdim=True)
    safe = torch.where(largest > 0, largest, torch.ones_like(largest))
    return (x / safe).square().sum(dim=-1).sqrt() * safe[..., 0]


@shared
def unit_tokens(x: TokenMatrix) -> TokenMatrix:
    """Every token scaled to Euclidean length one; a zero token has no direction and stays zero."""
    largest = x.abs().amax(dim=-1, keepdim=True)
    y = x / torch.where(largest > 0, largest, torch.ones_like(largest))
    length = y.square().sum(dim=-1, keepdim=True).sqrt()
    return y / torch.where(length > 0, length, torch.ones_like(length))


def turned(relative: float | Tensor) -> Tensor:
    """How far the direction of a token moves at most when the token moves by ``relative`` of its own length.

    The angle is at most ``asin(relative)``, the chord ``2 sin(angle / 2)``; from one length on, anything goes.
    Rounding is of this kind: norms, linear maps and sums round every token relative to itself, so a massive token
    blurs itself and not the others.
    """
    size = torch.as_tensor(relative, dtype=torch.float64)
    angle = torch.asin(size.clamp(max=1.0))
    return torch.where(size < 1, 2 * torch.sin(angle / 2), 2.0)
