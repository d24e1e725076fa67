"""Norms of what the heads of an attention and the maps of an MLP multiply tokens by: true upper bounds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.bounds.slopes import lipschitz
from rankscope.core.operator_norms import (
    MARGIN,
    column_sum_bound,
    product_bound,
    product_underflow,
    row_sum_bound,
    spectral_bound,
)
from rankscope.network import Attention, Mlp, Softmax
from rankscope.network.heads import repeat_groups, split_heads

NORMS = ("l1", "linf", "composite", "spectral", "max", "sum")
"""Largest column sum, largest row sum, root of their product, largest singular value, largest entry, sum of entries."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MlpFacts:
    """Logarithms of Lipschitz factors of an MLP, ``*seeds``; infinite where there is none.

    Args:
        l1: for column sums of a residual, and for the linf diameter.
        linf: for row sums of a residual, and for the l1 diameter.
        l2: for the Frobenius residual and the l2 diameter.
        has_factor: whether there is one; an MLP with a gate has none, nor has one of squared ReLU.
    """

    l1: Tensor
    linf: Tensor
    l2: Tensor
    has_factor: bool

    @property
    def composite(self) -> Tensor:
        """For the composite residual: both of its factors are taken from the same center."""
        return (self.l1 + self.linf) / 2


def product_norms(left: Tensor, right: Tensor) -> dict[str, Tensor]:
    """The norms of ``left_h right_h`` for every head, ``*seeds heads``, by the names in ``NORMS``.

    Head by head, so that no more than one ``dim x dim`` matrix is held. A computed entry of a product of inner width
    ``k`` is off by at most ``k u`` times the product of absolute values, which is added to the sums.
    """
    heads = [
        _norms(left[..., head, :, :].double(), right[..., head, :, :].double())
        for head in range(left.shape[-3])
    ]
    return {name: torch.stack([one[name] for one in heads], dim=-1) for name in NORMS}


def _norms(left: Tensor, right: Tensor) -> dict[str, Tensor]:
    up, width, slack = 1 + MARGIN, left.shape[-1], product_underflow(left, right)
    tall, wide = left.abs(), right.abs()
    columns = (tall.sum(dim=-2, keepdim=True) @ wide).squeeze(-2)  # of the product of absolute values
    rows = (tall @ wide.sum(dim=-1, keepdim=True)).squeeze(-1)
    largest = tall.amax(dim=-2).unsqueeze(-2).matmul(wide.amax(dim=-1).unsqueeze(-1))[..., 0, 0]
    if width > 1:  # with one inner channel these are the sums themselves
        entries, loose = (left @ right).abs(), 2.0**-50 * width
        columns, rows = entries.sum(dim=-2) + loose * columns, entries.sum(dim=-1) + loose * rows
        largest = entries.amax(dim=(-2, -1)) + loose * largest
    l1, linf = columns.amax(dim=-1) * up + slack, rows.amax(dim=-1) * up + slack
    composite = l1.sqrt() * linf.sqrt() * up
    return {
        "l1": l1,
        "linf": linf,
        "composite": composite,
        "spectral": torch.minimum(product_bound(left, right), composite),
        "max": largest * up + slack,
        "sum": columns.sum(dim=-1) * up + slack,
    }


def query_key_norms(mixer: Softmax) -> Mapping[str, Tensor]:
    """Norms of ``scale W_Q W_K^T`` for every head, ``*seeds heads``."""
    query = split_heads(mixer.query, mixer.heads)
    key = repeat_groups(split_heads(mixer.key, mixer.key_heads), mixer.heads)
    return product_norms(query.double() * abs(mixer.scale), key.mT)


def value_norms(part: Attention) -> Mapping[str, Tensor]:
    """Norms of ``V_h O_h`` for every head, ``*seeds heads``."""
    return product_norms(part.values.head_values(), part.values.head_outs())


def value_condition(part: Attention) -> Tensor | None:
    """Largest over smallest singular value of the value map of a single head, rounded up; None with more heads."""
    if part.values.heads != 1:
        return None
    if (
        part.values.head_values().shape[-1] < part.values.out.shape[-1]
    ):  # narrower than the tokens: not invertible
        return part.values.out.new_full(part.values.out.shape[:-2], torch.inf, dtype=torch.float64)
    value_out = part.values.value_out().double().squeeze(-3)
    square = torch.linalg.eigvalsh(value_out @ value_out.mT).clamp(min=0.0)
    least, most = square[..., 0] * (1 - MARGIN), square[..., -1] * (1 + MARGIN)
    # an eigenvalue below the rounding of the largest is not known to be positive
    return torch.where(least > MARGIN * most, (most / least).sqrt(), torch.inf)


def mlp_facts(part: Mlp) -> MlpFacts:
    """Lipschitz factors ``L |U| |D|`` in the three norms, with ``L`` the largest slope of the activation."""
    slope = lipschitz(part.activation)
    has_factor = part.gate is None and math.isfinite(slope)

    def factor(norm: Tensor) -> Tensor:
        return (norm * slope).log() if has_factor else torch.full_like(norm, torch.inf)

    return MlpFacts(
        l1=factor(column_sum_bound(part.up) * column_sum_bound(part.down)),
        linf=factor(row_sum_bound(part.up) * row_sum_bound(part.down)),
        l2=factor(spectral_bound(part.up) * spectral_bound(part.down)),
        has_factor=has_factor,
    )
