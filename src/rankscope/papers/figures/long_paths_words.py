"""What ``long-paths`` found, in words: statements that can come out either way, judged by intervals over seeds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.core.config import Config
from rankscope.papers.figures.figure import Point, decided
from rankscope.papers.figures.interval_rules import side, together
from rankscope.papers.figures.statistics import Mean, mean_of
from rankscope.papers.tasks.sort import SortConfig

ACCURACY, RATIO = "token_accuracy", "residual_ratio[frobenius,mean,unit]"
FULL, BARE, FROZEN, ISOLATED = "full", "without skips", "frozen", "isolated"
READINGS = (FROZEN, ISOLATED, BARE)
"""What paths of the full length are worth alone: with everything held, each run again, all run again together."""

MARGIN = 0.01
"""Accuracy that a whole network may lose and still count as kept."""


FEWEST = 3
"""Fewer seeds do not tell whether something holds for all of them."""

EQUAL = "one answer for all positions"


def equal_accuracy(config: SortConfig) -> float:
    """Largest token accuracy possible if all tokens are equal: always the commonest letter of the sequence.

    Its expected number over the length. No letter is there more than m times in ``n! [x^n] (sum_(k<=m) x^k / k!)^a``
    of the ``a^n`` sequences.

    >>> round(equal_accuracy(SortConfig(alphabet=2, length=2)), 4)
    0.75
    """
    n, total = config.length, config.alphabet**config.length
    return math.fsum(1 - _no_more(most, config) / total for most in range(n)) / n


def _no_more(most: int, config: SortConfig) -> int:
    """How many sequences have no letter more than ``most`` times."""
    ways = [1] + [0] * config.length  # by the number of positions that are taken
    for _ in range(config.alphabet):
        ways = [
            sum(math.comb(taken, k) * ways[taken - k] for k in range(min(most, taken) + 1))
            for taken in range(config.length + 1)
        ]
    return ways[config.length]


class Variant(Config):
    """One way to train: an objective, and where weights start if not as usual."""

    name: str
    objective: str
    strength: float = 0.0
    initial_std: float | None = None

    def fields(self) -> dict[str, Any]:
        """What it changes in the configuration of a training."""
        own: dict[str, Any] = {"objective": self.objective, "strength": self.strength}
        return own if self.initial_std is None else own | {"initial_std": self.initial_std}


Found = dict[str, list[list[dict[str, Any]]]]
"""By variant one list of rows per seed; seeds are in the same order everywhere."""


def values(
    found: Found, variant: str, mode: str, length: int | None, definition: str = ACCURACY
) -> list[float]:
    """One number per seed."""
    return [
        next(
            row["value"]
            for row in rows
            if (row["mode"], row["length"], row["definition"]) == (mode, length, definition)
        )
        for rows in found[variant]
    ]


def summary(found: Found) -> list[dict[str, Any]]:
    """Mean over seeds with its interval, of every number; of residual ratios the geometric mean."""
    told = []
    for variant, seeds in found.items():
        for row in seeds[0]:
            key = (row["mode"], row["length"], row["definition"])
            numbers = values(found, variant, *key)
            is_log = row["definition"] == RATIO
            one = mean_of([_log10(value) for value in numbers] if is_log else numbers)
            resolved = all(_row(rows, key)["resolved"] for rows in seeds)
            about = dict(zip(("mode", "length", "definition"), key, strict=True))
            told.append(
                {"variant": variant, **about, **one.section(), "is_log10": is_log, "resolved": resolved}
            )
    return told


def verdict(found: Found, variants: Sequence[Variant], *, layers: int, line: float) -> list[Point]:
    """Statements on every variant, one more on the regularizer, and one on all of them."""
    base, *others = variants
    points = []
    for one in others:
        points.append(useful_point(found, base, one, layers=layers, line=line))
        if one.objective != "long-only":  # which has no shorter paths to compare
            points.append(longer_point(found, base, one, line=line))
        if one.objective == "spread-long":
            points.append(residual_point(found, base, one, layers=layers))
        points.append(price_point(found, base, one))
    return [*points, principle_point(found, others, layers=layers, line=line)]


def useful_point(found: Found, base: Variant, one: Variant, *, layers: int, line: float) -> Point:
    """By each reading: above what is possible without mixing or with equal tokens, and above the baseline.

    It holds or fails by whole intervals: below one of the two is enough to fail. Readings that disagree leave it open.
    """
    told, checks = [], list[bool | None]()
    for mode in READINGS:
        own, usual = (values(found, which.name, mode, layers) for which in (one, base))
        accuracy, gain = mean_of(own), _paired(own, usual)
        checks.append(_both(side(accuracy, line), side(gain, 0.0)))
        told.append(f"{mode} {_share(accuracy)}, baseline {_share(mean_of(usual))}")
    return Point(
        source="ours",
        statement=f"{_named(one)} makes paths of the full length useful.",
        measured=f"Accuracy of paths of length {layers} alone, mean over seeds (95% interval): {'; '.join(told)}. "
        f"{_possible(line)}.",
        agrees=decided(checks),
    )


def longer_point(found: Found, base: Variant, one: Variant, *, line: float) -> Point:
    """The greatest length whose paths alone are above the line, seed by seed: greater in all of them, or in none.

    By each reading of single lengths; readings that disagree, and fewer than three seeds, leave it open.
    """
    told, checks = [], list[bool | None]()
    for mode in (FROZEN, ISOLATED):
        own, usual = ([_reach(rows, mode, line) for rows in found[which.name]] for which in (one, base))
        longer = [a > b for a, b in zip(own, usual, strict=True)]
        checks.append(decided(longer) if len(longer) >= FEWEST else None)
        told.append(f"{mode} {_listed(own)}, baseline {_listed(usual)}")
    return Point(
        source="ours",
        statement=f"{_named(one)} makes longer paths useful than those of the baseline.",
        measured=f"Greatest length whose paths alone are more accurate than {line:.3f}, by seed: {'; '.join(told)}.",
        agrees=decided(checks),
    )


def price_point(found: Found, base: Variant, one: Variant) -> Point:
    """Paired by seed: the interval of the loss within the margin, or beyond it."""
    own, usual = (values(found, which.name, FULL, None) for which in (one, base))
    change = _paired(own, usual)
    return Point(
        source="ours",
        statement=f"{_named(one)} costs no accuracy of the whole network (no more than {MARGIN:.0%}).",
        measured=f"Accuracy {_share(mean_of(own))}, baseline {_share(mean_of(usual))}; difference by seed "
        f"{change.text()}.",
        agrees=side(change, -MARGIN),
    )


def residual_point(found: Found, base: Variant, one: Variant, *, layers: int) -> Point:
    """Paired by seed, in decades, on test sequences: as the penalty sees these paths, and for each run again."""
    told, checks = [], list[bool | None]()
    for mode in (FROZEN, ISOLATED):
        own, usual = (values(found, which.name, mode, layers, RATIO) for which in (one, base))
        change = _paired([_log10(value) for value in own], [_log10(value) for value in usual])
        key = (mode, layers, RATIO)
        if not all(_row(rows, key)["resolved"] for which in (one, base) for rows in found[which.name]):
            checks.append(None)
            told.append(f"{mode} not above rounding in every seed")
            continue
        checks.append(side(change, 0.0))
        told.append(f"{mode} {_ratio(own)}, baseline {_ratio(usual)} ({change.text()} decades apart)")
    return Point(
        source="ours",
        statement=f"{_named(one)} keeps the tokens of paths of the full length further apart.",
        measured=f"Residual ratio of the sum of all paths of length {layers}, tokens at length one: {'; '.join(told)}. "
        "The penalty speaks of the frozen ones.",
        agrees=decided(checks),
    )


def principle_point(found: Found, others: Sequence[Variant], *, layers: int, line: float) -> Point:
    """Whether any network at all works without its skips, where nothing of short paths is left.

    One of several is enough, so that it is judged by intervals that hold for all of them at once.
    """
    numbers = [values(found, one.name, BARE, layers) for one in others]
    means = dict(zip((one.name for one in others), together(numbers), strict=True))
    best = max(means, key=lambda name: means[name].mean)
    any_works = any(side(mean, line) for mean in means.values())
    none_works = all(side(mean_of(one), line) is False for one in numbers)
    agrees = True if any_works else False if none_works else None
    return Point(
        source="ours",
        statement="Long paths can be trained to be useful: they fail for want of training, not in principle.",
        measured=f"With all skips taken out after training, the most accurate network ({best}) has "
        f"{_share(means[best])}, its interval widened as {len(others)} networks are looked at (Bonferroni). "
        f"{_possible(line)}.",
        agrees=agrees,
    )


def notes(training: SortConfig, variants: Sequence[Variant], lines: Mapping[str, float]) -> list[str]:
    """Sentences for the reader."""
    length = training.layers
    return [
        f"Sorting with {length} layers of {training.heads} heads on {training.dim} channels, no MLPs, "
        f"{training.epochs} epochs; every variant has the same data, steps and learning rate.",
        "Path dropout: in training every skip around attention is dropped with the probability named, by itself for "
        "each example and layer; afterwards the network is used with all its skips. The expected length of a path "
        f"drawn at random is {length} (H + p) / (H + 1), H = {training.heads}.",
        "Regularizer: the loss plus the factor named times -log of the residual ratio of the sum of all paths of the "
        "full length, tokens at length one. It asks that tokens stay apart, not that they are right.",
        "Long paths only: trained and used without skips; its paths all have the full length. With the usual start, "
        f"weights N(0, {training.initial_std:g}^2), such a network begins collapsed.",
        "Readings of paths alone: frozen, exact, with maps and norms held at their values in the full network; "
        "isolated, the network run again along each path; without skips, run again with all paths of the full length "
        "at once. Sums of paths pass a LayerNorm without gain and bias before the classifier.",
        "To compare with: "
        + ", ".join(f"{name} {value:.3f}" for name, value in lines.items())
        + ". Intervals over few seeds are wide.",
        *(
            [
                f"Wider start: weights N(0, {one.initial_std:g}^2)."
                for one in variants
                if one.initial_std is not None
            ]
        ),
    ]


def _possible(line: float) -> str:
    return f"Without bringing letters together, or with tokens that are equal, at most {line:.3f} is possible"


def _both(one: bool | None, other: bool | None) -> bool | None:
    """Whether both hold; one that fails is enough to fail."""
    if one is False or other is False:
        return False
    return True if one and other else None


def _paired(own: Sequence[float], usual: Sequence[float]) -> Mean:
    return mean_of([a - b for a, b in zip(own, usual, strict=True)])


def _named(one: Variant) -> str:
    return one.name[0].upper() + one.name[1:]


def _reach(rows: Sequence[Mapping[str, Any]], mode: str, line: float) -> int:
    """The greatest length with an accuracy above the line; -1 if there is none."""
    above = [
        row["length"]
        for row in rows
        if (row["mode"], row["definition"]) == (mode, ACCURACY) and row["value"] > line
    ]
    return max(above, default=-1)


def _listed(lengths: Sequence[int]) -> str:
    return ", ".join("none" if length < 0 else str(length) for length in lengths)


def _share(mean: Mean) -> str:
    """Mean and interval of an accuracy; no interval leaves 0 to 1."""
    if mean.low is None or mean.high is None:
        return f"{mean.mean:.3f}"
    return f"{mean.mean:.3f} ({max(mean.low, 0.0):.3f} to {min(mean.high, 1.0):.3f})"


def _ratio(numbers: Sequence[float]) -> str:
    return f"{10 ** mean_of([_log10(value) for value in numbers]).mean:.2g}"


def _log10(value: float) -> float:
    """Of a ratio that is not above zero the logarithm of the least positive float."""
    return math.log10(max(value, 5e-324))


def _row(rows: Sequence[Mapping[str, Any]], key: tuple[str, int | None, str]) -> Mapping[str, Any]:
    return next(row for row in rows if (row["mode"], row["length"], row["definition"]) == key)
