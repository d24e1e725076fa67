"""The columns of the figure ``circle``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rankscope.papers.tasks.task import Setting

AROUND = 0.1
"""Noise on the points learned from, in radii, where the surroundings of the circle are taught as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A column of the figure: what a step is made of, and how it is taught."""

    name: str
    title: str
    variant: str
    setting: Setting = "paper"
    fields: Mapping[str, Any] = field(default_factory=dict)


CASES = (
    Case(name="san", title="attention alone", variant="san"),
    Case(name="skip", title="with a skip", variant="san+skip"),
    Case(name="mlp", title="with an MLP", variant="san+mlp"),
    Case(name="both", title="with both", variant="transformer"),
    Case(name="official", title="published code", variant="official", setting="official"),
    Case(name="official-mlp", title="published code, MLP", variant="official+mlp", setting="official"),
    Case(
        name="around",
        title="attention alone, shaken",
        variant="san",
        fields={"noise": AROUND, "learning_rate": 3e-3, "batch": 64},
    ),
)
