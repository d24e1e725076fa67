"""Position rules by name, for random networks: ``none``, ``alibi:0.5``, ``rotary:10000:0.5``, ..."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.registry import Registry
from rankscope.errors import ConfigError
from rankscope.network.positions.alibi import Alibi
from rankscope.network.positions.base import NoPosition, Position
from rankscope.network.positions.relative import LogBuckets, RelativeBias
from rankscope.network.positions.rotary import Rotary
from rankscope.network.positions.transformer_xl import TransformerXL

Draw = Callable[..., Tensor]
"""Standard normal draws of a given shape."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadShape:
    """What a position rule needs to know of the attention it serves."""

    heads: int
    head_dim: int
    dim: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionKind:
    """A named position rule and how many numbers its text may carry."""

    name: str
    grammar: str
    definition: str
    most: int
    make: Callable[[list[float], HeadShape, Draw], Position]


def _alibi(numbers: list[float], shape: HeadShape, draw: Draw) -> Position:
    if not numbers:
        return Alibi.geometric(shape.heads)
    return Alibi(torch.full((shape.heads,), numbers[0], dtype=torch.float64))


def _rotary(numbers: list[float], shape: HeadShape, draw: Draw) -> Position:
    base, fraction = [*numbers, *(10_000.0, 1.0)[len(numbers) :]]
    return Rotary.from_base(shape.head_dim, base=base, fraction=fraction)


def _relative(numbers: list[float], shape: HeadShape, draw: Draw) -> Position:
    buckets = LogBuckets()
    return RelativeBias(draw(buckets.count, shape.heads), buckets)


def _transformer_xl(numbers: list[float], shape: HeadShape, draw: Draw) -> Position:
    if shape.dim % 2:
        raise ConfigError(f"transformer-xl positions need an even dim, got dim={shape.dim}")
    projection = draw(shape.dim, shape.heads * shape.head_dim) * shape.dim**-0.5
    return TransformerXL(projection, torch.zeros(shape.heads, shape.head_dim, dtype=torch.float64))


POSITIONS: Registry[PositionKind] = Registry("position rule")
for _kind in (
    PositionKind(
        name="none", grammar="none", definition="positions do not enter", most=0, make=lambda *_: NoPosition()
    ),
    PositionKind(
        name="alibi",
        grammar="alibi[:s]",
        definition="-s |i-j| added to the logits of every head; without s, slopes 2^(-8h/heads)",
        most=1,
        make=_alibi,
    ),
    PositionKind(
        name="rotary",
        grammar="rotary[:base[:fraction]]",
        definition="that fraction of the channels of queries and keys turned by position * base^(-2p/width)",
        most=2,
        make=_rotary,
    ),
    PositionKind(
        name="relative",
        grammar="relative",
        definition="N(0, 1) bias per head and log-spaced bucket of the distance (T5)",
        most=0,
        make=_relative,
    ),
    PositionKind(
        name="transformer-xl",
        grammar="transformer-xl",
        definition="queries times a random projection of the sinusoid of the distance",
        most=0,
        make=_transformer_xl,
    ),
):
    POSITIONS.register(_kind.name, _kind)


def parse_position(text: str) -> tuple[PositionKind, list[float]]:
    """The kind of rule a text names, and its numbers.

    >>> kind, numbers = parse_position("alibi:0.5")
    >>> kind.name, numbers
    ('alibi', [0.5])
    """
    name, *rest = text.split(":")
    kind = POSITIONS[name]
    try:
        numbers = [float(item) for item in rest]
    except ValueError:
        numbers = [float("nan")]
    if len(numbers) > kind.most or not all(0 <= number < float("inf") for number in numbers):
        raise ConfigError(f"position rule {text!r} does not read as {kind.grammar} with non-negative numbers")
    return kind, numbers


def make_position(text: str, shape: HeadShape, draw: Draw) -> Position:
    """The position rule a text names, for attention of that shape; learned tables are drawn."""
    kind, numbers = parse_position(text)
    return kind.make(numbers, shape, draw)
