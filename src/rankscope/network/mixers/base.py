"""What all mixers share: they turn tokens into one row-stochastic map per head."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import Tensor, nn

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.masks import MaskRule
from rankscope.network.context import Context
from rankscope.network.parts import shallow_copy


class Mixer(nn.Module, ABC):
    """Tokens and context in, maps ``*batch heads tokens tokens`` out; rows are queries and sum to one."""

    heads: int
    rule: MaskRule

    def with_rule(self, rule: MaskRule) -> "Mixer":
        """The same mixer, sharing its weights, with another mask rule."""
        twin = shallow_copy(self)
        twin.rule = rule
        return twin

    @abstractmethod
    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap: ...

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, context: Context) -> Tensor: ...
