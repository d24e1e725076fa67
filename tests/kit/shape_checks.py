"""Shape checks of jaxtyping, each made once: its own wrapper checks the arguments of every call twice.

It binds them by hand, checks them before the call and again with the answer, and does so for functions without any
shape too: half of the running time of the tests. Here beartype checks arguments and answer while the call runs, in
one scope of axis names, and functions whose signature names no shape have no scope at all.

Nor is anything checked again that was found right before. All that a check looks at is the outline of the values,
their classes, dtypes and shapes; a call whose arguments and answer have the outlines of an earlier call would pass.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Hashable, Iterator
from types import CodeType
from typing import Any, get_args

import jaxtyping
import numpy as np
import torch

_scope = jaxtyping.jaxtyped  # jaxtyped("context") opens a scope of axis names

_unchecked = set[CodeType]()
"""Code of functions that calls of others make anew, and whose signature names no shape."""


def check_once() -> None:
    """From now on the import hook of jaxtyping decorates with ``checked``."""
    jaxtyping.jaxtyped = checked


def checked(thing: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """A function, or a dataclass with its fields, whose types and shapes are checked in every call."""
    if thing is None:
        return _checked_by(typechecker)
    if getattr(thing, "__code__", None) in _unchecked:
        return thing
    if inspect.isclass(thing):
        if dataclasses.is_dataclass(thing) and "__init__" in vars(thing):
            thing.__init__ = checked(thing.__init__, typechecker=typechecker)
        return thing
    if any(map(_names_shape, thing.__annotations__.values())):
        return _in_scope(thing, typechecker)
    if (
        "<locals>" in thing.__qualname__
    ):  # made anew in every call of another, it would be compiled anew each time
        _unchecked.add(thing.__code__)
        return thing
    return typechecker(thing)


@functools.cache
def _checked_by(typechecker: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return functools.partial(checked, typechecker=typechecker)


def _in_scope(function: Callable[..., Any], typechecker: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function, checked in a scope of axis names whenever arguments or answer have outlines not seen before."""
    whole, right, answers = typechecker(function), set[Hashable](), list[Any]()

    @functools.cache
    def answered() -> Callable[..., Any]:
        """Checked like the function, and nothing is computed: the answer is there already."""
        return typechecker(functools.wraps(function)(lambda *args, **kwargs: answers.pop()))

    @functools.wraps(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        asked = outline((args, *kwargs.items()))
        if asked not in right:
            with _scope("context"):
                answer = whole(*args, **kwargs)
            if asked is not None and (told := outline(answer)) is not None:
                right.update((asked, (asked, told)))
            return answer
        answer = function(*args, **kwargs)
        if (asked, told := outline(answer)) not in right:
            answers.append(answer)
            with _scope("context"):
                answered()(*args, **kwargs)
            if told is not None:
                right.add((asked, told))
        return answer

    return within


def outline(value: Any) -> Hashable:
    """Everything that a check of types and shapes can depend on; None where that cannot be told.

    >>> outline((torch.ones(2, 3), "mean")) == (tuple, (torch.Tensor, torch.float32, (2, 3)), (str, "mean"))
    True
    """
    kind = type(value)
    look = _look(kind)
    return kind if look is None else look(kind, value)


@functools.cache
def _look(kind: type) -> Callable[[type, Any], Hashable] | None:
    """What to look at in values of a class; None where the class is all there is."""
    if issubclass(kind, (torch.Tensor, np.ndarray)):
        return lambda kind, value: (kind, value.dtype, value.shape)
    if kind in (str, int, bool):
        return lambda kind, value: (kind, value)  # may be one of a few that are allowed
    if issubclass(kind, (tuple, list)):
        return _items
    return (lambda kind, value: None) if issubclass(kind, (Collection, Iterator)) else None


def _items(kind: type, value: Any) -> Hashable:
    inside = tuple(map(outline, value))
    return None if None in inside else (kind, *inside)


def _names_shape(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return True  # not read yet: it may name one
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(_names_shape, get_args(annotation)))
