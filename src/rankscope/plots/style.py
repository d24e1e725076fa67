"""How every figure looks: colors, dashes, shapes and fonts that survive print and color blindness."""

from dataclasses import dataclass
from typing import Any

from rankscope.plots.backend import Chart

# Okabe and Ito's palette, told apart with every common color blindness; yellow, faint on paper, comes last.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
DASHES: tuple[list[int], ...] = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [10, 4])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")

GRAY = "#6b6b6b"
INK = "#222222"

# Vega breaks no lines; an average letter of this font size is about this many pixels wide.
LETTER_WIDTH = 5.6


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """Color, dash and point shape of each series, in the order of ``names``."""

    names: list[str]
    colors: list[str]
    dashes: list[list[int]]
    shapes: list[str]


def look(names: list[str]) -> Look:
    """Marks for those series. Lengths of the three cycles have no common factor, so 280 series all differ."""
    count = range(len(names))
    return Look(
        names=names,
        colors=[PALETTE[i % len(PALETTE)] for i in count],
        dashes=[DASHES[i % len(DASHES)] for i in count],
        shapes=[SHAPES[i % len(SHAPES)] for i in count],
    )


def configured(chart: Any) -> Chart:
    """The chart with the fonts, lines and spacing of all figures."""
    whole: Chart = (
        chart.configure(background="white", padding=12, font="Helvetica, Arial, Liberation Sans, sans-serif")
        .configure_view(stroke="#b5b5b5")
        .configure_axis(
            labelFontSize=11,
            titleFontSize=12,
            titleFontWeight="normal",
            labelColor=INK,
            titleColor=INK,
            gridColor="#e6e6e6",
            domainColor="#8a8a8a",
            tickColor="#8a8a8a",
            titlePadding=8,
        )
        .configure_header(labelFontSize=12, labelFontWeight="bold", labelColor=INK, labelPadding=6)
        .configure_legend(
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            labelColor=INK,
            labelLimit=600,
            symbolLimit=0,
            columnPadding=22,
        )
        .configure_title(
            fontSize=15,
            subtitleFontSize=11.5,
            subtitleColor=GRAY,
            anchor="start",
            color=INK,
            offset=14,
            subtitlePadding=5,
        )
    )
    return whole
