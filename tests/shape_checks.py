"""Shape checks of jaxtyping, each made once: its own wrapper checks the arguments of every call twice.

It binds them by hand, checks them before the call and again with the answer, and does so for functions without any
shape too: half of the running time of the tests. Here beartype checks arguments and answer while the call runs, in
one scope of axis names, and functions whose signature names no shape have no scope at all.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args

import jaxtyping

_scope = jaxtyping.jaxtyped  # jaxtyped("context") opens a scope of axis names


def check_once() -> None:
    """From now on the import hook of jaxtyping decorates with ``checked``."""
    jaxtyping.jaxtyped = checked


def checked(thing: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """A function, or a dataclass with its fields, whose types and shapes are checked in every call."""
    if thing is None:
        return functools.partial(checked, typechecker=typechecker)
    if inspect.isclass(thing):
        if dataclasses.is_dataclass(thing) and "__init__" in vars(thing):
            thing.__init__ = checked(thing.__init__, typechecker=typechecker)
        return thing
    if any(map(_names_shape, thing.__annotations__.values())):
        return _in_scope(typechecker(thing))
    # a function made anew in every call of another would be compiled anew in every call
    return thing if "<locals>" in thing.__qualname__ else typechecker(thing)


def _in_scope(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        with _scope("context"):
            return function(*args, **kwargs)

    return within


def _names_shape(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return True  # not read yet: it may name one
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(_names_shape, get_args(annotation)))
