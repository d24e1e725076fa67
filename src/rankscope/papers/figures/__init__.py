"""Figures of the papers by name: ``FIGURES`` holds them, ``rankscope reproduce NAME`` makes them."""

from importlib import import_module
from pkgutil import iter_modules

from rankscope.papers.figures.figure import FIGURES as FIGURES
from rankscope.papers.figures.figure import Figure as Figure
from rankscope.papers.figures.figure import Job as Job
from rankscope.papers.figures.run import reproduce as reproduce

# Each file that holds figures registers them when it is imported, in the order of the names of files.
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["FIGURES", "Figure", "Job", "reproduce"]
