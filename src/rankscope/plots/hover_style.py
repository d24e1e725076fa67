"""The style sheet of charts and heat maps that show their numbers on hover."""

from pathlib import Path

from rankscope.plots.heat_colors import VIRIDIS, color_style
from rankscope.plots.markup import Fragment
from rankscope.plots.style import PALETTE

COLUMNS_KNOWN = 64
"""Columns of a heat map whose notes stand near their cell; notes of further ones stand in the middle."""

# The palette's blue, vermilion and green in tones that stand out from a dark page.
ON_DARK = ("#5cb8f0", "#ff9457", "#35cfa2", "#e79ac6", "#f2b84b", "#c9d1d9")
PAPER = (*PALETTE[:5], PALETTE[6])


def hover_style() -> Fragment:
    """Style rules of ``hover_chart``, ``hover_heat`` and ``head_heat``.

    A page that uses them defines the colors paper, ink, soft, axis, grid, tint and bad as custom properties.
    """
    sheet = Path(__file__).with_name("hover.css").read_text(encoding="utf-8")
    bar = f".bar {{ background: linear-gradient(90deg, {', '.join(VIRIDIS)}); }}"
    places = "\n".join(
        f".heat td:nth-child({place + 2}) {{ --k: calc({place} / var(--n)); }}"
        for place in range(COLUMNS_KNOWN)
    )
    dark = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_lines(ON_DARK)} }} }}"
    return Fragment("\n".join([f":root {{ {_lines(PAPER)} }}", dark, sheet, bar, places, color_style()]))


def _lines(colors: tuple[str, ...]) -> str:
    return " ".join(f"--line{place}: {color};" for place, color in enumerate(colors))
