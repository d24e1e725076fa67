"""Changes divided by their scale, without ever subtracting near-equal numbers.

For a change ``d = scale * m`` of an argument, with a mantissa ``m`` of order one and a scale as small as one likes
(also zero, once it is below the smallest float), a quotient is the change of the value divided by the scale.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rankscope.network import Activation, LayerNorm, Norm, RMSNorm
from rankscope.network.activations import LEAK

NEAR = 0.1
"""Changes up to here are integrated from the derivative, larger ones subtracted: those lose at most a digit."""

NODES = ((1e-8, 1), (1e-4, 2), (NEAR, 4))
"""Gauss-Legendre nodes that integrate a derivative over changes up to a size with an error below one unit round-off."""


def _gelu(h: Tensor) -> Tensor:
    share: Tensor = torch.special.erfc(-h / math.sqrt(2))
    return h * share / 2


def _gelu_tanh(h: Tensor) -> Tensor:
    return h * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))


TAILS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": _gelu, "gelu_tanh": _gelu_tanh}
"""Formulas without the cancellation of ``1 + erf`` and ``1 + tanh`` far on the left."""


def expm1_ratio(x: Tensor) -> Tensor:
    """``expm1(x) / x``, one at zero."""
    return _ratio(torch.expm1, x)


def log1p_ratio(x: Tensor) -> Tensor:
    """``log1p(x) / x``, one at zero."""
    return _ratio(torch.log1p, x)


def tanh_ratio(x: Tensor) -> Tensor:
    """``tanh(x) / x``, one at zero."""
    return _ratio(torch.tanh, x)


def _ratio(fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    safe = torch.where(x == 0, 1.0, x)
    return torch.where(x == 0, 1.0, fn(safe) / safe)


def activation_value(activation: Activation, h: Tensor) -> Tensor:
    """The activation, right to all its digits also where it is next to nothing."""
    return TAILS.get(activation.name, activation.fn)(h)


def activation_quotient(activation: Activation, at: Tensor, mantissa: Tensor, scale: Tensor) -> Tensor:
    """``(f(at + scale * mantissa) - f(at)) / scale``."""
    if activation.name == "identity":
        return mantissa
    if activation.name == "relu":
        return _relu_quotient(at, mantissa, scale)
    if activation.name == "leaky_relu":  # LEAK h + (1 - LEAK) relu(h)
        return LEAK * mantissa + (1 - LEAK) * _relu_quotient(at, mantissa, scale)
    if activation.name == "relu2":  # a difference of squares
        both = torch.relu(at) + torch.relu(at + scale * mantissa)
        return _relu_quotient(at, mantissa, scale) * both
    change = scale * mantissa
    largest = float(change.abs().max()) if change.numel() else 0.0
    count = next((nodes for size, nodes in NODES if largest <= size), NODES[-1][1])
    near = mantissa * _mean_slope(activation, at, change, count)
    if largest <= NEAR:
        return near
    far = (activation_value(activation, at + change) - activation_value(activation, at)) / scale
    return torch.where(change.abs() <= NEAR, near, far)


def _mean_slope(activation: Activation, at: Tensor, change: Tensor, count: int) -> Tensor:
    """The mean of the derivative between ``at`` and ``at + change``, which times the change is the difference."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    total = torch.zeros_like(change)
    for node, weight in zip(nodes, weights, strict=True):
        total = total + weight / 2 * activation.slope(at + (1 + node) / 2 * change)
    return total


def _relu_quotient(at: Tensor, mantissa: Tensor, scale: Tensor) -> Tensor:
    """By cases: both sides positive, both negative, or across the kink (where the scale cannot be tiny)."""
    after = at + scale * mantissa
    divisor = torch.where(scale > 0, scale, 1.0)
    up, down = after / divisor, -at / divisor
    across = torch.where(after > 0, up, down)
    inside = torch.where(at == 0, torch.relu(mantissa), torch.where(at > 0, mantissa, 0.0))
    return torch.where((at > 0) & (after <= 0) | (at < 0) & (after > 0), across, inside)


def norm_quotient(
    norm: Norm, at: Tensor, mantissa: Tensor, scale: Tensor, *, heads: bool = False
) -> tuple[Tensor, Tensor]:
    """The normed row ``at`` (``*batch 1 dim``), and the change of every normed token divided by the scale.

    With ``z`` the (centred) row, ``u`` the (centred) mantissa, ``s0`` and ``si`` the divisors of the row and of the
    token: ``u / si - z (si^2 - s0^2) / scale / (si s0 (si + s0))``, where ``(si^2 - s0^2) / scale`` is
    ``mean(2 z u + scale u^2)``.
    """
    centred = isinstance(norm, LayerNorm)
    z = at - at.mean(dim=-1, keepdim=True) if centred else at
    u = mantissa - mantissa.mean(dim=-1, keepdim=True) if centred else mantissa
    largest = torch.maximum(
        z.abs().amax(dim=-1, keepdim=True), (scale * u).abs().amax(dim=(-2, -1), keepdim=True)
    )
    unit = torch.where(largest > 0, largest, 1.0).clamp(
        min=math.sqrt(norm.eps)
    )  # so that no square leaves the floats
    z, u, eps = z / unit, u / unit, norm.eps / unit.square()
    width = at.shape[-1] if isinstance(norm, LayerNorm | RMSNorm) else 1
    change = (2 * z * u + scale * u.square()).sum(dim=-1, keepdim=True) / width
    before = (z.square().sum(dim=-1, keepdim=True) / width + eps).sqrt()
    after = ((z + scale * u).square().sum(dim=-1, keepdim=True) / width + eps).sqrt()
    row, quotient = (
        _divided(z, before),
        _divided(u, after) - _divided(z * change, after * before * (after + before)),
    )
    lost = (after == 0) & (before > 0)  # a token that is exactly zero stays zero on the sphere
    quotient = torch.where(lost, -row / torch.where(scale > 0, scale, 1.0), quotient)
    return norm.affine(row, heads=heads), norm.affine(quotient, heads=heads, with_bias=False)


def _divided(x: Tensor, by: Tensor) -> Tensor:
    return torch.where(by > 0, x / torch.where(by > 0, by, 1.0), 0.0)
