"""What a step of the optimizer minimizes: the plain loss, or one that treats paths by their length."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rankscope.core.registry import Registry
from rankscope.errors import ConfigError

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """An objective by name.

    Args:
        about: what it is, in one sentence; it says what ``strength`` means.
        strengths: smallest and largest strength that make sense; None if there is no such number.
        answer: model and inputs in, what the trained network says of them out; scores are of that.
        minimize: model, inputs, targets, the task's loss, strength, and a generator that is new in every step; gives
            what to minimize and the outputs of the model that the step saw.
    """

    name: str
    about: str
    strengths: tuple[float, float] | None
    minimize: Callable[[nn.Module, Tensor, Tensor, Loss, float, torch.Generator], tuple[Tensor, Tensor]]
    answer: Callable[[nn.Module, Tensor], Tensor] = lambda model, inputs: model(inputs)

    def check(self, strength: float, layers: int) -> None:
        """Nothing, or an error if the strength does not make sense."""
        if self.strengths is None:
            if strength:
                raise ConfigError(
                    f"the objective {self.name!r} has no strength, got {strength}; leave it out"
                )
            return
        low, high = self.strengths
        if not low <= strength <= high:
            raise ConfigError(
                f"strength={strength} of the objective {self.name!r}: expected {low} to {high} ({self.about})"
            )


OBJECTIVES: Registry[Objective] = Registry("objective")


def register(objective: Objective) -> Objective:
    """Enter an objective under its name."""
    OBJECTIVES.register(objective.name, objective)
    return objective


def _plain(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, strength: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    outputs: Tensor = model(inputs)
    return loss(outputs, targets), outputs


register(Objective(name="plain", about="the loss of the whole network", strengths=None, minimize=_plain))
