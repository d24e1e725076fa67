"""Numbers in words, for figures that are not declared yet; declared ones use ``core.words`` and ``Mean.power``."""

import math
from collections.abc import Sequence

from rankscope.core.words import number
from rankscope.core.words import power as power_of
from rankscope.findings.blocks import LN10
from rankscope.papers.figures.statistics import Mean, mean_of


def rate(slope: Mean) -> str:
    """``0.5 (0.498 to 0.502)`` of decades per layer: the geometric mean of factors, with its interval."""
    return slope.power(4)


def geometric(values: Sequence[float]) -> str:
    """Geometric mean of those above zero; ``0`` if there are none."""
    seen = [math.log10(value) for value in values if value > 0]
    return number(10 ** mean_of(seen).mean, 2) if seen else "0"


def listed(logs: Sequence[float]) -> str:
    """Powers of ten."""
    return ", ".join(power_of(log * LN10) for log in logs)
