"""Random weights of rows, and the layer that most rows are: maps of the tokens times values of the tokens."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.refs import Ref
from rankscope.layers.kinds import Group, LayerKind, MakeMixer
from rankscope.layers.layer import Mixer

Maps = Mixer
"""Tokens to maps ``heads x tokens x tokens``; rows are queries."""

MapsFor = MakeMixer
"""How maps are made."""


def gaussian(generator: torch.Generator, *shape: int) -> Tensor:
    """Independent normal entries of variance 1 / fan-in, the fan-in being the last axis but one."""
    fan_in = shape[-2] if len(shape) > 1 else shape[-1]
    return torch.randn(*shape, generator=generator, dtype=torch.float64) / math.sqrt(fan_in)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Independent standard normal entries."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Independent entries between two numbers."""
    return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)


def orthogonal(generator: torch.Generator, dim: int) -> Tensor:
    """A random orthogonal matrix: it keeps all lengths, so that what falls falls by the map alone."""
    found: Tensor = torch.linalg.qr(normal(generator, dim, dim)).Q
    return found


def head_count(dim: int, most: int = 4) -> int:
    """How many heads of equal width a dim is cut into: four, or fewer where four do not divide it."""
    return next(heads for heads in range(min(most, dim), 0, -1) if dim % heads == 0)


def value_maps(generator: torch.Generator, dim: int, heads: int) -> Tensor:
    """One ``dim x dim`` value map per head, of rank dim / heads; all together they add up to an orthogonal one."""
    into = orthogonal(generator, dim).reshape(dim, heads, -1).transpose(0, 1)
    out = orthogonal(generator, dim).reshape(heads, -1, dim)
    return into @ out


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MapLayer:
    """``sum_h A_h(x) x W_h``: every layer that is linear in its values."""

    maps: Maps
    values: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        mixed: Tensor = (self.maps(x) @ (x @ self.values)).sum(dim=-3)
        return mixed


def map_kind(
    name: str,
    group: Group,
    sentence: str,
    maps_for: MapsFor,
    *,
    ref: Ref | None = None,
    heads: Callable[[int], int] = lambda dim: 1,
    tokens: int | None = None,
) -> LayerKind:
    """The row of a layer that is made of maps and of one orthogonal value map, or of one value map per head.

    Maps are drawn before values, so that the maker of maps and the maker of the layer draw the same maps.
    """

    def make(count: int, dim: int, generator: torch.Generator) -> Mixer:
        maps = maps_for(count, dim, generator)
        return MapLayer(maps=maps, values=value_maps(generator, dim, heads(dim)))

    return LayerKind(
        name=name, group=group, sentence=sentence, ref=ref, make=make, maps=maps_for, tokens=tokens
    )
