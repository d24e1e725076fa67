"""Writing what a command found: results to stdout or a file, notes and progress to stderr."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from rankscope.core.words import number, printable
from rankscope.errors import ConfigError

if TYPE_CHECKING:
    from rankscope.results.table import Columns

SCHEMA = "rankscope/1"


def note(text: str) -> None:
    """One line for the person, on stderr."""
    sys.stderr.write(f"{printable(text)}\n")


def emit(text: str, output: Path | None) -> None:
    """``text`` to the file, whole or not at all, or to stdout."""
    from rankscope.results.files import whole_text

    text = whole_text(text)
    if output is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()  # a full disk shows itself here, while the results can still be kept elsewhere
        return
    from rankscope.results import write_atomically

    write_atomically(output, text.encode())
    note(f"wrote {output}")


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


class Saying(TypedDict):
    """What a study is given that says something before it is done."""

    say: Callable[[str], None]


@contextmanager
def saying(*_: object) -> Iterator[Saying]:
    """What such a study is given on the command line, whatever was asked: lines for the person."""
    yield {"say": note}


def command_line() -> str:
    """The command that is running, as one would type it."""
    from rankscope.results.files import whole_text

    return whole_text(shlex.join(["rankscope", *sys.argv[1:]]))


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


def names_text(what: str, rows: "Sequence[Columns]", format_: str, command: str = "list") -> str:
    """Rows of a listing as text, JSON or CSV."""
    header = list(rows[0]) if rows else []
    digits = 4 if format_ == "table" else None
    cells = [["" if row[name] is None else _flat(row[name], digits) for name in header] for row in rows]
    if format_ == "json":
        from rankscope.results import provenance
        from rankscope.results.files import json_of

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


def _flat(value: object, digits: int | None) -> str:
    """A value on one line; numbers to so many digits where a person reads them."""
    if isinstance(value, list | tuple):
        return " ".join(_flat(one, digits) for one in value)
    return number(value, digits) if isinstance(value, float) and digits is not None else str(value)
