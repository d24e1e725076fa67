"""Figures of the papers by name: ``FIGURES`` holds them, ``rankscope reproduce NAME`` makes them."""

from rankscope.studies.figures.figure import FIGURES as FIGURES
from rankscope.studies.figures.figure import Figure as Figure

__all__ = ["FIGURES", "Figure"]
