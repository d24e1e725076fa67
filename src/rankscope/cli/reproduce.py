"""``rankscope reproduce``: a figure of a paper, made again, with what it says and what was found."""

import os
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from rankscope.cli.options import Format, seed_list
from rankscope.cli.output import command_line, emit, note, progress, rescued
from rankscope.errors import ConfigError, FileError

if TYPE_CHECKING:
    from rankscope.papers.figures import Figure
    from rankscope.papers.figures.figure import Size
    from rankscope.results import Table

WIDTH = 110
ENDINGS = (".json", ".csv", ".png", ".html")


def reproduce(
    name: Annotated[str, Argument(metavar="NAME", help="Which figure, see 'rankscope list figures'.")],
    fast: Annotated[bool, Option("--fast", help="Small sizes, in seconds.")] = False,
    full: Annotated[
        bool, Option("--full", help="The sizes of the paper; see 'rankscope list figures'.")
    ] = False,
    seeds: Annotated[
        int | None, Option(help="How many networks: seeds 0 .. N-1.", show_default="its own")
    ] = None,
    seed: Annotated[int | None, Option(help="One network, of this seed.", show_default="its own")] = None,
    output: Annotated[
        str | None, Option(help="Folder for NAME.json, .csv, .png and .html; made if it is missing.")
    ] = None,
    format_: Annotated[Format, Option("--format", help="What to print: table or json.")] = Format.TABLE,
) -> None:
    """Make a figure of a paper again and say point by point whether the paper's reading holds.

    Networks are random; the verdict follows from their numbers. Every statement says where it comes from: published,
    reported (known second-hand), or stated here. A disagreement with the paper is a result, not an
    error: the exit code is 0.
    """
    if fast and full:
        raise ConfigError("give --fast or --full, not both; without either the usual size runs")
    if format_ not in (Format.TABLE, Format.JSON):
        raise ConfigError(
            f"reproduce prints table or json, got {format_.value!r}; --output DIR also writes CSV and HTML"
        )
    chosen = () if seeds is None and seed is None else seed_list(seeds, seed)
    from rankscope.papers.figures import FIGURES
    from rankscope.papers.figures import reproduce as made

    figure = FIGURES[name]
    folder = None if output is None else named_folder(output)
    if folder is not None:
        check_folder(folder, name)

    def save(table: "Table") -> None:
        if folder is not None:
            with rescued(table, name):
                _write(figure, table, folder)

    with progress(name) as advance:
        size: Size = "fast" if fast else "full" if full else "usual"
        try:
            table = made(name, size=size, seeds=chosen, folder=folder, advance=advance, save=save)
        except KeyboardInterrupt:
            kept = "nothing was kept" if folder is None else "the same command goes on with what is done"
            note(f"interrupted; {kept}")
            raise typer.Exit(130) from None
    with rescued(table, name):
        emit(table.to_json_text() if format_ is Format.JSON else _text(figure, table), None)


def named_folder(output: str) -> Path:
    """The folder of ``--output``; an empty name would silently be the current one."""
    if not output.strip():
        raise ConfigError("--output is empty; name a folder, '.' for the current one")
    return Path(output)


def check_folder(folder: Path, name: str) -> None:
    """The folder exists, was made, or cannot be used: then an error, before any work."""
    import rankscope.report.figure_page  # noqa: F401 - a missing extra names itself now
    from rankscope.results import check_output

    if folder.exists() and not folder.is_dir():
        raise FileError(
            f"--output {os.fspath(folder)!r} is a file; name a folder for the files of the figure"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(
            f"cannot make the folder {os.fspath(folder)!r}: {reason}; name one that exists"
        ) from error
    for ending in ENDINGS:
        check_output(folder / f"{name}{ending}")


def _write(figure: "Figure", table: "Table", folder: Path) -> None:
    from rankscope.papers.figures.figure import in_words
    from rankscope.plots import save_figure
    from rankscope.report.figure_page import figure_page
    from rankscope.results import write_atomically

    chart = figure.chart(table)
    page = figure_page(
        table,
        [chart],
        [in_words(point) for point in table.sections["verdict"]],
        title=_title(figure),
        source=str(figure.source),
        command=command_line(),
    )
    table.save(str(folder / f"{figure.name}.json"))
    table.save(str(folder / f"{figure.name}.csv"))
    save_figure(chart, folder / f"{figure.name}.png")
    write_atomically(folder / f"{figure.name}.html", page.encode())
    note(f"wrote {', '.join(figure.name + ending for ending in ENDINGS)} in {folder}")


def _title(figure: "Figure") -> str:
    return f"{figure.name}: {figure.title}"


def _text(figure: "Figure", table: "Table") -> str:
    """Every statement with where it comes from, what was measured and whether they agree, then the notes."""
    from rankscope.papers.figures.figure import in_words

    parts = [
        fill(_title(figure), WIDTH),
        fill(figure.question, WIDTH),
        fill(f"Source: {figure.source}", WIDTH),
    ]
    for number, point in enumerate(table.sections["verdict"], start=1):
        label, statement, measured, judged = in_words(point)
        lines = [f"{number}. {judged}"]
        for line in (f"{label}: {statement}", f"measured: {measured}"):
            lines.append(fill(line, WIDTH, initial_indent="   ", subsequent_indent="     "))
        parts.append("\n".join(lines))
    notes = "\n".join(
        fill(one, WIDTH, initial_indent="- ", subsequent_indent="  ") for one in table.sections["notes"]
    )
    return "\n\n".join([*parts, f"Notes\n{notes}" if notes else ""]).rstrip() + "\n"
