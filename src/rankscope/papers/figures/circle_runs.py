"""One network of the figure ``circle``: trained, fed its own answers, and its multipliers along the taught orbit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor
from rankscope.papers.figures.figure import Job
from rankscope.papers.tasks.circle import CIRCLE, CircleConfig, circle_pairs, step_length
from rankscope.papers.tasks.training import train_task

Step = Callable[[Tensor], Tensor]

MERGED = 0.01
"""Points are merged when their distance is below this share of what it was at the start."""

NEAR, FAR = 0.5, 2.0
"""Points are apart when their distance is between these multiples of what it was."""

Ending = Literal["merged", "apart", "nearer", "ran off"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """How two points went: positions ``steps 2 2``, distance, length of the mean, and the floor of the distance.

    It ends early where the points are so far out that rounding of their positions hides ``MERGED``.
    """

    path: Tensor
    distance: list[float]
    mean: list[float]
    floor: list[float]


@torch.no_grad()
def follow(step: Step, start: Tensor, steps: int) -> Run:
    """``start`` (``2 2``) and where ``step`` takes it, again and again, in float64."""
    x, path = start.double(), []
    first = float(torch.linalg.vector_norm(x[0] - x[1]))
    distance, mean, floor = [], [], []
    for number in range(steps + 1):
        lost = relative_floor(number, torch.float64) * float(torch.linalg.vector_norm(x))
        if not lost < MERGED * first:  # also for NaN
            break
        path.append(x)
        distance.append(float(torch.linalg.vector_norm(x[0] - x[1])))
        mean.append(float(torch.linalg.vector_norm(x.mean(dim=0))))
        floor.append(lost)
        x = step(x.unsqueeze(0)).squeeze(0)
    return Run(path=torch.stack(path), distance=distance, mean=mean, floor=floor)


def merged_at(distance: Sequence[float]) -> int | None:
    """The first step from which on the points are merged, or None.

    >>> merged_at([1.0, 0.001, 0.5, 0.004, 0.0])
    3
    """
    above = [number for number, one in enumerate(distance) if not one < MERGED * distance[0]]
    return above[-1] + 1 if above[-1] + 1 < len(distance) else None


def left_at(distance: Sequence[float], mean: Sequence[float], radius: float) -> int | None:
    """The first step at which the mean is farther out than the radius, or the points twice as far apart; or None."""
    for number, (apart, middle) in enumerate(zip(distance, mean, strict=True)):
        if middle > radius or apart > FAR * distance[0]:
            return number
    return None


def ending(distance: Sequence[float]) -> Ending:
    """How it ended, by the distance of the two points alone."""
    if merged_at(distance) is not None:
        return "merged"
    share = distance[-1] / distance[0]
    return "ran off" if share > FAR else "apart" if share >= NEAR else "nearer"


def turned(path: Tensor) -> float:
    """Angle by which the difference of the two points has turned in all, in radians."""
    difference = path[:, 0] - path[:, 1]
    angles = torch.atan2(difference[:, 1], difference[:, 0])
    changes = angles.diff()
    return float(torch.sub(changes, 2 * math.pi * (changes / (2 * math.pi)).round()).sum())


def jacobians(step: Step, pairs: Tensor) -> Tensor:
    """Derivatives of a step at every pair, ``pairs 4 4``, as a map of (mean, half difference) to the same."""
    x = pairs.detach().double().requires_grad_()
    with torch.enable_grad():
        outputs = step(x).flatten(1)
        rows = [
            torch.autograd.grad(outputs[:, k].sum(), x, retain_graph=True)[0].flatten(1) for k in range(4)
        ]
    eye = torch.eye(2, dtype=torch.float64)
    split = torch.cat([torch.cat([eye, eye], dim=1), torch.cat([eye, -eye], dim=1)]) / 2
    return torch.matmul(split @ torch.stack(rows, dim=1), torch.linalg.inv(split))


def growth(maps: Tensor) -> float:
    """Factor per step by which the product of these maps, applied one after the other, grows what grows fastest.

    0 if the product is zero.
    """
    state = torch.eye(maps.shape[-1], dtype=maps.dtype)
    total = 0.0
    for one in maps:
        state = one @ state
        size = float(torch.linalg.matrix_norm(state, ord=2))
        if size == 0:
            return 0.0
        state, total = state / size, total + math.log(size)
    return math.exp(total / len(maps))


def found_of(config: CircleConfig, steps: int, job: Job, key: str) -> dict[str, Any]:
    """All that the figure says of one network, as JSON; kept in the store of the job."""
    asked = {"config": config.model_dump(mode="json"), "steps": steps}

    def make() -> dict[str, Any]:
        trained = train_task(CIRCLE, config, folder=job.store.folder(key, asked))
        return described(trained.model.double(), config, steps)

    found: dict[str, Any] = job.store.remember(key, asked, make)
    return found


def described(step: Step, config: CircleConfig, steps: int) -> dict[str, Any]:
    """Errors of one step, the run from the first pair, and multipliers along the taught orbit."""
    inputs, targets = circle_pairs(config.points, config.radius)
    with torch.no_grad():
        error = float((step(inputs) - targets).square().sum(dim=-1).mean())
    run = follow(step, inputs[0], steps)
    maps = jacobians(step, inputs)
    return {
        "error_over_zero": error / config.radius**2,
        "error_over_staying": error / step_length(config.points, config.radius) ** 2,
        "path": run.path.flatten(1).tolist(),
        "distance": run.distance,
        "mean": run.mean,
        "floor": run.floor,
        "merged_at": merged_at(run.distance),
        "left_at": left_at(run.distance, run.mean, config.radius),
        "ending": ending(run.distance),
        "turned": turned(run.path) / (2 * math.pi / config.points * max(len(run.distance) - 1, 1)),
        "growth": growth(maps),
        "mean_growth": growth(maps[:, :2, :2]),
        "difference_growth": growth(maps[:, 2:, 2:]),
    }
