"""Softmax attention that may leave part of its mass unused: a sink beside the keys.

``P_ij = exp(a_ij) / (exp(s_h) + sum_l exp(a_il))``: a key of logit ``s_h`` whose value is zero. With ``s = 0`` this is
the off-by-one softmax; with one learned number per head it is the sink of gpt-oss. Rows sum to less than one.
"""

from typing import Unpack

import torch
from torch import Tensor

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.errors import ConfigError
from rankscope.network.context import Context
from rankscope.network.mixers.query_key import Asked, QueryKey
from rankscope.network.parts import weight


class SinkSoftmax(QueryKey):
    """Softmax over the keys and one sink per head. ``sinks`` are logits ``*seeds heads``, zero for off-by-one softmax.

    Other arguments are those of ``QueryKey``; the soft-cap acts on the logits of keys alone.
    """

    rows_sum_to_one = False

    def __init__(
        self, query: Tensor, key: Tensor, *, sinks: Tensor | None = None, **given: Unpack[Asked]
    ) -> None:
        super().__init__(query, key, **given)
        if sinks is None:
            sinks = torch.zeros(self.heads, dtype=query.dtype, device=query.device)
        if sinks.ndim < 1 or sinks.shape[-1] != self.heads:
            raise ConfigError(
                f"sinks have shape {tuple(sinks.shape)} and the mixer {self.heads} heads; give one number per head"
            )
        self.sinks = weight(sinks)

    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap:
        logits, allowed = self.logits(x, context), self.allowed(x, context)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        sink = self.sinks.to(x.dtype)[..., None, None].expand(*logits.shape[:-1], 1)
        return torch.softmax(torch.cat([logits, sink], dim=-1), dim=-1)[..., :-1]
