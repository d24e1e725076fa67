"""Writing what a command found: results to stdout or a file, notes and progress to stderr."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from rankscope.core.words import duration, number, printable, whole
from rankscope.errors import ConfigError

if TYPE_CHECKING:
    from rankscope.results.table import Columns

SCHEMA = "rankscope/1"

LINE_EVERY = 60.0
"""Seconds between two lines of progress at least, where there is no terminal."""

LINES = 20
"""At most so many lines of progress, where it is known how much there is to do."""


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
    """A bar with the time left on stderr; where that is no terminal, such as the log of a job, a line now and then.

    It is told how many are done, of how many if that is known, and what is being done if it says so.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(text)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total, doing=text: bar.update(task, completed=done, total=total, description=doing)


class _Lines:
    """Says how far it is when a minute has passed and a twentieth of the work is done since it last did.

    Of work whose end is not known it is a twentieth of what is done. The time left is counted from the first call,
    since what was done before may have been kept from an earlier run.
    """

    def __init__(self, text: str) -> None:
        self._text, self._said_at = text, time.monotonic()
        self._first: tuple[float, int] | None = None
        self._said = 0

    def __call__(self, done: int, total: int | None, doing: str | None = None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first, self._said = (now, done), done
        is_due = now - self._said_at >= LINE_EVERY and (done - self._said) * LINES >= (total or done)
        if not is_due or done == self._said or done == total:
            return
        self._said_at, self._said = now, done
        began, before = self._first
        told = f"{doing or self._text}: {whole(done)} done"
        if total is not None:
            left = (now - began) * (total - done) / (done - before)
            told = f"{doing or self._text}: {whole(done)} of {whole(total)} done, about {duration(left)} left"
        note(told)


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
