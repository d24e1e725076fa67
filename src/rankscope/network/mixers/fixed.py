"""Fixed mixing: maps that do not depend on the tokens."""

from torch import Tensor

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.errors import ConfigError, ShapeError
from rankscope.masks import Full, MaskRule
from rankscope.network.context import Context
from rankscope.network.mixers.base import Mixer, check_maps
from rankscope.network.parts import weight


class Fixed(Mixer):
    """The given row-stochastic maps ``*seeds heads tokens tokens``, for texts of exactly that many tokens."""

    def __init__(self, maps: Tensor) -> None:
        super().__init__()
        if maps.ndim < 3 or maps.shape[-1] != maps.shape[-2]:
            raise ShapeError(f"expected maps (*seeds, heads, tokens, tokens), got shape {tuple(maps.shape)}")
        if not maps.is_floating_point():
            raise ShapeError(f"expected floating-point maps, got {maps.dtype}; use maps.double()")
        check_maps(maps)
        self.maps = weight(maps)
        self.heads = maps.shape[-3]
        self.rule = Full()

    def with_rule(self, rule: MaskRule) -> "Fixed":
        if rule == self.rule:
            return self
        raise ConfigError(
            f"fixed maps cannot take the mask {rule}; use the uniform mixer, or give masked maps"
        )

    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap:
        tokens = self.maps.shape[-1]
        padded = context.is_token is not None and not bool(context.is_token.all())
        if x.shape[-2] != tokens or padded:
            raise ShapeError(
                f"fixed maps are for texts of exactly {tokens} tokens without padding, got {x.shape[-2]} positions"
                f"{' with padding' if padded else ''}; give one map per length, or use the uniform mixer"
            )
        return self.maps.to(x.dtype).expand(*x.shape[:-2], self.heads, tokens, tokens)
