"""What a law is: a function of a subject that says what it found, declared once under its name."""

from collections.abc import Callable

from rankscope.core.registry import Registry
from rankscope.findings.laws import LAWS as SAID
from rankscope.findings.laws import LawResult, Reason, State
from rankscope.sources.operations import Line
from rankscope.wiring.subject import Subject

Check = Callable[[Subject], LawResult]

LAWS: Registry[Check] = Registry("law")
"""Every law by its name, in the order in which they are looked at."""


def law(name: str) -> Callable[[Check], Check]:
    """Declare a function as the check of a law."""
    if name not in SAID:
        raise ValueError(f"findings.laws says nothing of a law {name!r}")

    def declare(check: Check) -> Check:
        return LAWS.register(name, check)

    return declare


def result(
    name: str,
    state: State,
    reason: Reason | None = None,
    *,
    block: int | None = None,
    site: str | None = None,
    line: Line | None = None,
    number: float | None = None,
    floor: float | None = None,
    what: str = "",
) -> LawResult:
    """What a check returns; numbers that are not finite are left out."""
    told = None if line is None else line.told
    return LawResult(
        name=name,
        state=state,
        reason=reason,
        block=block,
        site=site or None,
        line=None if told is None else f"{told.file}:{told.number}",
        code="" if told is None else told.code,
        number=number if number is None or abs(number) < float("inf") else None,
        floor=floor,
        what=what,
    )
