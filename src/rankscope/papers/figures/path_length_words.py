"""What is said of the lengths of paths, against counts in whole numbers and against weights in a small network."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rankscope.papers.figures.figure import Point, decided
from rankscope.papers.figures.statistics import Mean
from rankscope.pathways.counts import Architecture, LengthDistribution

STATED = {
    "DistilBert": 5.54,
    "MobileBert": 9.60,
    "BERT-base/ViT-B": 11.08,
    "BERT-large/ViT-L": 22.59,
    "ViT-H": 30.12,
    "T5-3B": 23.27,
    "T5-11B": 23.81,
    "GPT-3": 95.01,
    "DeiT-T": 9.00,
}
"""Mean lengths ``L H / (H + 1)`` of the published models to two digits after the point."""

SHORT = 3
LEVELS = (0.05, 0.5, 0.95)


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighed:
    """Of the small model: how many paths have each length, and the share of the output that they add."""

    weights: str
    counts: tuple[int, ...]
    shares: tuple[Mean, ...]
    short: Mean
    """What lengths up to half of the layers add together."""

    @property
    def short_paths(self) -> float:
        """How many of all paths are that short."""
        return sum(self.counts[: self.half + 1]) / sum(self.counts)

    @property
    def half(self) -> int:
        return (len(self.counts) - 1) // 2


def exact_mean(lengths: LengthDistribution) -> Fraction:
    """The mean length as a fraction."""
    return Fraction(sum(k * count for k, count in enumerate(lengths.counts)), lengths.total)


def mode(lengths: LengthDistribution) -> int:
    """The commonest length; of several the longest."""
    most = max(lengths.counts)
    return max(length for length, count in enumerate(lengths.counts) if count == most)


def quantile(lengths: LengthDistribution, level: Fraction) -> int:
    """The smallest length that at least this share of the paths does not exceed, in exact arithmetic."""
    needed, seen = level * lengths.total, 0
    for length, count in enumerate(lengths.counts):
        seen += count
        if seen >= needed:
            return length
    raise ValueError(f"a quantile lies between 0 and 1, got {level}")


def counted(models: Mapping[str, Architecture]) -> Point:
    """The recursion layer by layer against the closed form, in whole numbers."""
    wrong = [name for name, found in models.items() if found.lengths().counts != closed_form(found)]
    largest = max(models.values(), key=lambda one: one.lengths().total)
    return Point(
        source="reported",
        statement="Of a network with skips, C(L, k) H^k paths have length k, and there are (1 + H)^L in all.",
        measured="Calculated, nothing random enters: counted layer by layer in whole numbers for "
        f"{len(models)} published models: "
        + (f"differs for {', '.join(wrong)}." if wrong else "equal at every length.")
        + f" The most paths are {largest.heads + 1}^{largest.layers} = 1e{math.log10(largest.lengths().total):.1f}.",
        agrees=not wrong,
    )


def closed_form(found: Architecture) -> tuple[int, ...]:
    """``C(L, k) H^k`` for k = 0 .. L."""
    return tuple(math.comb(found.layers, k) * found.heads**k for k in range(found.layers + 1))


def means(models: Mapping[str, Architecture], stated: Mapping[str, float]) -> Point:
    """Model by model; a number to two digits after the point agrees if it is the exact one rounded."""
    told, checks = [], []
    for name, found in models.items():
        exact = exact_mean(found.lengths())
        is_right = abs(exact - Fraction(str(stated[name]))) <= Fraction(1, 200)
        checks.append(is_right and exact == Fraction(found.layers * found.heads, found.heads + 1))
        told.append(
            f"{name} ({found.heads}, {found.layers}) {float(exact):.2f}" + ("" if is_right else " (differs)")
        )
    listed = ", ".join(f"{name} {value:.2f}" for name, value in stated.items())
    return Point(
        source="ours",
        statement=f"The mean length is L H / (H + 1): {listed}.",
        measured=f"Calculated, nothing random enters. (Heads, layers) and mean from whole numbers: {', '.join(told)}.",
        agrees=decided(checks),
    )


def long_by_count(models: Mapping[str, Architecture]) -> Point:
    """Holds if for every model more than half of the paths take a head in more than half of the layers."""
    told, checks = [], []
    for name, found in models.items():
        lengths = found.lengths()
        above = sum(lengths.counts[found.layers // 2 + 1 :])
        checks.append(2 * above > lengths.total)
        short = math.log10(sum(lengths.counts[: SHORT + 1])) - math.log10(lengths.total)
        low, _, high = (quantile(lengths, Fraction(str(level))) for level in LEVELS)
        told.append(f"{name} {power(short)}, {low} to {high} of {found.layers}")
    return Point(
        source="ours",
        statement="By count, paths are overwhelmingly long: most take a head in more than half of the layers. Short "
        "paths can only matter by their weight.",
        measured=f"Calculated, nothing random enters. Share of paths with at most {SHORT} heads, and the lengths of "
        f"the middle 90%: {'; '.join(told)}.",
        agrees=decided(checks),
    )


def modes(models: Mapping[str, Architecture]) -> Point:
    """``C(L, L) H^L / (C(L, L-1) H^(L-1)) = H / L``, and the shares rise up to their one maximum."""
    found = {name: (mode(one.lengths()), one) for name, one in models.items()}
    checks = [(top == one.layers) == (one.heads >= one.layers) for top, one in found.values()]
    return Point(
        source="ours",
        statement="The commonest path takes a head in every layer just where there are at least as many heads as "
        "layers.",
        measured="Calculated, nothing random enters. Commonest length of the layers: "
        + ", ".join(f"{name} {top} of {one.layers} ({one.heads} heads)" for name, (top, one) in found.items())
        + ". With as many heads as layers one layer less is as common.",
        agrees=decided(checks),
    )


def short_by_weight(found: Sequence[Weighed]) -> Point:
    """Holds if the trained network's shorter half has under half of the paths and, by interval, most of the output."""
    told = []
    for one in found:
        lists = ", ".join(f"{mean.mean:.2g}" for mean in one.shares)
        told.append(f"{one.weights}: {one.short.text(5)} of the output (by length {lists})")
    trained = next(one for one in found if one.weights == "trained")
    is_few = trained.short_paths < 0.5
    heavy = trained.short.low is not None and trained.short.low > 0.5
    light = trained.short.high is not None and trained.short.high < 0.5
    counts = length_words(trained.counts)
    return Point(
        source="ours",
        statement="By count paths are long, by weight they are short: in a small trained network the shorter half of "
        "the lengths has the minority of the paths and most of the output.",
        measured=f"Network that sorts (L = {len(trained.counts) - 1}): lengths 0 to {trained.half} have {counts} "
        f"of the paths; mean over sequences (95% interval), {'; '.join(told)}.",
        agrees=(True if is_few and heavy else False if light or not is_few else None),
    )


def length_words(counts: Sequence[int]) -> str:
    """``233 of 729 (32%)`` of the shorter half."""
    few = sum(counts[: (len(counts) - 1) // 2 + 1])
    return f"{few} of {sum(counts)} ({few / sum(counts):.0%})"


def power(log: float) -> str:
    """``1.7e-08`` of a logarithm, also below the smallest float."""
    whole = math.floor(log)
    digits = f"{10 ** (log - whole):.1f}"
    return f"1.0e{whole + 1}" if digits == "10.0" else f"{digits}e{whole}"
