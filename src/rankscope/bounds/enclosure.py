"""Where the exact state lies: a computed token matrix and how far each token may be from it.

The exact state is that of the network computed with real numbers from the stored floats. Every rule here adds two
things: what becomes of the distance that was there before, and the rounding of the operation itself, bounded a priori
(Higham, Accuracy and Stability of Numerical Algorithms, section 3.1: a sum of ``k`` products in any order errs by at
most ``k u / (1 - k u)`` times the sum of their absolute values).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.numerics import unit_roundoff
from rankscope.core.operator_norms import spectral_bound

U = unit_roundoff(torch.float64)

TINY = 1e-290
"""Room for what underflows: products below the smallest normal float lose their relative accuracy."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Enclosed:
    """Tokens that are known up to a distance.

    Args:
        x: ``*batch tokens dim`` as computed, float64.
        error: ``*batch tokens``, the l2 distance of the exact token from it, at most; infinity once nothing is known.
    """

    x: Tensor
    error: Tensor

    @property
    def lengths(self) -> Tensor:
        """l2 length of every computed token."""
        return lengths_of(self.x)


def lengths_of(x: Tensor) -> Tensor:
    """l2 length of every token, brought to size one before squaring: squares of tiny numbers vanish."""
    size = x.abs().amax(dim=-1, keepdim=True)
    unit = x / torch.where(size > 0, size, 1.0)
    found: Tensor = torch.linalg.vector_norm(unit, dim=-1) * size.squeeze(-1)
    return torch.where(size.squeeze(-1) == torch.inf, torch.inf, found)


def exactly(x: Tensor) -> Enclosed:
    """Tokens that are what they are stored as."""
    return Enclosed(x=x, error=x.new_zeros(x.shape[:-1]))


def gamma(terms: int) -> float:
    """The relative error of a sum of that many products, at most, with room for a few operations more."""
    k = (terms + 8) * U
    return k / (1 - k)


def rounding(lengths: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """What rounding adds to ``x W + b`` for tokens of these lengths, ``*batch tokens``: l2, at most."""
    most: Tensor = lengths * torch.linalg.matrix_norm(matrix).unsqueeze(-1)
    if bias is not None:
        most = most + torch.linalg.vector_norm(bias, dim=-1, keepdim=True)
    return gamma(matrix.shape[-2]) * most + TINY


def linear(
    state: Enclosed, y: Tensor, matrix: Tensor, bias: Tensor | None, norm: Tensor | None = None
) -> Enclosed:
    """``y``, computed as ``x W + b``, with its error; ``norm`` is ``|W|_2``, if known."""
    carried = state.error * (spectral_bound(matrix) if norm is None else norm).unsqueeze(-1)
    return Enclosed(x=y, error=known(carried) + rounding(state.lengths, matrix, bias))


def added(parts: list[Enclosed]) -> Enclosed:
    """The sum of token matrices, each known up to a distance."""
    total, error, size = parts[0].x, parts[0].error, parts[0].lengths
    for part in parts[1:]:
        total, error, size = total + part.x, error + part.error, size + part.lengths
    return Enclosed(x=total, error=error + gamma(len(parts)) * size)


def known(error: Tensor) -> Tensor:
    """The error, infinite where it is not a number: infinity times zero is not zero here."""
    return torch.where(torch.isnan(error), torch.inf, error)
