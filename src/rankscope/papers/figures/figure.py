"""What a figure of a paper is here: a name, a study that makes its table, a picture, and what the paper says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from rankscope.core.refs import Ref
from rankscope.core.registry import Registry
from rankscope.findings.reproduce import Size as Size
from rankscope.findings.reproduce import Source as Source
from rankscope.papers.figures.store import Store
from rankscope.results import Table

if TYPE_CHECKING:
    from rankscope.plots import Chart

Advance = Callable[[int, int], None]
"""Told after every step how many of how many steps are done."""


class Point(TypedDict):
    """One statement, and what was found.

    ``agrees`` is None where it holds in part only, or where the seeds are too few to tell.
    """

    source: Source
    statement: str
    measured: str
    agrees: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is asked of a figure.

    Args:
        seeds: empty for the figure's own.
        advance: told of progress, if anyone listens.
        store: where finished pieces of long work are kept, see ``Store``.
    """

    size: Size = "usual"
    seeds: tuple[int, ...] = ()
    advance: Advance | None = None
    store: Store = field(default_factory=Store)

    def tell(self, done: int, total: int) -> None:
        """``done`` of ``total`` steps are done."""
        if self.advance is not None:
            self.advance(done, total)


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A figure by name.

    Args:
        title: what it shows, in a few words.
        source: the figure or statement of the paper.
        question: one sentence, what a reader learns from it.
        durations: how long each size takes on two cores, in words, as measured.
        make: the table. Its section ``verdict`` is a list of ``Point``, its section ``notes`` a list of sentences for
            the reader.
        chart: the picture of that table; plots are imported inside.
    """

    name: str
    title: str
    source: Ref
    question: str
    durations: Mapping[Size, str]
    make: Callable[[Job], Table]
    chart: "Callable[[Table], Chart]"


FIGURES: Registry[Figure] = Registry("figure")


def register(figure: Figure) -> Figure:
    """Enter a figure under its name."""
    FIGURES.register(figure.name, figure)
    return figure


def all_of(count: int, total: int) -> bool | None:
    """Whether a statement about every start holds: one that is not done within the steps given refutes nothing."""
    return True if count == total else None if count else False


def decided(checks: Sequence[bool | None]) -> bool | None:
    """True if all hold, False if all fail, None in between or where one is not known.

    >>> decided([True, True]), decided([False, False]), decided([True, False]), decided([True, None])
    (True, False, None, None)
    """
    if None in checks or not checks:
        return None
    return all(checks) if all(checks) or not any(checks) else None
