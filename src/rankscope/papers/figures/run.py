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
from rankscope.core.registry import wrongly_declared
from rankscope.errors import ConfigError, FileError, Option, RegistrationError
from rankscope.findings.base import UNREADABLE, Value, one_line
from rankscope.findings.reproduce import (
    FigureDeclaration,
    FigureName,
    ReproduceConfig,
    ReproduceFinding,
    Size,
)
from rankscope.findings.ways import refuse_idle
from rankscope.papers.figures.figure import FIGURES, Advance, Figure, Job
from rankscope.results import Table
from rankscope.results.store import Store


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
    _refuse_unused_seeds(figure, config)
    if folder is not None:
        need_png()  # a missing extra names itself now
    store = Store(None if folder is None else Path(folder) / f".{figure.name}.unfinished")
    with store.hold():
        job = Job(size=config.size, seeds=config.seeds, advance=advance, store=store)
        table, value = figure.make(job)
        _check_said(figure, table, value)
        found = finding_of(figure, config.size, table, value)
        if folder is not None:
            (save or (lambda one: one.save_into(folder)))(found)
        store.clear()
    return found


def _refuse_unused_seeds(figure: "Figure[Any, Any]", config: ReproduceConfig) -> None:
    """Raise if seeds were given that would change nothing."""
    if figure.draws == "nothing":
        others = ("name a figure of random networks, such as wu-masks",)
        refuse_idle(config, ("seed", "seeds"), f"on {figure.name}", instead=others)
    if figure.draws == "seed" and len(config.seeds) > 1:
        raise ConfigError(
            Option("seeds", len(config.seeds)),
            f": one seed draws all starts of {figure.name}; choose it with ",
            Option("seed", config.seeds[-1]),
        )


def _check_said(figure: "Figure[Any, Any]", table: Table, found: Value) -> None:
    """Raise if the figure cannot say, draw or store what it has just found: then its declaration is wrong."""
    what = f"figure {figure.name!r}"
    try:
        points, _ = figure.said(found)
        drawn = figure.chart(found, table)
        figure.found.model_validate(found.model_dump(mode="json"))
    except (PolarsError, *UNREADABLE) as error:
        told = f"{type(error).__name__}: {one_line(error)}"
        raise RegistrationError(f"{what} cannot say, draw or store what it found: {told}") from error
    if not points:
        raise wrongly_declared(what, "what points gives", points, "at least one Statement")
    if not isinstance(drawn, Chart):
        raise wrongly_declared(what, "what chart gives", drawn, "a Chart")


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
        points, notes = figure.said(found)

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
