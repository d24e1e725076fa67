"""What a random network is made of: a frozen, validated description that `build` turns into a tree."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from rankscope.core.config import Config
from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError
from rankscope.masks import parse_mask
from rankscope.network.activations import ACTIVATIONS
from rankscope.network.initial import INITS
from rankscope.network.mixers.named import MIXERS
from rankscope.network.positions.grammar import parse_position
from rankscope.network.surgery import check_variant

MOST_LAYERS, MOST_DIM = 1_000_000, 65_536
"""Beyond these a random network is a slip of the keyboard, and would not fit any memory."""


class Spec(Config):
    """A random network, with the names of the command line; keyword-only, frozen, validated.

    >>> Spec(layers=2, heads=3, dim=16)
    Traceback (most recent call last):
    ...
    rankscope.errors.ConfigError: heads=3 does not divide dim=16; choose heads among 1, 2, 4, 8, 16
    """

    layers: int = Field(ge=1, le=MOST_LAYERS, strict=True)
    heads: int = Field(ge=1, strict=True)
    dim: int = Field(ge=1, le=MOST_DIM, strict=True)
    key_heads: int | None = Field(default=None, ge=1, description="distinct key/value heads; heads if None")
    variant: str = "san"
    norm: Literal["none", "layer", "rms", "sphere"] = "none"
    placement: Literal["post", "pre", "sandwich", "parallel"] = "post"
    mask: str = "full"
    mixer: str = "softmax"
    position: str = "none"
    values: Literal["gaussian", "orthogonal", "identity"] = "gaussian"
    init: str = "paper"
    mlp_width: int | None = Field(default=None, ge=1, description="4 dim if None")
    activation: str = "relu"
    gated: bool = False

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @field_validator("mask")
    @classmethod
    def _mask_parses(cls, text: str) -> str:
        return parse_mask(text).text

    @model_validator(mode="after")
    def _names_are_known(self) -> "Spec":
        check_variant(self.variant)
        parse_position(self.position)
        if self.mixer not in MIXERS:
            raise unknown_name("mixer", self.mixer, MIXERS)
        if self.activation not in ACTIVATIONS:
            raise unknown_name("activation", self.activation, ACTIVATIONS)
        stands_for = INITS[self.init].values
        if stands_for is not None and self.values not in ("gaussian", stands_for):
            raise ConfigError(
                f"init={self.init!r} means {stands_for} values, but values={self.values!r} was asked for"
            )
        return self

    @model_validator(mode="after")
    def _heads_divide(self) -> "Spec":
        if self.dim % self.heads:
            divisors = ", ".join(str(k) for k in range(1, self.dim + 1) if self.dim % k == 0)
            raise ConfigError(
                f"heads={self.heads} does not divide dim={self.dim}; choose heads among {divisors}"
            )
        if self.key_heads is not None and self.heads % self.key_heads:
            raise ConfigError(f"key_heads={self.key_heads} does not divide heads={self.heads}")
        return self
