"""Frozen, keyword-only configurations whose errors fit on one line."""

from types import NoneType
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError

C = TypeVar("C", bound="Config")


class Config(BaseModel):
    """Base of all configurations: frozen, no unknown fields, validated at birth, comparable, JSON-able."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise self._told(error) from None

    @classmethod
    def of(cls: type[C], **values: Any) -> C:
        """The same from values of unknown types, such as texts of the command line; they are validated all the same."""
        return cls(**values)

    @classmethod
    def _told(cls, error: ValidationError) -> Exception:
        """All complaints as one line; a wrong name alone becomes the error that suggests the nearest one."""
        problems = error.errors()
        for problem in problems:
            name = str(problem["loc"][0]) if problem["loc"] else ""
            if problem["type"] == "extra_forbidden":
                return unknown_name(f"field of {cls.__name__}", name, cls.model_fields)
            choices = _choices(cls.model_fields[name].annotation) if name in cls.model_fields else ()
            if problem["type"] == "literal_error" and all(isinstance(choice, str) for choice in choices):
                return unknown_name(name, str(problem["input"]), choices)
        fields = dict.fromkeys(str(problem["loc"][0]) for problem in problems if problem["loc"])
        lines = (_line(problem["loc"], problem["msg"], problem["input"]) for problem in problems)
        return ConfigError("; ".join(lines), *fields)


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The names of a ``Literal``, also inside of a list or beside None."""
    inside = tuple(one for one in get_args(annotation) if one not in (NoneType, ...))
    return _choices(inside[0]) if len(inside) == 1 and get_args(inside[0]) else inside


def _line(location: tuple[int | str, ...], message: str, found: object) -> str:
    name = ".".join(map(str, location))
    if found == ():
        return f"{name}: an empty list was given; name at least one"
    message = message.removeprefix("Value error, ")
    return f"{name}={found!r}: {message[:1].lower()}{message[1:]}" if name else message
