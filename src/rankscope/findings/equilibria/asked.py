"""What is asked of a dynamical system: which map of the tokens, which rank, from how many starts."""

import math
from collections.abc import Mapping
from typing import Self

from pydantic import field_validator, model_validator

from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError, Option
from rankscope.findings.asked import CommandConfig, NormName, files_of_masks, option
from rankscope.findings.ways import refuse_idle

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
"""Entries of the largest array of a run, half a gigabyte in float64: the tokens of all starts, or all their maps."""

MOST_SIDE = 4096
"""Tokens times dim up to which the Jacobian of a step, a square matrix of that side, is looked at."""

MOST_SHEAR = 1e6
"""Beyond it a step of the value map loses most digits of float64."""


class SystemOptions(CommandConfig):
    group = "System"
    tokens: int = option(6, "Tokens of a state.")
    dim: int = option(4, "Width of a token.")
    mask: str = option("causal", "Mask rule, see 'rankscope list masks'.")
    norm: NormName = option("sphere", "What ends a step.")
    values: str = option(
        "shear:10",
        "Value map: shear:W (ones on the diagonal, W above it), identity, orthogonal, gaussian, file:PATH (.npy, .csv, "
        ".safetensors).",
    )
    attention: str = option(
        "uniform",
        "uniform, softmax:BETA (logits BETA x_i.x_j), gaussian (random query and key maps), weight:ALPHA (of 2 tokens: "
        "what the second puts on the first).",
    )
    frozen: bool = option(False, "Keep the attention maps of each start.")


class SearchOptions(CommandConfig):
    group = "Search"
    starts: int = option(200, "Random starts to run; 0 for the construction alone.", ge=0, le=1_000_000)
    steps: int = option(2000, "Steps per start, at most.", ge=1, le=10_000_000)
    newton: int = option(50, "Newton searches from further random states.", ge=0, le=100_000)
    pushes: int = option(64, "Small random pushes at every equilibrium: how many come back.", ge=0, le=10_000)
    trajectories: int = option(3, "Starts whose path is recorded.", ge=0, le=100)
    seed: int = option(0, "Of random maps and starts.", ge=0, lt=2**63, shown="0")


class EquilibriaConfig(SystemOptions, SearchOptions):
    """Find where X <- norm(A X W) comes to rest: equilibria, their rank and stability, and which starts reach them.

    A is the attention map of the tokens X under the mask, W the value map; the norm brings every token to length one.
    With --rank an equilibrium of exactly that rank is constructed, and random starts of the same system show how many
    reach it. The same weights without the norm are run for comparison.
    """

    group = "Rank"
    rank: int | None = option(
        None, "Construct an equilibrium of exactly this rank (value map shear:W).", shown="search"
    )

    @field_validator("values")
    @classmethod
    def _values_are_known(cls, text: str) -> str:
        kind, argument = split_kind("values", text, VALUES, "value map")
        if kind == "shear" and abs(finite("values", text, argument)) > MOST_SHEAR:
            raise ConfigError(
                Option("values", text),
                f": a shear is at most {MOST_SHEAR:.0e}, such as shear:10",
            )
        return text.strip()

    @field_validator("attention")
    @classmethod
    def _attention_is_known(cls, text: str) -> str:
        kind, argument = split_kind("attention", text, ATTENTION, "attention")
        if kind == "softmax" and not finite("attention", text, argument) >= 0:
            raise ConfigError(
                Option("attention", text),
                ": an inverse temperature is 0 or more, such as softmax:4",
            )
        if kind == "weight" and not 0 < finite("attention", text, argument) < 1:
            raise ConfigError(
                Option("attention", text),
                ": the weight of the first token is between 0 and 1, such as weight:0.5",
            )
        return text.strip()

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        tokens, dim, rank = self.tokens, self.dim, self.rank
        if tokens < 2:
            raise ConfigError(
                Option("tokens", tokens),
                ": a system needs at least 2 tokens, one alone has nothing to mix with",
            )
        if dim < 1:
            raise ConfigError(
                Option("dim", dim),
                ": a token needs at least 1 number",
            )
        _check_memory(self)
        if rank is not None and not 1 <= rank <= min(tokens, dim):
            raise ConfigError(
                Option("rank", rank),
                f" is impossible: {tokens} tokens of dim {dim} have rank 1 to {min(tokens, dim)}",
            )
        if rank is None and self.starts == 0:
            raise ConfigError(
                Option("starts", 0),
                " without a rank leaves nothing to do; give a rank, or starts to run",
            )
        if self.starts == 0:
            refuse_idle(self, ["trajectories"], "beside ", Option("starts", 0))
        if self.attention_kind()[0] == "weight" and (tokens != 2 or self.mask.strip() != "causal"):
            raise ConfigError(
                Option("attention", self.attention),
                f" is of 2 tokens under the causal mask, got {tokens} tokens and mask {self.mask}; use ",
                Option("tokens", 2),
                " and ",
                Option("mask", "causal"),
                ", or ",
                Option("attention", "uniform"),
            )
        return self

    @property
    def has_own_maps(self) -> bool:
        """Whether every start has its own map: maps are kept, and depend on the tokens."""
        return self.frozen and self.attention_kind()[0] in ("softmax", "gaussian")

    @property
    def reads(self) -> tuple[str, ...]:
        """Files that the mask and the value map are read from."""
        kind, path = self.value_kind()
        return (*files_of_masks([self.mask]), *([path] if kind == "file" and path else []))

    def value_kind(self) -> tuple[str, str | None]:
        """Kind of the value map, and what stands after the colon."""
        return split_kind("values", self.values, VALUES, "value map")

    def attention_kind(self) -> tuple[str, str | None]:
        """Kind of attention, and what stands after the colon."""
        return split_kind("attention", self.attention, ATTENTION, "attention")

    def shear(self) -> float:
        """The number of a value map ``shear:W``."""
        return finite("values", self.values, self.value_kind()[1])

    def attention_number(self) -> float:
        """The number of attention ``softmax:BETA`` or ``weight:ALPHA``."""
        return finite("attention", self.attention, self.attention_kind()[1])


def split_kind(field: str, text: str, known: Mapping[str, str | None], what: str) -> tuple[str, str | None]:
    """The name and what follows its colon, which some names need and others refuse.

    >>> split_kind("values", "shear:10", VALUES, "value map")
    ('shear', '10')
    """
    name, colon, rest = text.strip().partition(":")
    if name not in known:
        raise unknown_name(what, name, known)
    example = known[name]
    if example is None and colon:
        raise ConfigError(Option(field, text), f": {name} takes nothing after a colon; write {name}")
    if example is not None and not rest.strip():
        raise ConfigError(Option(field, text), f": {name} needs something after a colon, such as {example}")
    return name, rest.strip() if colon else None


def finite(field: str, text: str, argument: str | None) -> float:
    """What stands after the colon as a finite number."""
    try:
        found = float(argument or "")
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ConfigError(Option(field, text), f": expected a number after the colon, got {argument!r}")
    return found


def _check_memory(config: EquilibriaConfig) -> None:
    tokens, dim = config.tokens, config.dim
    if tokens * dim > MOST_SIDE:
        raise ConfigError(
            Option("tokens", tokens),
            " and ",
            Option("dim", dim),
            f" make a state of {tokens * dim:,} numbers, and its Jacobian has the square of that; at most "
            f"{MOST_SIDE:,} fit: lower one of them",
        )
    most = MOST_NUMBERS // (tokens * max(tokens, dim))
    for field, many in (("starts", config.starts), ("newton", config.newton)):
        if many > most:
            raise ConfigError(
                Option(field, many),
                f": that many states of {tokens} tokens and dim {dim} do not fit in memory at once; at most "
                f"{most:,} do",
            )
