"""Linformer: keys and values of all tokens pressed into a few rows before attention (Wang et al. 2020).

With E and F of ``rank`` rows, one column per token, ``P = softmax(scale Q (E K)^T) F``. Rows of the softmax sum to one
over the ``rank`` pressed keys; rows of P sum to one only where those of F do.
"""

from typing import Unpack

import torch
from torch import Tensor

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.errors import ConfigError, ShapeError
from rankscope.masks import Full, MaskRule
from rankscope.network.context import Context
from rankscope.network.mixers.query_key import Asked, QueryKey
from rankscope.network.parts import weight
from rankscope.network.positions import NoPosition


class Linformer(QueryKey):
    """Softmax over pressed keys, for texts of at most ``longest`` tokens.

    Args:
        query: and ``key``, as other arguments, are those of ``QueryKey``; there is neither a mask nor a position rule.
        press_keys: ``*seeds rank longest``, the matrix E; the first token of a text takes the first column.
        press_values: ``*seeds rank longest``, the matrix F; E itself where it is None.
    """

    rows_sum_to_one = False

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        *,
        press_keys: Tensor,
        press_values: Tensor | None = None,
        **given: Unpack[Asked],
    ) -> None:
        super().__init__(query, key, **given)
        if self.softcap is not None or not isinstance(self.position, NoPosition):
            raise ConfigError("pressed keys are no tokens, so Linformer takes no soft-cap and no positions")
        self.with_rule(self.rule)
        press_values = press_keys if press_values is None else press_values
        if press_keys.ndim < 2 or press_keys.shape != press_values.shape:
            raise ConfigError(
                f"keys are pressed by {tuple(press_keys.shape)} and values by {tuple(press_values.shape)}; both must "
                "be (*seeds, rank, tokens)"
            )
        self.press_keys = weight(press_keys)
        self.press_values = self.press_keys if press_values is press_keys else weight(press_values)

    @property
    def longest(self) -> int:
        """The largest number of tokens that a text may have."""
        return self.press_keys.shape[-1]

    def with_rule(self, rule: MaskRule) -> "Linformer":
        if rule == Full():
            return self
        raise ConfigError(
            f"pressed keys belong to no token, so Linformer cannot take the mask {rule}; use full"
        )

    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap:
        if x.shape[-2] > self.longest and (
            context.is_token is None or int(context.is_token.sum(dim=-1).max()) > self.longest
        ):
            raise ShapeError(
                f"keys are pressed for texts of at most {self.longest} tokens, got {x.shape[-2]}; shorten the texts"
            )
        query, key = self.queries_and_keys(x, context)
        keys, values = (self._laid(one, x, context) for one in (self.press_keys, self.press_values))
        logits = (query * self.scale) @ (keys @ key).mT
        return torch.softmax(logits, dim=-1) @ values

    def _laid(self, press: Tensor, x: TokenMatrix, context: Context) -> Tensor:
        """Columns of the tokens of each text in order, zero on padding: ``*batch 1 rank tokens``."""
        press = press.to(x.dtype).unsqueeze(-3)
        if context.is_token is None:
            return press[..., : x.shape[-2]]
        place = (context.is_token.long().cumsum(dim=-1) - 1).clamp(min=0)
        batch = torch.broadcast_shapes(press.shape[:-3], place.shape[:-1])
        index = place[..., None, None, :].expand(*batch, 1, press.shape[-2], place.shape[-1])
        found = press.expand(*batch, 1, *press.shape[-2:]).gather(-1, index)
        return found * context.is_token[..., None, None, :]
