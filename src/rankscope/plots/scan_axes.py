"""Round numbers on a linear axis, for the older pages."""

import math

from rankscope.plots.axes import Ticks
from rankscope.plots.scan_entries import number


def linear_ticks(low: float, high: float, wanted: int = 6) -> Ticks:
    """Between about ``wanted`` round numbers of one step, 1, 2 or 5 times a power of ten, from ``low`` to ``high``.

    >>> linear_ticks(0.0, 1.04).labels
    ['0', '0.2', '0.4', '0.6', '0.8', '1']
    """
    least = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    counts = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    # Multiples of a decimal step carry rounding in their last digit; twelve digits are more than a label shows.
    positions = [float(f"{count * step:.12g}") for count in counts]
    return Ticks(positions=positions, labels=[number(position, 6) for position in positions])
