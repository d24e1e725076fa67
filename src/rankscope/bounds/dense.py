"""A part as one matrix that acts on residuals: the sharpest bounds there are, for few tokens and channels.

Where a part maps differences of tokens linearly, ``R -> sum_k P_k R W_k``, the Frobenius residual grows by at most the
largest singular value of that map on matrices whose rows sum to zero, and by at least the smallest one; and parts in a
row are one product, whose singular values are often far from the products of theirs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.bounds.enclosure import TINY, gamma
from rankscope.bounds.logs import lowered, raised
from rankscope.core.operator_norms import MARGIN
from rankscope.split.state import aligned

JOINT_SIDE = 512
"""Side of a matrix on residuals, ``(tokens - 1) * dim``, up to which it is written out and its singular values are
computed, a tenth of a second each."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Dense:
    """``exp(log_scale) M`` on residuals, and how far in spectral norm the exact M may be from the computed one.

    Args:
        matrix: ``*batch side side``, acting on columns; the token is the slow index.
        radius: ``*batch``, of the matrix without its scale.
        log_scale: ``*batch``: products of many blocks leave the range of floats.
    """

    matrix: Tensor
    radius: Tensor
    log_scale: Tensor

    def then(self, other: "Dense") -> "Dense":
        """This part, then the other one."""
        sizes = [_size(one) for one in (self, other)]
        radius = sizes[0] * other.radius + self.radius * sizes[1] + self.radius * other.radius
        rounding = gamma(self.matrix.shape[-1]) * sizes[0] * sizes[1]
        return scaled(other.matrix @ self.matrix, radius + rounding + TINY, self.log_scale + other.log_scale)

    def plus(self, other: "Dense") -> "Dense":
        """Both parts read the same tokens, and what they give is added."""
        top, weights = aligned(torch.stack(torch.broadcast_tensors(self.log_scale, other.log_scale)), dim=0)
        pair = [
            Dense(matrix=one.matrix * weight[..., None, None], radius=one.radius * weight, log_scale=top)
            for one, weight in zip((self, other), weights, strict=True)
        ]
        rounding = gamma(2) * (_size(pair[0]) + _size(pair[1])) + TINY
        return scaled(pair[0].matrix + pair[1].matrix, pair[0].radius + pair[1].radius + rounding, top)

    def gains(self) -> tuple[Tensor, Tensor]:
        """Natural logarithms of the smallest and the largest factor on a residual, ``*batch``."""
        finite = torch.isfinite(self.matrix).all(dim=-1).all(dim=-1)
        values = torch.linalg.svdvals(torch.where(finite[..., None, None], self.matrix, 0.0))
        values = torch.where(finite.unsqueeze(-1), values, torch.nan)
        largest, smallest = values[..., 0], values[..., -1]
        slack = MARGIN * largest + self.radius
        lower, upper = (smallest - slack).clamp(min=0.0).log(), (largest + slack).log()
        return lowered(lower + self.log_scale), raised(upper + self.log_scale)


def scaled(matrix: Tensor, radius: Tensor, log_scale: Tensor | None = None) -> Dense:
    """A matrix with its radius, brought to entries of size one at most."""
    size = matrix.abs().amax(dim=(-2, -1))
    size = torch.where((size > 0) & torch.isfinite(size), size, 1.0)
    before = torch.zeros_like(size) if log_scale is None else log_scale
    return Dense(
        matrix=matrix / size[..., None, None],
        radius=radius / size * (1 + MARGIN) + TINY,
        log_scale=before + size.log(),
    )


def basis(tokens: int, like: Tensor) -> Tensor:
    """Orthonormal columns that span all vectors of sum zero, ``tokens (tokens - 1)`` (Helmert's)."""
    rows = torch.arange(tokens, dtype=torch.float64, device=like.device).unsqueeze(-1)
    columns = torch.arange(1, tokens, dtype=torch.float64, device=like.device)
    size = (columns * (columns + 1)).sqrt()
    return torch.where(rows < columns, 1 / size, torch.where(rows == columns, -columns / size, 0.0))


def of_channels(matrix: Tensor, tokens: int, radius: Tensor) -> Dense:
    """``R -> R W`` for one matrix ``*batch dim dim``."""
    eye = torch.eye(tokens - 1, dtype=matrix.dtype, device=matrix.device)
    return scaled(_kron(eye, matrix.mT), radius)


def of_maps(maps: Tensor, value_out: Tensor, radius: Tensor) -> Dense:
    """``R -> sum_h P_h R W_h`` for maps ``*batch heads tokens tokens`` and matrices ``*seeds heads dim dim``."""
    inside = basis(maps.shape[-1], maps)
    return scaled(_kron(inside.mT @ maps @ inside, value_out.mT).sum(dim=-3), radius)


def of_tokens(matrices: Tensor, radius: Tensor) -> Dense:
    """``r_i -> r_i M_i`` for matrices ``*batch tokens dim dim``, then without the mean of what comes out."""
    tokens, dim = matrices.shape[-3], matrices.shape[-1]
    inside = basis(tokens, matrices)
    mixed = torch.einsum("ia,ib,...ide->...aebd", inside, inside, matrices)
    side, rounding = (tokens - 1) * dim, gamma(tokens) * torch.linalg.matrix_norm(matrices).amax(dim=-1)
    return scaled(mixed.reshape(*matrices.shape[:-3], side, side), radius + 2 * rounding)


def _kron(a: Tensor, b: Tensor) -> Tensor:
    product = a[..., :, None, :, None] * b[..., None, :, None, :]
    return product.flatten(-2).flatten(-3, -2)


def _size(dense: Dense) -> Tensor:
    """An upper bound of the spectral norm: the Frobenius norm, or the root of largest row sum times column sum."""
    size = dense.matrix.abs()
    sums = (size.sum(dim=-1).amax(dim=-1) * size.sum(dim=-2).amax(dim=-1)).sqrt()
    return torch.minimum(sums, torch.linalg.matrix_norm(dense.matrix)) * (1 + MARGIN)
