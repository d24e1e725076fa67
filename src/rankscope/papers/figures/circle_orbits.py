"""Two opposite points on a circle under attention alone: when the orbit attracts, in closed form.

Let every head have isotropic logits ``c_h x_i . x_j`` and the value map ``w_h R`` with R the rotation by one step. With
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
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.network import Attention, Network, Softmax, Values


@dataclass(frozen=True, kw_only=True, slots=True)
class Multipliers:
    """By what a small change of the orbit is multiplied in one step."""

    difference_along: float
    difference_across: float
    mean_along: float
    mean_across: float

    @property
    def largest(self) -> float:
        """The largest modulus of those that are not the turn of both points."""
        return max(map(abs, (self.difference_along, self.mean_along, self.mean_across)))


def multipliers(strengths: Sequence[float], weights: Sequence[float]) -> Multipliers:
    """Of heads with those ``z`` and ``w``.

    >>> one = multipliers([1.0], [1 / math.tanh(1.0)])
    >>> round(one.difference_along, 4), round(one.mean_across, 4)
    (2.1029, 1.313)
    """
    heads = [(z, w, z / math.cosh(z) ** 2) for z, w in zip(strengths, weights, strict=True)]
    return Multipliers(
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
