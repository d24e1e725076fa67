"""Named things, looked up with a suggestion when the name is wrong."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Generic, TypeVar

from rankscope.errors import UnknownNameError

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


class Registry(Mapping[str, T], Generic[T]):
    """A read-mostly mapping from names to things of one kind; names are registered once.

    >>> norms = Registry[int]("norm")
    >>> norms.register("layer", 1)
    1
    >>> norms["layr"]
    Traceback (most recent call last):
    ...
    rankscope.errors.UnknownNameError: unknown norm 'layr'; did you mean 'layer'? Known: layer.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._items: dict[str, T] = {}

    def register(self, name: str, item: T) -> T:
        if name in self._items:
            raise ValueError(f"{self._kind} {name!r} is registered twice")
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
