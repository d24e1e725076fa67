"""Figures from tables and masks. Needs the extra ``plots`` (altair, vl-convert); no torch.

A figure is an altair chart: a value that can be read, composed and saved. What a report shows on hover is a fragment
of HTML instead, without JavaScript.
"""

from rankscope.plots.backend import Chart as Chart
from rankscope.plots.files import FIGURE_FORMATS as FIGURE_FORMATS
from rankscope.plots.files import description as description
from rankscope.plots.files import save_figure as save_figure
from rankscope.plots.files import svg as svg
from rankscope.plots.paths_effect import effectiveness_chart as effectiveness_chart
from rankscope.plots.paths_lengths import length_distribution_chart as length_distribution_chart

__all__ = [
    "FIGURE_FORMATS",
    "Chart",
    "description",
    "effectiveness_chart",
    "length_distribution_chart",
    "save_figure",
    "svg",
]
