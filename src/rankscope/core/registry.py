"""Named things, looked up with a suggestion when the name is wrong."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from reprlib import Repr
from typing import Any, Generic, TypeVar

from rankscope.errors import RegistrationError, UnknownNameError

T = TypeVar("T")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not among ``known``, with the nearest one as a suggestion.

    >>> print(unknown_name("norm", "layr", ["layer", "rms"]))
    unknown norm 'layr'; did you mean 'layer'? Known: layer, rms.
    """
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    shown = near + [other for other in names if other not in near] if len(names) > 40 else names
    listed = ", ".join(shown[:40]) + (", ..." if len(shown) > 40 else "")
    return UnknownNameError(f"unknown {kind} {name!r}{hint} Known: {listed or 'none'}.")


_short = Repr()
_short.maxstring = _short.maxother = 80


def wrongly_declared(what: str, field: str, found: object, expected: str) -> RegistrationError:
    """The error for a part of something registered that is not what its kind asks for.

    >>> print(wrongly_declared("measure 'spread[l2]'", "kind", "token", "'tokens' or 'map'"))
    measure 'spread[l2]': kind is 'token', expected 'tokens' or 'map'
    """
    return RegistrationError(f"{what}: {field} is {_short.repr(found)}, expected {expected}")


Declared = tuple[str, Callable[[Any], object], str]
"""A field of something registered, whether what stands there is right, and what is expected, in words."""


def check_fields(what: str, item: object, rows: Iterable[Declared]) -> None:
    """Raise the error of the first field that is not right."""
    for field, is_right, expected in rows:
        found = getattr(item, field, None)
        if not is_right(found):
            raise wrongly_declared(what, field, found, expected)


def is_text(found: object) -> bool:
    """Whether it is a text with something in it."""
    return isinstance(found, str) and bool(found.strip())


class Registry(Mapping[str, T], Generic[T]):
    """A read-mostly mapping from names to things of one kind; names are registered once.

    ``check`` raises if a thing is not what its kind asks for, so that no wrong one is found later by who uses it.

    >>> norms = Registry[int]("norm")
    >>> norms.register("layer", 1)
    1
    >>> norms["layr"]
    Traceback (most recent call last):
    ...
    rankscope.errors.UnknownNameError: unknown norm 'layr'; did you mean 'layer'? Known: layer.
    """

    def __init__(self, kind: str, check: Callable[[str, T], None] | None = None) -> None:
        self._kind, self._check = kind, check
        self._items: dict[str, T] = {}

    def register(self, name: str, item: T) -> T:
        """Enter a thing under its name, and return it."""
        if self._check is not None:
            self._check(name, item)
        if name in self._items:
            raise wrongly_declared(f"{self._kind} {name!r}", "its name", name, "one that is not taken yet")
        self._items[name] = item
        return item

    def __getitem__(self, name: str) -> T:
        if name not in self._items:
            raise unknown_name(self._kind, name, self._items)
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
