"""Gaussian attention: weights fall with the distance of query and key, rows divided by their sum.

``P_ij = exp(-scale |q_i - k_j|^2 / 2) / sum_l exp(-scale |q_i - k_l|^2 / 2)``. Of the squared distance the term
``|q_i|^2`` is the same for all keys and cancels: the map is the softmax of ``scale (q_i . k_j - |k_j|^2 / 2)``.
"""

from typing import Unpack

import torch
from torch import Tensor

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.errors import ConfigError
from rankscope.network.context import Context
from rankscope.network.mixers.query_key import Asked, QueryKey
from rankscope.network.positions import NoPosition


class Gaussian(QueryKey):
    """Gaussian kernel of queries and keys, rows summing to one. Arguments are those of ``QueryKey``.

    It takes neither positions nor a soft-cap, which would act on a distance and not on a product.
    """

    def __init__(self, query: Tensor, key: Tensor, **given: Unpack[Asked]) -> None:
        super().__init__(query, key, **given)
        if self.softcap is not None or not isinstance(self.position, NoPosition):
            raise ConfigError("Gaussian attention takes no soft-cap and no positions; use Softmax for these")
        if not self.scale > 0:
            raise ConfigError(f"the scale of Gaussian attention must be positive, got {self.scale}")

    def logits(self, x: TokenMatrix, context: Context, memory: Tensor | None = None) -> AttentionMap:
        """``scale (q_i . k_j - |k_j|^2 / 2)``, which differs from the exponent by a number per query."""
        query, key = self.queries_and_keys(x, context, memory)
        lengths = key.square().sum(dim=-1, keepdim=True)
        return (query * self.scale) @ key.mT - (self.scale / 2) * lengths.mT

    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap:
        logits, allowed = self.logits(x, context), self.allowed(x, context)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        return torch.softmax(logits, dim=-1)
