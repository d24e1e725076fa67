"""What a figure is: a question in three sizes, a computation, statements about what was found, a picture.

A figure is declared in its file, as a claim is. What the computation found is a typed value; what is said and drawn
follows from that value alone, so a figure that was saved says and shows the same when it is loaded.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Generic, Literal, TypeVar, get_args

from rankscope.charts import Chart
from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.core.registry import Declared, Registry, check_fields, is_text, wrongly_declared
from rankscope.findings.base import Value
from rankscope.findings.reproduce import ReproduceFinding as ReproduceFinding
from rankscope.findings.reproduce import Size as Size
from rankscope.findings.reproduce import Source as Source
from rankscope.findings.reproduce import Statement as Statement
from rankscope.results import Table
from rankscope.results.store import Store

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
        durations: how long each size takes on two cores, in words without numbers, such as ``a minute``.
        sizes: its configurations.
        found: type of what the computation finds; it is kept in the finding under ``data``.
        compute: rows and what was found.
        points: statements, each with what was measured and whether both agree.
        chart: the picture. Its title says what is seen.
        notes: sentences for the reader of the figure.
        draws: what seeds do: networks or data of each of several, the starts of one, or nothing.
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
    draws: Literal["seeds", "seed", "nothing"] = "seeds"

    def config(self, size: Size, seeds: Sequence[int] = ()) -> C:
        """What is computed at that size, for the figure's own seeds or others."""
        own = self.sizes[size]
        # Validated again: some figures have one seed and their own number of starts.
        return type(own).of(**own.model_dump() | {"seeds": tuple(seeds)}) if seeds else own

    def make(self, job: Job) -> tuple[Table, F]:
        """Rows and what was found; anything else is an error."""
        made: Any = self.compute(self.config(job.size, job.seeds), job)
        parts = made if isinstance(made, tuple) else (made,)
        if not (len(parts) == 2 and isinstance(parts[0], Table) and isinstance(parts[1], self.found)):
            given = ", ".join(type(one).__name__ for one in parts)
            expected = f"Table, {self.found.__name__}"
            raise wrongly_declared(f"figure {self.name!r}", "what compute gives", given, expected)
        return parts

    def said(self, found: F) -> tuple[tuple[Statement, ...], tuple[str, ...]]:
        """Statements and notes; anything else is an error."""
        what, points, notes = f"figure {self.name!r}", self.points(found), self.notes(found)
        for said, kind, source in ((points, Statement, "points"), (notes, str, "notes")):
            if not (isinstance(said, list | tuple) and all(isinstance(one, kind) for one in said)):
                raise wrongly_declared(what, f"what {source} gives", said, f"a list of {kind.__name__}")
        return tuple(points), tuple(notes)

    def read(self, finding: ReproduceFinding) -> F:
        """What was found, from a finding that was just made or loaded."""
        return self.found.model_validate(finding.data)


SIZES = get_args(Size)
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def _in_all_sizes(found: object, kind: type) -> bool:
    if not (isinstance(found, Mapping) and set(found) == set(SIZES)):
        return False
    return all(isinstance(one, kind) and one != "" for one in found.values())


def _takes(several: int) -> Callable[[Any], bool]:
    """Whether something can be called with that many arguments."""

    def takes(found: Any) -> bool:
        try:
            signature(found).bind(*range(several))
        except (TypeError, ValueError):
            return False
        return True

    return takes


_FIELDS: tuple[Declared, ...] = (
    (
        "name",
        lambda one: is_text(one) and _NAME.fullmatch(one),
        "small letters, digits and hyphens: wu-masks",
    ),
    ("title", is_text, "what it shows, in a few words"),
    ("source", lambda one: isinstance(one, Ref), "a Ref, such as Ref(key='wu2024', where='Figure 1')"),
    ("question", is_text, "one sentence"),
    ("durations", lambda one: _in_all_sizes(one, str), f"a text for each of {', '.join(SIZES)}"),
    ("sizes", lambda one: _in_all_sizes(one, FigureConfig), f"a FigureConfig for each of {', '.join(SIZES)}"),
    ("found", lambda one: isinstance(one, type) and issubclass(one, Value), "a class derived from Value"),
    ("compute", _takes(2), "a function of config and job"),
    ("points", _takes(1), "a function of what was found"),
    ("chart", _takes(2), "a function of what was found and of the table"),
    ("notes", _takes(1), "a function of what was found"),
    ("draws", lambda one: one in ("seeds", "seed", "nothing"), "'seeds', 'seed' or 'nothing'"),
)


def _check_declared(name: str, figure: object) -> None:
    """Raise a ``RegistrationError`` unless a figure has all its texts, its sizes and its functions."""
    what = f"figure {name!r}"
    if not isinstance(figure, Figure):
        raise wrongly_declared(what, "it", figure, "a Figure")
    check_fields(what, figure, _FIELDS)
    for size, config in figure.sizes.items():
        if (config.figure, config.size) != (name, size):
            named, expected = (
                f"figure={a!r}, size={b!r}" for a, b in ((config.figure, config.size), (name, size))
            )
            raise wrongly_declared(what, f"its config of size {size}", named, expected)


FIGURES: Registry[Any] = Registry("figure", _check_declared)


def register(figure: Any) -> Any:
    """Enter a figure under its name."""
    FIGURES.register(getattr(figure, "name", ""), figure)
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
