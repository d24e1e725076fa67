"""Does a layer make tokens equal over depth? Many copies of it, with the residual brought back to one size after each.

A residual that falls by a factor per layer is below the rounding of any dtype after a few layers. So only its logarithm
is kept: the small perturbation is measured after every layer and stretched again to the size it had (as one does for a
Lyapunov exponent). The sum of logarithms has no floor.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rankscope.findings.atlas import Consensus
from rankscope.layers.layer import Layer
from rankscope.layers.orders import Draw, residual_ratio

LAYERS, LAST = 400, 100
"""Layers that are followed, and the last of them, over which the slope is read."""

PLAIN_LAYERS = 200
"""Layers that are followed where equal tokens do not stay equal."""

LOST = 0.1
"""A residual ratio above this after one layer is no small perturbation any more."""

SLOW = 1e-3
"""The slope over the last layers may be off by this much."""

POWERS = (0.4, 0.3, 0.25, 0.2)
"""Sizes of the perturbation, as powers of the round-off.

A map with too few eigenvectors hands rounding on from token to token while what it should shrink is long gone. The
larger the perturbation, the less rounding there is beside it, and the more of what is not linear.
"""

STEADY = 1e-4
"""A factor per layer above one minus this is no fall."""

HARDLY = 0.97
"""A factor from here on may be one that is not reached yet: differences come to rest as slowly as tokens do."""

LONG = 4 * LAYERS
"""Layers that are followed where the factor is still on its way to one."""

ON_ITS_WAY = 0.8
"""A slope is on its way to zero where it is this much smaller than that of as many layers before."""

VANISHED = 1e-150
"""A token this short beside others of ordinary length is followed no further: its square would be zero."""

EQUAL = 1e-6
"""Residual ratio below which tokens count as equal, of layers that do not keep equal tokens equal."""


@dataclass(frozen=True, slots=True)
class Depth:
    """The factor per layer, where there is one, and whether tokens become equal."""

    fall: float | None
    collapses: bool | None


def over_depth(
    layer: Layer,
    draw: Draw,
    consensus: Consensus,
    from_token: int = 0,
    *,
    rate: float | None = None,
    seed: int = 0,
) -> Depth:
    """What many copies of the layer do.

    ``fall`` is that of copies each of which is followed by one and the same random orthogonal value map, ``collapses``
    that of copies alone: a layer with values of its own need not do the same with a map behind it. ``rate`` is what the
    derivative says: where it is one, a slope just below one has not come to its end yet.
    """
    if consensus == "none":
        return _plainly(layer, draw, from_token)
    turn = orthogonal(layer.dim, seed)
    turned = replace(layer, then=lambda y: y @ turn)
    found = _by_small_perturbations(turned, draw, consensus, POWERS[0])
    if found.fall is None or found.fall == 0.0:
        return found
    if rate is not None and abs(found.fall - rate) <= SLOW:
        return replace(found, collapses=False) if rate > 1 - STEADY else found
    collapses = found.collapses
    if rate is None or collapses != (rate < 1 - STEADY):
        collapses = _by_small_perturbations(layer, draw, consensus, POWERS[0], patient=True).collapses
    return Depth(_settled_fall(turned, draw, consensus, found.fall), collapses)


def _settled_fall(layer: Layer, draw: Draw, consensus: Consensus, first: float) -> float | None:
    """The factor on which two sizes of the perturbation agree; None where rounding or bends are in all of them."""
    before = first
    for power in POWERS[1:]:
        fall = _by_small_perturbations(layer, draw, consensus, power).fall
        if fall is None:
            return None
        if abs(fall - before) <= SLOW:
            return first if power == POWERS[1] else fall
        before = fall
    return None


def orthogonal(dim: int, seed: int) -> Tensor:
    """A random orthogonal matrix."""
    drawn = torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    q, r = torch.linalg.qr(drawn)
    made: Tensor = q * r.diagonal().sign()
    return made


def _by_small_perturbations(
    layer: Layer, draw: Draw, consensus: Consensus, power: float, *, patient: bool = False
) -> Depth:
    small = layer.roundoff**power
    size = math.sqrt(layer.tokens * layer.dim)
    base, residual = draw.equal, draw.r - draw.r.mean(dim=0)
    logs, floor = list[float](), float(draw.noise.norm())
    for layers in range(LONG):
        if layers == LAYERS and not (patient and _is_on_its_way(logs)):
            break
        base, residual = base / base.norm() * size, residual / residual.norm()
        with torch.no_grad():
            y = layer(base + small * size * _in_tokens(residual, base, consensus))
        if not bool(y.isfinite().all()):
            return Depth(None, None)
        base = _base(y, consensus)
        if float(base.norm()) <= 100 * floor:  # nothing is common: the residual is all there is
            return Depth(None, float((y - base).norm()) <= 100 * floor)
        if float((y - base).norm()) > LOST * float(base.norm()):  # at this row equal tokens do not stay equal
            return _plainly(layer, draw, 0)
        if float((y - base).norm()) <= floor:  # one layer has cubed it, or made it zero
            return Depth(0.0, True)
        if consensus == "directions" and float(base.norm(dim=-1).min()) <= VANISHED:
            break
        residual = _of_tokens(y - base, base, consensus)
        logs.append(math.log(float(residual.norm()) / small))
    if len(logs) < LAST:
        return Depth(None, None)
    fall = math.exp(_slope(logs[:LAYERS]))
    return Depth(fall, math.exp(_slope(logs)) < 1 - STEADY)


def _slope(logs: list[float]) -> float:
    """Slope of the sum of logarithms over the last layers."""
    return float(np.polyfit(np.arange(LAST), np.cumsum(logs)[-LAST:], 1)[0])


def _is_on_its_way(logs: list[float]) -> bool:
    """Whether differences still fall, hardly and ever less: then these layers do not show whether they go on."""
    now = _slope(logs)
    return math.log(HARDLY) < now < math.log(1 - STEADY) and now > ON_ITS_WAY * _slope(logs[:-LAST])


def _base(y: Tensor, consensus: Consensus) -> Tensor:
    """The common rows; of directions the nearest tokens of the mean direction."""
    if consensus == "kept":
        return y.mean(dim=0).expand_as(y)
    towards: Tensor = (y / y.norm(dim=-1, keepdim=True)).mean(dim=0)
    towards /= towards.norm()
    return torch.outer(y @ towards, towards)


def _of_tokens(residual: Tensor, base: Tensor, consensus: Consensus) -> Tensor:
    """The residual in units of all tokens; of directions every token's own in units of its length.

    Tokens of very different lengths have directions all the same: beside the longest a short one would not count.
    """
    size = base.norm() if consensus == "kept" else base.norm(dim=-1, keepdim=True) * len(base) ** 0.5
    relative: Tensor = residual / size
    return relative


def _in_tokens(residual: Tensor, base: Tensor, consensus: Consensus) -> Tensor:
    """A residual in those units as one of the tokens, in units of all tokens."""
    size = base.norm(dim=-1, keepdim=True) * len(base) ** 0.5 / base.norm()
    made: Tensor = residual if consensus == "kept" else residual * size
    return made


def _plainly(layer: Layer, draw: Draw, from_token: int) -> Depth:
    x, size = draw.near(1.0), math.sqrt(layer.tokens * layer.dim)
    for _ in range(PLAIN_LAYERS):
        with torch.no_grad():
            y = layer(x)
        length = float(y.norm())
        if not math.isfinite(length):
            return Depth(None, None)
        if length <= 100 * float(draw.noise.norm()):
            return Depth(None, None)
        x = y / length * size
    later, floor = x[from_token:], float(draw.noise[from_token:].norm())
    if float(later.norm()) <= 100 * floor:  # beside longer tokens before them nothing is left of these
        return Depth(None, None)
    return Depth(None, residual_ratio(later, draw.noise[from_token:]).value < EQUAL)
