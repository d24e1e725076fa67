"""The program ``rankscope``: its commands, and how it fails."""

import contextlib
import faulthandler
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import rankscope
from rankscope.cli.ablate import ablate
from rankscope.cli.certify import certify
from rankscope.cli.claims import claims
from rankscope.cli.collapse import collapse
from rankscope.cli.compare import compare
from rankscope.cli.equilibria import equilibria
from rankscope.cli.list import list_names
from rankscope.cli.output import note, printable
from rankscope.cli.paths import paths
from rankscope.cli.predict import predict
from rankscope.cli.rate import rate
from rankscope.cli.reproduce import reproduce
from rankscope.cli.scan import scan
from rankscope.cli.train import train
from rankscope.errors import ConfigError, NotSaved, RankscopeError, is_out_of_memory

TOO_LARGE = (
    "not enough memory for this run; ask for smaller sizes, such as --dim, --tokens, --layers, --seeds"
)

TOO_DEEP = "something that was read is nested too deeply: a JSON file of a model, a table, or an argument; name another"

NOT_WHOLE = (
    "a text, a file name or an argument holds what is no whole character of Unicode ({}); write it as UTF-8"
)


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
        _prepare_processor(args)
        run = partial(super().main, args, prog_name, complete_var, False, windows_expand_args, **extra)
        if not standalone_mode:
            return run()
        try:
            _check_characters(args)
            with _warnings_as_notes():
                result = run()
            sys.stdout.flush()
        except (typer.Abort, KeyboardInterrupt):
            _fail("interrupted; nothing was written", 130)
        except typer.TyperException as error:
            _fail(error.format_message(), 2)
        except RankscopeError as error:
            _fail(str(error), 2)
        except BrokenPipeError:
            _leave_quietly()
        except (MemoryError, OverflowError):
            _fail(TOO_LARGE, 2)
        except OSError as error:
            _fail(_system_words(error), 2)
        except Exception as error:
            if os.environ.get("RANKSCOPE_DEBUG"):
                raise
            if isinstance(error, RecursionError):
                _fail(TOO_DEEP, 2)
            if isinstance(error, UnicodeError):
                _fail(NOT_WHOLE.format(error.reason if isinstance(error, UnicodeEncodeError) else error), 2)
            if is_out_of_memory(error):
                _fail(TOO_LARGE, 2)
            _fail(
                f"unexpected {type(error).__name__}: {error}; this is a fault of rankscope, please report it with the "
                "command (RANKSCOPE_DEBUG=1 shows where it happened)",
                2,
            )
        sys.exit(result if isinstance(result, int) else 0)


def _check_characters(args: Sequence[str]) -> None:
    """An error for bytes that are no text: they could be neither written into a result nor handed to a library."""
    for arg in args:
        try:
            arg.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"the argument {arg!r} is not UTF-8 text; rename the file, or write the text as UTF-8"
            ) from None


def _prepare_processor(args: Sequence[str]) -> None:
    """What must be said to torch's libraries before they are loaded, if a dtype is named that may need it."""
    asked = [
        dtype for dtype in ("bfloat16", "float16") if any(arg.rpartition("=")[2] == dtype for arg in args)
    ]
    if asked:
        from rankscope.core.processor import limit_amx

        words = limit_amx(asked)
        if words is not None:
            note(words)


@contextlib.contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Warnings of our own are one line, as notes are, each once; others stay as Python shows them."""
    with warnings.catch_warnings():
        warnings.simplefilter("once", NotSaved)
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, NotSaved):
                note(f"note: {message}")
            else:
                shown(message, category, *place, **more)

        warnings.showwarning = show
        yield


def _system_words(error: OSError) -> str:
    """What the system refused, and of which file, if it says."""
    about = "" if error.filename is None else f" {os.fsdecode(error.filename)!r}"
    if isinstance(error, ConnectionError | TimeoutError):
        return (
            f"the network failed{about}: {error.strerror or error}; try again, or name files on this machine"
        )
    return (
        f"the system refused to read or write{about}: {error.strerror or error}; check that it is there, that you may "
        "use it, and that the disk has room"
    )


def _leave_quietly() -> NoReturn:
    """The reader of our output is gone (``| head``): nothing is wrong, and nobody is left to tell."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def _fail(message: str, code: int) -> NoReturn:
    line = printable(" ".join(message.replace("Value error, ", "").split()))
    sys.stderr.write(f"rankscope: {line}\n")
    sys.exit(code)


app = typer.Typer(
    cls=OneLineErrors,
    name="rankscope",
    help="See, explain, bound and prevent rank collapse in transformers.",
    epilog="Exit codes: 0 done, 1 a threshold you set was crossed, 2 wrong use or bad input, 3 a threshold could not "
    "be decided (--undecided ok or fail makes that 0 or 1), 130 interrupted.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("scan")(scan)
app.command("compare")(compare)
app.command("ablate")(ablate)
app.command("collapse")(collapse)
app.command("rate")(rate)
app.command("paths")(paths)
app.command("certify")(certify)
app.command("predict")(predict)
app.command("equilibria")(equilibria)
app.command("claims")(claims)
app.command("train")(train)
app.command("reproduce")(reproduce)
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
    with contextlib.suppress(AttributeError, ValueError, OSError, RuntimeError):  # without a real stderr
        faulthandler.enable()  # where a processor or a library ends the program, it at least says where
    app()
