"""The convex-hull task: points of the plane in, for each of them whether it is a vertex of their convex hull.

It is one of three tasks on which Dong, Cordonnier and Loukas (2021, Section 4.2) compare short and long paths of a
trained network. Targets are exact (``on_hull``): floating point decides the signs of orientations where
its error is too small to matter, and rational arithmetic decides the rest.
"""

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction

import torch
from pydantic import Field
from torch import Tensor

from rankscope.core.refs import Ref
from rankscope.errors import ConfigError, ShapeError
from rankscope.network import generators
from rankscope.papers.tasks.model import PointReader, TaskModel, WeightDraw
from rankscope.papers.tasks.task import (
    Batch,
    Task,
    TaskConfig,
    register,
    shuffled_batches,
    token_accuracy,
    token_loss,
)

UNIT = 2.0**-53
"""Unit round-off of float64."""

ORIENTATION_BOUND = (3 + 16 * UNIT) * UNIT
"""Times ``|l| + |r|``, a bound on the error of ``l - r``; the constant that Shewchuk (1997, Section 4.3) calls A."""

SMALLEST = 2.0**-1022
"""Smallest normal number: above all that underflow of the two products can add to the error."""

AT_ONCE = 2**21
"""Pairs of points that are compared in one step, which bounds the memory."""


class HullConfig(TaskConfig):
    """Convex hull: 6 layers of 3 heads on 84 channels, 10 points, 10000 sets to train on, 300 to test on.

    As in the published code the blocks hold attention alone unless ``mlp_width`` is given, and there are no
    positions. Points are drawn as that code draws them; the text of the paper has ``scale`` and ``shift`` one.
    """

    heads: int = Field(default=3, ge=1, strict=True)
    dim: int = Field(default=84, ge=1, strict=True)
    reader_width: int | None = Field(
        default=84, ge=1, strict=True, description="of the layer between points and channels; none if None"
    )
    value_std: float | None = Field(
        default=0.063,
        gt=0,
        allow_inf_nan=False,
        description="of the value and output maps: 1 / sqrt(3 dim), as in the published code",
    )
    dropout: float = Field(
        default=0.1, ge=0, lt=1, allow_inf_nan=False, description="as in the published code"
    )
    epochs: int = Field(default=10, ge=0, strict=True)
    batch: int = Field(default=100, ge=1, strict=True, description="sets in one step of the optimizer")
    points: int = Field(
        default=10, ge=4, strict=True, description="points in a set; three are always vertices"
    )
    scale: float = Field(default=10.0, gt=0, allow_inf_nan=False, description="side of the square of points")
    shift: float = Field(
        default=3.3, ge=0, allow_inf_nan=False, description="standard deviation of the place of the square"
    )
    train: int = Field(default=10_000, ge=1, strict=True, description="sets seen in one epoch")
    test: int = Field(default=300, ge=1, strict=True, description="sets kept for testing")
    fresh: bool = Field(default=False, description="draw new training sets in every epoch")

    @property
    def examples(self) -> int:
        return self.train


def hull_batch(config: HullConfig, count: int, *, generator: torch.Generator) -> Batch:
    """``count`` sets of points, ``count points 2`` in float64, and class 1 for vertices, 0 for all other points.

    >>> points, targets = hull_batch(HullConfig(points=4), 1, generator=torch.Generator().manual_seed(0))
    >>> points.round().int().tolist(), targets.tolist()
    ([[[7, 6], [2, 8], [4, 7], [-1, 2]]], [[1, 1, 0, 1]])
    """
    points = hull_points(count, config.points, scale=config.scale, shift=config.shift, generator=generator)
    return points, on_hull(points).long()


def held_out(config: HullConfig) -> Batch:
    """The test set of ``config``: points and targets, the same whatever the training looks like."""
    return hull_batch(config, config.test, generator=_data(config))


def batches(config: HullConfig) -> Iterator[list[Batch]]:
    """For every epoch its batches of points and targets, in shuffled order.

    One collection of sets serves all epochs, or with ``fresh`` every epoch has its own. They are drawn after the test
    sets from the same source.
    """
    generator = _data(config)
    hull_batch(config, config.test, generator=generator)  # those of ``held_out``
    yield from shuffled_batches(
        lambda: hull_batch(config, config.train, generator=generator),
        config,
        generator=generator,
        fresh=config.fresh,
    )


def model(config: HullConfig, generator: torch.Generator) -> TaskModel:
    """A linear map of the points, the blocks, a classifier with two classes."""
    draw = WeightDraw(config.initial_std, generator)
    reader = PointReader(2, config.dim, draw, hidden=config.reader_width)
    return TaskModel(config, reader, draw, classes=2)


def lines(config: HullConfig) -> Mapping[str, float]:
    """Accuracies to compare with: the same answer for every point, on average over sets."""
    return {"naive": naive_accuracy(config.points)}


def _data(config: HullConfig) -> torch.Generator:
    return generators(config.seed)[1]


# --------------------------------------------------------------------- points and the vertices of their hulls


def hull_points(count: int, points: int, *, scale: float, shift: float, generator: torch.Generator) -> Tensor:
    """``count`` sets of points, ``count points 2`` in float64: uniform in a square that is moved as a whole.

    The square is ``[0, scale]^2``; every set has its own shift, N(0, shift^2) in both coordinates.

    >>> hull_points(2, 10, scale=10.0, shift=3.3, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 10, 2])
    """
    if count < 0:
        raise ConfigError(f"count={count} sets of points were asked for; ask for zero or more")
    _check_number(points)
    if not (math.isfinite(scale) and scale > 0):
        raise ConfigError(f"the square has sides of scale={scale}; choose a positive number")
    if not (math.isfinite(shift) and shift >= 0):
        raise ConfigError(f"the shift has standard deviation shift={shift}; choose zero or a positive number")
    square = scale * torch.rand(count, points, 2, generator=generator, dtype=torch.float64)
    return square + shift * torch.randn(count, 1, 2, generator=generator, dtype=torch.float64)


def on_hull(points: Tensor) -> Tensor:
    """Whether each point is a vertex of the convex hull of its set: ``*batch points`` for ``*batch points 2``.

    A vertex is a point that is no mixture of points that differ from it. So a point inside an edge is not a vertex,
    of collinear points the two ends are the vertices, and equal points are the same point: all of them are vertices
    or none is. A point p is a vertex if the steps ``d_j = p_j - p`` to all others lie in one open half-plane, that is,
    if from some ``d_j`` all others are reached by a turn to the left of less than 180 degrees (no turn included).

    >>> on_hull(torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [1.0, 1.0], [0.5, 0.5]])).tolist()
    [True, True, True, False, False]
    """
    _check_points(points)
    sets = points.detach().double().reshape(-1, *points.shape[-2:])
    chosen = sets.split(max(1, AT_ONCE // points.shape[-2] ** 2))
    found = torch.cat([_vertices(some) for some in chosen])
    return found.reshape(points.shape[:-1])


def expected_vertices(points: int) -> Fraction:
    """Expected number of vertices of the convex hull of n independent uniform points in a square, exactly.

    ``n (n - 1) / 2 * (4 / 3) * (2^-k / (k + 2)^2 + sum_j C(k, j) (-1/2)^j / (j + 2)^2
    + 2^-k (2^(k + 2) - 2) / ((k + 1) (k + 2)))`` with ``k = n - 2``.

    Two points make an edge if the k others lie on one side of the line through them, so the number is that of the
    pairs times ``E[s^k + (1 - s)^k]``, where the line cuts off the area s. The line cuts off a corner, with legs a
    and b, with density ``a b / 3`` on the unit square for each of 4 corners, and s is ``a b / 2``; or it meets two
    opposite sides at heights u and v, with density 1 / 3 for each of 2 directions, and s is ``(u + v) / 2``. Buchta
    (1984) gives such formulas for all convex polygons. Moving, stretching and shearing the square changes nothing.

    >>> expected_vertices(4)
    Fraction(133, 36)
    """
    _check_number(points)
    if points == 1:
        return Fraction(1)
    k = points - 2
    small = Fraction(1, 2**k * (k + 2) ** 2)
    large = sum(Fraction(math.comb(k, j) * (-1) ** j, 2**j * (j + 2) ** 2) for j in range(k + 1))
    sides = Fraction(2 ** (k + 2) - 2, 2**k * (k + 1) * (k + 2))
    return math.comb(points, 2) * Fraction(4, 3) * (small + large + sides)


def naive_accuracy(points: int) -> float:
    """Token accuracy, on average over sets, of the same answer for every point: the share of the commoner one.

    For 10 points it is 0.596, the share of vertices; the line called naive in the paper's figure is at 0.54.
    """
    share = expected_vertices(points) / points
    return float(max(share, 1 - share))


def _vertices(sets: Tensor) -> Tensor:
    """``on_hull`` of ``sets points 2`` in float64."""
    places = range(sets.shape[1])
    return torch.stack([_is_vertex(sets, place) for place in places], dim=-1)


def _is_vertex(sets: Tensor, place: int) -> Tensor:
    """Whether the point at one place is a vertex, for every set."""
    side = (sets > sets[:, place, None]).to(torch.int8) - (sets < sets[:, place, None]).to(torch.int8)
    equal = (side == 0).all(dim=-1)
    # parallel steps have the same direction if the signs of their coordinates agree
    along = (side[:, :, None] == side[:, None, :]).all(dim=-1)
    turn = _turns(sets, place, equal)
    left = (turn > 0) | ((turn == 0) & along)
    first = ((left | equal[:, None, :]).all(dim=-1)) & ~equal
    return first.any(dim=-1) | equal.all(dim=-1)


def _turns(sets: Tensor, place: int, equal: Tensor) -> Tensor:
    """Sign of the turn from step j to step k, ``sets points points``, exactly; zero if one of them is no step.

    With both coordinates of a step rounded once, each product once, and their difference once, the true l and r are
    the computed ones times ``1 + e`` with ``|e| <= (1 - u)^-3 - 1 < 3 u + 7 u^2 - 48 u^3``. The sign of the computed
    ``l - r`` is therefore right if its size is above the bound, whose own rounding costs a factor ``1 - 3 u`` at most.
    Overflow gives infinity or NaN, which is above no bound.
    """
    steps = sets - sets[:, place, None]
    x, y = steps.unbind(dim=-1)
    l, r = x[:, :, None] * y[:, None, :], y[:, :, None] * x[:, None, :]  # noqa: E741
    found = l - r
    decided = found.abs() > ORIENTATION_BOUND * (l.abs() + r.abs()) + SMALLEST
    signs = torch.where(decided, found.sign(), 0.0).to(torch.int8)
    left_open = torch.triu(~decided & ~equal[:, :, None] & ~equal[:, None, :], diagonal=1)
    one, j, k = left_open.nonzero(as_tuple=True)
    corners = torch.stack([sets[one, place], sets[one, j], sets[one, k]], dim=1)
    exact = torch.tensor([_exact_turn(triple) for triple in corners.tolist()], dtype=torch.int8)
    signs[one, j, k], signs[one, k, j] = exact, -exact
    return signs


def _exact_turn(corners: list[list[float]]) -> int:
    """Sign of the turn at the first of three points, from the second to the third, in rational numbers."""
    (x, y), (a, b), (c, d) = ([Fraction(number) for number in corner] for corner in corners)
    turn = (a - x) * (d - y) - (b - y) * (c - x)
    return (turn > 0) - (turn < 0)


def _check_number(points: int) -> None:
    if points < 1:
        raise ConfigError(f"points={points} in a set were asked for; ask for at least one")


def _check_points(points: Tensor) -> None:
    if not points.is_floating_point() or points.ndim < 2 or points.shape[-1] != 2 or points.shape[-2] < 1:
        raise ShapeError(
            "expected floating-point points (*batch, points, 2) with at least one point in a set, got "
            f"{str(points.dtype).removeprefix('torch.')} of shape {tuple(points.shape)}"
        )
    if not bool(torch.isfinite(points).all()):
        raise ShapeError("the points hold NaN or infinity; a convex hull needs finite coordinates")


HULL = register(
    Task(
        name="hull",
        about="Every point says whether it is a vertex of the convex hull of its set.",
        source=Ref(
            key="dong2021",
            where="Section 4.2, convex hull",
            differs="own optimizer settings beside the published ones",
        ),
        config=HullConfig,
        settings={
            "official": {
                "learning_rate": 1e-5,
                "weight_decay": 1e-3,
                "epochs": 70,
                "batch": 30,
                "warmup": 0,
                "decay": "steps",
                "milestones": (15, 30, 40, 50, 60),
                "factor": 0.91,
            },
            "fast": {
                "layers": 4,
                "heads": 2,
                "dim": 32,
                "train": 2000,
                "epochs": 10,
                "batch": 50,
                "learning_rate": 2e-3,
                "warmup": 50,
                # what the published code has besides needs more steps than a few seconds allow
                "reader_width": None,
                "value_std": None,
                "dropout": 0.0,
            },
        },
        model=model,
        batches=batches,
        held_out=held_out,
        loss=token_loss,
        score=token_accuracy,
        scored="token accuracy on held-out sets of points",
        lines=lines,
        published={"full model": 0.90, "naive": 0.54},
        notes=(
            "The naive line of the paper's figure is at 0.54; of 10 uniform points 0.596 are vertices on average, so "
            "that the same answer for every point has an accuracy of 0.596.",
            "At the paper's sizes the published optimizer (Adam at 1e-5, batches of 30, 70 epochs) trains this network "
            "as well, but slowly: a token accuracy of 0.90 in test after 25 epochs.",
        ),
    )
)
