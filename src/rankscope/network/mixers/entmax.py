"""Sparse attention weights: alpha-entmax of the logits (Peters, Niculae, Martins 2019), sparsemax at alpha = 2.

``p_j = ((alpha - 1) a_j - t)_+ ^ (1 / (alpha - 1))`` with the one number t for which the row sums to one. Weights
beyond t are exactly zero. As alpha falls to one this becomes softmax.
"""

from typing import Unpack

import torch
from torch import Tensor

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.errors import ConfigError
from rankscope.network.context import Context
from rankscope.network.mixers.query_key import Asked, QueryKey

HALVINGS = 54
"""Halvings of an interval of length one, after which the threshold is known to the last digit of a float64."""


class Entmax(QueryKey):
    """Entmax of scaled query-key products, ``1 < alpha <= 2``. Other arguments are those of ``QueryKey``."""

    def __init__(self, query: Tensor, key: Tensor, *, alpha: float = 2.0, **given: Unpack[Asked]) -> None:
        super().__init__(query, key, **given)
        if not 1.0 < alpha <= 2.0:
            raise ConfigError(
                f"alpha={alpha} is not above 1 and at most 2; 2 is sparsemax, 1 would be softmax"
            )
        self.alpha = alpha

    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap:
        logits, allowed = self.logits(x, context), self.allowed(x, context)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        return entmax(logits, self.alpha)


def entmax(logits: Tensor, alpha: float) -> Tensor:
    """Entmax of every row; minus infinity is a key that may not be read.

    The sum of a row falls as t rises. With m the largest ``(alpha - 1) a_j`` it is at least one at ``t = m - 1``, where
    that key alone has weight one, and zero at ``t = m``: t lies between. Halving finds it, and one step of Newton
    behind, the only one that gradients pass, has the derivative of t by the logits: with
    ``g(t, a) = sum_j p_j - 1 = 0`` that is ``- g_a / g_t``, which is what the step takes.

    >>> entmax(torch.tensor([1.0, 0.5, -1.0], dtype=torch.float64), 2.0)
    tensor([0.7500, 0.2500, 0.0000], dtype=torch.float64)
    """
    power = 1.0 / (alpha - 1.0)
    scaled = (alpha - 1.0) * logits
    held = scaled.detach()
    high = held.amax(dim=-1, keepdim=True)
    low = high - 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        is_below = ((held - middle).clamp(min=0.0) ** power).sum(dim=-1, keepdim=True) >= 1.0
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    above = (held - low).clamp(min=0.0)
    slope = torch.where(above > 0, power * above ** (power - 1.0), 0.0).sum(dim=-1, keepdim=True)
    excess = ((scaled - low).clamp(min=0.0) ** power).sum(dim=-1, keepdim=True) - 1.0
    return (scaled - (low + excess / slope)).clamp(min=0.0) ** power
