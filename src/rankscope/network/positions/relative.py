"""Learned biases by distance: a table read through buckets (Raffel et al. 2020, T5), or clipped distances."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from rankscope.core.numerics import broadcast
from rankscope.errors import ConfigError
from rankscope.network.context import Context
from rankscope.network.parts import weight
from rankscope.network.positions.base import Position, distances

Buckets = Callable[[Tensor], Tensor]
"""A rule from distances ``position(i) - position(j)`` to rows of the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogBuckets:
    """T5's rule: near distances have a bucket each, far ones share buckets that grow logarithmically.

    With ``bidirectional`` half of the buckets are for keys after the query; otherwise those count as distance 0.
    """

    count: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    def __post_init__(self) -> None:
        exact = self.count // (4 if self.bidirectional else 2)
        if exact < 1 or self.max_distance <= exact:
            raise ConfigError(
                f"{self.count} buckets up to distance {self.max_distance} leave none for near distances; "
                f"use at least {4 if self.bidirectional else 2} buckets and a larger distance"
            )

    def __call__(self, distance: Tensor) -> Tensor:
        count, offset = self.count, torch.zeros_like(distance)
        if self.bidirectional:
            count //= 2
            offset = (distance < 0).long() * count
            distance = distance.abs()
        else:
            distance = distance.clamp(min=0)
        exact = count // 2
        growth = torch.log(distance.clamp(min=1).float() / exact) / log(self.max_distance / exact)
        far = exact + (growth * (count - exact)).long()
        return offset + torch.where(distance < exact, distance, far.clamp(max=count - 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class ClippedBuckets:
    """One bucket per distance from ``-max_distance`` to ``max_distance``; farther ones share the last."""

    max_distance: int

    def __call__(self, distance: Tensor) -> Tensor:
        return distance.clamp(-self.max_distance, self.max_distance) + self.max_distance


class RelativeBias(Position):
    """``table[bucket(i, j), head]`` added to the logits; ``table`` is ``*seeds buckets heads``."""

    def __init__(self, table: Tensor, buckets: Buckets) -> None:
        super().__init__()
        self.table = weight(table)
        self.buckets = buckets

    def bias(self, query: Tensor, context: Context, scale: float) -> Tensor | None:
        key = ("buckets", self.buckets, query.shape[-2], query.device)
        return self._read(context.shared(key, lambda: self.buckets(distances(query, context))), query.dtype)

    def at_distances(self, distance: Tensor, dtype: torch.dtype) -> Tensor | None:
        return self._read(self.buckets(distance), dtype)

    def _read(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        index = index.squeeze(-3) if index.ndim > 2 else index
        table = self.table.transpose(-1, -2)  # *seeds heads buckets
        if index.ndim == 2:
            return table[..., index].to(dtype)
        if table.ndim == 2:
            return table[:, index].movedim(0, -3).to(dtype)
        batch = broadcast(table.shape[:-2], index.shape[:-2])
        flat = index.flatten(-2).unsqueeze(-2)
        flat = flat.expand(*batch, table.shape[-2], flat.shape[-1])
        found = torch.gather(table.expand(*batch, *table.shape[-2:]), -1, flat)
        return found.reshape(*found.shape[:-1], *index.shape[-2:]).to(dtype)
