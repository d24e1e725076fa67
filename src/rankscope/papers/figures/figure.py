"""What a figure is: a question in three sizes, a computation, statements about what was found, a picture.

A figure is declared in its file, as a claim is. What the computation found is a typed value; what is said and drawn
follows from that value alone, so a figure that was saved says and shows the same when it is loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rankscope.charts import Chart
from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.core.registry import Registry
from rankscope.findings.base import Value
from rankscope.findings.reproduce import ReproduceFinding as ReproduceFinding
from rankscope.findings.reproduce import Size as Size
from rankscope.findings.reproduce import Source as Source
from rankscope.findings.reproduce import Statement as Statement
from rankscope.papers.figures.store import Store
from rankscope.results import Table

Advance = Callable[[int, int], None]
"""Called after every step with how many steps are done, and of how many."""


class FigureConfig(Config):
    """What every figure is asked. Figures add their sizes; ``figure`` names them in the provenance of the table."""

    figure: str
    size: Size
    seeds: tuple[int, ...]


C = TypeVar("C", bound=FigureConfig)
F = TypeVar("F", bound=Value)


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
class Figure(Generic[C, F]):
    """A figure by name.

    Args:
        title: what it shows, in a few words.
        source: the figure or statement of the paper.
        question: one sentence, what a reader learns from it.
        durations: how long each size takes on two cores, in words, as measured.
        sizes: its configurations.
        found: type of what the computation finds; it is kept in the finding under ``data``.
        compute: rows and what was found.
        points: statements, each with what was measured and whether both agree.
        chart: the picture. Its title says what is seen.
        notes: sentences for the reader of the figure.
    """

    name: str
    title: str
    source: Ref
    question: str
    durations: Mapping[Size, str]
    sizes: Mapping[Size, C]
    found: type[F]
    compute: Callable[[C, Job], tuple[Table, F]]
    points: Callable[[F], Sequence[Statement]]
    chart: Callable[[F, Table], Chart]
    notes: Callable[[F], Sequence[str]]

    def config(self, size: Size, seeds: Sequence[int] = ()) -> C:
        """What is computed at that size, for the figure's own seeds or others."""
        own = self.sizes[size]
        # Validated again: some figures have one seed and their own number of starts.
        return type(own).of(**own.model_dump() | {"seeds": tuple(seeds)}) if seeds else own

    def make(self, job: Job) -> tuple[Table, F]:
        """Rows and what was found."""
        return self.compute(self.config(job.size, job.seeds), job)

    def read(self, finding: ReproduceFinding) -> F:
        """What was found, from a finding that was just made or loaded."""
        return self.found.model_validate(finding.data)


FIGURES: Registry[Any] = Registry("figure")


def register(figure: Any) -> Any:
    """Enter a figure under its name."""
    FIGURES.register(figure.name, figure)
    return figure


def all_of(count: int, total: int) -> bool | None:
    """Whether a statement about every start holds: one that is not done within the steps given refutes nothing."""
    return True if count == total else None if count else False


def all_or_none(checks: Sequence[bool | None]) -> bool | None:
    """True if all hold, False if all fail, None in between or where one is not known.

    >>> all_or_none([True, True]), all_or_none([False, False]), all_or_none([True, False]), all_or_none([True, None])
    (True, False, None, None)
    """
    if None in checks or not checks:
        return None
    return all(checks) if all(checks) or not any(checks) else None
