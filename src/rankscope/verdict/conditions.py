"""Conditions a user sets on a scan, ``residual_ratio<0.01``: crossed, not crossed or undecided."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from rankscope.errors import ConfigError
from rankscope.measures import find_measure
from rankscope.measures.laws import Law
from rankscope.results import Decision, Outcome, Table
from rankscope.results.outcome import VANISHING, judged, span_of, worst

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


def decided(condition: Condition, table: Table) -> Decision:
    """Whether the condition holds of the mean over texts of any block's state, with the first layer where it does.

    What enters the first block counts only in a stack that has nothing else. A number that rounding or NaN leaves open
    is undecided unless everything it may be lies on one side of the limit; so is a condition with nothing to read.
    """
    ill = table.sections.get("scan", {}).get("not finite")
    if ill:
        return Decision(
            outcome=Outcome.UNDECIDED,
            words=f"{condition.text} is undecided: the weight {ill[0]['name']!r} holds NaN or infinity",
        )
    places = list(_places(condition, table))
    outcome = worst(one for one, _ in places) if places else Outcome.UNDECIDED
    if outcome is Outcome.CLEAR:
        return Decision(outcome=outcome)
    says = f"{condition.text} {'holds' if outcome is Outcome.CROSSED else 'is undecided'}"
    found = [words for one, words in places if one is outcome]
    if not found:
        return Decision(outcome=outcome, words=f"{says}: no block of this scan has that number")
    more = f"; so at {len(found) - 1} more" if len(found) > 1 else ""
    return Decision(outcome=outcome, words=f"{says} at {found[0]}{more}")


def _places(condition: Condition, table: Table) -> Iterator[tuple[Outcome, str]]:
    """Every layer that the condition reads: what it says there, and the numbers it says it from."""
    entries = [
        entry
        for entry in table.sections["summary"]
        if entry["definition"] == condition.definition and entry["site"] == "block"
    ]
    deep = {entry["stack"] for entry in entries if entry["layer"]}
    laws = find_measure(condition.definition).laws
    least = 1.0 if Law.AT_LEAST_ONE in laws else 0.0 if Law.NOT_NEGATIVE in laws else -math.inf
    most = 1.0 if Law.AT_MOST_ONE in laws else math.inf
    for entry in entries:
        if not entry["layer"] and entry["stack"] in deep:
            continue
        value, floor, texts = entry["mean"], entry["floor"], entry["texts"]
        place = f"layer {entry['layer']} of {entry['stack']}"
        lost = texts - entry.get("numbers", 0 if value is None else texts)
        if lost:
            words = f"{place}, {lost} of {texts} texts have no number (NaN, infinity or zeros)"
            yield Outcome.UNDECIDED, f"{words}, limit {condition.limit:g}"
            continue
        span = span_of(value, floor, vanishes=entry["measure"] in VANISHING, resolved=entry["resolved"])
        outcome = judged(span.within(least, most), condition.operator, condition.limit)
        yield outcome, f"{place}, value {value:.3g}, rounding floor {floor:.3g}, limit {condition.limit:g}"
