"""The circle: one attention layer learns where two points are one step later, and is then fed its own answers.

Dong, Cordonnier and Loukas (2021, Section 4.3) show in this way what repeating one layer does to two tokens. A step is
``x -> read(layer(embed(x)))`` with linear maps ``embed`` from the plane to ``dim`` channels and ``read`` back. The
variants differ in the layer, and in whether a step is added to where the points are:

| variant        | a step                                                                                      |
|----------------|---------------------------------------------------------------------------------------------|
| `san`          | ``read(attention(embed(x)))``: no skip and no MLP anywhere                                  |
| `san+skip`     | ``x + read(attention(embed(x)))``: the skip is that of the recurrence, as in the paper      |
| `san+mlp`      | ``read(mlp(attention(embed(x))))``, without any skip                                        |
| `transformer`  | ``x + read(mlp(attention(embed(x))))``                                                      |
| `official`     | ``read(norm(h + attention(h)))`` with ``h = norm(embed(x))``: the layer of the published code |
| `official+mlp` | the same with an MLP, its skip and its norm after it                                        |

The published code calls ``official`` a network without skips: the skip inside its layer is always there.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from rankscope.core.refs import Ref
from rankscope.core.types import TokenMatrix
from rankscope.errors import ConfigError
from rankscope.network import Attention, Chain, Context, Mlp, Network, Part, Skip, Softmax, Values, generators
from rankscope.network.parts import affine
from rankscope.papers.tasks.model import WeightDraw
from rankscope.papers.tasks.task import Batch, Task, TaskConfig, register, shuffled_batches

Variant = Literal["san", "san+skip", "san+mlp", "transformer", "official", "official+mlp"]


FEWEST = 8
"""Points of a circle, so that each arc has some steps."""


class CircleConfig(TaskConfig):
    """The circle: 1 layer of 2 heads on 32 channels (the paper also has 64 and 128), 1000 points, radius 0.3."""

    layers: int = Field(
        default=1, ge=1, le=1, strict=True, description="it is the recurrence that repeats it"
    )
    dim: int = Field(default=32, ge=1, strict=True)
    initial_std: float = Field(
        default=0.3, gt=0, allow_inf_nan=False, description="of every weight; see fan_in"
    )
    fan_in: bool = Field(default=True, description="initial_std is divided by the root of a map's inputs")
    epochs: int = Field(default=70, ge=0, strict=True)
    batch: int = Field(default=30, ge=1, strict=True, description="pairs in one step of the optimizer")
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    variant: Variant = Field(default="san", description="what a step is made of")
    points: int = Field(
        default=1000,
        ge=FEWEST,
        multiple_of=2,
        strict=True,
        description="steps of a whole turn, an even number",
    )
    radius: float = Field(default=0.3, gt=0, allow_inf_nan=False)
    noise: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="standard deviation, in radii, of what is added to the points learned from",
    )
    in_order: bool = Field(default=False, description="pairs as they follow each other, not shuffled")

    @property
    def examples(self) -> int:
        return self.points // 2 - 1


class FanIn(WeightDraw):
    """Weights N(0, std^2 / inputs), so that wide maps do not start out larger than narrow ones."""

    def weights(self, rows: int, columns: int) -> nn.Parameter:
        return WeightDraw(self.std / math.sqrt(rows), self.generator).weights(rows, columns)


class PlaneMap(Part):
    """``x A + b`` for every token, between the plane and the channels."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: TokenMatrix, context: Context) -> TokenMatrix:
        return affine(x, self.weight, self.bias)


class CircleModel(nn.Module):
    """One step of both points, as a network of one block whose tokens are points of the plane."""

    def __init__(self, config: CircleConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        draw = (FanIn if config.fan_in else WeightDraw)(config.initial_std, generator)
        self.network = Network([STEPS[config.variant](config, draw)])

    def forward(self, points: Tensor) -> Tensor:
        """Where the points ``*batch 2 2`` are one step later, in the dtype of the weights."""
        stepped: Tensor = self.network(points.to(next(self.parameters()).dtype))
        return stepped


def _plain(config: CircleConfig, draw: WeightDraw, *more: Part) -> Part:
    return Chain([_embed(config, draw), _attention(config, draw), *more, _read_out(config, draw)])


def _san(config: CircleConfig, draw: WeightDraw) -> Part:
    return _plain(config, draw)


def _with_mlp(config: CircleConfig, draw: WeightDraw) -> Part:
    return _plain(config, draw, _mlp(config, draw))


def _official(config: CircleConfig, draw: WeightDraw, *more: Part) -> Part:
    # the published code draws values and output maps wider than all else: uniform within 1 / sqrt(dim)
    values = WeightDraw(1 / math.sqrt(3 * config.dim), draw.generator)
    layer = [Skip(_attention(config, draw, values)), draw.norm(config.dim)]
    return Chain([_embed(config, draw), draw.norm(config.dim), *layer, *more, _read_out(config, draw)])


def _official_mlp(config: CircleConfig, draw: WeightDraw) -> Part:
    return _official(config, draw, Skip(_mlp(config, draw)), draw.norm(config.dim))


STEPS: Mapping[str, Callable[[CircleConfig, WeightDraw], Part]] = {
    "san": _san,
    "san+skip": lambda config, draw: Skip(_san(config, draw)),
    "san+mlp": _with_mlp,
    "transformer": lambda config, draw: Skip(_with_mlp(config, draw)),
    "official": _official,
    "official+mlp": _official_mlp,
}
"""The tree of one step by variant."""


def _embed(config: CircleConfig, draw: WeightDraw) -> PlaneMap:
    return PlaneMap(draw.weights(2, config.dim), draw.zeros(config.dim))


def _read_out(config: CircleConfig, draw: WeightDraw) -> PlaneMap:
    return PlaneMap(draw.weights(config.dim, 2), draw.zeros(2))


def _attention(config: CircleConfig, draw: WeightDraw, of_values: WeightDraw | None = None) -> Attention:
    dim, wide = config.dim, draw if of_values is None else of_values
    query, key = ({"weight": draw.weights(dim, dim), "bias": draw.zeros(dim)} for _ in range(2))
    mixer = Softmax(
        query["weight"], key["weight"], heads=config.heads, query_bias=query["bias"], key_bias=key["bias"]
    )
    values = Values(
        wide.weights(dim, dim),
        wide.weights(dim, dim),
        heads=config.heads,
        value_bias=draw.zeros(dim),
        out_bias=draw.zeros(dim),
    )
    return Attention(mixer, values)


def _mlp(config: CircleConfig, draw: WeightDraw) -> Mlp:
    width = config.dim if config.mlp_width is None else config.mlp_width
    return Mlp(
        draw.weights(config.dim, width),
        draw.weights(width, config.dim),
        activation="gelu",
        up_bias=draw.zeros(width),
        down_bias=draw.zeros(config.dim),
    )


# --------------------------------------------------------------------------------- the walk around the circle


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


def held_out(config: CircleConfig) -> Batch:
    """All pairs and where they are next: the points learned from, for the recurrence is the test."""
    inputs, targets = circle_pairs(config.points, config.radius)
    return inputs.float(), targets.float()


def batches(config: CircleConfig) -> Iterator[list[Batch]]:
    """For every epoch its batches; with ``noise`` every epoch draws new noise for the inputs, never for the targets."""
    generator = generators(config.seed)[1]
    inputs, targets = held_out(config)

    def examples() -> Batch:
        if not config.noise:
            return inputs, targets
        return shaken(inputs, config.noise * config.radius, generator=generator), targets

    if config.in_order:
        for _ in range(config.epochs):
            now, aims = examples()
            yield list(zip(now.split(config.batch), aims.split(config.batch), strict=True))
    else:
        yield from shuffled_batches(examples, config, generator=generator, fresh=bool(config.noise))


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """``sum (output - target)^2 / sum target^2`` of a batch.

    The published loss is the numerator. Adam ignores a scale that all batches share, so that they differ in the last
    batch of an epoch alone, if it is smaller: here it counts as much as the others, there by its number of pairs.
    """
    return (outputs - targets).square().sum() / targets.square().sum()


def score(outputs: Tensor, targets: Tensor) -> float:
    """``1 - relative error``: 1 is perfect, saying zero all the time has 0."""
    return 1 - float(relative_error(outputs.double(), targets.double()))


def lines(config: CircleConfig) -> Mapping[str, float]:
    """Scores to compare with."""
    return {
        "no movement": 1 - step_length(config.points, config.radius) / config.radius,
        "zero": 0.0,
    }


CIRCLE = register(
    Task(
        name="circle",
        about="Each of two points on opposite sides of a circle says where it is one step later.",
        source=Ref(
            key="dong2021",
            where="Section 4.3, recurrent attention",
            differs="no dropout; the layer without the skip and norm of the published code, and with them as "
            "the variant 'official'; own optimizer settings beside the published ones; the last, smaller batch "
            "of an epoch counts as much as a whole one",
        ),
        config=CircleConfig,
        settings={
            "official": {
                "variant": "official",
                "initial_std": 0.02,
                "fan_in": False,
                "learning_rate": 1e-5,
                "warmup": 0,
                "decay": "none",
                "in_order": True,
            },
            "fast": {"points": 200, "epochs": 100, "batch": 33, "learning_rate": 3e-3, "warmup": 20},
        },
        model=CircleModel,
        batches=batches,
        held_out=held_out,
        loss=squared_error,
        score=score,
        scored="1 - rms error of the next points over the radius",
        lines=lines,
        notes=(
            "Attention alone (variant san) hardly learns the step: at the paper's sizes its mean squared error is "
            "about that of not moving at all, with a skip (variant san+skip) some 2e-5 of it.",
            "The score is of one taught step. What becomes of the points when the network is fed its own answers: "
            "rankscope reproduce circle.",
        ),
    )
)
