"""What a decomposition into paths is asked for: which network, at which inputs, and how far it goes."""

from typing import Literal

from pydantic import Field, field_validator

from rankscope.core.config import Config
from rankscope.errors import ConfigError
from rankscope.masks import parse_mask
from rankscope.network.surgery import check_variant
from rankscope.studies.ablate_config import OWN, AblateConfig
from rankscope.studies.rows import MOST_TOKENS

ALLOWED = {"float64": 1e-10, "float32": 1e-4}
"""How far the sum over path lengths may be from the output of the tree, relative to it."""


class PathsConfig(Config):
    """One network on some inputs, and what is told of its paths."""

    variant: str = Field(default="transformer", description="the network as it is, or cut as in an ablation")
    mask: str = OWN
    norm: Literal["own", "none"] = "own"
    mlps: Literal["through", "source"] = "through"
    final_norm: bool = True
    count_mlps: bool = Field(default=False, description="tell lengths apart by the number of MLPs too")
    top: int | None = Field(
        default=None, ge=0, description="how many single paths; 0: none; None: 20, or all if there are fewer"
    )
    score: Literal["norm", "residual"] = "norm"
    seconds: float = Field(default=3.0, ge=0, description="for the search of the top paths")
    vectors: bool | None = Field(
        default=None, description="norms of what passes each head; None: if that is cheap enough"
    )
    pairs: bool = False
    sample: int = Field(default=0, ge=0, description="single paths per length, frozen and re-run; 0: none")
    prune: bool = False
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    weights: Literal["trained", "initial"] | None = Field(
        default=None, description="trained where there are any, if None"
    )
    random_tokens: str | None = None
    vocab: int | None = Field(default=None, ge=2, description="ids that random tokens are drawn from")
    tokens: int | None = Field(default=None, ge=2, le=MOST_TOKENS, description="of a random network")
    stack: str | None = Field(default=None, description="which stack of a model that has several")
    dtype: Literal["float64", "float32"] = "float64"
    device: str = "cpu"
    max_tokens: int | None = Field(default=None, ge=2)
    max_texts: int | None = Field(default=None, ge=1)
    special: Literal["drop", "keep"] = "drop"

    @field_validator("variant")
    @classmethod
    def _variant_is_known(cls, name: str) -> str:
        check_variant(name)
        return name

    @field_validator("mask")
    @classmethod
    def _mask_parses(cls, mask: str) -> str:
        return mask if mask == OWN else parse_mask(mask).text

    @field_validator("dtype", mode="before")
    @classmethod
    def _dtype_is_wide(cls, name: object) -> object:
        if name in ("bfloat16", "float16"):
            raise ConfigError(
                f"paths are computed in float64 or float32, not in {name}; a model in {name} is brought to float64 "
                "block by block: leave --dtype out"
            )
        return name

    @field_validator("sample")
    @classmethod
    def _sample_has_an_interval(cls, count: int) -> int:
        if count == 1:
            raise ConfigError(
                "sample=1: an interval needs at least two paths; ask for 2 or more, or 0 for none"
            )
        return count

    def as_ablation(self, *, is_random: bool) -> AblateConfig:
        """The same cut and the same inputs as an ablation asks for them; a live model stays in its own dtype."""
        names = ("norm", "seeds", "weights", "random_tokens", "vocab", "tokens", "stack", "device")
        shared = {name: getattr(self, name) for name in (*names, "max_tokens", "max_texts", "special")}
        return AblateConfig.of(
            **shared,
            variants=(self.variant,),
            masks=(self.mask,),
            dtype=self.dtype if is_random else None,
            batch_size=1,
        )
