"""Commands that still declare every option by hand; ``rankscope.cli.app`` forwards to them."""

import sys
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import typer
from typer.core import TyperGroup

from rankscope.cli.guard import guarded
from rankscope.cli.list import list_names


class OneLineErrors(TyperGroup):
    """Commands whose errors are one line on stderr and exit code 2, never a traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        args = list(sys.argv[1:] if args is None else args) or ["--help"]
        run = partial(super().main, args, prog_name, complete_var, False, windows_expand_args, **extra)
        return guarded(args, run) if standalone_mode else run()


old = typer.Typer(
    cls=OneLineErrors,
    name="rankscope",
    add_completion=False,
    pretty_exceptions_enable=False,
)
old.callback()(lambda: None)  # with a callback a single command stays a command of its own
old.command("list")(list_names)


@cache
def command() -> Any:
    """All of them, their options read once."""
    return typer.main.get_command(old)
