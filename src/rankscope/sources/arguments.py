"""The arguments of a call taken apart: tensors under names, and the form that puts them back in their places.

Containers are opened: tuples, lists, mappings, dataclasses. What is no tensor stays where it is; what can be written
to, such as a cache, is copied for every call, so that no call sees what another one has left behind.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Form = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments, a ``Leaf`` in place of every tensor."""

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    type,
    range,
    nn.Module,
)
_MAIN = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")
"""First inputs that are known by their names; the first positional argument of other models has none."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The place of a tensor among the arguments of a call."""

    name: str


def taken_apart(
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
    names: tuple[str, ...] = (),
    *,
    change: Callable[[Any], Any] | None = None,
) -> tuple[Form, dict[str, Tensor]]:
    """The form of a call and its tensors by name; ``names`` are those of the positional arguments, as far as known.

    ``change`` is done to every value that holds no others, before it is looked at.

    The first positional argument is ``""``, a keyword ``mask``, a tensor inside ``0.x`` or ``batch.x.1``. A tensor that
    stands in several places has one name.

    >>> x = torch.zeros(1)
    >>> taken_apart(({"x": x}, 3), {"mask": x})
    ((({'x': Leaf(name='0.x')}, 3), {'mask': Leaf(name='0.x')}), {'0.x': tensor([0.])})
    """
    known: dict[int, str] = {}
    found: dict[str, Tensor] = {}

    def keep(name: str, value: Any) -> Any:
        if id(value) in known:
            return Leaf(known[id(value)])
        made = value if change is None else change(value)
        if not is_leaf(made):
            return _each(made, lambda key, part: keep(f"{name}.{key}", part))
        known[id(value)] = name
        found[name] = made
        return Leaf(name)

    args = tuple(args)
    positional = tuple(keep(_positional(place, value, names), value) for place, value in enumerate(args))
    return (positional, {name: keep(str(name), value) for name, value in kwargs.items()}), found


def filled(form: Form, tensors: Mapping[str, Tensor]) -> Form:
    """The arguments with tensors in their places; tensors that the form does not name follow as keyword arguments."""
    used: set[str] = set()

    def place(leaf: Leaf) -> Tensor:
        used.add(leaf.name)
        return tensors[leaf.name]

    args, kwargs = _closed(form[0], place), _closed(form[1], place)
    return args, kwargs | {name: value for name, value in tensors.items() if name not in used}


def places(form: Form, names: tuple[str, ...] = ()) -> dict[str, str]:
    """By the name of every place of a tensor the name of the tensor that stands there.

    >>> places(((Leaf(""), 3), {"mask": Leaf("")}))
    {'': '', 'mask': ''}
    """
    found: dict[str, str] = {}

    def look(name: str, value: Any) -> Any:
        if isinstance(value, Leaf):
            found[name] = value.name
            return value
        return _each(value, lambda key, part: look(f"{name}.{key}", part))

    for place, value in enumerate(form[0]):
        look(_positional(place, value, names), value)
    for key, value in form[1].items():
        look(str(key), value)
    return found


def positional_names(model: nn.Module) -> tuple[str, ...]:
    """The names of the arguments that ``forward`` takes by position, in order; none where it does not tell."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (ValueError, TypeError):
        return ()
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)


def is_leaf(value: object) -> bool:
    """Whether a value is a plain tensor; sparse and nested ones are passed on whole."""
    return isinstance(value, Tensor) and not value.is_nested and value.layout == torch.strided


def tensors_in(value: object) -> list[Tensor]:
    """All tensors inside of a value, whatever holds them, attributes of objects too."""
    found: list[Tensor] = []

    def look(part: Any, depth: int) -> None:
        if isinstance(part, Tensor):
            found.append(part)
        elif isinstance(part, _PLAIN) or depth > 5:
            return
        elif isinstance(part, Mapping):
            for one in part.values():
                look(one, depth + 1)
        elif isinstance(part, tuple | list | set | frozenset):
            for one in part:
                look(one, depth + 1)
        else:
            for one in getattr(part, "__dict__", {}).values():
                look(one, depth + 1)

    look(value, 0)
    return found


def _positional(place: int, value: object, names: tuple[str, ...]) -> str:
    name = names[place] if place < len(names) else str(place)
    if place == 0 and name not in _MAIN:
        return "" if isinstance(value, Tensor | np.ndarray | Leaf) else "0"
    return name


def _closed(value: Any, place: Callable[[Leaf], Tensor]) -> Any:
    if isinstance(value, Leaf):
        return place(value)
    return _each(value, lambda _, part: _closed(part, place))


def _each(value: Any, change: Callable[[str, Any], Any]) -> Any:
    """A container of the same kind with every entry changed; a copy of anything else that can be written to."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return _mapping(value, {key: change(str(key), part) for key, part in value.items()})
    if isinstance(value, tuple | list):
        parts = [change(str(place), part) for place, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if is_dataclass(value):
        made = copy.copy(value)
        for field in fields(value):
            object.__setattr__(made, field.name, change(field.name, getattr(value, field.name)))
        return made
    try:
        return copy.deepcopy(value)
    except Exception:  # what cannot be copied (a lock, a generator) is passed on as it is
        return value


def _mapping(value: Mapping[Any, Any], entries: dict[Any, Any]) -> Mapping[Any, Any]:
    if type(value) is dict:
        return entries
    try:
        made: Any = copy.copy(value)
        for key, part in entries.items():
            made[key] = part
    except Exception:  # a mapping that cannot be written to
        return entries
    return made  # type: ignore[no-any-return]
