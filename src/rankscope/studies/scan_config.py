"""What a scan measures and how: everything that can change a number is in here."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator

from rankscope.core.config import Config
from rankscope.errors import ConfigError
from rankscope.findings.asked import Inputs
from rankscope.measures import find_measure
from rankscope.probe import Panel
from rankscope.sources.states import parse_axes
from rankscope.verdict import Thresholds


class ScanConfig(Config):
    """Inputs, measures and thresholds of a scan."""

    batch_size: int = Field(default=8, ge=1)
    max_tokens: int | None = Field(default=None, ge=2)
    max_texts: int | None = Field(default=None, ge=1)
    special: Literal["drop", "keep"] = "drop"
    random_tokens: str | None = None
    vocab: int | None = Field(default=None, ge=2, description="ids that random tokens are drawn from")
    seed: int = Field(default=0, ge=0, lt=2**63)
    weights: Literal["trained", "initial"] | None = Field(
        default=None, description="trained where there are any, if None"
    )
    spectra: bool = True
    full: bool = False
    attention: bool = False
    gradients: bool = False
    tree: bool = False
    """Whether the tree of the model is told as well."""

    measures: tuple[str, ...] = ()
    blocks: str | tuple[str, ...] | None = None
    axes: tuple[str, ...] | None = None
    """Of hidden states from outside: what each axis is, such as ``layers,tokens,dim``."""

    thresholds: Thresholds = Thresholds()

    @field_validator("measures")
    @classmethod
    def _measures_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        found = [find_measure(name) for name in names]
        for measure in found:
            if measure.kind != "tokens":
                raise ConfigError(f"{measure.definition} measures attention maps; use --attention")
        return tuple(dict.fromkeys(measure.definition for measure in found))

    @field_validator("axes", mode="before")
    @classmethod
    def _axes_are_known(cls, axes: str | Sequence[str] | None) -> tuple[str, ...] | None:
        return None if axes is None else parse_axes(axes)

    @property
    def panel(self) -> Panel:
        """What the probe takes of every state."""
        return Panel(spectra=self.spectra, full=self.full, more=self.measures, attention=self.attention)

    def feeding(self) -> Inputs:
        """What the model reads."""
        names = ("random_tokens", "vocab", "max_texts", "max_tokens", "batch_size", "special")
        return Inputs.of(**{name: getattr(self, name) for name in names})
