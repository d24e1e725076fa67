"""A figure by name, made."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rankscope.papers.figures.figure import FIGURES, Advance, Job, Size
from rankscope.papers.figures.store import Store
from rankscope.results import Table


def reproduce(
    name: str,
    *,
    size: Size = "usual",
    seeds: Sequence[int] = (),
    folder: str | os.PathLike[str] | None = None,
    advance: Advance | None = None,
    save: Callable[[Table], object] | None = None,
) -> Table:
    """The table of a figure, with what is said of it and what was found in the section ``verdict``.

    With a folder, finished pieces of long work are kept there, so that the same call goes on after a kill; they are
    removed when the figure is done and ``save``, if given, has put the table where it belongs. ``FIGURES[name].chart``
    draws the table.
    """
    figure = FIGURES[name]
    store = Store(None if folder is None else Path(folder) / f".{name}.unfinished")
    with store.held():
        table = figure.make(Job(size=size, seeds=tuple(seeds), advance=advance, store=store))
        if save is not None:
            save(table)
        store.clear()
    return table
