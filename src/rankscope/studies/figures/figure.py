"""What a figure of a paper is here: a name, a study that makes its table, a picture, and what the paper says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

from rankscope.core.refs import Ref
from rankscope.core.registry import Registry
from rankscope.results import Table

if TYPE_CHECKING:
    from rankscope.plots import Chart

Size = Literal["fast", "usual", "full"]
"""Seconds, a few minutes, or the sizes of the paper."""

Advance = Callable[[int, int], None]
"""Told after every step how many of how many steps are done."""


class Point(TypedDict):
    """One thing that the paper says or shows, and what was found.

    ``agrees`` is None where it holds in part only, or where the seeds are too few to tell.
    """

    published: str
    measured: str
    agrees: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A figure by name.

    Args:
        title: what it shows, in a few words.
        source: the figure or statement of the paper.
        question: one sentence, what a reader learns from it.
        durations: how long each size takes on two cores, in words, as measured.
        make: size, seeds (empty: the figure's own) and progress in, table out. Its section ``verdict`` is a list of
            ``Point``, its section ``notes`` a list of sentences for the reader.
        chart: the picture of that table; plots are imported inside.
    """

    name: str
    title: str
    source: Ref
    question: str
    durations: Mapping[Size, str]
    make: Callable[[Size, Sequence[int], Advance | None], Table]
    chart: "Callable[[Table], Chart]"


FIGURES: Registry[Figure] = Registry("figure")


def register(figure: Figure) -> Figure:
    """Enter a figure under its name."""
    FIGURES.register(figure.name, figure)
    return figure


def decided(checks: Sequence[bool]) -> bool | None:
    """True if all hold, False if none does, None in between."""
    return all(checks) if all(checks) or not any(checks) else None
