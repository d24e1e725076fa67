"""Observed mixing: maps as they ran, made by a region of a model whose rule is not known."""

from typing import Unpack

import torch

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.errors import ConfigError, ShapeError
from rankscope.masks import Full, MaskRule
from rankscope.network.context import Context
from rankscope.network.foreign import Foreign, Run, Told
from rankscope.network.mixers.base import Mixer, check_maps


class Observed(Foreign, Mixer):
    """Maps ``texts heads tokens tokens`` that ``run`` makes of the tokens, in a way that no rule here describes.

    What may read what is unknown as well: its rule is Full, which promises nothing. Rows of real tokens have to be
    non-negative and to sum to one, whatever comes in. Other arguments are those of ``Foreign``.
    """

    def __init__(self, run: Run, heads: int, **told: Unpack[Told]) -> None:
        super().__init__(run, **told)
        self.heads = heads
        self.rule = Full()

    def refused(self) -> str:
        return f"its maps are known as they ran, their rule is not: {self.words}"

    def with_rule(self, rule: MaskRule) -> "Observed":
        raise ConfigError(
            f"observed maps cannot take the mask {rule}, because their own rule is not known: {self.words}"
        )

    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap:
        maps = self.ran(x, context)
        tokens, texts = x.shape[-2], x.shape[:-2].numel()
        if maps.shape != (texts, self.heads, tokens, tokens):
            raise ShapeError(
                f"{self.words} gave maps of shape {tuple(maps.shape)} for tokens of shape {tuple(x.shape)}; "
                f"expected {(texts, self.heads, tokens, tokens)}: texts, heads, queries and keys"
            )
        maps = maps.reshape(*x.shape[:-2], *maps.shape[1:])
        rows = maps
        if context.is_token is not None:
            rows = maps.movedim(-3, 0)[:, context.is_token.expand(x.shape[:-1])]
        # rows sum to one to the digits that are left: of what computed them, or of the tokens they came back as
        coarsest = max((rows.dtype, self.dtype or rows.dtype), key=lambda dtype: torch.finfo(dtype).eps)
        check_maps(rows.to(coarsest), told=f"{self.words}: ")
        return maps
