"""Everything rankscope raises on purpose, and the warnings of a monitored run.

A message says what was asked, what was found, what would work.
"""


class RankscopeError(Exception):
    """Base of all errors below; the command line prints its message on one line and exits with code 2."""


class ShapeError(RankscopeError):
    """A tensor or matrix has a shape, a dtype or an entry that the question cannot be asked of."""


class ConfigError(RankscopeError):
    """A configuration contradicts itself.

    ``fields`` are those that the message names as ``field=value``; the command line names its options in their place.
    """

    def __init__(self, message: str = "", *fields: str) -> None:
        super().__init__(message)
        self.fields = fields


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


ALLOCATIONS = (
    "out of memory",  # CUDA, MPS, HIP
    "can't allocate memory",  # torch on Linux
    "not enough memory: you tried to allocate",  # torch on Windows
    "unable to allocate",  # numpy
    "std::bad_alloc",
)
"""What allocators say, in lower case. The word memory alone says nothing: models have memories too."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory ran out; torch reports this as a RuntimeError of many words.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    True
    >>> is_out_of_memory(RuntimeError("the memory tokens do not fit the queries"))
    False
    """
    if isinstance(error, MemoryError | OutOfMemory):
        return True
    if any(
        kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__
    ):  # of torch, which is not imported
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and any(one in words for one in ALLOCATIONS)


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


class RankscopeWarning(UserWarning):
    """Base of the warnings below."""


class CollapseWarning(RankscopeWarning):
    """The tokens of a model in training are becoming equal."""


class NotFiniteWarning(RankscopeWarning):
    """A model in training holds NaN or infinity, or its states give no numbers."""
