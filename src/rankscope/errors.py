"""Everything rankscope raises on purpose, and the warnings of a monitored run.

A message says what was asked, what was found, what would work. Where it names an option, it holds an ``Option`` and no
text, because readers know options by different names: ``layers=0`` in Python, ``--layers 0`` on the command line.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import EllipsisType


@dataclass(frozen=True, slots=True)
class Option:
    """An option by the field that holds it, as a piece of a message; as text it is Python.

    Args:
        field: its name.
        value: what was given for it, or would work; left out (``...``), the option alone is named.
        entry: which entry of it is meant, of one that is a list.

    >>> print(Option("layers", 0), Option("weights", "initial"), Option("texts"))
    layers=0 weights='initial' texts=
    """

    field: str
    value: object | EllipsisType = ...
    entry: str = ""

    def __str__(self) -> str:
        name = f"{self.field}.{self.entry}" if self.entry else self.field
        return f"{name}=" if self.value is ... else f"{name}={self.value!r}"


Piece = str | Option
"""What messages are made of."""


def options(named: Iterable[Piece]) -> Iterator[Piece]:
    """Several options one after the other, to be unpacked into a message; a text is the name of a field.

    >>> str(RankscopeError(*options(["layers", "heads"]), " belong together"))
    'layers=, heads= belong together'
    """
    for place, one in enumerate(named):
        yield from ([", "] if place else [])
        yield Option(one) if isinstance(one, str) else one


class RankscopeError(Exception):
    """Base of all errors below; the command line prints its message on one line and exits with code 2.

    The message is the text of its pieces one after the other; ``worded`` is the same with options in other words.
    """

    def __init__(self, *pieces: Piece) -> None:
        super().__init__("".join(map(str, pieces)))
        self.pieces = pieces

    def worded(self, say: Callable[[Option], str]) -> str:
        """The message for a reader who knows options by other names than Python's.

        >>> ShapeError("too few tokens; use ", Option("special", "keep")).worded(lambda one: f"--{one.field}")
        'too few tokens; use --special'
        """
        if not any(isinstance(piece, Option) for piece in self.pieces):
            return str(self)
        return "".join(say(piece) if isinstance(piece, Option) else piece for piece in self.pieces)

    def with_more(self, *pieces: Piece) -> "RankscopeError":
        """The error of the same kind with more to say at its end; of a kind with facts of its own, the base."""
        plain = type(self).__init__ is RankscopeError.__init__
        return (type(self) if plain else RankscopeError)(*self.pieces, *pieces)


class ShapeError(RankscopeError):
    """A tensor or matrix has a shape, a dtype or an entry that the question cannot be asked of."""


class ConfigError(RankscopeError):
    """A configuration contradicts itself."""


class RegistrationError(RankscopeError):
    """Something that was registered (a measure, a mask, a figure, an option) is not what its kind asks for."""


class UnknownNameError(RankscopeError):
    """A name that no registry knows; the message suggests the nearest one."""


class MaskError(RankscopeError):
    """A mask that cannot be parsed, or in which some token has nothing to attend to."""


class FileError(RankscopeError):
    """A file that cannot be read or written."""


class MissingExtraError(RankscopeError):
    """An optional dependency is not installed; the message names the extra."""


class NumericalError(RankscopeError):
    """A computation left the range of floating-point numbers."""


class ModelError(RankscopeError):
    """The code of a model from outside failed on the inputs it was given."""


class OutOfMemory(RankscopeError):  # noqa: N818 - reads as a sentence
    """There is not enough memory; the message says which option reduces it."""


ALLOCATORS = (
    "DefaultCPUAllocator: ",
    "MPS backend out of memory",
    "CUDA error: out of memory",
    "HIP error: out of memory",
)
"""How the reports of torch's allocators begin, where they are bare RuntimeErrors."""

_PLACE = re.compile(r"^\[enforce fail[^]]*\] (?:[^.:]*\. )?")
"""The place in torch's source that stands before a report, with the check that failed there."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: by the type of the error, or because an allocator of torch reports it.

    On the CPU torch has no type for it: the report is a plain RuntimeError, which names the allocator. What else an
    error says of memory counts for nothing: models have memories too.

    >>> is_out_of_memory(RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't ..."))
    True
    >>> is_out_of_memory(RuntimeError("out of memory tokens: 4 queries, 3 slots"))
    False
    """
    if isinstance(error, MemoryError | OutOfMemory):
        return True
    if any(
        kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__
    ):  # of torch, which is not imported
        return True
    report = _PLACE.sub("", str(error))
    return isinstance(error, RuntimeError) and report.startswith(ALLOCATORS)


class NotSaved(UserWarning):
    """Something that would only have saved work could not be written; the work itself goes on."""


class NotTapped(RankscopeError):  # noqa: N818 - reads as a sentence
    """A live model whose states did not all pass by the hooks on it."""


class NotTranslated(RankscopeError):  # noqa: N818 - reads as a sentence
    """A live model that cannot be written as a tree of parts, or whose tree does not compute what the model does."""


class NotUnderstood(RankscopeError):  # noqa: N818 - named in the design, reads as a sentence
    """An interpreter met a part of the tree that it has no rule for."""

    def __init__(self, part: object, interpreter: str, hint: str = "") -> None:
        super().__init__(f"{interpreter} has no rule for the part {type(part).__name__}{hint and '; '}{hint}")
        self.part, self.interpreter = part, interpreter


class LawBroken(RankscopeError, AssertionError):  # noqa: N818 - reads as a sentence
    """A model breaks a wiring law: which law, in which block, on which line, by how much."""

    def __init__(
        self,
        law: str,
        message: str,
        *,
        block: int | None = None,
        line: str | None = None,
        number: float | None = None,
    ) -> None:
        super().__init__(message)
        self.law, self.block, self.line, self.number = law, block, line, number


class RankscopeWarning(UserWarning):
    """Base of the warnings below."""


class CollapseWarning(RankscopeWarning):
    """The tokens of a model in training are becoming equal."""


class NotFiniteWarning(RankscopeWarning):
    """A model in training holds NaN or infinity, or its states give no numbers."""


class AlarmWarning(RankscopeWarning):
    """An alarm of a watched run began to ring."""


class RunStopped(RankscopeError):  # noqa: N818 - reads as a sentence
    """An alarm that was named by ``stop_on`` ends the run."""
