"""Recursions of logarithms that triple at every layer, exact to rounding at any depth.

A log is carried as a pair of floats, so that tripling it loses nothing: what a layer adds has an error of one rounding,
and at the end the log is right to a few units of 1e-16 relative. Logs beyond the range of floats are cut off at the
smallest finite one, which is above them: a bound stays a bound.
"""

from typing import NamedTuple

import torch
from torch import Tensor

LOWEST = -torch.finfo(torch.float64).max
"""Stands for every finite logarithm below it."""


class Log(NamedTuple):
    """A logarithm as the sum of two floats, the second one below the rounding of the first."""

    high: Tensor
    low: Tensor

    @classmethod
    def of(cls, log: Tensor) -> "Log":
        return cls(log, torch.zeros_like(log))


def cubed(log: Log, log_constant: Tensor) -> Log:
    """``log(K r^3)`` from ``log r`` and ``log K``; zero (minus infinity) stays zero, infinity infinity."""
    is_zero = (log.high == -torch.inf) | (log_constant == -torch.inf)
    is_infinite = (log.high == torch.inf) | (log_constant == torch.inf)
    finite = ~(is_zero | is_infinite)
    high, low = (torch.where(finite, one, 0.0) for one in torch.broadcast_tensors(*log))
    twice = _two_sum(
        2 * high.clamp(min=LOWEST / 8, max=-LOWEST / 8), high.clamp(min=LOWEST / 8, max=-LOWEST / 8)
    )
    total = _two_sum(twice.high, torch.where(finite, log_constant, 0.0))
    found = _two_sum(total.high, total.low + twice.low + 3 * low)
    return _limited(found, high, is_zero, is_infinite)


def shifted(log: Log, log_factor: Tensor) -> Log:
    """``log(c r)`` from ``log r`` and ``log c``."""
    is_zero = (log.high == -torch.inf) | (log_factor == -torch.inf)
    is_infinite = (log.high == torch.inf) | (log_factor == torch.inf)
    finite = ~(is_zero | is_infinite)
    high, low = (torch.where(finite, one, 0.0) for one in torch.broadcast_tensors(*log))
    total = _two_sum(high, torch.where(finite, log_factor, 0.0))
    found = _two_sum(total.high, total.low + low)
    return _ended(found, is_zero, is_infinite)


def chosen(where: Tensor, one: Log, other: Log) -> Log:
    """Entry by entry one of two."""
    return Log(torch.where(where, one.high, other.high), torch.where(where, one.low, other.low))


def _limited(found: Log, before: Tensor, is_zero: Tensor, is_infinite: Tensor) -> Log:
    """``found``, cut off where tripling would have left the range of floats."""
    too_low, too_high = before < LOWEST / 8, before > -LOWEST / 8
    high = torch.where(too_low, LOWEST, torch.where(too_high, torch.inf, found.high))
    low = torch.where(too_low | too_high, 0.0, found.low)
    return _ended(Log(high, low), is_zero, is_infinite)


def _ended(found: Log, is_zero: Tensor, is_infinite: Tensor) -> Log:
    high = torch.where(is_zero, -torch.inf, torch.where(is_infinite, torch.inf, found.high))
    return Log(high, torch.where(is_zero | is_infinite, 0.0, found.low))


def _two_sum(a: Tensor, b: Tensor) -> Log:
    """``a + b`` rounded, and what the rounding lost (Knuth)."""
    total = a + b
    part = total - a
    return Log(total, (a - (total - part)) + (b - part))
