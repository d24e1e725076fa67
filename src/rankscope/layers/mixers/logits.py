"""Logits: products of queries and keys, per head, and what of them a mask leaves."""

import torch
from torch import Tensor

from rankscope.layers.mixers.weights import Maps, gaussian
from rankscope.masks import MaskRule


def queries_and_keys(generator: torch.Generator, dim: int, heads: int = 1) -> tuple[Maps, Maps]:
    """Two random linear maps of tokens to ``heads x tokens x head_dim``."""
    query, key = gaussian(generator, dim, dim), gaussian(generator, dim, dim)

    def split(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], heads, -1).transpose(0, 1)

    return (lambda x: split(x @ query)), (lambda x: split(x @ key))


def products(query: Tensor, key: Tensor) -> Tensor:
    """``q_i . k_j / sqrt(head_dim)``."""
    scaled: Tensor = query @ key.mT / query.shape[-1] ** 0.5
    return scaled


def draw_logits(generator: torch.Generator, dim: int, heads: int = 1) -> Maps:
    """A random rule of tokens to logits ``heads x tokens x tokens``: scaled products of queries and keys."""
    query, key = queries_and_keys(generator, dim, heads)
    return lambda x: products(query(x), key(x))


def may_read(rule: MaskRule, tokens: int) -> Tensor:
    """The mask as booleans, queries by keys."""
    return torch.from_numpy(rule.matrix(tokens))


def masked(logits: Tensor, allowed: Tensor) -> Tensor:
    """Logits with minus infinity where a query may not read."""
    return logits.masked_fill(~allowed, -torch.inf)


def order(tokens: int) -> Tensor:
    """``i - j`` for query i and key j."""
    place = torch.arange(tokens, dtype=torch.float64)
    return place[:, None] - place
