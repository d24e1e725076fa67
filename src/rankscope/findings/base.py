"""What every finding is: frozen typed fields and a tidy table, with sentences, a page and a picture computed from them.

Facts are fields. A sentence is never stored: it is computed from fields, so that it cannot contradict them, and no
later code reads a fact out of prose.
"""

import ast
import json
import math
import os
import re
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from inspect import cleandoc, getsource
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from rankscope.core.words import article
from rankscope.errors import ConfigError, FileError, RankscopeError

if TYPE_CHECKING:
    from rankscope.charts import Chart
    from rankscope.document import Document
    from rankscope.results import Table
    from rankscope.results.statistics import Decision

SCHEMA = "rankscope/2"

OLD_SCHEMA = "rankscope/1"
"""Of files without typed fields; they load as ``rankscope.findings.old.OldFinding``."""

Number = FiniteFloat | None
"""A number that may be missing. It is never infinite, so that null in JSON means one thing."""

TABLE_KEYS = ("rows", "extra_columns", "provenance")
"""Keys of the JSON object that hold the table."""

BRACKET_COLUMNS = {
    "low": "Lower end of a certified bracket of the number, of measures that have one.",
    "high": "Upper end of the bracket.",
}
"""Columns of measures whose numbers are enclosed."""

SPLIT_COLUMNS = {
    "log10_floor": "Logarithm of the floor to base ten, which goes on where floats end.",
    "float_value": "The same number of the ordinary pass.",
    "float_floor": "Floor of the ordinary pass.",
}
"""Columns of the split pass."""


UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, StopIteration)
"""What fields lead to that do not belong together, as in a file that was changed by hand."""


class Value(BaseModel):
    """A frozen piece of a finding.

    Where another class has the name that fits best, the value has a longer one (``FitValue`` beside the ``Fit`` of the
    split pass) and declares the short one as ``title``, which is what readers of JSON see in ``docs/results.md``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        made = handler.resolve_ref_schema(handler(schema))
        fields = made.get("properties", {})  # none where a class writes itself, as ``Probe`` does
        for name, words in meanings_of(cls).items():
            if name in fields:
                fields[name]["description"] = words
        return made


def meanings_of(kind: type[BaseModel]) -> dict[str, str]:
    """What every field means: its description, or the text below it, for ``docs/results.md`` and the JSON schema.

    That text is read from the source when it is asked for. pydantic would read it at every import, which took a fifth
    of the time of ``rankscope certify --help``.
    """
    below = dict[str, str]()
    for base in reversed(kind.__mro__):
        if issubclass(base, Value):
            for field, text in pairwise(_statements(base)):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                        value=ast.Constant(value=str(words))
                    ):
                        below[name] = cleandoc(words)
    told = {name: field.description or below.get(name) for name, field in kind.model_fields.items()}
    return {name: words for name, words in told.items() if words}


def _statements(kind: type) -> list[ast.stmt]:
    """The body of a class, as its file has it; empty where there is no file, as in a session at the prompt."""
    try:
        (definition,) = ast.parse(dedent(getsource(kind))).body
    except (OSError, TypeError, SyntaxError):
        return []
    return cast("ast.ClassDef", definition).body


class Words:
    """Marks a float some of whose infinities have a meaning: in JSON they are words. Other infinities are refused."""

    def __init__(self, **names: float) -> None:
        self.names = names

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any) -> Any:
            return self.names.get(value, value) if isinstance(value, str) else value

        def check(value: float) -> float:
            if math.isfinite(value) or value in self.names.values():
                return value
            raise ValueError(f"{value} is neither finite nor one of {', '.join(self.names)}")

        def write(value: float) -> float | str:
            return next((name for name, infinity in self.names.items() if value == infinity), value)

        return core_schema.chain_schema(
            [
                core_schema.no_info_before_validator_function(read, handler(source)),
                core_schema.no_info_plain_validator_function(check),
            ],
            serialization=core_schema.plain_serializer_function_ser_schema(write, when_used="json"),
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "number"}, {"enum": list(self.names)}]}


class Quotation:
    """Marks a text that is declared elsewhere: of a paper, a claim, a task or a figure. It is no sentence of ours."""


Quoted = Annotated[str, Quotation()]
"""A declared text, word for word. No other field holds sentences."""

Lower = Annotated[float, Words(nothing=-math.inf)]
"""Natural logarithm of a proven lower bound; in JSON a number or "nothing"."""

Upper = Annotated[float, Words(nothing=math.inf, zero=-math.inf)]
"""Natural logarithm of a proven upper bound; in JSON a number, "nothing", or "zero" where all tokens are equal."""

LogSize = Annotated[float, Words(zero=-math.inf)]
"""Natural logarithm of a size that was measured; in JSON a number or "zero"."""


class Finding(Value):
    """What a study found. Subclasses declare ``command``, fields, ``words``, ``document`` and perhaps ``chart``."""

    command: ClassVar[str] = ""

    shown: ClassVar[tuple[str, ...]] = ("words",)
    """Properties that the JSON object repeats for readers that are not Python; they are computed again on loading."""

    columns: ClassVar[Mapping[str, str]] = {}
    """What the columns mean that the command adds to the fixed ones of every table."""

    if TYPE_CHECKING:
        table: Table
    else:  # polars is not imported for the sake of --help
        table: Any = Field(exclude=True, repr=False)

    @property
    @abstractmethod
    def words(self) -> tuple[str, ...]:
        """What was found, in sentences; the first is the conclusion."""

    @property
    def picture_title(self) -> str:
        """The conclusion as the title of a picture: the first sentence without its full stop."""
        return re.split(r"\.(?:\s+(?=[A-Z])|$)", next(iter(self.words), ""), maxsplit=1)[0]

    @abstractmethod
    def document(self) -> "Document":
        """The page."""

    def chart(self) -> "Chart":
        """The picture."""
        raise ConfigError(f"{self.command} has no picture")

    def decisions(self) -> "tuple[Decision, ...]":
        """What was required by the command itself, and whether it holds; the exit code follows from it."""
        return ()

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the numbers come from: versions, configuration, seeds."""
        return self.table.provenance

    def to_json(self) -> str:
        """The JSON object: schema, command, fields, what is computed from them, rows. NaN and Infinity never occur."""
        rows = self.table.to_json()
        whole = {"schema": SCHEMA, "command": self.command, **self.model_dump(mode="json")}
        whole |= {name: _plain(getattr(self, name)) for name in self.shown}
        whole |= {name: rows[name] for name in TABLE_KEYS if name in rows}
        return json.dumps(whole, allow_nan=False, ensure_ascii=False)

    def to_html(self, made_by: str = "") -> str:
        """The page as one HTML file, without scripts; ``made_by`` is the command line to show below it."""
        from rankscope.document.html import to_html

        return to_html(replace(self.document(), made_by=made_by))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write .json (everything), .parquet or .csv (the rows), .html or .txt (the page), by the ending."""
        from rankscope.results.files import write_atomically

        match Path(path).suffix.lower():
            case ".json":
                write_atomically(path, self.to_json().encode())
            case ".html":
                write_atomically(path, self.to_html().encode())
            case ".txt":
                write_atomically(path, str(self).encode())
            case ".parquet" | ".csv":
                self.table.save(path)
            case ending:
                raise ConfigError(
                    f"a result cannot be written as {ending or 'a file without an ending'}; use .json, .parquet, .csv, "
                    ".html or .txt"
                )

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the page as one HTML file, whatever the ending."""
        from rankscope.results.files import write_atomically

        write_atomically(path, self.to_html().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The finding that was saved as .json; a file of another command, schema or program is named as such."""
        from polars.exceptions import PolarsError

        from rankscope.findings.old import OldFinding
        from rankscope.results import Table
        from rankscope.results.files import from_json, plain, read_bytes
        from rankscope.results.formats import frame_of

        name = os.fspath(path)
        if Path(name).suffix.lower() in (".parquet", ".csv"):
            raise FileError(
                f"{name!r} holds rows alone, which Table.load reads; a finding that was saved as .json loads whole"
            )
        try:
            whole = plain(from_json(read_bytes(path)), "file")
        except (ValueError, RecursionError) as error:
            raise FileError(f"{name!r} holds no JSON: {one_line(error)}") from None
        if not isinstance(whole, dict):
            raise FileError(
                f"{name!r} holds {article(type(whole).__name__)}, expected a JSON object of {SCHEMA}"
            )
        schema, command = whole.pop("schema", None), whole.pop("command", None)
        if schema == OLD_SCHEMA and issubclass(OldFinding, cls):
            old: Any = OldFinding(table=Table.load(path))
            return old  # type: ignore[no-any-return]  # the class says that it is one
        if schema != SCHEMA or (cls is not Finding and command != cls.command):
            wanted = f"{SCHEMA!r} of {cls.command!r}" if cls.command else repr(SCHEMA)
            raise FileError(f"{name!r} is {schema!r} of the command {command!r}, expected {wanted}")
        kind: type[Any] = cls if cls is not Finding else finding_class(str(command))
        rows = {key: whole.pop(key) for key in TABLE_KEYS if key in whole}
        fields = {key: value for key, value in whole.items() if key not in kind.shown}
        try:
            _check_table(rows)
            frame = frame_of(rows["rows"], rows.get("extra_columns", {}))
            table = Table(frame=frame, command=kind.command, provenance=rows["provenance"])
            found: Self = kind(**fields, table=table)
            for (
                said
            ) in kind.shown:  # numbers that no study gives, such as a negative rate, show themselves here
                getattr(found, said)
        except (RankscopeError, PolarsError, *UNREADABLE) as error:
            raise FileError(f"{name!r} is not whole: {one_line(error)}") from None
        return found

    def __str__(self) -> str:
        from rankscope.document.text import to_text

        return to_text(self.document())

    def _repr_html_(self) -> str:
        from rankscope.document.html import to_fragment

        return to_fragment(self.document())


def finding_class(command: str) -> type[Finding]:
    """The class of the findings of a command, imported only now."""
    found = list[type[Finding]]()
    with suppress(ImportError):
        home = import_module(f"rankscope.findings.{command if command.isidentifier() else '-'}")
        found = [one for one in vars(home).values() if isinstance(one, type) and issubclass(one, Finding)]
    for one in found:
        if one.__dict__.get("command") == command:
            return one
    raise FileError(f"no command is called {command!r}; the file is of a newer rankscope, or no result")


def _check_table(found: Mapping[str, Any]) -> None:
    """Raise unless the keys of the table hold what they should."""
    rows = found["rows"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TypeError("rows: expected a list of objects")
    for name in ("provenance", "extra_columns"):
        if not isinstance(found[name] if name == "provenance" else found.get(name, {}), dict):
            raise TypeError(f"{name}: expected an object")
    if not all(isinstance(dtype, str) for dtype in found.get("extra_columns", {}).values()):
        raise TypeError("extra_columns: expected names of types")


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return " ".join(str(error).split())
