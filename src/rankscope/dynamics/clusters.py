"""Clusters of tokens on the sphere: ``X <- D softmax(beta X X^T) X``, how many there are and how long they last.

Every token moves towards the others with weights ``exp(-beta (1 - cos))``: near ones merge within a few steps, far ones
attract each other so weakly that several clusters stand still for a time exponential in ``beta``. That such states last
exponentially long is proven for the flow of this system by Geshkovski, Koubbi, Polyanskiy and Rigollet 2024
(arXiv:2410.06833, the statement of the abstract); rates below are derived here for the steps themselves.

Two clusters of sizes m and k at the angle t: the first turns towards the second, in one step, by exactly

    phi = atan2(k w sin t, m + k w cos t),   w = exp(-beta (1 - cos t)),   about (k/m) sin t exp(-beta (1 - cos t)).

With an orthogonal value map in place of the identity the tokens are those of the identity turned by that map once more
at every step, because ``X X^T`` does not see it. So angles, clusters and speeds are the same.
"""

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from rankscope.core.numerics import checked, relative_floor
from rankscope.dynamics.system import System, attention_system
from rankscope.errors import ConfigError, ShapeError
from rankscope.masks import MaskRule
from rankscope.measures.norms import turned, unit_tokens
from rankscope.network import Softmax, Sphere

CLOSE = 1e-2
"""Angle below which two tokens are in one cluster: well below the width 1 / sqrt(beta) of what a token sees."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Clusters:
    """Clusters of tokens, and how many there could be as far as rounding can tell.

    Pairs of directions whose distance is within ``margin`` of that of two unit vectors at the given angle are ties:
    which side they are on is rounding. They count as joined, so that the answer does not hang on the last digit.

    Args:
        labels: ``*batch tokens``, the lowest number of a token in the same cluster.
        count: ``*batch``, how many clusters there are, ties joined.
        most: ``*batch``, how many there are with all ties apart.
        margin: half the width of a tie, a distance on the unit sphere.
    """

    labels: Tensor
    count: Tensor
    most: Tensor
    margin: float

    @property
    def is_settled(self) -> Tensor:
        """``*batch``: whether no tie matters."""
        return self.count == self.most


def tie_margin(dtype: torch.dtype) -> float:
    """How far rounding to ``dtype`` may move the distance of two directions: each turns by a floor of one layer at
    most.

    >>> f"{tie_margin(torch.float64):.0e}"
    '7e-15'
    """
    return 2 * float(turned(relative_floor(1, dtype)))


def cluster_system(
    beta: float, dim: int, *, values: Tensor | None = None, rule: MaskRule | None = None
) -> System:
    """``X <- D softmax(beta X X^T) X W`` on the unit sphere; ``W`` is the identity unless given."""
    if not beta >= 0:
        raise ConfigError(f"an inverse temperature is not negative, got beta={beta}")
    eye = torch.eye(dim, dtype=torch.float64)
    mixer = Softmax(eye, eye, heads=1, rule=rule, scale=beta)
    return attention_system(mixer, eye if values is None else values, Sphere())


def uniform_starts(count: int, tokens: int, dim: int, *, generator: torch.Generator) -> Tensor:
    """Independent tokens, uniform on the unit sphere: ``count tokens dim``."""
    draws = torch.randn(count, tokens, dim, generator=generator, dtype=torch.float64)
    lengths: Tensor = torch.linalg.vector_norm(draws, dim=-1, keepdim=True)
    return draws / lengths


def find_clusters(x: Tensor, *, angle: float = CLOSE, margin: float | None = None) -> Clusters:
    """The clusters of tokens ``*batch tokens dim``, whose lengths do not matter.

    Single linkage: two tokens are in one cluster if a chain of tokens joins them in which neighbors are at most
    ``angle`` radians apart. Where the distance of two directions is within ``margin`` of that the pair is a tie and
    counts as joined; the margin is what rounding to the dtype of ``x`` may have done to it, unless one is given.

    >>> ring = torch.arange(50, dtype=torch.float64) * (2 * math.pi / 50)
    >>> found = find_clusters(torch.stack([ring.cos(), ring.sin()], dim=-1), angle=2 * math.pi / 50)
    >>> int(found.count), int(found.most), bool(found.is_settled)
    (1, 50, False)
    """
    if not 0 <= angle <= math.pi:
        raise ConfigError(f"an angle between tokens lies from 0 to pi, got {angle}")
    if margin is not None and not 0 <= margin < math.inf:
        raise ConfigError(f"the margin of a tie is a distance of 0 or more, got {margin}")
    checked_x = checked(x)
    width = tie_margin(x.dtype) if margin is None else margin
    if bool((checked_x == 0).all(dim=-1).any()):
        raise ShapeError("a zero token has no direction and belongs to no cluster; leave it out")
    defects = half_squares(unit_tokens(checked_x))
    labels = linked_by(defects, angle, margin=width)
    most = linked_by(defects, angle, margin=-width)
    return Clusters(labels=labels, count=count_of(labels), most=count_of(most), margin=width)


def cluster_labels(x: Tensor, *, angle: float = CLOSE) -> Tensor:
    """``*batch tokens``: the lowest number of a token in the same cluster, see ``find_clusters``."""
    return find_clusters(x, angle=angle).labels


def count_clusters(x: Tensor, *, angle: float = CLOSE) -> Tensor:
    """``*batch``: how many clusters there are, ties joined; ``find_clusters`` says whether a tie matters.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 1e-4], [0.0, 1.0]], dtype=torch.float64)
    >>> int(count_clusters(x))
    2
    """
    return find_clusters(x, angle=angle).count


def linked(unit: Tensor, angle: float) -> Tensor:
    """As ``cluster_labels``, of unit tokens."""
    return linked_by(half_squares(unit), angle)


def linked_by(defects: Tensor, angle: float, *, margin: float | None = None) -> Tensor:
    """As ``cluster_labels``, from ``1 - cos`` of all pairs; a margin below zero leaves ties apart.

    Two unit vectors at the angle t are ``2 sin(t / 2)`` apart, and ``1 - cos t`` is half the square of that.
    """
    reach = 2 * math.sin(angle / 2) + (tie_margin(defects.dtype) if margin is None else margin)
    tokens = defects.shape[-1]
    is_near = defects <= (reach**2 / 2 if reach >= 0 else -1.0)
    is_near = is_near | torch.eye(tokens, dtype=torch.bool, device=defects.device)
    numbers = torch.arange(tokens, device=defects.device)
    labels = torch.where(is_near, numbers, tokens).amin(dim=-1)
    while True:
        lowest = torch.where(is_near, labels.unsqueeze(-2), tokens).amin(dim=-1)
        lowest = torch.gather(lowest, -1, lowest)  # the label of my label: chains shorten by half
        if torch.equal(lowest, labels):
            return labels
        labels = lowest


def count_of(labels: Tensor) -> Tensor:
    """How many tokens are the lowest of their cluster."""
    return (labels == torch.arange(labels.shape[-1], device=labels.device)).sum(dim=-1)


def half_squares(x: Tensor) -> Tensor:
    """``|x_i - x_j|^2 / 2`` of all pairs, from differences: ``1 - cos`` of unit tokens without cancellation."""
    return (x.unsqueeze(-2) - x.unsqueeze(-3)).square().sum(dim=-1) / 2


def log_speed(x: Tensor, beta: float, *, rule: MaskRule | None = None) -> Tensor:
    """``*batch tokens``: log of the angle by which one step turns each unit token, -inf where it stays.

    The weights ``exp(-beta (1 - cos))`` are known as logs, and only parts of the other tokens at right angles to the
    token itself are added, so that angles of 1e-100 are as exact as any. What is left of rounding: tokens that should
    be equal but differ in the last digit pull each other by as much; make them equal first.
    """
    allowed = None if rule is None else torch.as_tensor(rule.matrix(x.shape[-2]), device=x.device)
    return turning(on_sphere(x), beta, allowed)[1]


def turning(x: Tensor, beta: float, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Unit vectors at right angles to the tokens, towards which one step turns them, and logs of the angles."""
    apart = x.unsqueeze(-3) - x.unsqueeze(-2)
    square = apart.square().sum(dim=-1)
    log_weight = -beta * square / 2
    if allowed is not None:
        log_weight = log_weight.masked_fill(~allowed, -torch.inf)
    pulls = torch.where(square > 0, log_weight, -torch.inf)
    top = pulls.amax(dim=-1, keepdim=True)
    top = torch.where(torch.isfinite(top), top, 0.0)
    total = ((pulls - top).exp().unsqueeze(-2) @ apart).squeeze(-2)
    total = total - (total * x).sum(dim=-1, keepdim=True) * x
    length = torch.linalg.vector_norm(total, dim=-1, keepdim=True)
    along = (log_weight.exp() * (1 - square / 2)).sum(dim=-1)
    log_across = (length.log() + top).squeeze(-1)
    exact = torch.atan2(log_across.exp(), along).log()
    log_angle = torch.where(log_across < -100, log_across - along.clamp(min=1e-300).log(), exact)
    return total / torch.where(length > 0, length, 1.0), log_angle


def on_sphere(x: Tensor) -> Tensor:
    """The tokens in float64, refused unless they have length one."""
    x = checked(x)
    off = float((torch.linalg.vector_norm(x, dim=-1) - 1).abs().max())
    if off > 1e-9:
        raise ShapeError(f"tokens must have length one, found lengths off by {off:.1e}; divide by the length")
    return x


def log_merging_speed(angle: float, beta: float, sizes: tuple[int, int] = (1, 1)) -> float:
    """Log of the angle by which a cluster of the first size turns, per step, towards one of the second size.

    The leading term ``(k/m) sin t exp(-beta (1 - cos t))``; the exact angle has ``m + k w cos t`` in place of ``m``.

    >>> round(log_merging_speed(math.pi / 2, 50.0) / math.log(10), 3)
    -21.715
    """
    return math.log(sizes[1] / sizes[0] * math.sin(angle)) - beta * (1 - math.cos(angle))


def log_merging_life(angle: float, beta: float, sizes: tuple[int, int] = (1, 1)) -> float:
    """Log of the steps that two clusters at this angle need to meet, alone on the sphere, for large ``beta``.

    The angle closes at ``K sin t exp(-beta (1 - cos t))`` per step, ``K = k/m + m/k``. Most of the time passes near the
    first angle, where the exponent grows by ``beta sin t`` per radian: ``exp(beta (1 - cos t)) / (K beta sin^2 t)``,
    an Arrhenius law with the barrier ``1 - cos t``. The relative error is of order ``1 / (beta sin^2 t)``.
    """
    both = sizes[1] / sizes[0] + sizes[0] / sizes[1]
    return beta * (1 - math.cos(angle)) - math.log(both * beta * math.sin(angle) ** 2)


def log_exact_life(
    angle: float, beta: float, sizes: tuple[int, int] = (1, 1), *, parts: int = 20_000
) -> float:
    """As ``log_merging_life``, the integral of one over the closing speed, down to the angle ``1 / sqrt(beta)``."""
    low = min(1 / math.sqrt(beta), angle) if beta > 0 else angle
    t = torch.linspace(low, angle, parts + 1, dtype=torch.float64)
    weight = (-beta * (1 - torch.cos(t))).exp()
    closing = torch.zeros_like(t)
    for mine, other in (sizes, sizes[::-1]):
        closing = closing + torch.atan2(other * weight * torch.sin(t), mine + other * weight * torch.cos(t))
    area = torch.trapezoid(1 / closing, t)
    return math.log(cast("float", area.item())) if float(area) > 0 else -math.inf
