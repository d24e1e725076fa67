"""What a certificate is asked for: which network, at which inputs, for which definitions of the residual."""

from typing import Any, Literal

from pydantic import Field, field_validator

from rankscope.bounds.certificate import CERTIFIED, COLUMNS, COMPOSITE, DIAMETERS, FROBENIUS
from rankscope.bounds.dense import JOINT_SIDE
from rankscope.core.config import Config
from rankscope.core.registry import unknown_name
from rankscope.masks import parse_mask
from rankscope.network.surgery import check_variant
from rankscope.studies.ablate_config import OWN, AblateConfig
from rankscope.studies.rows import MOST_TOKENS

DEFAULT_DEFINITIONS = (FROBENIUS, "diameter[l2]", COMPOSITE)

SHORT = {
    "frobenius": FROBENIUS,
    "residual": FROBENIUS,
    "composite": COMPOSITE,
    "columns": COLUMNS,
    "diameter": "diameter[l2]",
} | {name[len("diameter[") : -1]: name for name in DIAMETERS}
"""Short names of definitions; those of row norms are diameters."""


class CertifyConfig(Config):
    """One network on some inputs, and what is certified of its states."""

    definitions: tuple[str, ...] = Field(default=DEFAULT_DEFINITIONS, min_length=1)
    gamma: float = Field(default=1.0, gt=0, allow_inf_nan=False, description="of Dong's printed bounds")
    variant: str = Field(default="transformer", description="the network as it is, or cut as in an ablation")
    mask: str = OWN
    norm: Literal["own", "none"] = "own"
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    weights: Literal["trained", "initial"] | None = Field(
        default=None, description="trained where there are any, if None"
    )
    random_tokens: str | None = None
    vocab: int | None = Field(default=None, ge=2, description="ids that random tokens are drawn from")
    tokens: int | None = Field(default=None, ge=2, le=MOST_TOKENS, description="of a random network")
    stack: str | None = Field(default=None, description="which stack of a model that has several")
    device: str = "cpu"
    max_tokens: int | None = Field(default=None, ge=2)
    max_texts: int | None = Field(default=None, ge=1)
    special: Literal["drop", "keep"] = "drop"
    joint_side: int = Field(
        default=JOINT_SIDE, ge=0, description="(tokens - 1) * dim up to which blocks are certified jointly"
    )

    @field_validator("definitions", mode="before")
    @classmethod
    def _definitions_are_certified(cls, names: Any) -> Any:
        if isinstance(names, str):
            names = (names,)
        if not isinstance(names, list | tuple):
            return names
        for name in names:
            if name not in (*SHORT, *CERTIFIED):
                raise unknown_name("definition", str(name), (*SHORT, *CERTIFIED))
        return tuple(dict.fromkeys(SHORT.get(name, name) for name in names))

    @field_validator("variant")
    @classmethod
    def _variant_is_known(cls, name: str) -> str:
        check_variant(name)
        return name

    @field_validator("mask")
    @classmethod
    def _mask_parses(cls, mask: str) -> str:
        return mask if mask == OWN else parse_mask(mask).text

    def as_ablation(self, *, is_random: bool) -> AblateConfig:
        """The same cut and the same inputs as an ablation asks for them; a live model stays in its own dtype."""
        names = ("norm", "seeds", "weights", "random_tokens", "vocab", "tokens", "stack", "device")
        shared = {name: getattr(self, name) for name in (*names, "max_tokens", "max_texts", "special")}
        return AblateConfig.of(
            **shared,
            variants=(self.variant,),
            masks=(self.mask,),
            dtype="float64" if is_random else None,
            batch_size=1,
        )
