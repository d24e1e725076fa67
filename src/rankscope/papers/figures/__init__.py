"""Figures of the papers by name: ``FIGURES`` holds them, ``rankscope reproduce NAME`` makes them."""

# Each file registers its figure when it is imported; they are listed in this order.
# isort: off
from rankscope.papers.figures import dong_residual as dong_residual
from rankscope.papers.figures import paths_effectiveness as paths_effectiveness
from rankscope.papers.figures import circle as circle
from rankscope.papers.figures import path_length as path_length
from rankscope.papers.figures import chained_attention as chained_attention
from rankscope.papers.figures import long_paths as long_paths
from rankscope.papers.figures import width_depth as width_depth
from rankscope.papers.figures import wu_masks as wu_masks
from rankscope.papers.figures import wu_temperature as wu_temperature
from rankscope.papers.figures import wu_geometry as wu_geometry
from rankscope.papers.figures import wu_counterexample as wu_counterexample
from rankscope.papers.figures import wu_orthogonal as wu_orthogonal
from rankscope.papers.figures import clusters as clusters

# isort: on
from rankscope.papers.figures.figure import FIGURES as FIGURES
from rankscope.papers.figures.figure import Figure as Figure
from rankscope.papers.figures.figure import Job as Job
from rankscope.papers.figures.run import reproduce as reproduce

__all__ = ["FIGURES", "Figure", "Job", "reproduce"]
