"""Figures of the papers by name: ``FIGURES`` holds them, ``rankscope reproduce NAME`` makes them."""

# Each file registers its figure when it is imported; they are listed in this order.
# isort: off
from rankscope.studies.figures import dong_residual as dong_residual
from rankscope.studies.figures import paths_effectiveness as paths_effectiveness
from rankscope.studies.figures import circle as circle
from rankscope.studies.figures import path_length as path_length
from rankscope.studies.figures import chained_attention as chained_attention
from rankscope.studies.figures import long_paths as long_paths
from rankscope.studies.figures import width_depth as width_depth
from rankscope.studies.figures import wu_masks as wu_masks
from rankscope.studies.figures import wu_temperature as wu_temperature
from rankscope.studies.figures import wu_geometry as wu_geometry
from rankscope.studies.figures import wu_counterexample as wu_counterexample
from rankscope.studies.figures import orthogonal as orthogonal
from rankscope.studies.figures import clusters as clusters

# isort: on
from rankscope.studies.figures.figure import FIGURES as FIGURES
from rankscope.studies.figures.figure import Figure as Figure
from rankscope.studies.figures.figure import Job as Job
from rankscope.studies.figures.run import reproduce as reproduce

__all__ = ["FIGURES", "Figure", "Job", "reproduce"]
