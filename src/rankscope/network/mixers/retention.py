"""Retention: query-key products that fade with the distance, ``P_ij = scale q_i . k_j decay_h^|i - j|``.

Sun et al. (2023). Nothing is divided by the sum of a row, and weights may be negative.
"""

from typing import Unpack

from torch import Tensor

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.errors import ConfigError
from rankscope.masks import parse_mask
from rankscope.network.context import Context
from rankscope.network.mixers.query_key import Asked, QueryKey
from rankscope.network.parts import weight
from rankscope.network.positions.base import distances


class Retention(QueryKey):
    """Products of queries and keys times ``decay ** distance``; ``decay`` is ``*seeds heads``, above 0 and at most 1.

    The mask is causal unless another is given. Other arguments are those of ``QueryKey``, without a soft-cap.
    """

    rows_sum_to_one = False

    def __init__(self, query: Tensor, key: Tensor, *, decay: Tensor, **given: Unpack[Asked]) -> None:
        given["rule"] = given.get("rule") or parse_mask("causal")
        super().__init__(query, key, **given)
        if self.softcap is not None:
            raise ConfigError("retention has no logits to cap; use Softmax")
        if decay.ndim < 1 or decay.shape[-1] != self.heads or not bool(((decay > 0) & (decay <= 1)).all()):
            raise ConfigError(
                f"decay must be {self.heads} numbers above 0 and at most 1, one per head; got shape "
                f"{tuple(decay.shape)} from {float(decay.min()):g} to {float(decay.max()):g}"
            )
        self.decay = weight(decay)

    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap:
        products, allowed = self.logits(x, context), self.allowed(x, context)
        apart = distances(products, context).abs().to(x.dtype)
        faded = products * self.decay.to(x.dtype)[..., None, None] ** apart
        return faded if allowed is None else faded.masked_fill(~allowed, 0.0)
