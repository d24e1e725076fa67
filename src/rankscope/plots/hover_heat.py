"""What the heat maps of older pages share."""

from rankscope.plots.heat_colors import Shade
from rankscope.plots.markup import Fragment, tag
from rankscope.plots.scan_entries import number

NUMBERS_UP_TO = 16
"""With more columns than this, cells are too narrow for numbers at any width."""


def color_bar(shade: Shade) -> Fragment:
    """The colors from dark to bright, with the value at either end."""
    return tag(
        "p",
        tag("span", number(shade.dark)),
        tag("i", class_="bar"),
        tag("span", number(shade.bright) + (" (log)" if shade.is_log else "")),
        class_="colors",
    )
