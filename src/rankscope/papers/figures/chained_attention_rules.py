"""Rules by which curves of chains are judged. Curves are ``depth path`` of log10 of a ratio."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rankscope.papers.figures.chained_attention_found import ROWS
from rankscope.papers.figures.statistics import Mean, mean_of, median_of

SAME = math.log10(2)
"""Two orders are said to give the same picture if their medians differ by less than a factor 2 at every depth."""

BEND = 2.0
"""Roughly geometric: decades per layer of the later half are between half and twice those of the earlier half."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chains:
    """What was found for one model with its weights.

    Args:
        curves: by order and definition.
        coefficients: log10 of ``dobrushin``, ``spectral`` and ``typical`` of the maps on each path, ``layer path``.
        plain: ratios to the best rank one of the first paths as ordinary float64 products, in the true order.
    """

    model: str
    weights: str
    seed: int | None
    tokens: int
    curves: Mapping[tuple[str, str], np.ndarray]
    coefficients: Mapping[str, np.ndarray] = field(default_factory=dict)
    plain: np.ndarray | None = None

    @property
    def name(self) -> str:
        """``bert-base, initial, seed 0``."""
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.model}, {self.weights}{seed}"


def slopes(curves: np.ndarray) -> list[float]:
    """Decades per layer of every path, by least squares."""
    fitted: list[float] = np.polyfit(np.arange(1, len(curves) + 1), curves, 1)[0].tolist()
    return fitted


def linearity(curves: np.ndarray) -> float:
    """Share of the variance over depth of the mean curve that a line explains; NaN for a constant."""
    mean = curves.mean(axis=1)
    depth = np.arange(len(mean))
    off = mean - np.polyval(np.polyfit(depth, mean, 1), depth)
    whole = np.square(mean - mean.mean()).sum()
    return float(1 - np.square(off).sum() / whole) if whole else math.nan


def is_geometric(curves: np.ndarray) -> bool | None:
    """Whether later steps fall between half and twice as fast as earlier ones, by intervals over paths.

    None where the intervals do not decide, or the curves have fewer than four depths.
    """
    if len(curves) < 4:
        return None
    steps = np.diff(curves, axis=0)
    half = len(steps) // 2
    early, late = steps[:half].mean(axis=0), steps[-half:].mean(axis=0)
    if not _is_below(mean_of((early + late).tolist()), 0.0):
        return False if _is_above(mean_of((early + late).tolist()), 0.0) else None
    fast, slow = mean_of((late - BEND * early).tolist()), mean_of((late - early / BEND).tolist())
    if _is_above(fast, 0.0) and _is_below(slow, 0.0):
        return True
    return False if _is_below(fast, 0.0) or _is_above(slow, 0.0) else None


def does_fall(curves: np.ndarray) -> bool | None:
    """Whether every median is below the one before, and the change from first to last is below zero by interval."""
    change = mean_of((curves[-1] - curves[0]).tolist())
    if _is_above(change, 0.0):
        return False
    medians = np.median(curves, axis=1)
    return True if _is_below(change, 0.0) and bool((np.diff(medians) < 0).all()) else None


def is_same(one: np.ndarray, other: np.ndarray) -> bool | None:
    """Whether the medians of paired paths differ by less than a factor 2 at every depth, by intervals."""
    found = [median_of((a - b).tolist()) for a, b in zip(one, other, strict=True)]
    if any(not each.is_enough for each in found):
        return None
    if any(each.low > SAME or each.high < -SAME for each in found):
        return False
    return True if all(each.low > -SAME and each.high < SAME for each in found) else None


def _is_below(mean: Mean, level: float) -> bool:
    return mean.high is not None and mean.high < level


def _is_above(mean: Mean, level: float) -> bool:
    return mean.low is not None and mean.low > level


def pooled(found: Sequence[Chains]) -> list[Chains]:
    """Paths of all seeds of a model together, for the telling; what is decided is decided seed by seed."""
    groups: dict[tuple[str, str], list[Chains]] = {}
    for one in found:
        groups.setdefault((one.model, one.weights), []).append(one)
    return [own[0] if len(own) == 1 else _joined(own) for own in groups.values()]


def _joined(own: Sequence[Chains]) -> Chains:
    first = own[0]
    return replace(
        first,
        seed=None,
        weights=f"{first.weights}, {len(own)} seeds",
        curves={key: np.concatenate([one.curves[key] for one in own], axis=1) for key in first.curves},
        coefficients={
            key: np.concatenate([one.coefficients[key] for one in own], axis=1) for key in first.coefficients
        },
        plain=None
        if any(one.plain is None for one in own)
        else np.concatenate([one.plain for one in own if one.plain is not None], axis=1),
    )


def is_bounded(one: Chains) -> bool:
    """Whether the bound holds for every path and depth; rounding of the logarithms aside."""
    bound = math.log10(2 * (1 - 1 / one.tokens)) + one.coefficients["dobrushin"].cumsum(axis=0)
    return bool((one.curves["true", ROWS] <= bound + 1e-9).all())


def is_slower(one: Mean, other: Mean) -> bool | None:
    """Whether the first mean rate lies above the other by their intervals."""
    if None in (one.low, one.high, other.low, other.high):
        return None
    if one.low > other.high:  # type: ignore[operator]  # none of them is None
        return True
    return False if one.high < other.low else None  # type: ignore[operator]
