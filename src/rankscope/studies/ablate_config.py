"""One cut of a network and its inputs, as certify and paths ask for them."""

from typing import Any, Literal

from pydantic import Field

from rankscope.core.config import Config
from rankscope.findings.asked import OWN as OWN
from rankscope.findings.asked import ModelInputs


class AblateConfig(Config):
    """A variant, a mask, and what is loaded and read."""

    variants: tuple[str, ...]
    masks: tuple[str, ...]
    skip_scales: tuple[float | str, ...] = (OWN,)
    norm: str = OWN
    semantics: str = "clean"
    seeds: tuple[int, ...] = (0,)
    weights: Literal["trained", "initial"] | None = None
    random_tokens: str | None = None
    vocab: int | None = None
    tokens: int | None = None
    stack: str | None = None
    dtype: Literal["float64", "float32", "bfloat16", "float16"] | None = None
    device: str = "cpu"
    batch_size: int = Field(default=8, ge=1)
    max_tokens: int | None = None
    max_texts: int | None = None
    special: Literal["drop", "keep"] = "drop"

    def numbers(self, layers: int) -> None:
        """All blocks are changed."""


def feeding(config: AblateConfig, load: dict[str, Any]) -> ModelInputs:
    """How the model is loaded and what it reads."""
    names = ("weights", "stack", "dtype", "device", "random_tokens", "vocab", "max_texts", "max_tokens")
    shared = {name: getattr(config, name) for name in (*names, "batch_size", "special")}
    return ModelInputs.of(**shared, **load)
