"""Numbers of the figures in words."""

import math
from collections.abc import Sequence

from rankscope.papers.figures.statistics import Mean, Median, mean_of

MOST = 1e6
"""Decades beyond which only that is said."""


def power(log: Mean) -> str:
    """``1e-37 (1e-38 to 1e-36)`` of a mean of logarithms, as exponents go far below floats."""
    if log.mean < -1e6:
        return "below 1e-1000000"
    if log.low is None or log.high is None:
        return f"1e{exponent(log.mean)}"
    return f"1e{exponent(log.mean)} (1e{exponent(log.low)} to 1e{exponent(log.high)})"


def exponent(log: float) -> str:
    return f"{log:.0f}" if abs(log) >= 10 else f"{log:.2g}"


def rate(slope: Mean) -> str:
    """``0.5 (0.498 to 0.502)`` of decades per layer: the geometric mean of factors, with its interval."""
    if slope.low is None or slope.high is None:
        return f"{10**slope.mean:.4g}"
    return f"{10**slope.mean:.4g} ({10**slope.low:.4g} to {10**slope.high:.4g})"


def geometric(values: Sequence[float]) -> str:
    """Geometric mean of those above zero; ``0`` if there are none."""
    seen = [math.log10(value) for value in values if value > 0]
    return f"{10 ** mean_of(seen).mean:.1e}" if seen else "0"


def listed(logs: Sequence[float]) -> str:
    return ", ".join(f"{10**value:.3g}" if value > -3 else f"1e{exponent(value)}" for value in logs)


def decades_text(one: Median) -> str:
    """``0.33 (0.16 to 0.52)``; a number beyond ``MOST`` is not written out."""
    if one.low > MOST:
        return _decades(one.median)
    return f"{_decades(one.median)} ({_decades(one.low)} to {_decades(one.high)})"


def _decades(value: float) -> str:
    if value > MOST:
        return f"more than {MOST:.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}"
