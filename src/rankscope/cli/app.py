"""The program ``rankscope``: its commands, and how it fails."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import rankscope
from rankscope.cli.collapse import collapse
from rankscope.cli.list import list_names
from rankscope.cli.rate import rate
from rankscope.errors import RankscopeError


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
        if not standalone_mode:
            return run()
        try:
            result = run()
        except (typer.Abort, KeyboardInterrupt):
            _fail("interrupted", 130)
        except typer.TyperException as error:
            _fail(error.format_message(), 2)
        except RankscopeError as error:
            _fail(str(error), 2)
        sys.exit(result if isinstance(result, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"rankscope: {' '.join(message.split())}\n")
    sys.exit(code)


app = typer.Typer(
    cls=OneLineErrors,
    name="rankscope",
    help="See, explain, bound and prevent rank collapse in transformers.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("collapse")(collapse)
app.command("rate")(rate)
app.command("list")(list_names)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"rankscope {rankscope.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the installed program."""
    app()
