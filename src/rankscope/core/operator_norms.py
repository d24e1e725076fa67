"""Operator norms as true upper bounds: computed values, raised by a margin far above their rounding."""

import torch
from torch import Tensor

MARGIN = 1e-9
"""What is added to a computed norm relative to it.

Sums of ``n`` numbers and eigenvalues of symmetric matrices of side ``n`` are computed with a relative error of at most
a small multiple of ``n u`` with ``u = 1.1e-16``: below one billionth for every side that fits into memory."""

EXACT_SIDE = 1024
"""Side of a Gram matrix up to which its eigenvalues are computed: a fraction of a second."""


def spectral_bound(matrix: Tensor, *, exact: int = EXACT_SIDE) -> Tensor:
    """The largest singular value of ``*batch rows columns``, one billionth up, ``*batch``.

    From the eigenvalues of the smaller Gram matrix: an iteration would approach it from below. Where that matrix is
    larger than ``exact``, the root of the largest row sum times the largest column sum, which is never less.
    """
    matrix = matrix.double()
    if 0 in matrix.shape[-2:]:
        return matrix.new_zeros(matrix.shape[:-2])
    if min(matrix.shape[-2:]) > exact:
        return (row_sum_bound(matrix) * column_sum_bound(matrix)).sqrt()
    size = matrix.abs().amax(dim=(-2, -1), keepdim=True)
    unit = matrix / torch.where(size > 0, size, 1.0)  # squares of tiny entries would vanish
    gram = unit @ unit.mT if matrix.shape[-2] <= matrix.shape[-1] else unit.mT @ unit
    largest: Tensor = torch.linalg.eigvalsh(gram)[..., -1].clamp(min=0.0).sqrt()
    return largest * size[..., 0, 0] * (1 + MARGIN)


def row_sum_bound(matrix: Tensor) -> Tensor:
    """The largest absolute row sum, one billionth up: by how much ``x -> x M`` enlarges ``|x|_1`` at most.

    >>> round(row_sum_bound(torch.tensor([[1.0, -2.0], [0.0, 1.0]])).item(), 6)
    3.0
    """
    return matrix.double().abs().sum(dim=-1).amax(dim=-1) * (1 + MARGIN)


def column_sum_bound(matrix: Tensor) -> Tensor:
    """The largest absolute column sum, one billionth up: by how much ``x -> x M`` enlarges ``|x|_inf`` at most.

    >>> round(column_sum_bound(torch.tensor([[1.0, -2.0], [0.0, 1.0]])).item(), 6)
    3.0
    """
    return matrix.double().abs().sum(dim=-2).amax(dim=-1) * (1 + MARGIN)
