"""Two points that walk around a circle, on opposite sides of it, and where each of them is next."""

import math

import torch
from torch import Tensor

from rankscope.errors import ConfigError
from rankscope.papers.tasks.task import Batch

FEWEST = 8
"""Points of a circle, so that each arc has some steps."""


def circle_points(count: int, radius: float) -> Tensor:
    """``count 2``: points at equal angles, counter-clockwise from angle 0, in float64.

    >>> circle_points(8, 1.0)[2].abs().round(decimals=6).tolist()
    [0.0, 1.0]
    """
    if count < FEWEST:
        raise ConfigError(f"a circle of {count} points was asked for; ask for {FEWEST} or more")
    angles = torch.arange(count, dtype=torch.float64) * (2 * math.pi / count)
    return radius * torch.stack([angles.cos(), angles.sin()], dim=-1)


def circle_pairs(count: int, radius: float) -> Batch:
    """Pairs of points ``pairs 2 2`` and the pairs one step further.

    As in the published code the circle is cut into two arcs of ``count // 2 - 1`` steps. The first token walks the
    first one from angle 0, the second one the other from one step before pi: the two are opposite up to one step,
    and their mean is ``radius sin(pi / count)`` long. ``count`` is even: an odd one has no opposite points.
    """
    if count % 2:
        raise ConfigError(
            f"pairs of opposite points were asked for on {count} points; ask for an even number"
        )
    points, pairs = circle_points(count, radius), count // 2 - 1
    inputs = torch.stack([points[:pairs], points[pairs : 2 * pairs]], dim=1)
    targets = torch.stack([points[1 : pairs + 1], points[pairs + 1 : 2 * pairs + 1]], dim=1)
    return inputs, targets


def shaken(inputs: Tensor, size: float, *, generator: torch.Generator) -> Tensor:
    """The same with ``N(0, size^2)`` added to every coordinate."""
    return inputs + size * torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)


def step_length(count: int, radius: float) -> float:
    """How far a point moves in one step: the chord ``2 radius sin(pi / count)``."""
    return 2 * radius * math.sin(math.pi / count)


def relative_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """``sqrt(sum (output - target)^2 / sum target^2)``: 0 is perfect, 1 is as good as saying zero all the time."""
    return torch.div(torch.linalg.vector_norm(outputs - targets), torch.linalg.vector_norm(targets))
