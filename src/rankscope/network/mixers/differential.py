"""Differential attention: one softmax map less another, ``P = P_1 - factor P_2`` (Ye et al. 2024).

Rows sum to ``1 - factor``, and weights may be negative.
"""

from torch import Tensor

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.errors import ConfigError
from rankscope.masks import MaskRule
from rankscope.network.context import Context
from rankscope.network.mixers.base import Mixer
from rankscope.network.mixers.softmax import Softmax
from rankscope.network.parts import shallow_copy, weight


class Differential(Mixer):
    """``first`` less ``factor`` times ``second``, both softmax maps under one mask; ``factor`` is ``*seeds heads``."""

    rows_sum_to_one = False

    def __init__(self, first: Softmax, second: Softmax, factor: Tensor) -> None:
        super().__init__()
        if first.heads != second.heads or first.rule != second.rule:
            raise ConfigError(
                f"the two maps have {first.heads} and {second.heads} heads and the masks {first.rule} and "
                f"{second.rule}; both must agree"
            )
        if factor.ndim < 1 or factor.shape[-1] != first.heads:
            raise ConfigError(
                f"factor has shape {tuple(factor.shape)} and the maps {first.heads} heads; give one number per head"
            )
        self.first: Mixer = first
        self.second: Mixer = second
        self.factor = weight(factor)
        self.heads, self.rule = first.heads, first.rule

    def pieces(self) -> tuple[object, ...]:
        """The two softmax mixers."""
        return (self.first, self.second)

    def with_rule(self, rule: MaskRule) -> "Differential":
        twin = shallow_copy(self)
        twin.rule = rule
        twin.first, twin.second = self.first.with_rule(rule), self.second.with_rule(rule)
        return twin

    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap:
        factor = self.factor.to(x.dtype)[..., None, None]
        return self.first(x, context) - factor * self.second(x, context)
