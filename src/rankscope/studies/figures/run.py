"""A figure by name, made."""

import os
from collections.abc import Sequence
from pathlib import Path

from rankscope.results import Table
from rankscope.studies.figures.figure import FIGURES, Advance, Job, Size
from rankscope.studies.figures.store import Store


def reproduce(
    name: str,
    *,
    size: Size = "usual",
    seeds: Sequence[int] = (),
    folder: str | os.PathLike[str] | None = None,
    advance: Advance | None = None,
) -> Table:
    """The table of a figure, with what is said of it and what was found in the section ``verdict``.

    With a folder, finished pieces of long work are kept there until ``finished`` is called, so that the same call goes
    on after a kill. ``FIGURES[name].chart`` draws the table.
    """
    job = Job(size=size, seeds=tuple(seeds), advance=advance, store=store_of(name, folder))
    return FIGURES[name].make(job)


def store_of(name: str, folder: str | os.PathLike[str] | None) -> Store:
    """Where pieces of a figure are kept in a folder."""
    return Store(None if folder is None else Path(folder) / f".{name}.unfinished")


def finished(name: str, folder: str | os.PathLike[str]) -> None:
    """Remove the pieces: the table is where it belongs."""
    store_of(name, folder).clear()
