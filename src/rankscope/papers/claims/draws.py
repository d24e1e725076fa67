"""Random maps, tokens and networks that claims are tried on.

Axis letters: s draws, h heads, i query token, j key token, d model dim.
"""

import math

import torch
from torch import Tensor

from rankscope.masks import MaskRule
from rankscope.network import Attention, Network, Softmax, Values

LOGIT_SCALES = (0.1, 1.0, 3.0, 10.0)
"""From nearly uniform maps to nearly deterministic ones."""


def source(seed: int) -> torch.Generator:
    """The random source of a claim."""
    return torch.Generator().manual_seed(seed)


def gaussian(generator: torch.Generator, *shape: int) -> Tensor:
    """Independent N(0, 1) entries in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def random_maps(generator: torch.Generator, count: int, tokens: int, *heads: int) -> Tensor:
    """Row-stochastic maps ``count *heads tokens tokens``: softmax of Gaussian logits of all scales."""
    scale = torch.tensor(LOGIT_SCALES, dtype=torch.float64)
    chosen = scale[torch.arange(count) % len(scale)].reshape(count, *(1,) * (len(heads) + 2))
    return torch.softmax(gaussian(generator, count, *heads, tokens, tokens) * chosen, dim=-1)


def random_orthogonal(generator: torch.Generator, *shape: int) -> Tensor:
    """Orthogonal matrices ``*draws dim dim``; the last number is their side."""
    found: Tensor = torch.linalg.qr(gaussian(generator, *shape, shape[-1])).Q
    return found


def softmax_attention(
    generator: torch.Generator,
    dim: int,
    heads: int = 1,
    *,
    draws: tuple[int, ...] = (),
    query_key: float | Tensor = 1.0,
    with_biases: bool = False,
    rule: MaskRule | None = None,
    values: Tensor | None = None,
) -> Attention:
    """Softmax attention with entries N(0, 1/dim), query and key times ``query_key``; ``values`` is one head's map."""

    def matrix(gain: float | Tensor = 1.0) -> Tensor:
        return gaussian(generator, *draws, dim, dim).mul(gain / math.sqrt(dim))

    def bias() -> Tensor | None:
        return gaussian(generator, *draws, dim) if with_biases else None

    mixer = Softmax(
        matrix(query_key), matrix(query_key), heads=heads, query_bias=bias(), key_bias=bias(), rule=rule
    )
    if values is not None:
        return Attention(mixer, Values(values, torch.eye(dim, dtype=torch.float64), heads=heads))
    return Attention(mixer, Values(matrix(), matrix(), heads=heads, value_bias=bias(), out_bias=bias()))


def softmax_network(generator: torch.Generator, layers: int, dim: int, heads: int = 1) -> Network:
    """Attention alone, with all biases."""
    return Network([softmax_attention(generator, dim, heads, with_biases=True) for _ in range(layers)])


ROUNDING = 1e-13
"""What rounding may add to a residual or a coefficient, relative to the matrix it is taken of."""


def quotient(left: Tensor, right: Tensor, size: Tensor | float = 1.0) -> Tensor:
    """``left / right`` of an inequality that should not exceed one, what rounding may have added to the left taken off.

    ``size`` is that of the matrix whose residual stands on the left: where rows nearly agree, rounding is all there is.
    """
    return (left - ROUNDING * size) / right


def largest(values: Tensor) -> float:
    """The largest entry; NaN if any is NaN, so that no relation with it is true."""
    return float(values.max())
