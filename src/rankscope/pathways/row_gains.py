"""Norms of matrices, and of what parts without heads do to each token: upper bounds, exact where that is affordable."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor
from rankscope.core.operator_norms import spectral_bound
from rankscope.pathways.frozen import (
    Frozen,
    FrozenAttention,
    FrozenChain,
    FrozenMlp,
    FrozenNorm,
    FrozenScale,
    FrozenSkip,
    Leaf,
    Spring,
)
from rankscope.pathways.steps import pushed
from rankscope.pathways.term import attention_parts, only

EXACT_COST = 1e9
"""Tokens times dim cubed up to which the matrix of every token is written out: about a second."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Frame:
    """What gains speak of.

    Args:
        rows: the real tokens, ``*batch tokens``, boolean.
        dim: number of channels.
        dtype: what the frozen parts compute in; gains are float64 always.
        is_centered: whether sizes are those of what is left without the mean token.
        known: norms found already, by the parts they are of, which stand behind several choices.
    """

    rows: Tensor
    dim: int
    dtype: torch.dtype
    is_centered: bool = False
    known: "dict[tuple[Frozen, ...], Tensor]" = field(default_factory=dict, repr=False)


def longest(parts: Sequence[Frozen], frame: Frame) -> Tensor:
    """The norm of the matrix that parts without chosen heads multiply each token by, at most, ``*batch tokens``."""
    key = tuple(parts)
    if key not in frame.known:
        frame.known[key] = _longest(FrozenChain(key), frame)
    return frame.known[key]


def _longest(part: FrozenChain, frame: Frame) -> Tensor:
    if frame.rows.numel() * frame.dim**3 <= EXACT_COST:
        return spectral_bound(_matrices(part, frame)) * (1 + relative_floor(1, frame.dtype))
    sizes = _sizes(part)
    zero = torch.zeros_like(frame.rows, dtype=torch.float64)
    return zero if sizes is None else torch.where(frame.rows, sizes, zero)


def _matrices(part: Frozen, frame: Frame) -> Tensor:
    """The matrix of every token, ``*batch tokens dim dim``: what becomes of all unit vectors, set in every token."""
    rows, dim = frame.rows, frame.dim
    eye = torch.eye(dim, dtype=frame.dtype, device=rows.device)
    units = eye.reshape(dim, *[1] * rows.ndim, dim).expand(dim, *rows.shape, dim)
    heads = {inner.site: inner.heads for inner in attention_parts(part)}
    moved = pushed(part, units, only(dict.fromkeys(heads), heads))
    return torch.where(rows.unsqueeze(-1), moved, 0.0).movedim(0, -2)


def _sizes(part: Frozen) -> Tensor | None:
    """Bounds of the same norms, leaf by leaf: products in chains, sums over branches; None if nothing gets through."""
    if isinstance(part, FrozenChain):
        total = torch.ones(1, dtype=torch.float64)
        for inner in part.parts:
            sizes = _sizes(inner)
            if sizes is None:
                return None
            total = total.to(sizes.device) * sizes
        return total
    if isinstance(part, FrozenSkip):
        inner_sizes = _sizes(part.inner)
        own = part.scale if isinstance(part.scale, Tensor) else torch.tensor([part.scale])
        if inner_sizes is None or not part.is_open:
            return _largest(own) if part.is_open else inner_sizes
        return _largest(own).to(inner_sizes.device) + inner_sizes
    if isinstance(part, Leaf):
        return _leaf_sizes(part)
    found = [sizes for sizes in map(_sizes, part.parts) if sizes is not None]
    return sum(found[1:], found[0]) if found else None


def _leaf_sizes(part: Leaf) -> Tensor | None:
    if isinstance(part, FrozenAttention | Spring):
        return None
    if isinstance(part, FrozenScale):
        return _largest(part.value)
    if isinstance(part, FrozenNorm):
        sizes = part.inverse.squeeze(-1).double()
        return sizes if part.gain is None else sizes * _largest(part.gain)
    if not isinstance(part, FrozenMlp):
        raise TypeError(f"{type(part).__name__} is not a frozen part")
    weights = spectral_bound(part.mlp.up) * spectral_bound(part.mlp.down)
    return part.gate.double().abs().amax(dim=-1) * weights.unsqueeze(-1)


def _largest(vector: Tensor) -> Tensor:
    """The largest absolute entry, kept as an axis of tokens."""
    return vector.double().abs().amax(dim=-1, keepdim=True)
