"""Tables that a module keeps outside of itself: on its class, in globals of its file, behind ``functools.cache``.

A copy of the module in float64 shares them, so that what it puts there would be found by the model itself later.
"""

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from rankscope.sources.roles import every_module

_MISSING = object()
_LARGEST = 10_000
"""Containers beyond it are data, not caches."""


_CONTAINERS = (dict, OrderedDict, defaultdict, list, set)
_CACHELESS = frozenset({*_CONTAINERS, tuple, str, bytes, int, float, bool, type(None), property, ModuleType})
"""Types of what is no cached function."""


@contextmanager
def caches_kept(module: nn.Module) -> Iterator[None]:
    """Afterwards names and containers beside the classes of a module hold what they held before.

    Cached functions cannot be set back; those that learnt something new forget it all.
    """
    undo = [step for home in _homes(module) for step in _steps(home)]
    try:
        yield
    finally:
        for step in undo:
            step()


def _homes(module: nn.Module) -> list[Any]:
    """The classes of all modules inside, and the files they stand in, but torch's own."""
    kinds = {type(one) for one in every_module(module)}
    classes = {cls for kind in kinds for cls in kind.__mro__ if not _is_torchs(cls.__module__)}
    files = {cls.__module__: sys.modules.get(cls.__module__) for cls in classes}
    return [*classes, *(file for file in files.values() if isinstance(file, ModuleType))]


def _is_torchs(name: str) -> bool:
    return name.partition(".")[0] in ("torch", "builtins", "typing", "abc")


def _steps(home: Any) -> Iterator[Callable[[], None]]:
    """What sets a class or a file back."""
    before = dict(vars(home))

    def names() -> None:
        for name, value in list(vars(home).items()):
            was = before.get(name, _MISSING)
            if was is value or isinstance(
                value, type | ModuleType | FunctionType
            ):  # imported on the way: not a table
                continue
            if was is _MISSING:
                delattr(home, name)
            else:
                setattr(home, name, was)

    yield names
    for value in before.values():
        kind = type(value)
        if kind in _CONTAINERS and len(value) <= _LARGEST:
            yield _contents(value)
        # A file names hundreds of things, most of them plain functions and classes, which have no cache.
        if kind in _CACHELESS or isinstance(value, type) or (kind is FunctionType and not vars(value)):
            continue
        info, clear = getattr(value, "cache_info", None), getattr(value, "cache_clear", None)
        if callable(info) and callable(clear):
            yield _cached(info, clear)


def _contents(held: Any) -> Callable[[], None]:
    before = held.copy()

    def restore() -> None:
        if isinstance(held, dict):
            same = len(held) == len(before) and all(map(_is, held.values(), before.values()))
        elif isinstance(held, list):
            same = len(held) == len(before) and all(map(_is, held, before))
        else:
            same = held == before
        if not same:
            held.clear()
            held.extend(before) if isinstance(held, list) else held.update(before)

    return restore


def _is(one: object, other: object) -> bool:
    return one is other


def _cached(info: Callable[[], Any], clear: Callable[[], None]) -> Callable[[], None]:
    try:
        before = info().misses
    except Exception:  # something else of that name
        return lambda: None

    def restore() -> None:
        if info().misses != before:
            clear()

    return restore
