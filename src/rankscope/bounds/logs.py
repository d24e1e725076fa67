"""Arithmetic on natural logarithms, for bounds that leave the range of floats after a few layers."""

import math

import torch
from torch import Tensor

_SMALL = math.log(1e-2)
"""Below this argument the series of ``log(tanh(x) / x)`` to the sixth power is exact to rounding."""

_ULPS = 8 * torch.finfo(torch.float64).eps
"""What a few operations on logarithms lose, relative to them."""


def log_tanh(log_x: Tensor) -> Tensor:
    """``log tanh(exp(log_x))``, to rounding for any argument: for small ones it is ``log_x`` itself.

    >>> log_tanh(torch.tensor([-1e6, 0.0, 800.0], dtype=torch.float64)).tolist()
    [-1000000.0, -0.27234146891183153, 0.0]
    """
    log_x = log_x.double()
    x = log_x.exp()
    square = log_x.clamp(max=_SMALL).exp().square()
    small = log_x + square * (-1 / 3 + square * (7 / 90 - square * (62 / 2835)))
    large = torch.log1p(
        -2 / (torch.exp((2 * x).clamp(max=700.0)) + 1)
    )  # near one a logarithm loses what is left
    middle = torch.tanh(x).log()
    return torch.where(
        log_x < _SMALL, small, torch.where(x < 0.5, middle, torch.where(x > 350.0, 0.0, large))
    )


def log_difference(log_a: Tensor, log_b: Tensor) -> Tensor:
    """``log(exp(log_a) - exp(log_b))``, rounded down; minus infinity where the difference is not surely positive.

    >>> log_difference(torch.tensor([1.0, 0.0]).log(), torch.tensor([0.25, 1.0]).log()).exp()
    tensor([0.7500, 0.0000], dtype=torch.float64)
    """
    log_a, log_b = torch.broadcast_tensors(log_a.double(), log_b.double())
    gap = raised(log_b) - lowered(log_a)
    known = (gap < 0) & ~torch.isneginf(log_a)  # NaN, as of inf - inf, counts as unknown
    found = lowered(log_a) + torch.log(-torch.expm1(torch.where(known, gap, -1.0)))
    return torch.where(known, lowered(found), -torch.inf)


def log_sum(*logs: Tensor) -> Tensor:
    """``log(sum exp(log))``, rounded up."""
    together = torch.stack(torch.broadcast_tensors(*(log.double() for log in logs)))
    return raised(torch.logsumexp(together, dim=0))


def raised(log: Tensor) -> Tensor:
    """A logarithm moved up by more than a few operations on it can have lost; infinities stay."""
    return torch.where(log.isinf(), log, log + _ULPS * (1 + log.abs()))


def lowered(log: Tensor) -> Tensor:
    """The same moved down."""
    return torch.where(log.isinf(), log, log - _ULPS * (1 + log.abs()))
