"""Shares in percent, as the axes of figures write them."""

import math

from rankscope.core.words import number

MINUS = "\u2212"
"""A real minus, as the axes write it."""

NONE = number(None)


def percent(share: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """A share in percent with that many significant digits.

    >>> percent(0.3125), percent(-0.0042), percent(0.041, sign=True), percent(12.5), percent(3e-7)
    ('31%', '−0.42%', '+4.1%', '1250%', '3.0e-5%')
    """
    if share is None:
        return NONE
    value = 100.0 * share
    if value == 0:
        return "0%"
    size = float(f"{abs(value):.{digits - 1}e}")
    if size < 0.001:
        text = number(size, digits) if digits > 2 else f"{size:.1e}".replace("e-0", "e-")
    elif size >= 100:
        text = f"{abs(value):.0f}"
    else:
        text = f"{size:.{max(0, digits - 1 - math.floor(math.log10(size)))}f}"
    before = MINUS if value < 0 else "+" if sign else ""
    return f"{before}{text}%"
