"""A statement that can be run: what it says, where it comes from, and the numbers that decide it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import TypeVar

from rankscope.core.refs import PAPERS, Ref
from rankscope.core.registry import Registry
from rankscope.findings.claims import Relation as Relation
from rankscope.findings.claims import Verdict as Verdict

EQUAL = 1e-9
"""Numbers that should be equal may differ by this much, relative to the larger one."""

OURS = Ref(key="rankscope", where="own result")


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedNumber:
    """A figure and what it is compared with.

    Args:
        means: what the figure is.
        value: the figure, computed.
        relation: how it should stand to ``limit`` for the verdict.
        limit: a constant of the statement, or another computed figure.
        is_rounding: a difference that would be zero without rounding; it says something by its order alone.

    >>> ComparedNumber(means="ratio", value=1.4999999, relation=">", limit=1.0).is_so
    True
    """

    means: str
    value: float
    relation: Relation
    limit: float
    is_rounding: bool = False

    @property
    def is_so(self) -> bool:
        """Whether the relation is true; never of NaN."""
        match self.relation:
            case "<":
                return self.value < self.limit
            case "<=":
                return self.value <= self.limit
            case ">":
                return self.value > self.limit
            case ">=":
                return self.value >= self.limit
            case "=":
                return math.isclose(self.value, self.limit, rel_tol=EQUAL)


Value = float | int | str
Details = Sequence[tuple[str, Value]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimOutcome:
    """What running a claim found.

    Args:
        verdict: follows from the numbers.
        words: the assumption, or the counter-example with its entries, or how it was looked for.
        number: the figure that shows it.
        numbers: all figures the verdict rests on, that one included.
        details: what else is worth knowing, by label.
    """

    verdict: Verdict
    words: str
    number: ComparedNumber
    numbers: tuple[ComparedNumber, ...]
    details: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A statement, and how to find out about it.

    Args:
        id: its name on the command line.
        title: a few words.
        statement: the whole of it, in words and as a formula.
        source: the statement of a paper, or ``rankscope`` for a result of our own.
        expected: the verdict that a proof or a counter-example gives it.
        check: computes the finding from a seed.
        is_random: whether the seed changes anything; a counter-example with fixed entries draws nothing.
    """

    id: str
    title: str
    statement: str
    source: Ref
    expected: Verdict
    check: Callable[[int], ClaimOutcome]
    is_random: bool = True

    @property
    def citation(self) -> str:
        """The source with the paper written out."""
        return str(replace(self.source, key=PAPERS.get(self.source.key, self.source.key)))


CLAIMS: Registry[Claim] = Registry("claim")

Check = TypeVar("Check", bound=Callable[..., ClaimOutcome])


def claim(
    id: str, *, title: str, statement: str, expected: Verdict, source: Ref = OURS
) -> Callable[[Check], Check]:
    """Register the decorated function as the check of a claim. One that draws nothing takes no seed."""

    def register(check: Check) -> Check:
        is_random = bool(signature(check).parameters)
        seeded = check if is_random else lambda seed: check()
        CLAIMS.register(
            id,
            Claim(
                id=id,
                title=title,
                statement=statement,
                source=source,
                expected=expected,
                check=seeded,
                is_random=is_random,
            ),
        )
        return check

    return register


def dong(where: str, differs: str = "") -> Ref:
    """A statement of Dong, Cordonnier, Loukas (2021)."""
    return Ref(key="dong2021", where=where, differs=differs)


def wu(where: str, differs: str = "") -> Ref:
    """A statement of Wu, Ajorlou, Wang, Jegelka, Jadbabaie (2024)."""
    return Ref(key="wu2024", where=where, differs=differs)


def holds(words: str, *numbers: ComparedNumber, details: Details = ()) -> ClaimOutcome:
    """The finding of a statement that no draw may contradict: it holds if every relation does, else it is false."""
    verdict: Verdict = "holds" if all(number.is_so for number in numbers) else "false"
    return _finding(verdict, words, numbers, details)


def holds_if(
    words: str, *within: ComparedNumber, beyond: Sequence[ComparedNumber] = (), details: Details = ()
) -> ClaimOutcome:
    """The finding of a statement with an assumption.

    ``within`` are figures under the assumption, ``beyond`` those of an example without it in which the statement fails;
    if it does not fail there, whether the assumption is needed stays undecided.
    """
    verdict: Verdict = "holds under an assumption"
    if not all(number.is_so for number in within):
        verdict = "false"
    elif not all(number.is_so for number in beyond):
        verdict = "undecided"
    return _finding(verdict, words, (*within, *beyond), details)


def is_false(words: str, *numbers: ComparedNumber, details: Details = ()) -> ClaimOutcome:
    """The finding of a counter-example: the statement is false if every relation says so, else nothing is shown."""
    verdict: Verdict = "false" if all(number.is_so for number in numbers) else "undecided"
    return _finding(verdict, words, numbers, details)


def not_checkable(words: str, *numbers: ComparedNumber, details: Details = ()) -> ClaimOutcome:
    """The finding of a statement that is not known well enough to be run; the figures say what is known."""
    verdict: Verdict = "not checkable" if all(number.is_so for number in numbers) else "undecided"
    return _finding(verdict, words, numbers, details)


def _finding(
    verdict: Verdict, words: str, numbers: tuple[ComparedNumber, ...], details: Details
) -> ClaimOutcome:
    return ClaimOutcome(
        verdict=verdict, words=words, number=numbers[0], numbers=numbers, details=tuple(details)
    )


def rounding(means: str, value: float, limit: float = 1e-12) -> ComparedNumber:
    """A relative difference that would be zero without rounding."""
    return ComparedNumber(means=means, value=value, relation="<=", limit=limit, is_rounding=True)


def at_most(means: str, value: float, limit: float = 1.0, *, slack: float = 1e-9) -> ComparedNumber:
    """A quotient that must not be above ``limit``, but for rounding."""
    return ComparedNumber(means=means, value=value, relation="<=", limit=limit * (1 + slack))


def above(means: str, value: float, limit: float = 1.0) -> ComparedNumber:
    """A figure above ``limit``."""
    return ComparedNumber(means=means, value=value, relation=">", limit=limit)


def below(means: str, value: float, limit: float) -> ComparedNumber:
    """A figure below ``limit``."""
    return ComparedNumber(means=means, value=value, relation="<", limit=limit)


def equals(means: str, value: float, limit: float) -> ComparedNumber:
    """A figure that another formula gives too."""
    return ComparedNumber(means=means, value=value, relation="=", limit=limit)
