"""Nested values brought down to what JSON holds."""

import json
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from rankscope.errors import ConfigError


def plain(value: object, place: str) -> Any:
    """A deep copy of ``value`` as dict, list, str, int, float, bool and None only; ``place`` is for errors.

    Tuples become lists, keys become text, and non-finite numbers become None, because NaN is not JSON. Half characters
    become the replacement character, because no file can hold them.

    >>> plain({"a": (1, float("nan"))}, "config")
    {'a': [1, None]}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return whole_text(value)
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
        return whole_text(key)
    if isinstance(key, Integral) and not isinstance(key, bool):
        return str(int(key))
    raise ConfigError(f"{place} has the key {key!r} of type {type(key).__name__}; JSON keys are text")


def json_of(value: object, place: str = "value", *, indent: int | None = None) -> str:
    """The value as the text of a JSON document; the one way in which rankscope writes JSON for others to read.

    >>> json_of({"a": (1, float("inf"))})
    '{"a": [1, null]}'
    """
    return json.dumps(plain(value, place), allow_nan=False, ensure_ascii=False, indent=indent)


def from_json(text: str | bytes) -> Any:
    """The value of a JSON document; whatever is wrong with it, its depth included, is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its lists or objects are nested too deeply") from error


def whole_text(text: str) -> str:
    """The text with a replacement character for every half of a surrogate pair that lacks the other half.

    >>> whole_text("caf\\udce9"), whole_text("caf\u00e9")
    ('caf\ufffd', 'caf\u00e9')
    """
    if text.isascii() or not has_half_character(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def has_half_character(text: str) -> bool:
    """Whether the text cannot be written as UTF-8, because it holds a lone surrogate.

    They come from JSON escapes such as ``\\ud800`` and, in names of files, from bytes that are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
