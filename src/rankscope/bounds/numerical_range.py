"""Whether attention turns a residual against its skip: bounds from the symmetric part of the map.

For ``Y = s X + S(X)`` with ``S(R) = sum_h J P_h R W_h`` and s > 0,

    r_F(Y)^2 = s^2 r_F(X)^2 + 2 s <R, S(R)> + |S(R)|^2,

so ``r_F(Y) / r_F(X)`` is at most the root of ``s^2 + 2 s b + |S|^2``, and at least ``<R, Y> / |R|^2 >= s + a``, with a,
b the smallest and largest eigenvalue of the symmetric part of S. Split each factor into its symmetric and its skew
part: the symmetric part of ``P (x) W`` is ``P_s (x) W_s + P_k (x) W_k``, whose eigenvalues are products of those of the
factors.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from rankscope.bounds.dense import basis
from rankscope.bounds.enclosure import TINY
from rankscope.bounds.map_rules import Maps
from rankscope.core.operator_norms import MARGIN, product_bound, spectral_bound


class HasHeads(Protocol):
    """Maps and value matrices of an attention part."""

    @property
    def maps(self) -> Maps: ...
    @property
    def values(self) -> Tensor: ...
    @property
    def outs(self) -> Tensor: ...


def symmetric_range(
    heads: Sequence[HasHeads], scale: Tensor, loose: Tensor, log_norm: Tensor
) -> tuple[Tensor, Tensor]:
    """Natural logarithms of the smallest and largest ``r_F(Y) / r_F(X)``, ``*batch``.

    Args:
        heads: attention parts in the branch.
        scale: of the skip, ``*seeds``.
        loose: how far the exact scale may be from it.
        log_norm: logarithm of ``|S|``, at most.
    """
    low, high = torch.zeros_like(log_norm), torch.zeros_like(log_norm)
    for one in heads:
        least, most = _products(one)
        low, high = low + least, high + most
    low, high = (
        torch.where(scale < 0, -high, low),
        torch.where(scale < 0, -low, high),
    )  # -Y = (-s) X + (-S)(X)
    size, slack = scale.abs(), MARGIN * (low.abs() + high.abs())
    smallest = size * (1 - MARGIN) + low - slack - loose
    # The exact scale lies between size - loose and size + loose. The square is convex in it, so it is largest at one of
    # the two; where the lower one is negative, so that the sign is not known, the smallest eigenvalue counts there.
    ends = (size - loose, size + loose)
    turned = [torch.where(end < 0, end * (low - slack), end * (high + slack)) for end in ends]
    largest = torch.maximum(*(end.square() + 2 * turn for end, turn in zip(ends, turned, strict=True)))
    largest = largest + (2 * log_norm).exp()
    # Squares of tiny norms underflow, so a tiny number is added before the root.
    return smallest.clamp(min=0.0).log() - MARGIN, (largest.clamp(min=0.0) + TINY).log() / 2 + MARGIN


def _products(part: HasHeads) -> tuple[Tensor, Tensor]:
    """The smallest and largest eigenvalue of the symmetric part of ``sum_h P_h (x) W_h``, at least and at most."""
    maps = part.maps.maps
    inside = basis(maps.shape[-1], maps)
    tokens = _parts(inside.mT @ maps @ inside)
    channels = _parts(*_inside(part.values, part.outs))
    loose = torch.linalg.vector_norm(part.maps.radius * torch.linalg.vector_norm(maps, dim=-1), dim=-1)
    corners = torch.stack([a * b for a in tokens[:2] for b in channels[:2]])
    skew = tokens[2] * channels[2]
    unknown = loose * product_bound(part.values, part.outs)
    sizes = [torch.maximum(one[0].abs(), one[1].abs()) + one[2] for one in (tokens, channels)]
    rounding = MARGIN * torch.linalg.matrix_norm(part.values) * torch.linalg.matrix_norm(part.outs)
    slack = skew + unknown + MARGIN * sizes[0] * sizes[1] + rounding * sizes[0]
    return (corners.amin(dim=0) - slack).sum(dim=-1), (corners.amax(dim=0) + slack).sum(dim=-1)


def _inside(values: Tensor, outs: Tensor) -> tuple[Tensor, bool]:
    """``V O`` in a basis of the channels that it reads or writes, and whether there are others, where it is zero."""
    both = torch.cat(torch.broadcast_tensors(values, outs.mT), dim=-1)
    if both.shape[-1] >= both.shape[-2]:
        return values @ outs, False
    frame = torch.linalg.qr(both).Q
    return (frame.mT @ values) @ (outs @ frame), True


def _parts(matrix: Tensor, has_kernel: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Smallest and largest eigenvalue of the symmetric part, and the norm of the skew part."""
    values = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
    least, most = values[..., 0], values[..., -1]
    if has_kernel:
        least, most = least.clamp(max=0.0), most.clamp(min=0.0)
    return least, most, spectral_bound((matrix - matrix.mT) / 2)
