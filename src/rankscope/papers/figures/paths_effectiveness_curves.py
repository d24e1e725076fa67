"""Accuracy and residual against path length over seeds, and the rules by which statements on them are decided.

``clearly above`` a line means that the whole 95% interval of the mean over seeds lies above it, ``near`` the naive line
that it lies within a tenth of the way from there to the full model, on either side. The rules are the same for all
tasks and senses.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from rankscope.papers.figures.interval_rules import side, within
from rankscope.papers.figures.statistics import Mean, mean_of

ACCURACY, REFIT, COMMON, CHANCE = "token_accuracy", "refit_accuracy", "refit_common", "refit_chance"
RATIO = "residual_ratio[composite,mean]"
NEAR = 0.1
"""Share of the way from the naive line to the full model that counts as near."""

SENSES = {"frozen": "all", "isolated": "drawn", "official": "drawn"}
"""Which paths each sense is judged by: all of a length, exactly; or the largest number that was drawn."""

T = TypeVar("T")
Key = tuple[str, str, str, str]
"""Weights, mode, paths and definition."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """By key one list of seeds per length; whether each is above rounding; accuracy of the full models; the lines."""

    values: Mapping[Key, list[list[float]]]
    resolved: Mapping[Key, list[list[bool]]]
    full: Mapping[str, list[float]]
    lines: Mapping[str, float]
    is_paper_size: bool = True

    @classmethod
    def of(
        cls, found: Sequence[Mapping[str, Any]], *, lines: Mapping[str, float], is_paper_size: bool
    ) -> "Curves":
        """From what ``measured`` says of every seed; of draws the largest is kept."""
        rows = [row for one in found for row in one["rows"]]
        most = max((row["summed"] for row in rows if row["paths"] == "drawn"), default=0)
        values: dict[Key, list[list[float]]] = {}
        resolved: dict[Key, list[list[bool]]] = {}
        for row in rows:
            if row["paths"] == "drawn" and row["summed"] != most:
                continue
            key = (row["weights"], row["mode"], row["paths"], row["definition"])
            _at(values.setdefault(key, []), row["length"]).append(row["value"])
            _at(resolved.setdefault(key, []), row["length"]).append(row["resolved"])
        full: dict[str, list[float]] = {}
        for entry in (entry for one in found for entry in one["models"]):
            full.setdefault(entry["weights"], []).append(entry["accuracy"])
        return cls(
            values=values, resolved=resolved, full=full, lines=dict(lines), is_paper_size=is_paper_size
        )

    @property
    def senses(self) -> list[str]:
        """The senses that were measured."""
        return [mode for mode, paths in SENSES.items() if ("trained", mode, paths, ACCURACY) in self.values]

    @property
    def longest(self) -> int:
        """Heads on the longest path."""
        return len(self.accuracy("frozen")) - 1

    @property
    def naive(self) -> float:
        return self.lines["naive"]

    @property
    def margin(self) -> float:
        """How far from the naive line is still near it."""
        return NEAR * abs(mean_of(self.full["trained"]).mean - self.naive)

    def accuracy(self, mode: str, weights: str = "trained") -> list[list[float]]:
        """By length, over seeds."""
        return self.values[weights, mode, SENSES[mode], ACCURACY]

    def means(self, mode: str, weights: str = "trained") -> list[float]:
        """Mean accuracy by length."""
        return [mean_of(values).mean for values in self.accuracy(mode, weights)]


def _at(lists: list[list[T]], place: int) -> list[T]:
    """The list at a place, which is made if there is none."""
    lists.extend([] for _ in range(place + 1 - len(lists)))
    return lists[place]


def above(found: Mean, line: float) -> bool | None:
    """True if the whole interval is above the line, False if it is below, None in between or without an interval."""
    return side(found, line)


def near(found: Mean, line: float, margin: float) -> bool | None:
    """True if the whole interval is within the margin on either side, False if it is outside, else None."""
    return within(found, line - margin, line + margin)


def falls(curve: Sequence[Sequence[float]], line: float, margin: float) -> bool | None:
    """Whether a curve falls with length, read as a whole and paired by seed.

    A step rises if the difference is clearly above zero, unless both of its ends are near the line. True if the last
    value is clearly below the first and no step rises. False if the last is clearly above the first, or not clearly
    below it while some step rises. None otherwise.
    """
    whole = difference(curve[-1], curve[0])
    if whole.low is None or whole.high is None:
        return None
    rises = [
        above(difference(after, before), 0.0) is True
        and any(abs(mean_of(one).mean - line) > margin for one in (before, after))
        for before, after in pairwise(curve)
    ]
    if whole.high < 0:
        return None if any(rises) else True
    return False if whole.low > 0 or any(rises) else None


def difference(one: Sequence[float], other: Sequence[float]) -> Mean:
    """The mean of differences of the same seeds."""
    return mean_of([a - b for a, b in zip(one, other, strict=True)])


def lifted(curves: Curves, mode: str) -> dict[int, bool | None]:
    """For lengths from 2 on whether training clearly raised the residual ratio; without those that show rounding only.

    Ratios are compared as logarithms. One that is not above rounding is no larger than what was found for it.
    """
    kind = SENSES[mode]
    keys = [(weights, mode, kind, RATIO) for weights in ("trained", "initial")]
    found: dict[int, bool | None] = {}
    for length in range(2, curves.longest + 1):
        if not any(all(curves.resolved[key][length]) for key in keys):
            continue
        after, before = (
            [math.log10(max(value, 1e-300)) for value in curves.values[key][length]] for key in keys
        )
        found[length] = above(difference(after, before), 0.0)
    return found


def told_apart(curves: Curves, mode: str) -> bool | None:
    """Whether a fresh classifier reads more from the longest paths than their mean over tokens or chance would give.

    False also where their residual is not above rounding: then there is nothing that tells tokens apart. None if that
    is so for some of the seeds.
    """
    key = ("trained", mode, "all", REFIT)
    own, known = curves.values[key][-1], curves.resolved[key][-1]
    if not all(known):
        return None if any(known) else False
    less = [
        max(pair)
        for pair in zip(
            *(curves.values["trained", mode, "all", name][-1] for name in (COMMON, CHANCE)), strict=True
        )
    ]
    return above(difference(own, less), 0.0)
