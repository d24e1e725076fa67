"""How steep an activation is: at most anywhere, and between which bounds over an interval.

The slope of a differentiable function between ``a`` and ``b`` takes its extremes at the ends or where the second
derivative vanishes. For every activation here those points are few and known, so bounds over an interval are the
extremes over its ends and the points inside. By the mean value theorem they also bound every secant slope
``(f(y) - f(x)) / (y - x)`` with ``x`` and ``y`` in the interval.
"""

import math

import torch
from torch import Tensor

from rankscope.core.registry import unknown_name
from rankscope.errors import ShapeError
from rankscope.network.activations import ACTIVATIONS, Activation

SLOPE_MARGIN = 1e-12
"""What is added to a computed slope and taken from it: its rounding, a few times 1e-16, and far more."""

_FAR = 100.0
"""Beyond this every slope is that of the limit to within 1e-40, and products such as ``inf * 0`` are avoided."""

_SILU_BEND = 2.3993572805154677
"""Positive root of ``x tanh(x / 2) = 2``: the second derivative of SiLU is ``s (1 - s) (2 - x tanh(x / 2))``."""

_GELU_TANH_BEND = 1.4185040087908284
"""Positive root of ``1 + 6 k x^2 = c x tanh(u) (1 + 3 k x^2)^2``, ``u = c (x + k x^3)``, ``c = sqrt(2 / pi)``,
``k = 0.044715``: where the second derivative of tanh-GELU vanishes, the only one, by bisection."""

BENDS: dict[str, tuple[float, ...]] = {
    "gelu": (-math.sqrt(2.0), math.sqrt(2.0)),  # second derivative (2 - x^2) times the normal density
    "gelu_tanh": (-_GELU_TANH_BEND, _GELU_TANH_BEND),  # f'(x) + f'(-x) = 1, so bends come in pairs
    "silu": (-_SILU_BEND, _SILU_BEND),
    "quick_gelu": (-_SILU_BEND / 1.702, _SILU_BEND / 1.702),  # SiLU of 1.702 x, divided by 1.702
    "tanh": (0.0,),  # second derivative -2 tanh(x) (1 - tanh(x)^2)
}
"""Points at which the second derivative of an activation vanishes: there alone a slope can turn."""


STRAIGHT = ("relu", "leaky_relu", "relu2", "identity")
"""Activations whose slope has no turning point, and is known over every interval without looking for one."""


def lipschitz(activation: Activation | str) -> float:
    """The largest absolute slope of an activation, rounded up; infinite for squared ReLU, which has none.

    >>> round(lipschitz("gelu"), 6), lipschitz("relu")
    (1.128904, 1.0)
    """
    name = _known(activation).name
    if name in ("relu", "leaky_relu", "tanh", "identity"):
        return 1.0
    if name == "relu2":
        return math.inf
    low, high = slope_range(name, torch.tensor(-torch.inf), torch.tensor(torch.inf))
    return max(-float(low), float(high))


def slope_range(activation: Activation | str, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """True bounds of the slope over ``[low, high]``, entry by entry, in float64; ends may be infinite.

    ReLU has no slope at zero: an interval that touches zero from the left counts as flat, one that reaches below zero
    and above it as anything between 0 and 1. Leaky ReLU likewise, with its slope below zero in place of 0. Where an end
    is NaN the bounds are those of the whole line.

    >>> low, high = slope_range("relu", torch.tensor([-2.0, -1.0, 1.0]), torch.tensor([-1.0, 1.0, 2.0]))
    >>> low.tolist(), high.tolist()
    ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0])
    """
    known = _known(activation)
    low, high = torch.broadcast_tensors(low.double(), high.double())
    if (low > high).any():
        raise ShapeError(
            f"the slope of {known.name} was asked over intervals of which {int((low > high).sum())} have a low end "
            "above the high end; give low <= high in every entry"
        )
    unknown = low.isnan() | high.isnan()
    low, high = torch.where(unknown, -torch.inf, low), torch.where(unknown, torch.inf, high)
    if known.name == "identity":
        return torch.ones_like(low), torch.ones_like(high)
    if known.name == "relu":
        return (low > 0).double(), (high > 0).double()
    if known.name == "leaky_relu":
        return known.slope(low), known.slope(high)
    if known.name == "relu2":  # the slope 2 max(h, 0) only grows
        return known.slope(low), known.slope(high)
    return _smooth_range(known, low, high)


def _smooth_range(activation: Activation, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    ends = [activation.slope(end.clamp(-_FAR, _FAR)) for end in (low, high)]
    least, most = torch.minimum(*ends), torch.maximum(*ends)
    for point in BENDS[activation.name]:
        turn = activation.slope(low.new_tensor(point))
        # the stored point is off by a rounding; there the slope is flat, so it may be counted in a little early
        inside = (low <= point + SLOPE_MARGIN) & (high >= point - SLOPE_MARGIN)
        least = torch.where(inside, torch.minimum(least, turn), least)
        most = torch.where(inside, torch.maximum(most, turn), most)
    if activation.name == "tanh":  # between 0 and 1, exactly
        return (least - SLOPE_MARGIN).clamp(min=0.0), (most + SLOPE_MARGIN).clamp(max=1.0)
    return least - SLOPE_MARGIN, most + SLOPE_MARGIN


def _known(activation: Activation | str) -> Activation:
    """The activation of that name, if its bends are known."""
    found = ACTIVATIONS[activation] if isinstance(activation, str) else activation
    if found.name not in BENDS and found.name not in STRAIGHT:
        raise unknown_name("activation with known slopes", found.name, [*BENDS, *STRAIGHT])
    return found
