"""Figures from tables and masks. Needs the extra ``plots`` (altair, vl-convert); no torch.

A figure is an altair chart: a value that can be read, composed and saved. What a report shows on hover is a fragment
of HTML instead, without JavaScript.
"""

from rankscope.plots.backend import Chart as Chart
from rankscope.plots.curves import layer_curves as layer_curves
from rankscope.plots.files import FIGURE_FORMATS as FIGURE_FORMATS
from rankscope.plots.files import description as description
from rankscope.plots.files import save_figure as save_figure
from rankscope.plots.files import svg as svg
from rankscope.plots.split_curves import split_curves as split_curves

__all__ = [
    "FIGURE_FORMATS",
    "Chart",
    "description",
    "layer_curves",
    "save_figure",
    "split_curves",
    "svg",
]
