"""What all pages share: the template engine, and values from provenance and sections brought to text."""

import re
from typing import Any

from rankscope.errors import MissingExtraError
from rankscope.results import Table
from rankscope.results.plain import json_of

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
except ModuleNotFoundError as error:
    raise MissingExtraError("a report needs jinja2: pip install 'rankscope[plots]'") from error

VERSIONS_FIRST = ("rankscope", "python", "platform", "time", "seeds")

UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def rendered(template: str, **values: Any) -> str:
    """The template with those values. Everything is escaped that is not a fragment of our own.

    Control characters, which HTML forbids, and halves of surrogate pairs, which no file holds, become U+FFFD.
    """
    environment = Environment(
        autoescape=True,
        loader=PackageLoader("rankscope.report", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return UNPRINTABLE.sub("\ufffd", environment.get_template(template).render(**values))


def definitions_of(table: Table, ids: list[str]) -> list[tuple[str, str]]:
    """Those definitions with their meaning, from the table's section ``definitions``, if it has one."""
    known = mapping(table.sections.get("definitions"))
    return [(name, text_of(known.get(name, ""))) for name in ids]


def origin_of(table: Table) -> list[tuple[str, str]]:
    """Who made the table, where and when, and with which versions."""
    found = {name: table.provenance[name] for name in VERSIONS_FIRST if name in table.provenance}
    return entries_of(found | mapping(table.provenance.get("versions")))


def entries_of(values: Any) -> list[tuple[str, str]]:
    """A mapping as pairs of text; none if it is not a mapping."""
    return [(name, text_of(value)) for name, value in mapping(values).items()]


def mapping(values: Any) -> dict[str, Any]:
    """The mapping, or an empty one in place of anything else."""
    return values if isinstance(values, dict) else {}


def text_of(value: Any) -> str:
    """A value as a person reads it: text as it is, a flat list with commas, the rest as JSON."""
    if isinstance(value, list) and not any(isinstance(entry, list | dict) for entry in value):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json_of(value)


def provenance_text(table: Table) -> str:
    """All of the provenance, as indented JSON."""
    return json_of(table.provenance, indent=2)
