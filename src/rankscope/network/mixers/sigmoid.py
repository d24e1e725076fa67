"""Sigmoid attention: every weight by itself, ``P_ij = 1 / (1 + exp(-a_ij - b))`` (Ramapuram et al. 2024)."""

import math
from typing import Unpack

import torch
from torch import Tensor

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.network.context import Context
from rankscope.network.mixers.query_key import Asked, QueryKey


class Sigmoid(QueryKey):
    """Sigmoid of scaled query-key products plus ``bias``. Rows sum to anything between zero and the number of keys.

    ``bias`` is minus the logarithm of the number of tokens of the text where it is None, padding not counted: with
    equal logits of zero a row over all keys then sums to ``n / (n + 1)``. Other arguments are those of ``QueryKey``.
    """

    rows_sum_to_one = False

    def __init__(
        self, query: Tensor, key: Tensor, *, bias: float | None = None, **given: Unpack[Asked]
    ) -> None:
        super().__init__(query, key, **given)
        self.bias = bias

    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap:
        maps = torch.sigmoid(self.logits(x, context) + self._bias(x, context))
        allowed = self.allowed(x, context)
        return maps if allowed is None else maps.masked_fill(~allowed, 0.0)

    def _bias(self, x: TokenMatrix, context: Context) -> Tensor | float:
        if self.bias is not None:
            return self.bias
        if context.is_token is None:
            return -math.log(x.shape[-2])
        return -context.is_token.sum(dim=-1).to(x.dtype).log()[..., None, None, None]
