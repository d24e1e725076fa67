"""Operator norms as true upper bounds: computed values, raised by a margin far above their rounding."""

import numpy as np
import torch
from torch import Tensor

MARGIN = 1e-9
"""What is added to a computed norm relative to it.

Sums of ``n`` numbers and eigenvalues of symmetric matrices of side ``n`` are computed with a relative error of at most
a small multiple of ``n u`` with ``u = 1.1e-16``: below one billionth for every side that fits into memory."""

UNDERFLOW = 1e-290
"""Added to norms of products: entries below the smallest normal float lose their digits, or vanish."""

EXACT_SIDE = 1024
"""Side of a Gram matrix up to which its eigenvalues are computed: a fraction of a second."""

PROVEN_SIDE = 192
"""Side from which on the largest eigenvalue is found by iteration and proven, which is faster than all of them."""


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
    return eigenvalue_bound(gram).clamp(min=0.0).sqrt() * size[..., 0, 0] * (1 + MARGIN)


def eigenvalue_bound(matrix: Tensor) -> Tensor:
    """The largest eigenvalue of symmetric matrices ``*batch side side``, or a little more, ``*batch``.

    All eigenvalues of small matrices are computed. Of a large one the largest is found by Lanczos iteration, which is
    fast and stays below it, and then proven: ``c I - A`` has a Cholesky factor only if no eigenvalue exceeds c by more
    than its rounding (Rump, Verification of positive definiteness, BIT 46, 2006, Theorem 2.3).
    """
    if matrix.shape[-1] < PROVEN_SIDE:
        largest: Tensor = torch.linalg.eigvalsh(matrix)[..., -1]
        return largest
    flat = matrix.reshape(-1, *matrix.shape[-2:])
    return torch.stack([_proven_bound(one) for one in flat]).reshape(matrix.shape[:-2])


def _proven_bound(matrix: Tensor) -> Tensor:
    from scipy.sparse.linalg import ArpackError, eigsh  # heavy to import, and needed for large matrices alone

    side = matrix.shape[-1]
    start = np.cos(np.arange(side, dtype=np.float64))  # in no special position, and the same every time
    try:
        found = float(
            eigsh(matrix.cpu().numpy(), k=1, which="LA", tol=1e-4, v0=start, return_eigenvectors=False)[0]
        )
    except ArpackError:
        found = 0.0
    eye = torch.eye(side, dtype=matrix.dtype, device=matrix.device)
    for slack in (1e-8, 1e-4) if found > 0 else ():
        bound = found * (1 + slack)
        if int(torch.linalg.cholesky_ex(bound * eye - matrix).info) == 0:
            return matrix.new_tensor(bound)
    last: Tensor = torch.linalg.eigvalsh(matrix)[-1]
    return last


def product_bound(left: Tensor, right: Tensor) -> Tensor:
    """``|left right|_2`` for ``*batch dim width`` and ``*batch width dim``, rounded up; from sides ``width``.

    ``left = Q R`` and ``right = L Q'`` with orthonormal Q, so the norm is that of ``R L``. Factoring rounds relative to
    the factors, which may be far larger than their product: that much is added.
    """
    left, right = left.double(), right.double()
    sizes: Tensor = torch.linalg.matrix_norm(left) * torch.linalg.matrix_norm(right)
    slack = product_underflow(left, right)
    if left.shape[-2] > left.shape[-1]:
        left = torch.linalg.qr(left, mode="r").R
    if right.shape[-1] > right.shape[-2]:
        right = torch.linalg.qr(right.mT, mode="r").R.mT
    return spectral_bound(left @ right) + 1e-3 * MARGIN * sizes + slack


def product_underflow(left: Tensor, right: Tensor) -> Tensor:
    """What underflow may hide of a norm of ``left @ right``, ``*batch``: nothing if one of them is zero."""
    is_zero = (left == 0).all(dim=-1).all(dim=-1) | (right == 0).all(dim=-1).all(dim=-1)
    return (~is_zero).double() * UNDERFLOW


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
