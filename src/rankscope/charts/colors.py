"""Colors that survive print and color blindness."""

# The palette of Okabe and Ito; black and yellow are left out, one for text, the other too faint on paper.
BLIND_SAFE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

ON_DARK = ("#5cb8f0", "#ff9457", "#35cfa2", "#e79ac6", "#f2b84b", "#8fd0ff")
"""The same in tones that stand out from a dark page."""

# Ten equally spaced colors of viridis, which its authors put in the public domain.
VIRIDIS = (
    *("#440154", "#482878", "#3e4989", "#31688e", "#26828e"),
    *("#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"),
)


def viridis(share: float) -> str:
    """The color at that share of the scale, from dark to bright.

    >>> viridis(0.0), viridis(1.0)
    ('#440154', '#fde725')
    """
    place = min(1.0, max(0.0, share)) * (len(VIRIDIS) - 1)
    below = min(int(place), len(VIRIDIS) - 2)
    low, high = (_channels(VIRIDIS[below + step]) for step in (0, 1))
    mixed = [round(a + (b - a) * (place - below)) for a, b in zip(low, high, strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def luminance(color: str) -> float:
    """Relative luminance, 0 for black and 1 for white, from which the contrast of text is computed (WCAG 2)."""
    red, green, blue = (
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in (one / 255 for one in _channels(color))
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ink_on(color: str) -> str:
    """Black or white, whichever stands out more.

    >>> ink_on("#440154"), ink_on("#fde725"), ink_on("#fff")
    ('#fff', '#000', '#000')
    """
    level = luminance(color if len(color) == 7 else "#" + "".join(2 * letter for letter in color[1:]))
    return "#fff" if 1.05 / (level + 0.05) > (level + 0.05) / 0.05 else "#000"


def _channels(color: str) -> tuple[int, int, int]:
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return red, green, blue
