"""Every field of every result: as a JSON schema, and as the page ``docs/results.md``.

Both are read off the classes of findings, so they cannot disagree with what is written. The page is made by
``python -m rankscope.findings.fields docs/results.md``.
"""

import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from pkgutil import walk_packages
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, TypeAdapter

import rankscope.findings
from rankscope.findings.base import SCHEMA, Finding, Words, meanings_of

COLUMNS = {
    "run": "Name of the run: a hash of its configuration.",
    "model": "The model, or random.",
    "variant": "Which parts the network has: san, san+skip, transformer, ...",
    "semantics": "How a variant was made of a model.",
    "mask": "The mask rule.",
    "norm": "The normalization part.",
    "seed": "Seed of a random network.",
    "sample": "Place of the text among the texts, from zero on; null for numbers over all texts.",
    "layer": "Blocks that were passed; 0 is the input of the first one.",
    "site": "Where it was measured: block, attention, mlp, final.",
    "head": "The head, from zero on; null for numbers of whole states.",
    "measure": "Bare name of the measure.",
    "definition": "Full id of the measure, with its norm and center.",
    "value": "The number; null where there is none (0/0, overflow, NaN).",
    "log10_value": "Its logarithm to base ten, which goes on where floats end; null for zero and negative numbers.",
    "floor": "The smallest size that the arithmetic can resolve here.",
    "resolved": "Whether the number is above its floor.",
}
"""What the fixed columns of every table mean."""

PROVENANCE = {
    "rankscope": "Version of this package.",
    "python": "Version of Python.",
    "platform": "Operating system and kind of processor.",
    "versions": "Versions of the packages that can move a number.",
    "config": "The configuration, every option of it.",
    "time": "When it was made, in UTC.",
    "seeds": "Seeds of random networks.",
}
"""Where a result comes from. A command may add keys."""

FRAME = {
    "schema": f"The text {SCHEMA}.",
    "command": "The command that made it.",
    "rows": "The table, one object per row.",
    "extra_columns": "Types of the columns that the command adds to the fixed ones; left out where there are none.",
    "provenance": "Where the numbers come from.",
}
"""Keys that every result has."""

INTRODUCTION = """\
# Results on disk

Every command writes one JSON object with `--output result.json`, and every finding with `finding.save("result.json")`.
It holds typed fields, sentences that are computed from them, the rows of the table and where they come from. NaN and
Infinity never occur. `rs.Finding.load(path)` gives the finding back. `rankscope list schema NAME` prints the
JSON schema of a command's result. `.parquet` and `.csv` files hold the rows alone.

Files of the older schema rankscope/1 still load: they are printed and compared, not drawn.

This page is generated from the classes: `python -m rankscope.findings.fields docs/results.md`.
"""


def finding_classes() -> dict[str, type[Finding]]:
    """The class of every command's finding, by the name of the command."""
    found = dict[str, type[Finding]]()
    for module in walk_packages(rankscope.findings.__path__, "rankscope.findings."):
        for one in vars(import_module(module.name)).values():
            if isinstance(one, type) and issubclass(one, Finding) and one.__dict__.get("command"):
                found[one.command] = one
    return dict(sorted(found.items()))


def models_of(kind: type[Finding]) -> list[type[BaseModel]]:
    """The finding itself and every typed value inside of its fields and of what is computed from them."""
    found: list[type[BaseModel]] = [kind]
    for model in found:  # it grows on the way
        inside = [hint for name, hint in hints_of(model).items() if (model, name) != (kind, "table")]
        inside += shown_of(model).values() if issubclass(model, Finding) else []
        for hint in inside:
            found += [one for one in _models_in(hint) if one not in found]
    return found


def hints_of(model: type[BaseModel]) -> dict[str, Any]:
    """The annotation of every field, in the order of declaration."""
    return {name: field.rebuild_annotation() for name, field in model.model_fields.items()}


def shown_of(kind: type[Finding]) -> dict[str, Any]:
    """The properties that the JSON object repeats, with the types that they return."""
    getters = {name: getattr(kind, name).fget for name in kind.shown}
    return {name: get_type_hints(getter, include_extras=True)["return"] for name, getter in getters.items()}


def schema_of(kind: type[Finding]) -> dict[str, Any]:
    """The JSON schema of the object that a finding is saved as."""
    whole = kind.model_json_schema(mode="serialization")
    fields, defined = whole.get("properties", {}), whole.get("$defs", {})
    fields.pop("table", None)
    for name, hint in shown_of(kind).items():
        part = TypeAdapter(hint).json_schema(mode="serialization", ref_template="#/$defs/{model}")
        defined |= part.pop("$defs", {})
        fields[name] = part | {"description": _first_line(getattr(kind, name).__doc__)}
    row = {name: {"description": words} for name, words in (COLUMNS | dict(kind.columns)).items()}
    origin = {name: {"description": words} for name, words in PROVENANCE.items()}
    frame: dict[str, Any] = {
        "schema": {"const": SCHEMA},
        "command": {"const": kind.command},
        "rows": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": row,
                "required": list(COLUMNS),
                "additionalProperties": {"type": ["number", "string", "boolean", "null"]},
            },
        },
        "extra_columns": {"type": "object", "additionalProperties": {"type": "string"}},
        "provenance": {"type": "object", "properties": origin},
    }
    properties = {"schema": frame["schema"], "command": frame["command"], **fields}
    properties |= {name: part | {"description": FRAME[name]} for name, part in frame.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Result of rankscope {kind.command}",
        "description": _first_line(kind.__doc__),
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name != "extra_columns"],
        "additionalProperties": False,
        **({"$defs": defined} if defined else {}),
    }


def page() -> str:
    """``docs/results.md``."""
    parts = [
        INTRODUCTION,
        "## Keys of every result\n\n" + _listing("key", FRAME.items()),
        "## Columns of every row\n\n" + _listing("column", COLUMNS.items()),
        "## Provenance\n\n" + _listing("key", PROVENANCE.items()),
    ]
    return "\n".join([*parts, *map(_command, finding_classes().values())])


def _command(kind: type[Finding]) -> str:
    """One section: the fields of a finding, its columns, and the values inside it."""
    parts = [f"## {kind.command}\n\n{_summary(kind)}\n"]
    for model in models_of(kind):
        meanings = meanings_of(model)
        rows = [
            (name, type_words(hint, kind.command), meanings.get(name, ""))
            for name, hint in hints_of(model).items()
            if name != "table"
        ]
        if issubclass(model, Finding):
            rows += [
                (
                    name,
                    type_words(hint, kind.command),
                    f"Computed. {_first_line(getattr(kind, name).__doc__)}",
                )
                for name, hint in shown_of(kind).items()
            ]
        else:
            parts.append(f"### {kind.command}: {_title(model)}\n\n{_summary(model)}\n")
        lines = [f"| `{name}` | {kind_} | {_cell(words)} |" for name, kind_, words in rows]
        parts.append("\n".join(["| field | type | meaning |", "|---|---|---|", *lines]) + "\n")
    if kind.columns:
        parts.insert(2, "Columns that it adds to every row:\n\n" + _listing("column", kind.columns.items()))
    return "\n".join(parts)


def type_words(hint: Any, command: str = "") -> str:
    """A type as a reader of JSON knows it.

    >>> type_words(tuple[int, ...]), type_words(float | None), type_words(Literal["a", "b"])
    ('list of whole number', 'number or null', '`"a"` or `"b"`')
    """
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        named = [name for mark in inside[1:] if isinstance(mark, Words) for name in mark.names]
        return " or ".join([type_words(inside[0], command), *(f'`"{name}"`' for name in named)])
    if origin is Literal:
        return " or ".join(f'`"{one}"`' if isinstance(one, str) else f"`{one}`" for one in inside)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(type_words(one, command) for one in inside))
    if origin is tuple and inside[-1] is not ...:
        return f"list of {len(inside)}: {', '.join(type_words(one, command) for one in inside)}"
    if origin in (tuple, list):
        return f"list of {type_words(inside[0], command)}"
    if origin is dict:
        return f"object: {type_words(inside[0], command)} to {type_words(inside[1], command)}"
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return f"[{_title(hint)}](#{command}-{_title(hint).lower()})"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(f'`"{one.value}"`' for one in hint)
    plain = {int: "whole number", float: "number", str: "text", bool: "true or false", NoneType: "null"}
    return str(plain.get(hint) or getattr(hint, "__name__", hint))


def _title(model: type[BaseModel]) -> str:
    """The name of a value on the page: that of its class, unless the class declares another one."""
    return model.model_config.get("title") or model.__name__


def _models_in(hint: Any) -> Iterator[type[BaseModel]]:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    for one in get_args(hint):
        yield from _models_in(one)


def _listing(head: str, pairs: Any) -> str:
    lines = [f"| `{name}` | {_cell(words)} |" for name, words in pairs]
    return "\n".join([f"| {head} | meaning |", "|---|---|", *lines]) + "\n"


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")


def _first_line(doc: str | None) -> str:
    return cleandoc(doc or "").partition("\n\n")[0].replace("\n", " ")


def _summary(model: type[BaseModel]) -> str:
    """The text of a class."""
    return cleandoc(model.__doc__ or "")


def main(arguments: Sequence[str]) -> None:
    """Write the page that is named."""
    from rankscope.results import write_atomically

    write_atomically(Path(arguments[0]), page().encode())


if __name__ == "__main__":
    main(sys.argv[1:])
