"""A figure by name: a configuration in, a finding out."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from polars.exceptions import PolarsError

from rankscope.charts import Chart
from rankscope.charts.chart import need_png
from rankscope.errors import FileError
from rankscope.findings.base import UNREADABLE, Value, one_line
from rankscope.findings.reproduce import (
    FigureDeclaration,
    FigureName,
    ReproduceConfig,
    ReproduceFinding,
    Size,
)
from rankscope.papers.figures.figure import FIGURES, Advance, Figure, Job
from rankscope.papers.figures.store import Store
from rankscope.results import Table


def reproduce(
    config: ReproduceConfig | str | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    advance: Advance | None = None,
    save: Callable[[ReproduceFinding], object] | None = None,
    **fields: Any,
) -> ReproduceFinding:
    """A figure made again, with what is said of it and what was found.

    Give a ``ReproduceConfig``, or the name of a figure and fields: ``rs.reproduce("wu-masks", size="fast")``.

    With a folder, the finding, its rows, the picture and the page are written there, by ``save`` if that is given.
    Until then finished pieces of long work are kept there, so that the same call goes on after a kill.
    """
    if not isinstance(config, ReproduceConfig):
        named = {} if config is None else {"figure": config}
        config = ReproduceConfig.of(**named, **fields)
    figure = FIGURES[config.figure]
    if folder is not None:
        need_png()  # a missing extra names itself now
    store = Store(None if folder is None else Path(folder) / f".{figure.name}.unfinished")
    with store.hold():
        job = Job(size=config.size, seeds=config.seeds, advance=advance, store=store)
        found = finding_of(figure, config.size, *figure.make(job))
        if folder is not None:
            (save or (lambda one: one.save_into(folder)))(found)
        store.clear()
    return found


def finding_of(figure: "Figure[Any, Any]", size: Size, table: Table, found: Value) -> ReproduceFinding:
    """Rows and what was found, as a finding."""
    return ReproduceFinding(
        figure=FigureName(name=figure.name, title=figure.title, source=str(figure.source), size=size),
        definitions=table.sections.get("definitions", {}),
        data=found.model_dump(mode="json"),
        table=replace(table, command=ReproduceFinding.command, sections={}),
    )


def declaration_of(finding: ReproduceFinding) -> FigureDeclaration:
    """What the figure says about a finding that was just made or loaded."""
    figure = FIGURES[finding.figure.name]
    with _readable(figure.name, "data"):
        found = figure.read(finding)
        points, notes = tuple(figure.points(found)), tuple(figure.notes(found))

    def chart() -> Chart:
        with _readable(figure.name, "rows"):
            drawn: Chart = figure.chart(found, finding.table)
            return drawn

    return FigureDeclaration(question=figure.question, verdict=points, notes=notes, chart=chart)


@contextmanager
def _readable(name: str, what: str) -> Iterator[None]:
    """One line about a file that was changed, or that another version or figure made."""
    try:
        yield
    except (PolarsError, *UNREADABLE) as error:
        raise FileError(
            f"its {what} are not what this version of {name!r} finds ({one_line(error)}); make it again with "
            f"'rankscope reproduce {name}'"
        ) from error
