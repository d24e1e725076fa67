"""Softmax attention: ``P_ij = exp(a_ij) / sum_l exp(a_il)`` over the keys l that query i may read."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.network.context import Context
from rankscope.network.masking import allowed_memory
from rankscope.network.mixers.query_key import QueryKey


class Softmax(QueryKey):
    """Softmax of scaled query-key products, over the tokens or over a memory. Arguments are those of ``QueryKey``."""

    def forward(self, x: TokenMatrix, context: Context, memory: Tensor | None = None) -> AttentionMap:
        logits = self.logits(x, context, memory)
        allowed = self.allowed(x, context) if memory is None else allowed_memory(context, x.device)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        return torch.softmax(logits, dim=-1)

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, context: Context, memory: Tensor | None = None) -> Tensor: ...
