"""Colors of signed shares: blue adds to the output, vermilion takes away, white is nothing."""

import math
from collections.abc import Iterable

from rankscope.plots.heat_colors import ink_on
from rankscope.plots.style import PALETTE

ADDS, TAKES = PALETTE[0], PALETTE[1]

# From most negative to most positive; the palette's vermilion and blue stand between the middle and the ends.
ON_PAPER = ("#7f2f00", "#d55e00", "#f5b184", "#ffffff", "#86c1e6", "#0072b2", "#003c63")
ON_DARK = ("#ffc9a3", "#e8762c", "#7a4020", "#20272f", "#1f5478", "#3a9fdb", "#b5e1ff")

STEPS = 33
"""Colors told apart in a page; the middle one is zero."""

# Rank 1 is dark, the last one pale but still seen on paper.
PATHS_ADD = ("#00466f", "#0072b2", "#79bbe3")
PATHS_TAKE = ("#8f3c00", "#d55e00", "#f2a673")
PATHS_ADD_ON_DARK = ("#b9e3ff", "#4fb0ea", "#2a648b")
PATHS_TAKE_ON_DARK = ("#ffd0ae", "#f08a45", "#8a4d26")


def largest(shares: Iterable[float | None]) -> float:
    """The largest size of any share, 1 if there is none."""
    return max((abs(share) for share in shares if share is not None), default=0.0) or 1.0


def signed_place(share: float, most: float) -> float:
    """Where a share stands between the ends of the colors, -1 to 1: by its square root, so that small ones show.

    >>> signed_place(-0.01, 0.04)
    -0.5
    """
    return math.copysign(math.sqrt(min(1.0, abs(share) / most)), share)


def mixed(colors: tuple[str, ...], place: float) -> str:
    """The color at ``place``, 0 to 1, of a row of equally spaced ones.

    >>> mixed(("#000000", "#ffffff"), 0.5)
    '#808080'
    """
    at = min(1.0, max(0.0, place)) * (len(colors) - 1)
    below = min(int(at), len(colors) - 2)
    low, high = ([int(colors[below + step][start : start + 2], 16) for start in (1, 3, 5)] for step in (0, 1))
    return "#" + "".join(f"{round(a + (b - a) * (at - below)):02x}" for a, b in zip(low, high, strict=True))


def signed_color(place: float, colors: tuple[str, ...] = ON_PAPER) -> str:
    """The color at ``place``, -1 to 1.

    >>> signed_color(0.0), signed_color(1.0)
    ('#ffffff', '#003c63')
    """
    return mixed(colors, (place + 1) / 2)


def path_color(share: float | None, place: float, *, on_dark: bool = False) -> str:
    """The color of a path: hue by the sign of its share, strong for the first (``place`` 0), faint for the last (1)."""
    adds, takes = (PATHS_ADD_ON_DARK, PATHS_TAKE_ON_DARK) if on_dark else (PATHS_ADD, PATHS_TAKE)
    return mixed(takes if share is not None and share < 0 else adds, place)


def step_of_share(share: float, most: float) -> int:
    """The number of the color step of a share."""
    return round((signed_place(share, most) + 1) / 2 * (STEPS - 1))


def signed_style(colors: tuple[str, ...]) -> str:
    """Style rules of all steps: ``v0`` is the most negative one."""
    found = [mixed(colors, step / (STEPS - 1)) for step in range(STEPS)]
    return "\n".join(
        f".heat .v{step} {{ background-color: {color}; color: {ink_on(color)}; }}"
        for step, color in enumerate(found)
    )
