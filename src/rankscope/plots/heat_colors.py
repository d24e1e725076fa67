"""Colors of heat maps: perceptually uniform, from dark to bright, so that a gray print reads the same."""

import math
from dataclasses import dataclass

# Ten equally spaced colors of viridis, which its authors put in the public domain.
VIRIDIS = (
    *("#440154", "#482878", "#3e4989", "#31688e", "#26828e"),
    *("#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"),
)

STEPS = 32
"""Colors told apart in a page; a cell names its step, and the style sheet holds the color once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shade:
    """Values at the dark and at the bright end of the colors; ``dark`` may be the larger one."""

    dark: float
    bright: float
    is_log: bool = False

    def share(self, value: float) -> float:
        """How bright: 0 at the dark end, 1 at the bright one, cut off beyond.

        >>> Shade(dark=1.0, bright=0.0).share(0.25)
        0.75
        """
        if self.is_log:
            value = max(value, min(self.dark, self.bright))
            share = math.log(value / self.dark) / math.log(self.bright / self.dark)
        else:
            share = (value - self.dark) / (self.bright - self.dark)
        return min(1.0, max(0.0, share))


def viridis(share: float) -> str:
    """The color at that share of the scale.

    >>> viridis(0.0), viridis(1.0)
    ('#440154', '#fde725')
    """
    place = min(1.0, max(0.0, share)) * (len(VIRIDIS) - 1)
    below = min(int(place), len(VIRIDIS) - 2)
    low, high = (_channels(VIRIDIS[below + step]) for step in (0, 1))
    mixed = [round(a + (b - a) * (place - below)) for a, b in zip(low, high, strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def luminance(color: str) -> float:
    """Relative luminance of a color, 0 for black and 1 for white (as contrast of text is computed from)."""
    red, green, blue = (
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in (one / 255 for one in _channels(color))
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ink_on(color: str) -> str:
    """Black or white, whichever stands out more.

    >>> ink_on("#440154"), ink_on("#fde725")
    ('#fff', '#000')
    """
    level = luminance(color)
    return "#fff" if 1.05 / (level + 0.05) > (level + 0.05) / 0.05 else "#000"


def step_of(share: float) -> int:
    """The number of the color step."""
    return round(share * (STEPS - 1))


def color_style() -> str:
    """Style rules of all steps: ``c0`` is the darkest."""
    colors = [viridis(step / (STEPS - 1)) for step in range(STEPS)]
    return "\n".join(
        f".heat .c{step} {{ background-color: {color}; color: {ink_on(color)}; }}"
        for step, color in enumerate(colors)
    )


def _channels(color: str) -> tuple[int, int, int]:
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return red, green, blue
