"""Charts of altair, put together and checked as it does, with less work: half of the time of tests that draw.

It copies a chart anew for every layer, panel and title, and looks at each of some thirty fields of all its parts, most
of them empty. Here a copy passes over empty and plain fields. It holds every part against the schema when it is made,
when it is put into another and when it is drawn; here what was found right is not held against the same schema again.
"""

import functools
import json
from typing import Any

from altair.utils import schemapi
from altair.utils.schemapi import SchemaBase, Undefined, debug_mode

_PLAIN = frozenset({type(Undefined), type(None), str, int, float, bool})
_validate = schemapi.validate_jsonschema
_right: dict[tuple[int, int, str], tuple[Any, Any]] = {}
"""What was found right, by its schemas: these are kept, so that no other takes their place in memory."""


def check_once() -> None:
    """From now on altair copies and checks with the functions of this file."""
    schemapi._deep_copy = copied
    schemapi.validate_jsonschema = validated
    schemapi._FromDict.__init__ = _with_classes


def copied(part: Any, by_ref: set[str]) -> Any:
    """A part of a chart and all parts of it anew, but for the fields named in ``by_ref``."""
    if isinstance(part, SchemaBase):
        if hasattr(type(part), "__deepcopy__"):
            with debug_mode(False):
                return part.__deepcopy__(part)
        args = tuple(copied(one, by_ref) for one in part._args)
        fields = _fields(part._kwds, by_ref)
        if _only_holds_fields(type(part)):
            same = object.__new__(type(part))
            object.__setattr__(same, "_args", args)
            object.__setattr__(same, "_kwds", fields)
            return same
        with debug_mode(False):
            return type(part)(*args, **fields)
    if isinstance(part, list):
        return [one if type(one) in _PLAIN else copied(one, by_ref) for one in part]
    return _fields(part, by_ref) if isinstance(part, dict) else part


def _fields(fields: dict[str, Any], by_ref: set[str]) -> dict[str, Any]:
    return {
        name: one if type(one) in _PLAIN or name in by_ref else copied(one, by_ref)
        for name, one in fields.items()
    }


@functools.cache
def _only_holds_fields(kind: type) -> bool:
    """Whether the class was written from the schema: all that it does with its fields is keep them."""
    return kind.__module__.endswith((".schema.core", ".schema.channels"))


def validated(
    spec: Any, schema: dict[str, Any], rootschema: dict[str, Any] | None = None, *, raise_error: bool = True
) -> Any:
    """None where the specification obeys the schema; else what altair itself says."""
    try:
        key = (id(schema), id(rootschema), json.dumps(spec))
    except (TypeError, ValueError):  # no JSON: altair says so itself
        return _validate(spec, schema, rootschema, raise_error=raise_error)
    if key in _right:
        return None
    found = _validate(spec, schema, rootschema, raise_error=raise_error)
    if found is None:
        _right[key] = schema, rootschema
    return found


def _with_classes(self: Any, classes: Any, /) -> None:
    self.class_dict = _by_schema(tuple(classes))


@functools.cache
def _by_schema(classes: tuple[type[SchemaBase], ...]) -> dict[int, list[type[SchemaBase]]]:
    """The classes by their schemas, which altair looks up anew for every constant of a chart."""
    made = object.__new__(schemapi._FromDict)
    _look_up(made, classes)
    return made.class_dict


_look_up = schemapi._FromDict.__init__
