"""Uniform mixing: every query averages the keys it may read."""

import torch

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.masks import Full, MaskRule
from rankscope.network.context import Context
from rankscope.network.masking import allowed_keys
from rankscope.network.mixers.base import Mixer


class Uniform(Mixer):
    """The map that softmax attention without position rules tends to when all tokens are equal."""

    def __init__(self, *, heads: int, rule: MaskRule | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.rule = Full() if rule is None else rule

    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap:
        tokens = x.shape[-2]
        allowed = allowed_keys(self.rule, tokens, context, x.device)
        if allowed is None:
            allowed = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device)
        maps = allowed.to(x.dtype) / allowed.sum(dim=-1, keepdim=True)
        return maps.expand(*x.shape[:-2], self.heads, tokens, tokens)
