"""Conditions a user sets on a scan: ``residual_ratio<0.01``; the command line turns a crossed one into exit code 1."""

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from rankscope.errors import ConfigError
from rankscope.measures import find_measure
from rankscope.results import Table

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_FORM = re.compile(r"\s*(?P<measure>[a-z0-9_]+(?:\[[^\]]*\])?)\s*(?P<operator><=|>=|<|>)\s*(?P<limit>\S+)\s*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """A measure on one side of a limit, in any block after the first layer's input."""

    definition: str
    operator: str
    limit: float

    @property
    def text(self) -> str:
        return f"{self.definition}{self.operator}{self.limit:g}"


def parse_condition(text: str) -> Condition:
    """The condition that a text means; a bare measure name is its default definition.

    >>> parse_condition("residual_ratio < 0.01").text
    'residual_ratio[composite,mean]<0.01'
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"condition {text!r}: expected a measure, one of < <= > >=, and a number, as in 'residual_ratio<0.01'"
        )
    try:
        limit = float(found["limit"])
    except ValueError:
        raise ConfigError(f"condition {text!r}: {found['limit']!r} is not a number") from None
    if not math.isfinite(limit):
        raise ConfigError(f"condition {text!r}: the limit must be a finite number")
    measure = find_measure(found["measure"])
    if measure.kind != "tokens":
        raise ConfigError(
            f"condition {text!r}: {measure.definition} measures attention maps, not token states"
        )
    return Condition(definition=measure.definition, operator=found["operator"], limit=limit)


def crossed(condition: Condition, table: Table) -> str | None:
    """Where the condition holds, in words, or None: the mean over texts of any block's state.

    A number that is not above its floor could be anything up to it: it crosses only if both ends do.
    """
    compare = OPERATORS[condition.operator]
    places = []
    for entry in table.sections["summary"]:
        if entry["definition"] != condition.definition or entry["site"] != "block" or not entry["layer"]:
            continue
        value, floor = entry["mean"], entry["floor"]
        if value is None or entry.get("numbers", entry["texts"]) < entry["texts"]:
            lost = f"a text has no {condition.definition} at layer {entry['layer']} of {entry['stack']}"
            return f"{lost} (NaN, infinity or zeros), so {condition.text} cannot be ruled out"
        ends = (value,) if entry["resolved"] > 0.5 or value < 0 else (0.0, max(value, floor))
        if all(compare(end, condition.limit) for end in ends):
            places.append((entry["stack"], entry["layer"], value))
    if not places:
        return None
    stack, layer, value = places[0]
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"{condition.text} holds at layer {layer} of {stack} ({value:.3g}){more}"
