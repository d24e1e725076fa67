"""A figure by name: a configuration in, a finding out."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankscope.errors import FileError
from rankscope.findings.reproduce import FigureName, ReproduceConfig, ReproduceFinding, Size, Statement
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
        import rankscope.plots  # noqa: F401 - a missing extra names itself now
    store = Store(None if folder is None else Path(folder) / f".{figure.name}.unfinished")
    with store.held():
        table = figure.make(Job(size=config.size, seeds=config.seeds, advance=advance, store=store))
        found = finding_of(figure, config.size, table)
        if folder is not None:
            (save or (lambda one: one.save_into(folder)))(found)
        store.clear()
    return found


def finding_of(figure: Figure, size: Size, table: Table) -> ReproduceFinding:
    """The table of a figure as a finding: statements and notes as fields, its other sections beside them."""
    data = dict(table.sections)
    return ReproduceFinding(
        figure=FigureName(
            name=figure.name,
            title=figure.title,
            source=str(figure.source),
            question=figure.question,
            size=size,
        ),
        verdict=tuple(Statement(**point) for point in data.pop("verdict")),
        notes=tuple(data.pop("notes")),
        definitions=data.pop("definitions", {}),
        data=data,
        table=replace(table, command=ReproduceFinding.command, sections={}),
    )


def drawn(finding: ReproduceFinding) -> str:
    """The picture of a figure as SVG, from a finding that was just made or loaded."""
    from rankscope.plots import svg

    sections = {
        "verdict": [one.model_dump() for one in finding.verdict],
        "notes": list(finding.notes),
        "definitions": finding.definitions,
        **finding.data,
    }
    figure = FIGURES[finding.figure.name]
    try:
        return svg(figure.chart(replace(finding.table, sections=sections)))
    except LookupError as error:  # of a file that was changed, or made by another version
        raise FileError(
            f"the finding has not all that the picture of {figure.name!r} shows: {error}; make it again with "
            f"rankscope reproduce {figure.name}"
        ) from error
