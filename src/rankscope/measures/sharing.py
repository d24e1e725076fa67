"""Dear pieces (spectra, eigenvectors) that a value, its floor and other measures of the same matrices share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_memory: ContextVar[dict[Any, Any] | None] = ContextVar("shared pieces", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """Inside, functions marked ``shared`` compute each piece of each tensor once; nothing outlives the block."""
    if _memory.get() is not None:
        yield
        return
    token = _memory.set({})
    try:
        yield
    finally:
        _memory.reset(token)


def shared(function: Callable[P, R]) -> Callable[P, R]:
    """A pure function of a tensor (and options) whose results are shared inside ``sharing``.

    An option that is left out is the same as its default, and one by name the same as by place.
    """
    parameters = list(signature(function).parameters.values())

    @wraps(function)
    def once(*args: P.args, **kwargs: P.kwargs) -> R:
        memory = _memory.get()
        if memory is None:
            return function(*args, **kwargs)
        named = (kwargs.get(one.name, one.default) for one in parameters[len(args) :])
        key = (function, id(args[0]), *args[1:], *named)
        if key not in memory:
            memory[key] = (
                args[0],
                function(*args, **kwargs),
            )  # the tensor is held, so that its id stays its own
        found: R = memory[key][1]
        return found

    return once
