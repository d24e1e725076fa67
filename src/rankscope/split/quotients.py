"""Changes of activations divided by their scale, without ever subtracting near-equal numbers.

For a change ``d = scale * m`` of an argument, with a mantissa ``m`` of order one and a scale as small as one likes
(also zero, once it is below the smallest float), a quotient is the change of the value divided by the scale.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rankscope.errors import NotUnderstood
from rankscope.network import Activation
from rankscope.network.activations import LEAK

QUICK = 1.702
"""The factor inside ``quick_gelu``."""

CUBE = 0.044715
"""The factor of the cube inside ``gelu_tanh``, and the root before it."""
ROOT = math.sqrt(2 / math.pi)

BENT = frozenset({"relu", "leaky_relu", "relu2", "identity"})
"""Activations that are polynomials on either side of zero: their values never come out of a tail."""


def expm1_ratio(x: Tensor) -> Tensor:
    """``expm1(x) / x``, one at zero."""
    return _ratio(torch.expm1(x), x)


def log1p_ratio(x: Tensor) -> Tensor:
    """``log1p(x) / x``, one at zero."""
    return _ratio(torch.log1p(x), x)


def _ratio(value: Tensor, x: Tensor) -> Tensor:
    """``value / x``, one next to zero: functions of numbers below 1e-308 are rounded to few digits."""
    return value.div_(x).masked_fill_(x.abs() < 1e-100, 1.0)


def tanh_difference_ratio(x: Tensor, d: Tensor, after: Tensor | None = None) -> Tensor:
    """``(tanh(x + d) - tanh(x)) / d = sinh(d) / (d cosh(x) cosh(x + d))``, right to all digits in both tails.

    ``sinh |d| = e^|d| (1 - e^-2|d|) / 2`` and ``cosh x = e^|x| (1 + e^-2|x|) / 2``; exponents are added before anything
    is raised to them. Their sum ``|d| - |x| - |x + d|`` is zero where x and x + d lie on different sides of zero, and
    minus twice the smaller of the two elsewhere. ``after`` is x + d where more digits of it are known
    than the sum has.
    """
    after = x + d if after is None else after
    nearer = torch.where(x.sign() == after.sign(), torch.minimum(x.abs(), after.abs()), 0.0)
    top = expm1_ratio(-2 * d.abs()) * (-2 * nearer).exp()
    return 4 * top / (damp(x) * damp(after))


def damp(x: Tensor) -> Tensor:
    """``1 + e^-2|x|``: what is left of ``2 cosh x`` without its exponential."""
    return 1 + (-2 * x.abs()).exp()


def _gelu(h: Tensor) -> Tensor:
    share: Tensor = torch.special.erfc(-h / math.sqrt(2))
    return h * share / 2


def _gelu_tanh(h: Tensor) -> Tensor:
    return h * torch.sigmoid(2 * ROOT * (h + CUBE * h**3))


TAILS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": _gelu, "gelu_tanh": _gelu_tanh}
"""Formulas without the cancellation of ``1 + erf`` and ``1 + tanh`` far on the left."""


def activation_value(activation: Activation, h: Tensor) -> Tensor:
    """The activation, right to all its digits also where it is next to nothing."""
    return TAILS.get(activation.name, activation.fn)(h)


def activation_quotient(activation: Activation, at: Tensor, mantissa: Tensor, scale: Tensor) -> Tensor:
    """``(f(at + scale * mantissa) - f(at)) / scale``.

    The smooth ones but tanh are ``f(h) = h g(h)`` with g a distribution function, so that
    ``f(h + d) - f(h) = d g(h + d) + h (g(h + d) - g(h))``, and the difference of g has a formula that keeps its digits.
    """
    name = activation.name
    if name == "identity":
        return mantissa
    if name == "relu":
        return _relu_quotient(at, mantissa, scale)
    if name == "leaky_relu":  # LEAK h + (1 - LEAK) relu(h): both terms have the sign of the change
        return LEAK * mantissa + (1 - LEAK) * _relu_quotient(at, mantissa, scale)
    if name == "relu2":  # a difference of squares
        both = torch.relu(at) + torch.relu(at + scale * mantissa)
        return _relu_quotient(at, mantissa, scale) * both
    d = scale * mantissa
    if name == "tanh":
        return mantissa * tanh_difference_ratio(at, d)
    if name == "gelu":
        return _gelu_slope(at, d).mul_(mantissa)
    if name == "silu":
        return mantissa * _logistic_slope(at, d)
    if name == "quick_gelu":  # silu(1.702 h) / 1.702
        return mantissa * _logistic_slope(QUICK * at, QUICK * d)
    if name == "gelu_tanh":
        return mantissa * _gelu_tanh_slope(at, d)
    raise NotUnderstood(activation, "split")


def _logistic_slope(h: Tensor, d: Tensor) -> Tensor:
    """Mean slope of ``h sigmoid(h)`` over d: ``sigmoid(h) = (1 + tanh(h / 2)) / 2``."""
    return torch.sigmoid(h + d) + h / 4 * tanh_difference_ratio(h / 2, d / 2)


def _gelu_tanh_slope(h: Tensor, d: Tensor) -> Tensor:
    """Mean slope of ``h (1 + tanh G(h)) / 2``, ``G = ROOT (h + CUBE h^3)``, with ``G(h + d) - G(h) = d slope``.

    Beyond 1e4 tanh is one to the last digit; both ends stop there, so that their cubes stay floats. The step between
    the ends is then shorter than d, and ``kept`` is the share of it: h and d themselves must not be cut, or their
    quotient would change where h and h + d lie on different sides of zero.
    """
    after = h + d
    h_, after_ = h.clamp(-1e4, 1e4), after.clamp(-1e4, 1e4)
    whole = (h == h_) & (after == after_)
    d_ = torch.where(whole, d, after_ - h_)
    kept = torch.where(whole, 1.0, d_ / torch.where(d == 0, 1.0, d))
    inner = ROOT * (h_ + CUBE * h_**3)
    slope = ROOT * (1 + CUBE * (3 * h_ * (h_ + d_) + d_.square()))
    change = d_ * slope
    return torch.sigmoid(2 * (inner + change)) + h / 2 * (kept * slope) * tanh_difference_ratio(inner, change)


GELU_NEAR = 0.25
"""Up to this ``|d| (|middle| + 2)`` the series below is right to one unit of round-off."""


def _gelu_slope(h: Tensor, d: Tensor) -> Tensor:
    """Mean slope of ``h Phi(h)`` over d: ``Phi(h + d) + h (Phi(h + d) - Phi(h)) / d``.

    The quotient is the mean of the normal density over ``[h, h + d]``. Around the middle m it is
    ``phi(m) (1 + d^2/24 He2(m) + d^4/1920 He4(m) + ...)``, with a next term of about ``(|d| (|m| + 2))^10 / 4e10``.
    Where d is too large for that, ``Phi(h + d) - Phi(h)`` is subtracted. On the left both are tails that differ by a
    factor, so digits stay. On the right they may be nearly one, with an error of one unit: no more than a unit of the
    sum, whose first term is at least a half or whose second is a share of one.
    """
    below = torch.add(h, d).mul_(-math.sqrt(0.5)).erfc_().mul_(0.5)  # Phi(h + d)
    middle = torch.add(h, d, alpha=0.5)
    m2 = middle.square().clamp_(max=1e8)  # the density is zero from 1500 on; powers must stay floats
    d2 = d.square().clamp_(max=1e8)
    he4 = (m2 - 6).mul_(m2).add_(3)
    he6 = (m2 - 15).mul_(m2).add_(45).mul_(m2).sub_(15)
    series = (m2 - 28).mul_(m2).add_(210).mul_(m2).sub_(420).mul_(m2).add_(105)  # He8
    series.mul_(d2).mul_(1 / 92897280).add_(he6, alpha=1 / 322560)
    series.mul_(d2).add_(he4, alpha=1 / 1920)
    series.mul_(d2).add_(m2 - 1, alpha=1 / 24)
    series.mul_(d2).add_(1)
    density = series.mul_(m2.mul_(-0.5).exp_()).mul_(1 / math.sqrt(2 * math.pi))
    least, most = d.aminmax()
    apart = max(-float(least), float(most))
    if not apart * (float(h.abs().amax()) + apart + 2) <= GELU_NEAR:
        far = middle.abs_().add_(2).mul_(d.abs()) > GELU_NEAR
        before = torch.special.erfc(h * -math.sqrt(0.5)).mul_(0.5)
        density = torch.where(far, (below - before) / d, density)
    return density.mul_(h).add_(below)


def _relu_quotient(at: Tensor, mantissa: Tensor, scale: Tensor) -> Tensor:
    """By cases: both sides positive, both negative, or across the kink (where the scale cannot be tiny)."""
    after = at + scale * mantissa
    divisor = torch.where(scale > 0, scale, 1.0)
    up, down = after / divisor, -at / divisor
    across = torch.where(after > 0, up, down)
    inside = torch.where(at == 0, torch.relu(mantissa), torch.where(at > 0, mantissa, 0.0))
    return torch.where((at > 0) & (after <= 0) | (at < 0) & (after > 0), across, inside)
