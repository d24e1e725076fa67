"""The style sheet of the pictures of paths in a page, on top of the one of ``hover_style``."""

from pathlib import Path

from rankscope.plots.markup import Fragment
from rankscope.plots.paths_colors import ON_DARK, ON_PAPER, signed_style


def paths_style() -> Fragment:
    """Rules of ``hover_spectrum``, ``hover_heads``, ``hover_routes`` and ``hover_pairs``, for light and dark pages."""
    sheet = Path(__file__).with_name("paths_hover.css").read_text(encoding="utf-8")
    bars = [
        f".signed {{ background: linear-gradient(90deg, {', '.join(colors)}); }}"
        for colors in (ON_PAPER, ON_DARK)
    ]
    dark = f"@media screen and (prefers-color-scheme: dark) {{\n{signed_style(ON_DARK)}\n{bars[1]}\n}}"
    return Fragment("\n".join([signed_style(ON_PAPER), bars[0], sheet, dark]))
