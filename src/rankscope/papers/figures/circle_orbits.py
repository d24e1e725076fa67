"""Two points under one step that is applied again and again: their run, its growth, and an orbit in closed form.

The orbit: two opposite points on a circle under attention alone, and when it attracts. Let every head have isotropic
logits ``c_h x_i . x_j`` and the value map ``w_h R`` with R the rotation by one step. With
``z_h = c_h r^2`` the two rows of a map differ by ``tanh z_h``, so that points at ``+x`` and ``-x`` go to
``+-(sum_h w_h tanh z_h) x R``: the circle of radius r is an orbit if that sum is 1. Small changes of it are multiplied
in every step, in the frame that turns with the points, by

- the difference, along itself: ``1 + sum_h 2 w_h z_h / cosh^2 z_h``,
- the difference, across: 1 (a turn of both points),
- the mean, along the difference: ``sum_h w_h (1 + z_h / cosh^2 z_h)``,
- the mean, across: ``sum_h w_h``.

One head has ``w = 1 / tanh z``: the first is ``1 + 4 z / sinh 2z`` and the last ``1 / tanh z``, above 1 for every z.
Two heads can have all but the turn below 1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor
from rankscope.findings.base import Value
from rankscope.network import Attention, Network, Softmax, Values
from rankscope.papers.tasks.circle import CircleConfig, circle_pairs, step_length

Step = Callable[[Tensor], Tensor]

MERGED = 0.01
"""Points are merged when their distance is below this share of what it was at the start."""

NEAR, FAR = 0.5, 2.0
"""Points are apart when their distance is between these multiples of what it was."""

Ending = Literal["merged", "apart", "nearer", "ran off"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairRun:
    """How two points went: positions ``steps 2 2``, distance, length of the mean, and the floor of the distance.

    It ends early where the points are so far out that rounding of their positions hides ``MERGED``.
    """

    path: Tensor
    distance: list[float]
    mean: list[float]
    floor: list[float]


@torch.no_grad()
def follow(step: Step, start: Tensor, steps: int) -> PairRun:
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
    return PairRun(path=torch.stack(path), distance=distance, mean=mean, floor=floor)


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


def total_turn(path: Tensor) -> float:
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


class StepRecord(Value):
    """What the figure says of one step: how far it misses what was taught, how it goes on, and how changes of it grow.

    ``path`` has both points of every step; ``distance`` and ``mean`` are lengths, ``floor`` is what rounding may hide
    of the distance. Growth is per step along the taught points: of the pair, its mean alone, its difference alone.
    """

    error_over_zero: float
    error_over_staying: float
    path: tuple[tuple[float, float, float, float], ...]
    distance: tuple[float, ...]
    mean: tuple[float, ...]
    floor: tuple[float, ...]
    merged_at: int | None
    left_at: int | None
    ending: Ending
    turned: float
    """Angle by which the pair has turned over the angle that was taught."""

    growth: float
    mean_growth: float
    difference_growth: float


def record_step(step: Step, config: CircleConfig, steps: int) -> StepRecord:
    """Errors of one step, the run from the first pair, and growth along the taught orbit."""
    inputs, targets = circle_pairs(config.points, config.radius)
    with torch.no_grad():
        error = float((step(inputs) - targets).square().sum(dim=-1).mean())
    run = follow(step, inputs[0], steps)
    maps = jacobians(step, inputs)
    taught = 2 * math.pi / config.points * max(len(run.distance) - 1, 1)
    return StepRecord(
        error_over_zero=error / config.radius**2,
        error_over_staying=error / step_length(config.points, config.radius) ** 2,
        path=tuple(map(tuple, run.path.flatten(1).tolist())),
        distance=tuple(run.distance),
        mean=tuple(run.mean),
        floor=tuple(run.floor),
        merged_at=merged_at(run.distance),
        left_at=left_at(run.distance, run.mean, config.radius),
        ending=ending(run.distance),
        turned=total_turn(run.path) / taught,
        growth=growth(maps),
        mean_growth=growth(maps[:, :2, :2]),
        difference_growth=growth(maps[:, 2:, 2:]),
    )


# ------------------------------------------------------------------------------------------ the orbit in closed form


@dataclass(frozen=True, kw_only=True, slots=True)
class OrbitMultipliers:
    """By what a small change of the orbit is multiplied in one step."""

    difference_along: float
    difference_across: float
    mean_along: float
    mean_across: float

    @property
    def largest(self) -> float:
        """The largest modulus of those that are not the turn of both points."""
        return max(map(abs, (self.difference_along, self.mean_along, self.mean_across)))


def multipliers(strengths: Sequence[float], weights: Sequence[float]) -> OrbitMultipliers:
    """Of heads with those ``z`` and ``w``.

    >>> one = multipliers([1.0], [1 / math.tanh(1.0)])
    >>> round(one.difference_along, 4), round(one.mean_across, 4)
    (2.1029, 1.313)
    """
    heads = [(z, w, z / math.cosh(z) ** 2) for z, w in zip(strengths, weights, strict=True)]
    return OrbitMultipliers(
        difference_along=math.fsum(w * (math.tanh(z) + 2 * slope) for z, w, slope in heads),
        difference_across=math.fsum(w * math.tanh(z) for z, w, _ in heads),
        mean_along=math.fsum(w * (1 + slope) for _, w, slope in heads),
        mean_across=math.fsum(weights),
    )


def one_head(strength: float) -> list[float]:
    """The weight with which one head of that strength has the circle as an orbit."""
    return [1 / math.tanh(strength)]


ATTRACTING = (2.0, 0.8)
"""Strengths of two heads that, with the weights below, hold two points apart."""


def attracting_weights() -> list[float]:
    """``-2`` for the second head, and for the first what makes the circle an orbit."""
    first, second = (math.tanh(z) for z in ATTRACTING)
    return [(1 + 2 * second) / first, -2.0]


def orbit_network(
    strengths: Sequence[float], weights: Sequence[float], *, radius: float, angle: float
) -> Network:
    """One attention layer in the plane with those heads, in float64."""
    heads, eye = len(strengths), torch.eye(2, dtype=torch.float64)
    turn = torch.tensor(
        [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], dtype=torch.float64
    )
    query = torch.cat([z / radius**2 * eye for z in strengths], dim=1)
    mixer = Softmax(query, eye.repeat(1, heads), heads=heads, scale=1.0)
    out = torch.cat([w * turn for w in weights])
    return Network([Attention(mixer, Values(eye.repeat(1, heads), out, heads=heads))])


def opposite(radius: float, angle: float = 0.0) -> Tensor:
    """Two opposite points of the circle, ``2 2``."""
    point = radius * torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    return torch.stack([point, -point])
