"""What all mixers share: they turn tokens into one map per head."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.errors import ShapeError
from rankscope.masks import MaskRule
from rankscope.network.context import Context
from rankscope.network.parts import shallow_copy


class Mixer(nn.Module, ABC):
    """Tokens and context in, maps ``*batch heads tokens tokens`` out; rows are queries.

    Rows of most mixers sum to one. Questions whose mathematics needs that know those mixers and refuse others by name.
    """

    heads: int
    rule: MaskRule
    rows_sum_to_one: ClassVar[bool] = True

    def with_rule(self, rule: MaskRule) -> "Mixer":
        """The same mixer, sharing its weights, with another mask rule."""
        twin = shallow_copy(self)
        twin.rule = rule
        return twin

    def refused(self) -> str:
        """Said where an interpreter has no rule for it."""
        return "" if self.rows_sum_to_one else "rows of its maps do not sum to one, which the answer rests on"

    @abstractmethod
    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap: ...

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, context: Context) -> Tensor: ...


def check_maps(maps: Tensor, told: str = "") -> None:
    """Raise unless every row is non-negative and sums to one; ``told`` stands before the message."""
    off, least = float((maps.sum(dim=-1) - 1).abs().max()), float(maps.min())
    if not off <= 1e3 * torch.finfo(maps.dtype).eps or not least >= 0:
        raise ShapeError(
            f"{told}rows of a mixing map must be non-negative and sum to one; smallest entry {least:.1e}, "
            f"row sums miss one by up to {off:.1e}; divide each row by its sum"
        )
