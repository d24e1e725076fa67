"""Nested values brought down to what JSON holds."""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from rankscope.errors import ConfigError


def plain(value: object, place: str) -> Any:
    """A deep copy of ``value`` as dict, list, str, int, float, bool and None only; ``place`` is for errors.

    Tuples become lists, keys become text, and non-finite numbers become None, because NaN is not JSON.

    >>> plain({"a": (1, float("nan"))}, "config")
    {'a': [1, None]}
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, Mapping):
        return {_key(key, place): plain(entry, f"{place}[{key!r}]") for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, f"{place}[{index}]") for index, entry in enumerate(value)]
    raise ConfigError(
        f"{place} is a {type(value).__name__}, which JSON cannot hold; "
        "use text, numbers, booleans, lists and mappings"
    )


def _key(key: object, place: str) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, Integral) and not isinstance(key, bool):
        return str(int(key))
    raise ConfigError(f"{place} has the key {key!r} of type {type(key).__name__}; JSON keys are text")
