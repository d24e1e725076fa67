"""Whether a number is past a limit, where rounding leaves a range of what the number may be."""

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

VANISHING = frozenset({"residual_ratio", "residual", "diameter"})
"""Measures that go to zero with collapse, down to their floor; of the others it only bounds the error."""

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


class Outcome(StrEnum):
    """What can be said of a limit that the user set."""

    CROSSED = "crossed"
    CLEAR = "not crossed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Everything a number may be, both ends included; NaN where nothing is known of it."""

    low: float
    high: float

    def within(self, least: float, most: float) -> "Span":
        """The part of it that a measure can take: a share is never above one, whatever its floor."""
        return Span(low=min(max(self.low, least), most), high=max(min(self.high, most), least))


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What became of one limit, with a line that names layer, value, floor and limit; no words where it is clear."""

    outcome: Outcome
    words: str = ""


def span_of(value: float | None, floor: float | None, *, vanishes: bool, resolved: float = 1.0) -> Span:
    """What a measured number, or a mean of which the share ``resolved`` is above the floor, may be in truth.

    A measure that vanishes is the number itself where it is above its floor, and anything from zero to the floor
    where it is not. In a mean of both, every unresolved term may be off by its own floor, so the mean by the mean
    floor. The floor of any other measure is an absolute error.

    >>> span_of(0.5, 1e-6, vanishes=True), span_of(1e-9, 1e-6, vanishes=True, resolved=0.0)
    (Span(low=0.5, high=0.5), Span(low=0.0, high=1e-06))
    """
    if value is None or not math.isfinite(value):
        return Span(low=math.nan, high=math.nan)
    error = math.inf if floor is None or math.isnan(floor) else abs(floor)
    if not vanishes:
        return Span(low=value - error, high=value + error)
    if resolved >= 1.0:
        return Span(low=value, high=value)
    if resolved <= 0.0:
        return Span(low=0.0, high=max(error, value))
    return Span(low=max(0.0, value - error), high=value + error)


def judged(span: Span, sign: str, limit: float) -> Outcome:
    """Crossed if the comparison holds of everything in the span, clear if it holds of nothing in it.

    A comparison with a limit holds of everything between two numbers if it holds of both, so the ends decide.

    >>> judged(Span(low=0.0, high=1e-6), "<", 0.01), judged(Span(low=0.0, high=1e-6), "<", 1e-9)
    (<Outcome.CROSSED: 'crossed'>, <Outcome.UNDECIDED: 'undecided'>)
    """
    if math.isnan(span.low) or math.isnan(span.high):
        return Outcome.UNDECIDED
    holds = {OPERATORS[sign](end, limit) for end in (span.low, span.high)}
    if len(holds) > 1:
        return Outcome.UNDECIDED
    return Outcome.CROSSED if holds == {True} else Outcome.CLEAR


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Of several: one that is crossed outweighs one that is undecided, which outweighs all that are clear."""
    found = set(outcomes)
    return next(
        (one for one in (Outcome.CROSSED, Outcome.UNDECIDED) if one in found),
        Outcome.CLEAR,
    )
