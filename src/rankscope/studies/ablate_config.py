"""What an ablation runs: which cuts, of which model, on what, and how they are measured."""

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from rankscope.core.config import Config
from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError
from rankscope.findings.asked import ModelInputs
from rankscope.findings.collapse import DEFAULT_MEASURES, SITES
from rankscope.masks import parse_mask
from rankscope.measures import find_measure
from rankscope.network import VARIANTS
from rankscope.network.surgery import check_variant
from rankscope.split import can_measure
from rankscope.split.values import cannot_measure
from rankscope.studies.rows import MOST_TOKENS, check_error

OWN = "own"
"""A mask or skip scale as the model has it."""

DEFAULT_VARIANTS = ("san", "san+mlp", "san+skip", "transformer")
DEFAULT_TOKENS = 32

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class AblateConfig(Config):
    """The product of variants, masks and skip scales of one model, and what is measured of each."""

    variants: tuple[str, ...] = Field(default=DEFAULT_VARIANTS, min_length=1)
    masks: tuple[str, ...] = Field(default=(OWN,), min_length=1)
    skip_scales: tuple[float | Literal["own"], ...] = Field(default=("own",), min_length=1)
    norm: Literal["own", "none"] = "own"
    blocks: str | None = Field(default=None, description="blocks that are changed, as in 3,5-7; all if None")
    semantics: Literal["clean", "paper"] = "clean"
    measures: tuple[str, ...] = Field(default=DEFAULT_MEASURES, min_length=1)
    sites: tuple[str, ...] = Field(default=("block",), min_length=1)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    weights: Literal["trained", "initial"] | None = Field(
        default=None, description="trained where there are any, if None"
    )
    random_tokens: str | None = None
    vocab: int | None = Field(default=None, ge=2, description="ids that random tokens are drawn from")
    tokens: int | None = Field(default=None, ge=2, le=MOST_TOKENS, description="of a random network")
    stack: str | None = Field(default=None, description="which stack of a model that has several")
    split: bool = False
    error: bool = True
    blame: bool = False
    suggest: bool = False
    dtype: Literal["float64", "float32", "bfloat16", "float16"] | None = None
    device: str = "cpu"
    batch_size: int = Field(default=8, ge=1)
    max_tokens: int | None = Field(default=None, ge=2)
    max_texts: int | None = Field(default=None, ge=1)
    special: Literal["drop", "keep"] = "drop"

    @field_validator("variants")
    @classmethod
    def _variants_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            check_variant(name)
        return tuple(dict.fromkeys(names))

    @field_validator("masks")
    @classmethod
    def _masks_parse(cls, masks: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(mask if mask == OWN else parse_mask(mask).text for mask in masks))

    @field_validator("skip_scales", mode="before")
    @classmethod
    def _scales_are_numbers(cls, scales: Any) -> Any:
        return tuple(dict.fromkeys(map(_scale, scales))) if isinstance(scales, Sequence) else scales

    @field_validator("blocks")
    @classmethod
    def _blocks_parse(cls, text: str | None) -> str | None:
        return None if text is None else block_text(parse_blocks(text))

    @field_validator("measures")
    @classmethod
    def _measures_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        measures = [find_measure(name) for name in names]
        for measure in measures:
            if measure.kind != "tokens":
                raise ConfigError(
                    f"{measure.definition} measures attention maps; ablate measures token states"
                )
        return tuple(dict.fromkeys(measure.definition for measure in measures))

    @field_validator("sites")
    @classmethod
    def _sites_are_known(cls, sites: tuple[str, ...]) -> tuple[str, ...]:
        for site in sites:
            if site not in SITES:
                raise unknown_name("site", site, SITES)
        return tuple(dict.fromkeys(sites))

    @field_validator("seeds")
    @classmethod
    def _each_once(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        for seed in seeds:
            if not 0 <= seed < 2**63:
                raise ConfigError(f"seed {seed}: seeds are integers from 0 to 2^63 - 1")
        return tuple(dict.fromkeys(seeds))

    def check(self) -> None:
        """Raise if the options contradict each other, before anything is loaded."""
        if self.semantics == "paper" and self.norm == "none":
            raise ConfigError(
                "the paper's code always keeps the norms, so norm none has no paper semantics; leave out --norm none, "
                "or use the clean semantics"
            )
        twice = [name for name in self.variants if f"{name}-norm" in self.variants]
        if self.norm == "none" and twice:
            raise ConfigError(
                f"without norms {twice[0]} and {twice[0]}-norm are the same network; leave one out"
            )
        has_skip = any("skip" not in VARIANTS[name.removesuffix("-norm")] for name in self.variants)
        if self.skip_scales != (OWN,) and not has_skip and self.blocks is None:
            raise ConfigError(
                f"no variant among {', '.join(self.variants)} has a skip to scale; add san+skip or transformer"
            )
        lacking = [name for name in self.variants if "mlp" in VARIANTS[name.removesuffix("-norm")]]
        if self.sites == ("mlp",) and len(lacking) == len(self.variants) and self.blocks is None:
            raise self.no_mlp()
        if self.split and self.sites != ("block",):
            raise ConfigError(f"the split pass measures the site block alone, got {', '.join(self.sites)}")
        check_error(split=self.split, error=self.error)
        for measure in map(find_measure, self.measures if self.split else ()):
            if not can_measure(measure):
                raise cannot_measure(measure)

    def no_mlp(self) -> ConfigError:
        """The error if only MLPs are to be measured and none is left."""
        return ConfigError(
            f"no variant among {', '.join(self.variants)} has an MLP to measure; add --sites block"
        )

    def numbers(self, layers: int) -> tuple[int, ...]:
        """The blocks that are changed, from 1, of a network with so many."""
        if self.blocks is None:
            return tuple(range(1, layers + 1))
        wanted = parse_blocks(self.blocks)
        if wanted[-1] > layers:
            raise ConfigError(f"block {wanted[-1]} does not exist: the model has blocks 1 to {layers}")
        lacking = all("mlp" in VARIANTS[name.removesuffix("-norm")] for name in self.variants)
        if self.sites == ("mlp",) and lacking and len(wanted) == layers:
            raise self.no_mlp()
        return wanted


def parse_blocks(text: str) -> tuple[int, ...]:
    """The numbers of blocks that a list with ranges names, sorted, each once.

    >>> parse_blocks("5-7, 3")
    (3, 5, 6, 7)
    """
    found: set[int] = set()
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match and len(piece) < 20 else (0, 0)
        if not 1 <= first <= last < first + 1_000_000:
            raise ConfigError(
                f"blocks {text!r}: {piece.strip()!r} is not a block or a range; write 3,5-7, from 1"
            )
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def block_text(blocks: Sequence[int]) -> str:
    """The shortest list with ranges of sorted numbers.

    >>> block_text((3, 5, 6, 7))
    '3,5-7'
    """
    runs: list[list[int]] = []
    for number in blocks:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def _scale(value: Any) -> float | str:
    if value == OWN:
        return OWN
    try:
        scale = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"skip scale {value!r}: expected a number such as 0.5, or own") from None
    if not math.isfinite(scale):
        raise ConfigError(f"skip scale {value!r}: expected a finite number such as 0.5, or own")
    return scale


def feeding(config: AblateConfig, load: dict[str, Any]) -> ModelInputs:
    """How the model is loaded and what it reads."""
    names = ("weights", "stack", "dtype", "device", "random_tokens", "vocab", "max_texts", "max_tokens")
    shared = {name: getattr(config, name) for name in (*names, "batch_size", "special")}
    return ModelInputs.of(**shared, **load)
