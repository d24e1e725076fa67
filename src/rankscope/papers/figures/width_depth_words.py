"""What ``width-depth`` found, in words: statements that can come out either way, judged by intervals over seeds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rankscope.papers.figures.figure import Point
from rankscope.papers.figures.interval_rules import side, together
from rankscope.papers.figures.statistics import Mean, mean_of
from rankscope.papers.tasks.sort import SortConfig

ACCURACY = "token_accuracy"
SKIP, BARE = "with skips", "without skips"

MARGIN = 0.01
"""Differences of accuracy up to this are not worth a word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """A depth with its width."""

    layers: int
    dim: int
    heads: int
    parameters: int

    def section(self) -> dict[str, int]:
        """As JSON."""
        return asdict(self)


class Found(dict[tuple[str, int], list[float]]):
    """Accuracies by variant and depth, one per seed in the same order everywhere."""

    def changes(self, variant: str, layers: int, other: int) -> list[float]:
        """How much better one depth is than another, seed by seed."""
        pairs = zip(self[variant, layers], self[variant, other], strict=True)
        return [one - two for one, two in pairs]


def summary(found: Found, shapes: Sequence[Form]) -> list[dict[str, Any]]:
    """Mean accuracy of every shape with its interval."""
    dims = {form.layers: form.dim for form in shapes}
    return [
        {"variant": variant, "layers": layers, "dim": dims[layers], **mean_of(numbers).section()}
        for (variant, layers), numbers in found.items()
    ]


def verdict(found: Found, shapes: Sequence[Form], *, usual: int) -> list[Point]:
    """Statements on the networks with skips, and one on those without if there are any."""
    depths = [form.layers for form in shapes]
    points = [deeper_point(found, depths, SKIP), shallow_point(found, depths)]
    if usual in depths:
        points.append(usual_point(found, depths, usual))
    if (BARE, depths[0]) in found:
        points.append(deeper_point(found, depths, BARE))
    return points


def deeper_point(found: Found, depths: Sequence[int], variant: str) -> Point:
    """The deepest against the shallowest network, paired by seed."""
    first, last = depths[0], depths[-1]
    change = mean_of(found.changes(variant, last, first))
    return Point(
        source="ours",
        statement=f"At equal numbers of weights, {variant}, the deepest network sorts better than the shallowest.",
        measured=f"{_told(found, depths, variant)}; {last} layers less {first}: {change.text()}.",
        agrees=side(change, 0.0),
    )


def shallow_point(found: Found, depths: Sequence[int]) -> Point:
    """The shallowest network against each other one: within the margin of all of them, or clearly below one.

    One of several is enough to refute it, by intervals that hold for all at once.
    """
    first, others = depths[0], depths[1:]
    changes = [found.changes(SKIP, first, layers) for layers in others]
    return Point(
        source="ours",
        statement=f"{_layers(first)} of that many weights is enough: no depth is better by more than {MARGIN:.0%}.",
        measured=f"Accuracy of {_layers(first).lower()} less that of {_compared(others, changes)}.",
        agrees=_none_above([[-one for one in each] for each in changes]),
    )


def usual_point(found: Found, depths: Sequence[int], usual: int) -> Point:
    """The depth of the paper against each other one, by the rule of ``shallow_point``."""
    others = [layers for layers in depths if layers != usual]
    changes = [found.changes(SKIP, layers, usual) for layers in others]
    return Point(
        source="ours",
        statement=f"The {usual} layers of the usual network are as good a depth as any, within {MARGIN:.0%}.",
        measured=f"Accuracy less that of {usual} layers, by seed: {_compared(others, changes)}.",
        agrees=_none_above(changes),
    )


def _none_above(changes: Sequence[Sequence[float]]) -> bool | None:
    """True if every mean is below the margin by its interval, False if one is above it by those of all at once."""
    if all(side(mean_of(one), MARGIN) is False for one in changes):
        return True
    return False if any(side(mean, MARGIN) for mean in together(changes)) else None


def _compared(depths: Sequence[int], changes: Sequence[Sequence[float]]) -> str:
    told = [f"{_count(layers)} {mean_of(one).text()}" for layers, one in zip(depths, changes, strict=True)]
    return f"{', '.join(told)}; to refute, intervals are widened for {len(changes)} comparisons (Bonferroni)"


def notes(training: SortConfig, rates: Sequence[float], shapes: Sequence[Form]) -> list[str]:
    """Sentences for the reader."""
    counts = [form.parameters for form in shapes]
    several = (
        f"the one of {', '.join(f'{rate:g}' for rate in rates)} that ends with the smallest training loss at a seed "
        "that is not among those shown"
    )
    rate = f"{rates[0]:g}" if len(rates) == 1 else several
    return [
        "Shapes, all weights counted: "
        + ", ".join(f"{form.layers} x {form.dim} ({form.parameters})" for form in shapes)
        + f"; from {min(counts)} to {max(counts)}.",
        f"All have {training.heads} heads, as the usual network has, so that a layer gives as many paths at every "
        "depth and the width of a head goes with that of the network.",
        f"Same sequences, {training.epochs} epochs and batches for all; learning rate: {rate}.",
        f"Weights start as N(0, {training.initial_std:g}^2) at every width; there are no MLPs.",
        "Without skips a network is trained and tested without them.",
    ]


def _told(found: Found, depths: Sequence[int], variant: str) -> str:
    parts = [f"{layers} {_share(mean_of(found[variant, layers]))}" for layers in depths]
    return f"Accuracy by layers, mean over seeds (95% interval): {', '.join(parts)}"


def _share(mean: Mean) -> str:
    """Mean and interval of an accuracy; no interval leaves 0 to 1."""
    if mean.low is None or mean.high is None:
        return f"{mean.mean:.3f}"
    return f"{mean.mean:.3f} ({max(mean.low, 0.0):.3f} to {min(mean.high, 1.0):.3f})"


def _count(layers: int) -> str:
    return "1 layer" if layers == 1 else f"{layers} layers"


def _layers(count: int) -> str:
    return "One layer" if count == 1 else f"A network of {count} layers"
