"""What is asked of a dynamical system: which map of the tokens, which rank, from how many starts."""

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rankscope.core.config import Config
from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError
from rankscope.masks import parse_mask

VALUES: Mapping[str, str | None] = {
    "shear": "shear:10",
    "identity": None,
    "orthogonal": None,
    "gaussian": None,
    "file": "file:values.npy",
}
"""Kinds of value maps, each with an example where it needs a number or a path after the colon."""

ATTENTION: Mapping[str, str | None] = {
    "uniform": None,
    "softmax": "softmax:4",
    "gaussian": None,
    "weight": "weight:0.5",
}
"""Kinds of attention, likewise."""

MOST_NUMBERS = 2**26
"""Entries of the largest array of a run, half a gigabyte in float64: all starts' tokens, or all their maps."""

MOST_SIDE = 4096
"""Tokens times dim up to which the Jacobian of a step, a square matrix of that side, is looked at."""


MOST_SHEAR = 1e6
"""Beyond it a step of the value map loses most digits of float64."""


class EquilibriaConfig(Config):
    """``X <- norm(A X W)`` on some tokens, and where it comes to rest.

    ``values`` is ``shear:W`` (ones on the diagonal, W above it), ``identity``, ``orthogonal``, ``gaussian`` or
    ``file:PATH``; ``attention`` is ``uniform``, ``softmax:BETA`` (logits ``BETA x_i . x_j``), ``gaussian`` (random
    query and key maps) or ``weight:ALPHA`` (two tokens, the second reads the first with that weight). With ``rank``
    an equilibrium of exactly that rank is constructed; random starts are run with and without it.
    """

    tokens: int = Field(default=6)
    dim: int = Field(default=4)
    mask: str = "causal"
    rank: int | None = None
    norm: Literal["sphere", "layer", "rms", "none"] = "sphere"
    values: str = "shear:10"
    attention: str = "uniform"
    frozen: bool = Field(default=False, description="the attention maps of each start are kept")
    starts: int = Field(default=200, ge=0, le=1_000_000)
    steps: int = Field(default=2000, ge=1, le=10_000_000)
    newton: int = Field(
        default=50, ge=0, le=100_000, description="Newton searches from further random starts"
    )
    pushes: int = Field(
        default=64, ge=0, le=10_000, description="small random ones, to see how many come back"
    )
    trajectories: int = Field(default=3, ge=0, le=100, description="starts whose way is recorded")
    seed: int = Field(default=0, ge=0, lt=2**63)

    @field_validator("mask")
    @classmethod
    def _mask_parses(cls, mask: str) -> str:
        return parse_mask(mask).text

    @field_validator("values")
    @classmethod
    def _values_are_known(cls, text: str) -> str:
        kind, argument = parted(text, VALUES, "value map")
        if kind == "shear" and abs(number(text, argument)) > MOST_SHEAR:
            raise ConfigError(f"values {text!r}: a shear is at most {MOST_SHEAR:.0e}, such as shear:10")
        return text.strip()

    @field_validator("attention")
    @classmethod
    def _attention_is_known(cls, text: str) -> str:
        kind, argument = parted(text, ATTENTION, "attention")
        if kind == "softmax" and not number(text, argument) >= 0:
            raise ConfigError(f"attention {text!r}: an inverse temperature is 0 or more, such as softmax:4")
        if kind == "weight" and not 0 < number(text, argument) < 1:
            raise ConfigError(
                f"attention {text!r}: the weight of the first token is between 0 and 1, such as weight:0.5"
            )
        return text.strip()

    @model_validator(mode="after")
    def _sizes_fit(self) -> "EquilibriaConfig":
        if self.tokens < 2:
            raise ConfigError(
                f"tokens={self.tokens}: a system needs at least 2 tokens, one alone has nothing to mix with"
            )
        if self.dim < 1:
            raise ConfigError(f"dim={self.dim}: a token needs at least 1 number")
        _check_memory(self)
        if self.rank is not None and not 1 <= self.rank <= min(self.tokens, self.dim):
            raise ConfigError(
                f"rank={self.rank} is impossible: {self.tokens} tokens of dim {self.dim} have rank 1 to "
                f"{min(self.tokens, self.dim)}"
            )
        if self.rank is None and self.starts == 0:
            raise ConfigError("starts=0 without a rank leaves nothing to do; give a rank, or starts to run")
        if self.attention_kind()[0] == "weight" and (self.tokens != 2 or self.mask != "causal"):
            raise ConfigError(
                f"attention {self.attention!r} is of 2 tokens under the causal mask, got {self.tokens} tokens and "
                f"mask {self.mask}; use --tokens 2 --mask causal, or --attention uniform"
            )
        parse_mask(self.mask).matrix(self.tokens)
        return self

    @property
    def has_own_maps(self) -> bool:
        """Whether every start has a map of its own: maps are kept, and depend on the tokens."""
        return self.frozen and self.attention_kind()[0] in ("softmax", "gaussian")

    def value_kind(self) -> tuple[str, str | None]:
        """Kind of the value map, and what stands after the colon."""
        return parted(self.values, VALUES, "value map")

    def attention_kind(self) -> tuple[str, str | None]:
        """Kind of attention, and what stands after the colon."""
        return parted(self.attention, ATTENTION, "attention")


def parted(text: str, known: Mapping[str, str | None], what: str) -> tuple[str, str | None]:
    """The name and what follows its colon, which some names need and others have not.

    >>> parted("shear:10", VALUES, "value map")
    ('shear', '10')
    """
    name, colon, rest = text.strip().partition(":")
    if name not in known:
        raise unknown_name(what, name, known)
    example = known[name]
    if example is None and colon:
        raise ConfigError(f"{what} {text!r}: {name} takes nothing after a colon; write {name}")
    if example is not None and not rest.strip():
        raise ConfigError(f"{what} {text!r}: {name} needs something after a colon, such as {example}")
    return name, rest.strip() if colon else None


def number(text: str, argument: str | None) -> float:
    """What stands after the colon as a finite number."""
    try:
        found = float(argument or "")
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ConfigError(f"{text!r}: expected a number after the colon, got {argument!r}")
    return found


def _check_memory(config: EquilibriaConfig) -> None:
    tokens, dim = config.tokens, config.dim
    if tokens * dim > MOST_SIDE:
        raise ConfigError(
            f"tokens={tokens} and dim={dim} make a state of {tokens * dim:,} numbers, and its Jacobian has the "
            f"square of that; at most {MOST_SIDE:,} fit: lower one of them"
        )
    starts = max(config.starts, config.newton)
    if starts * tokens * max(tokens, dim) > MOST_NUMBERS:
        raise ConfigError(
            f"{starts:,} starts of {tokens} tokens and dim {dim} do not fit in memory at once; at most "
            f"{MOST_NUMBERS // (tokens * max(tokens, dim)):,} starts do"
        )
