"""Numbers and names of paths as a person reads them: shares in percent, huge counts, heads, routes."""

import math
from collections.abc import Sequence
from decimal import Decimal

from rankscope.plots.paths_sections import Place, TopPath
from rankscope.plots.scan_entries import clipped, number

MINUS = "\u2212"
"""A real minus, as the axes write it."""

NONE = number(None)

EXACT_UP_TO = 10**15
"""Counts above are written as a power of ten."""

STEPS_SHOWN = 8
"""Heads of a path that a line of text names; the rest is counted."""


def percent(share: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """A share in percent with so many significant digits.

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


def short_percent(share: float | None, *, sign: str = "+") -> str:
    """A share in percent with at most two decimals, as short as a list or a cell needs it.

    >>> short_percent(0.1234), short_percent(-0.00234), short_percent(0.00001), short_percent(0.05, sign="")
    ('+12%', '−0.23%', '0%', '5.0%')
    """
    if share is None:
        return NONE
    value = 100.0 * share
    text = f"{abs(value):.{0 if abs(value) >= 9.95 else 1 if abs(value) >= 0.995 else 2}f}"
    return "0%" if float(text) == 0 else f"{MINUS if value < 0 else sign}{text}%"


def count_words(count: int) -> str:
    """A count in full, or as a power of ten if it has too many digits to be read.

    >>> count_words(23298085122481), count_words(97**96)
    ('23,298,085,122,481', '5.4e190')
    """
    if count < EXACT_UP_TO:
        return f"{count:,}"
    return f"{Decimal(count):.1e}".replace("e+", "e")


def head_words(place: Place, head: int) -> str:
    """One head in a few letters.

    >>> head_words(Place(layer=3, site="attention", heads=4, label="3"), 0)
    'L3 h0'
    """
    site = "" if place.label == str(place.layer) else f" {clipped(place.site, 24)}"
    return f"L{place.layer}{site} h{head}"


def route_words(path: TopPath, places: Sequence[Place], most: int = STEPS_SHOWN) -> str:
    """The heads on a path in order, those beyond ``most`` counted.

    >>> places = [Place(layer=n, site="attention", heads=4, label=str(n)) for n in (1, 2, 3)]
    >>> route_words(TopPath(rank=1, heads=(2, None, 0), norm=1.0, residual=1.0, share=1.0), places)
    'L1 h2 › L3 h0'
    """
    steps = [
        head_words(place, head) for place, head in zip(places, path.heads, strict=True) if head is not None
    ]
    if not steps:
        return "no head: passes by all"
    more = [f"{len(steps) - most + 1} more"] if len(steps) > most else []
    return " › ".join([*steps[: most - 1 if more else most], *more])  # noqa: RUF001 - an arrow of paths


def of_heads(places: Sequence[Place]) -> str:
    """How many layers and heads there are.

    >>> of_heads([Place(layer=n, site="attention", heads=12, label=str(n)) for n in range(1, 13)])
    '12 layers of 12 heads'
    """
    layers = len({place.layer for place in places})
    heads = sorted({place.heads for place in places})
    each = f"{heads[0]}" if len(heads) == 1 else f"{heads[0]} to {heads[-1]}"
    parts = "" if len(places) == layers else f" with {len(places)} attention parts"
    one = "head" if heads == [1] else "heads"
    return f"{layers} layer{'s' if layers != 1 else ''}{parts} of {each} {one}"
