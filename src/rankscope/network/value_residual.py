"""Attention that mixes values of the first layer beside its own (value residual learning, Zhou et al. 2024)."""

from torch import Tensor

from rankscope.core.types import TokenMatrix
from rankscope.errors import ConfigError, ShapeError
from rankscope.network.attention import SelfAttention, Values
from rankscope.network.context import Context
from rankscope.network.heads import join_heads, repeat_groups, split_heads
from rankscope.network.mixers import Mixer
from rankscope.network.parts import affine, weight


class ValueResidual(SelfAttention):
    """``sum_h P_h (x V_h + m F_h) O_h + 1 b``, with ``m`` the tokens that the first attention of the network read.

    They are the memory of the context, one token for each token: a part reads its tokens and the context and nothing
    else. The factors of the two kinds of values are in the weights.

    Args:
        mixer: gives the maps, from the tokens alone.
        values: value and output projections of the tokens.
        first: ``*seeds dim (value_heads width)``, values of the memory.
        site: name of the output.
    """

    def __init__(self, mixer: Mixer, values: Values, first: Tensor, site: str = "attention") -> None:
        super().__init__(mixer, values, site)
        if first.ndim < 2 or first.shape[-1] != values.value.shape[-1]:
            raise ConfigError(
                f"values of the first layer have width {first.shape[-1]} and those of this one "
                f"{values.value.shape[-1]}; they are added and must agree"
            )
        self.first = weight(first)

    def refused(self) -> str:
        """Said where an interpreter has no rule for it."""
        return f"at the site {self.site!r} it mixes values of the first layer, which are not among its tokens"

    def forward(self, x: TokenMatrix, context: Context) -> TokenMatrix:
        own = self.values
        early = split_heads(affine(self._memory(x, context), self.first, None), own.value_heads)
        mixed = self.mixer(x, context) @ (own.project(x) + repeat_groups(early, own.heads))
        return affine(join_heads(mixed), own.out, own.out_bias)

    def _memory(self, x: TokenMatrix, context: Context) -> Tensor:
        memory = context.memory
        if memory is None or memory.shape[-2:] != (x.shape[-2], self.first.shape[-2]):
            found = "none" if memory is None else f"one of shape {tuple(memory.shape)}"
            raise ShapeError(
                f"the site {self.site!r} mixes values of the first layer and the context has {found}; give "
                f"Context(memory=...), the {x.shape[-2]} tokens of {self.first.shape[-2]} channels that it read"
            )
        return memory.to(x.dtype)
