"""Frozen, keyword-only configurations whose errors fit on one line."""

from collections.abc import Mapping
from types import NoneType
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError
from pydantic_core import SchemaError

from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError, Option, Piece, RegistrationError

C = TypeVar("C", bound="Config")


class Config(BaseModel):
    """Base of all configurations: frozen, no unknown fields, validated at birth, comparable, JSON-able."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True
    )  # asking for help builds none of them

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise self._as_error(error, values) from None
        except (
            SchemaError,
            PydanticUserError,
        ) as error:  # fields are read when the first configuration is made
            told = str(error).splitlines()[-1].strip()
            raise RegistrationError(f"{type(self).__name__} has a field that is no option: {told}") from error

    @classmethod
    def of(cls: type[C], **values: Any) -> C:
        """The same from values of unknown types, such as texts of the command line; they are validated all the same."""
        return cls(**values)

    @classmethod
    def _as_error(cls, error: ValidationError, given: Mapping[str, Any]) -> Exception:
        """All complaints as one line; a wrong name alone becomes the error that suggests the nearest one.

        A complaint about a default is none about what was given; only an empty list means "must be given".
        """
        problems = error.errors()
        for problem in problems:
            name = str(problem["loc"][0]) if problem["loc"] else ""
            own = cls.model_fields[name].default if name in cls.model_fields else ()
            if name not in given and own != () and problem["input"] is own:
                words = problem["msg"][:1].lower() + problem["msg"][1:]
                return RegistrationError(f"{cls.__name__} declares {name} with the default {own!r}: {words}")
            if problem["type"] == "extra_forbidden":
                return unknown_name(f"field of {cls.__name__}", name, cls.model_fields)
            choices = _choices(cls.model_fields[name].annotation) if name in cls.model_fields else ()
            if problem["type"] == "literal_error" and all(isinstance(choice, str) for choice in choices):
                return unknown_name(name, str(problem["input"]), choices)
        pieces = list[Piece]()
        for problem in problems:
            pieces += [*(["; "] if pieces else []), *_line(problem["loc"], problem["msg"], problem["input"])]
        return ConfigError(*pieces)


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The names of a ``Literal``, also inside of a list or beside None."""
    inside = tuple(one for one in get_args(annotation) if one not in (NoneType, ...))
    return _choices(inside[0]) if len(inside) == 1 and get_args(inside[0]) else inside


def _line(location: tuple[int | str, ...], message: str, found: object) -> tuple[Piece, ...]:
    """One complaint of pydantic: the option with what was given for it, and what is wrong with that."""
    message = message.removeprefix("Value error, ")
    if not location:
        return (message,)
    field, *entry = map(str, location)
    if found == ():
        return Option(field, found), ": an empty list was given; name at least one"
    return Option(field, found, ".".join(entry)), f": {message[:1].lower()}{message[1:]}"
