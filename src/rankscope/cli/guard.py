"""How the program fails: one line on stderr and an exit code, never a traceback; warnings of ours are notes."""

import contextlib
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from traceback import walk_tb
from typing import Any, NoReturn

from rankscope.cli.output import note
from rankscope.core.words import printable
from rankscope.errors import ConfigError, NotSaved, RankscopeError, is_out_of_memory

TOO_LARGE = (
    "not enough memory for this run; ask for smaller sizes, such as --dim, --tokens, --layers, --seeds"
)

TOO_DEEP = "something that was read is nested too deeply: a JSON file of a model, a table, or an argument; name another"

INTERRUPTED = "interrupted; nothing was written"

NOT_WHOLE = (
    "a text, a file name or an argument holds what is no whole character of Unicode ({}); write it as UTF-8"
)


class Interrupted(Exception):  # noqa: N818 - reads as a sentence
    """The user stopped the program; the message says what became of the work. The option parser would lose it."""


def run_guarded(args: Sequence[str], run: Callable[[], Any]) -> NoReturn:
    """Run a command and leave the program, with 0 or what the command returns, 2 for wrong use, 130 if interrupted."""
    _prepare_processor(args)
    try:
        _check_characters(args)
        with _warnings_as_notes():
            result = run()
        sys.stdout.flush()
    except (KeyboardInterrupt, Interrupted) as stop:
        _fail(str(stop) or INTERRUPTED, 130)
    except SystemExit as stop:
        if (told := _left_by(stop)) is None:
            raise
        _fail(told, 2)
    except RankscopeError as error:
        from rankscope.cli.fields import option_text

        _fail(error.worded(option_text), 2)
    except BrokenPipeError:
        _leave_quietly()
    except (MemoryError, OverflowError):
        _fail(TOO_LARGE, 2)
    except OSError as error:
        _fail(_system_words(error), 2)
    except Exception as error:
        told = getattr(error, "format_message", None)  # what the option parsers raise
        if type(error).__name__ == "Abort":
            _fail(INTERRUPTED, 130)
        if callable(told):
            _fail(told(), 2)
        if os.environ.get("RANKSCOPE_DEBUG"):
            raise
        if isinstance(error, RecursionError):
            _fail(TOO_DEEP, 2)
        if isinstance(error, UnicodeError):
            _fail(NOT_WHOLE.format(error.reason if isinstance(error, UnicodeEncodeError) else error), 2)
        if is_out_of_memory(error):
            _fail(TOO_LARGE, 2)
        if (place := _failed_import(error)) is not None:
            _fail(
                f"cannot load {place}: {type(error).__name__}: {error}; mend what is declared there",
                2,
            )
        _fail(
            f"unexpected {type(error).__name__}: {error}; this is a fault of rankscope, please report it with the "
            "command (RANKSCOPE_DEBUG=1 shows where it happened)",
            2,
        )
    sys.exit(result if isinstance(result, int) else 0)


def _failed_import(error: Exception) -> str | None:
    """The file and line that could not be imported, if that is where the error comes from: a wrong declaration."""
    frames = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    loaded = [code.co_filename for code, _ in frames if code.co_name == "<module>"]
    if not loaded:
        return None
    # Deeper lines of the same file, as in the body of a class, say more than where that begins.
    return next(
        f"{file}, line {line}" for code, line in reversed(frames) if (file := code.co_filename) == loaded[-1]
    )


def _left_by(stop: SystemExit) -> str | None:
    """That code which was loaded left the program, and where: a script that ends with sys.exit, or reads arguments.

    None where click did: it answers shells that complete a command line, and leaves.
    """
    library = sysconfig.get_path("stdlib")
    frames = [(frame, line) for frame, line in walk_tb(stop.__traceback__)]
    frame, line = next(
        (one for one in reversed(frames) if not one[0].f_code.co_filename.startswith(("<", library))),
        frames[-1],
    )
    if frame.f_globals.get("__name__", "").partition(".")[0] == "click":
        return None
    told = f" ({stop.code})" if isinstance(stop.code, str) and stop.code else ""
    return (
        f"the code that was loaded ends the program{told} in {frame.f_code.co_filename}, line {line}; put what belongs "
        'to a script under if __name__ == "__main__"'
    )


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
