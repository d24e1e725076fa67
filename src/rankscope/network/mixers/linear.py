"""Linear attention: products of positive features, ``f(q_i) . f(k_j)`` with ``f(v) = elu(v) + 1``.

Katharopoulos et al. (2020). ``elu(v) + 1`` is ``v + 1`` above zero and ``exp(v)`` below. Rows are divided by their
sums, or not: two mixers, because only the rows of one of them sum to one.
"""

from typing import Unpack

from torch import Tensor
from torch.nn import functional as F

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.errors import ConfigError
from rankscope.network.context import Context
from rankscope.network.mixers.query_key import Asked, QueryKey
from rankscope.network.positions import NoPosition


class _Features(QueryKey):
    """Products of features. Arguments are those of ``QueryKey``, without positions and soft-cap."""

    def __init__(self, query: Tensor, key: Tensor, **given: Unpack[Asked]) -> None:
        super().__init__(query, key, **given)
        if self.softcap is not None or not isinstance(self.position, NoPosition):
            raise ConfigError("linear attention has no logits to cap or to add positions to; use Softmax")

    def products(self, x: TokenMatrix, context: Context) -> Tensor:
        """``f(q_i) . f(k_j)``, zero where a query may not read a key."""
        query, key = (F.elu(one) + 1.0 for one in self.queries_and_keys(x, context))
        allowed = self.allowed(x, context)
        found = query @ key.mT
        return found if allowed is None else found.masked_fill(~allowed, 0.0)


class Linear(_Features):
    """Linear attention with rows divided by their sums; ``scale`` cancels. Arguments are those of ``QueryKey``."""

    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap:
        products = self.products(x, context)
        return products / products.sum(dim=-1, keepdim=True)


class LinearSums(_Features):
    """Linear attention whose rows are not divided by anything: ``scale f(q_i) . f(k_j)``, with ``scale`` 1 by default.

    Other arguments are those of ``QueryKey``.
    """

    rows_sum_to_one = False

    def __init__(self, query: Tensor, key: Tensor, **given: Unpack[Asked]) -> None:
        scale = given.get("scale")
        given["scale"] = 1.0 if scale is None else scale
        super().__init__(query, key, **given)

    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap:
        return self.scale * self.products(x, context)
