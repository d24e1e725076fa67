"""A part as one matrix that acts on residuals: the sharpest bounds there are, for few tokens and channels.

Where a part maps differences of tokens linearly, ``R -> sum_k P_k R W_k``, the Frobenius residual grows by at most the
largest singular value of that map on matrices whose rows sum to zero, and by at least the smallest one; and parts in a
row are one product, whose singular values are often far from the products of theirs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.bounds.enclosure import gamma
from rankscope.core.operator_norms import MARGIN

JOINT_SIDE = 512
"""Side of a matrix on residuals, ``(tokens - 1) * dim``, up to which it is written out and its singular values are
computed, a tenth of a second each."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Dense:
    """A matrix on residuals, and how far in spectral norm the exact one may be from it.

    Args:
        matrix: ``*batch side side``, acting on columns; the token is the slow index.
        radius: ``*batch``.
    """

    matrix: Tensor
    radius: Tensor

    def then(self, other: "Dense") -> "Dense":
        """This part, then the other one."""
        sizes = [_size(one) for one in (self, other)]
        radius = sizes[0] * other.radius + self.radius * sizes[1] + self.radius * other.radius
        rounding = gamma(self.matrix.shape[-1]) * sizes[0] * sizes[1]
        return Dense(matrix=other.matrix @ self.matrix, radius=radius + rounding)

    def plus(self, other: "Dense") -> "Dense":
        """Both parts read the same tokens, and what they give is added."""
        rounding = gamma(1) * (_size(self) + _size(other))
        return Dense(matrix=self.matrix + other.matrix, radius=self.radius + other.radius + rounding)

    def gains(self) -> tuple[Tensor, Tensor]:
        """Natural logarithms of the smallest and the largest factor on a residual, ``*batch``."""
        finite = torch.isfinite(self.matrix).all(dim=-1).all(dim=-1)
        values = torch.linalg.svdvals(torch.where(finite[..., None, None], self.matrix, 0.0))
        values = torch.where(finite.unsqueeze(-1), values, torch.nan)
        largest, smallest = values[..., 0], values[..., -1]
        slack = MARGIN * largest + self.radius
        return (smallest - slack).clamp(min=0.0).log(), (largest + slack).log()


def basis(tokens: int, like: Tensor) -> Tensor:
    """Orthonormal columns that span all vectors of sum zero, ``tokens (tokens - 1)`` (Helmert's)."""
    rows = torch.arange(tokens, dtype=torch.float64, device=like.device).unsqueeze(-1)
    columns = torch.arange(1, tokens, dtype=torch.float64, device=like.device)
    size = (columns * (columns + 1)).sqrt()
    return torch.where(rows < columns, 1 / size, torch.where(rows == columns, -columns / size, 0.0))


def of_channels(matrix: Tensor, tokens: int, radius: Tensor) -> Dense:
    """``R -> R W`` for one matrix ``*batch dim dim``."""
    eye = torch.eye(tokens - 1, dtype=matrix.dtype, device=matrix.device)
    return Dense(matrix=_kron(eye, matrix.mT), radius=radius)


def of_maps(maps: Tensor, value_out: Tensor, radius: Tensor) -> Dense:
    """``R -> sum_h P_h R W_h`` for maps ``*batch heads tokens tokens`` and matrices ``*seeds heads dim dim``."""
    inside = basis(maps.shape[-1], maps)
    return Dense(matrix=_kron(inside.mT @ maps @ inside, value_out.mT).sum(dim=-3), radius=radius)


def of_tokens(matrices: Tensor, radius: Tensor) -> Dense:
    """``r_i -> r_i M_i`` for matrices ``*batch tokens dim dim``, then without the mean of what comes out."""
    tokens, dim = matrices.shape[-3], matrices.shape[-1]
    inside = basis(tokens, matrices)
    mixed = torch.einsum("ia,ib,...ide->...aebd", inside, inside, matrices)
    side, rounding = (tokens - 1) * dim, gamma(tokens) * torch.linalg.matrix_norm(matrices).amax(dim=-1)
    return Dense(matrix=mixed.reshape(*matrices.shape[:-3], side, side), radius=radius + 2 * rounding)


def _kron(a: Tensor, b: Tensor) -> Tensor:
    product = a[..., :, None, :, None] * b[..., None, :, None, :]
    return product.flatten(-2).flatten(-3, -2)


def _size(dense: Dense) -> Tensor:
    """An upper bound of the spectral norm: the Frobenius norm, or the root of largest row sum times column sum."""
    size = dense.matrix.abs()
    sums = (size.sum(dim=-1).amax(dim=-1) * size.sum(dim=-2).amax(dim=-1)).sqrt()
    return torch.minimum(sums, torch.linalg.matrix_norm(dense.matrix)) * (1 + MARGIN)
