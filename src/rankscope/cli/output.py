"""Writing what a command found: results to stdout or a file, notes and progress to stderr."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.cli.options import Format, IfUndecided, chosen_format
from rankscope.errors import ConfigError, FileError, RankscopeError

if TYPE_CHECKING:
    from rankscope.plots import Chart
    from rankscope.results import Decision, Table

SCHEMA = "rankscope/1"


def printable(text: str) -> str:
    """The text without control characters, which could move the cursor or color the terminal.

    >>> printable("a\\x1b[31mb")
    'a?[31mb'
    """
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def note(text: str) -> None:
    """One line for the person, on stderr."""
    sys.stderr.write(f"{printable(text)}\n")


def prepared(
    format_: Format | None, output: Path | None, plot: Path | None = None, *, reads: Sequence[object] = ()
) -> Format:
    """The format in which results are written, once it is sure that they can be: ask before any work.

    Raises if a file could not be written in the end or would replace one of ``reads``, if ending and format
    contradict each other, or if a library is missing.
    """
    from rankscope.results import check_output
    from rankscope.results.files import refuse_input

    wanted = chosen_format(format_, output)
    for path, option in ((output, "--output"), (plot, "--plot")):
        if path is not None:
            check_output(path)
            refuse_input(path, reads, option)
    if output is not None and plot is not None and os.path.realpath(output) == os.path.realpath(plot):
        raise ConfigError(f"--output and --plot are both {plot}; one would overwrite the other")
    if plot is not None:
        from rankscope.plots import FIGURE_FORMATS

        check_output(plot, FIGURE_FORMATS)
    if wanted is Format.HTML:
        import rankscope.report  # noqa: F401 - a missing extra names itself now
    return wanted


def emit(text: str, output: Path | None) -> None:
    """``text`` to the file, whole or not at all, or to stdout."""
    from rankscope.results.plain import whole_text

    text = whole_text(text)
    if output is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()  # a full disk shows itself here, while the results can still be kept elsewhere
        return
    from rankscope.results import write_atomically

    write_atomically(output, text.encode())
    note(f"wrote {output}")


@contextmanager
def rescued(table: "Table", name: str = "") -> Iterator[None]:
    """What goes wrong while the table is written inside the block costs no result: it is kept aside, and told where."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of our output has seen enough of it
    except (RankscopeError, OSError) as error:
        words = (
            str(error) if isinstance(error, RankscopeError) else f"cannot write: {error.strerror or error}"
        )
        raise FileError(f"{words}; {_kept_aside(table, name or table.command)}") from error
    except Exception:
        note(_kept_aside(table, name or table.command))
        raise


def _kept_aside(table: "Table", name: str) -> str:
    """In words where the table is now: a file in the folder for temporary files, if that can be written."""
    import tempfile

    try:
        place = Path(tempfile.mkdtemp(prefix="rankscope-")) / f"{name}.json"
        table.save(place)
    except (RankscopeError, OSError):
        return "nor could the results be kept in the folder for temporary files"
    return f"the results are in {place}"


def exit_code(decisions: "Sequence[Decision]", undecided: IfUndecided | None) -> int:
    """0 if no threshold is crossed, 1 if one is, else 3 if one is undecided and ``--undecided`` does not say more.

    What is not clear is told in a line each.
    """
    from rankscope.results.outcome import Outcome, worst

    for one in decisions:
        if one.words:
            note(one.words)
    match worst(one.outcome for one in decisions):
        case Outcome.CROSSED:
            return 1
        case Outcome.UNDECIDED:
            return 3 if undecided is None else 1 if undecided is IfUndecided.FAIL else 0
    return 0


@contextmanager
def progress(text: str) -> Iterator[Callable[..., None]]:
    """A bar with the time left on stderr, silent when that is not a terminal.

    It is told how many are done, of how many if that is known, and what is being done if it says so.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total, doing=text: bar.update(task, completed=done, total=total, description=doing)


def command_line() -> str:
    """The command that is running, as one would type it."""
    from rankscope.results.plain import whole_text

    return whole_text(shlex.join(["rankscope", *sys.argv[1:]]))


def _page(table: "Table", title: str) -> str:
    from rankscope.report import page

    return page(table, [_curves(table)], title=title, command=command_line())


def write_table(
    table: "Table",
    title: str,
    wanted: Format | None,
    output: Path | None,
    plot: Path | None,
    *,
    text: "Callable[[Table], str] | None" = None,
    page: "Callable[[Table, str], str]" = _page,
    curves: "Callable[[Table], Chart] | None" = None,
) -> None:
    """The table in the format that is wanted, if any, and the picture if one is asked for.

    ``text``, ``page`` and ``curves`` make a table for reading, a report and the picture of it. What cannot be written
    is kept aside.
    """
    with rescued(table):
        match wanted:
            case Format.TABLE:
                emit((text or rendered_table)(table), output)
            case Format.JSON:
                emit(table.to_json_text(), output)
            case Format.CSV:
                emit(table.to_csv(), output)
            case Format.PARQUET:
                table.save(str(output))  # a format without a file was refused before the work
                note(f"wrote {output}")
            case Format.HTML:
                emit(page(table, title), output)
        if plot is not None:
            from rankscope.plots import save_figure

            save_figure((curves or _curves)(table), plot)
            note(f"wrote {plot}")


def _curves(table: "Table") -> "Chart":
    from rankscope.plots import layer_curves, split_curves
    from rankscope.results import is_split

    return split_curves(table) if is_split(table) else layer_curves(table)


def rendered_table(table: "Table") -> str:
    """Mean over seeds by layer, one line per network and measure, as text."""
    from rankscope.results import MEANS, UNRESOLVED_MARK, pivot

    frame = pivot(table)
    text = text_table(frame.columns, [[str(cell) for cell in row] for row in frame.fill_null("").rows()])
    legend = f"{UNRESOLVED_MARK} = some seed is below its rounding floor, - = 0/0 or overflow"
    return f"{text}\nover seeds, by layer: {MEANS}; {legend}\n"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns of text, whatever the width of the terminal.

    >>> print(text_table(["a", "bb"], [["1", "2"]]))
    a  bb
    -  --
    1  2
    """
    lines = [list(header), ["-" * len(name) for name in header], *map(list, rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(header))]
    lines[1] = ["-" * width for width in widths]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def names_text(what: str, rows: Sequence[Mapping[str, Any]], format_: str, command: str = "list") -> str:
    """Rows of a listing as text, JSON or CSV."""
    header = list(rows[0]) if rows else []
    cells = [["" if row[name] is None else _flat(row[name]) for name in header] for row in rows]
    if format_ == "json":
        from rankscope.results import provenance
        from rankscope.results.plain import json_of

        told = {"schema": SCHEMA, "command": command, "what": what, "rows": rows}
        return json_of(told | {"provenance": provenance({"what": what})}, indent=1)
    if format_ == "csv":
        import csv
        import io

        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([header, *cells])
        return buffer.getvalue()
    if format_ == "table":
        return text_table(header, cells)
    raise ConfigError(f"a listing has no format {format_!r}; use table, json or csv")


def _flat(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
