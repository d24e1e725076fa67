"""Pictures as values, and the one writer that draws them: SVG for pages, files and notebooks, PNG from that SVG.

A chart knows no study. What it shows is a few panels of curves, grids of colored cells, or bars.
"""

from rankscope.charts.axes import Axis as Axis
from rankscope.charts.chart import CHART_FORMATS as CHART_FORMATS
from rankscope.charts.chart import Chart as Chart
from rankscope.charts.specs import Bar as Bar
from rankscope.charts.specs import Bars as Bars
from rankscope.charts.specs import CustomPicture as CustomPicture
from rankscope.charts.specs import Grid as Grid
from rankscope.charts.specs import GridCell as GridCell
from rankscope.charts.specs import Line as Line
from rankscope.charts.specs import Panel as Panel
from rankscope.charts.specs import Picture as Picture
from rankscope.charts.specs import Plane as Plane
from rankscope.charts.specs import PlaneLine as PlaneLine
from rankscope.charts.specs import Point as Point
from rankscope.charts.specs import Spot as Spot
from rankscope.charts.specs import Square as Square

__all__ = [
    "CHART_FORMATS",
    "Axis",
    "Bar",
    "Bars",
    "Chart",
    "CustomPicture",
    "Grid",
    "GridCell",
    "Line",
    "Panel",
    "Picture",
    "Plane",
    "PlaneLine",
    "Point",
    "Spot",
    "Square",
]
