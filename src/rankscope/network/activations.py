"""Activation functions of MLPs, by name."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from rankscope.core.registry import Registry
from rankscope.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Activation:
    """A scalar function applied to every entry, its derivative and its secant; ReLU and leaky ReLU have no derivative
    at zero."""

    name: str
    formula: str
    fn: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    secant: Callable[[Tensor], Tensor]
    """``fn(h) / h`` in a form that needs no division by zero; every function here is zero at zero."""

    def __post_init__(self) -> None:
        taken = self.name in list(ACTIVATIONS) and ACTIVATIONS[self.name] != self
        if taken:  # rules tell activations by their names
            raise ConfigError(
                f"an activation called {self.name} exists and is {ACTIVATIONS[self.name].formula}; "
                "give this one another name"
            )

    def __call__(self, h: Tensor) -> Tensor:
        return self.fn(h)


def _gelu_tanh(h: Tensor) -> Tensor:
    return F.gelu(h, approximate="tanh")


def _identity(h: Tensor) -> Tensor:
    return h


def _step(h: Tensor) -> Tensor:
    return (h > 0).to(h.dtype)


LEAK = 0.01
"""The slope of leaky ReLU below zero, as torch and most models have it."""


def _leaky_step(h: Tensor) -> Tensor:
    return torch.where(h > 0, torch.ones_like(h), LEAK)  # two numbers would meet in float32


def _relu2(h: Tensor) -> Tensor:
    return torch.relu(h).square()


def _relu2_slope(h: Tensor) -> Tensor:
    return 2 * torch.relu(h)


def _gelu_slope(h: Tensor) -> Tensor:
    density: Tensor = torch.exp(-h.square() / 2) / math.sqrt(2 * math.pi)
    return torch.add(torch.special.erfc(-h / math.sqrt(2)) / 2, h * density)


def _gelu_tanh_slope(h: Tensor) -> Tensor:
    root = math.sqrt(2 / math.pi)
    inner = root * (h + 0.044715 * h**3)
    return torch.sigmoid(2 * inner) + h / 2 * _tanh_slope(inner) * root * (1 + 3 * 0.044715 * h.square())


def _silu_slope(h: Tensor) -> Tensor:
    gate = torch.sigmoid(h)
    return gate * (1 + h * torch.sigmoid(-h))


def _quick_gelu(h: Tensor) -> Tensor:
    return h * torch.sigmoid(1.702 * h)


def _quick_gelu_slope(h: Tensor) -> Tensor:
    return _silu_slope(1.702 * h)


def _tanh_slope(h: Tensor) -> Tensor:
    return torch.cosh(h.clamp(-350, 350)).pow(-2)


def _normal(h: Tensor) -> Tensor:
    return (h * -math.sqrt(0.5)).erfc_().div_(2)


def _gelu_tanh_secant(h: Tensor) -> Tensor:
    inner = h.square().mul_(0.044715).add_(1).mul_(h)  # in place: it is as wide as the inside of an MLP
    return inner.mul_(2 * math.sqrt(2 / math.pi)).sigmoid_()


def _quick_gelu_secant(h: Tensor) -> Tensor:
    return torch.sigmoid(1.702 * h)


def _tanh_secant(h: Tensor) -> Tensor:
    return torch.where(h == 0, 1.0, torch.tanh(h) / h)


ACTIVATIONS: Registry[Activation] = Registry("activation")
for _activation in (
    Activation("relu", "max(h, 0)", torch.relu, _step, _step),
    Activation("leaky_relu", "max(h, h / 100)", F.leaky_relu, _leaky_step, _leaky_step),
    Activation("relu2", "max(h, 0)^2", _relu2, _relu2_slope, torch.relu),
    Activation("gelu", "h Phi(h), Phi the normal distribution function", F.gelu, _gelu_slope, _normal),
    Activation(
        "gelu_tanh",
        "h/2 (1 + tanh(sqrt(2/pi) (h + 0.044715 h^3)))",
        _gelu_tanh,
        _gelu_tanh_slope,
        _gelu_tanh_secant,
    ),
    Activation("quick_gelu", "h / (1 + exp(-1.702 h))", _quick_gelu, _quick_gelu_slope, _quick_gelu_secant),
    Activation("silu", "h / (1 + exp(-h))", F.silu, _silu_slope, torch.sigmoid),
    Activation("tanh", "tanh(h)", torch.tanh, _tanh_slope, _tanh_secant),
    Activation("identity", "h", _identity, torch.ones_like, torch.ones_like),
):
    ACTIVATIONS.register(_activation.name, _activation)
