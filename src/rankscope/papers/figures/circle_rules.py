"""Rules by which networks of the figure ``circle`` are judged."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from rankscope.papers.figures.circle_runs import MERGED
from rankscope.results.statistics import wilson

Network = Mapping[str, Any]
Networks = Sequence[Network]
"""One mapping per network: its case, hidden size and seed, and what ``circle_runs.described`` says of it."""

LEVEL = 0.05
FEWEST = 4
"""With fewer networks that all do the same the 95% interval of the share still has one half in it."""


def of_case(networks: Networks, case: str) -> list[Network]:
    return [one for one in networks if one["case"] == case]


def by_hidden(group: Networks) -> dict[int, list[Network]]:
    sizes = sorted({one["hidden"] for one in group})
    return {hidden: [one for one in group if one["hidden"] == hidden] for hidden in sizes}


def is_merged(one: Network) -> bool:
    return bool(one["ending"] == "merged")


def is_apart(one: Network) -> bool:
    return bool(one["ending"] == "apart")


def is_still(one: Network) -> bool:
    """Whether the points stand: the last tenth of the way moves them by less than 1% of the distance."""
    early, late = one["path"][-max(len(one["path"]) // 10, 2)], one["path"][-1]
    moved = max(abs(a - b) for a, b in zip(early, late, strict=True))
    return bool(moved < 0.01 * one["distance"][0])


def last_share(one: Network) -> float:
    """Distance at the end over that at the start."""
    return float(one["distance"][-1] / one["distance"][0])


def last_mean(one: Network) -> float:
    """Length of the mean in radii; the pair starts on opposite sides, so that the distance is two radii."""
    return float(one["mean"][-1] / (one["distance"][0] / 2))


def last_ratio(one: Network) -> float:
    """``|x1 - x2| / (sqrt(2) |X|)`` at the end: the residual ratio in the Frobenius norm, for two tokens.

    With mean ``m`` and ``d = x1 - x2``, ``|X|^2 = 2 |m|^2 + |d|^2 / 2`` and the residual has ``|d|^2 / 2``. A distance
    below its floor is taken to be the floor.
    """
    apart, mean = max(one["distance"][-1], one["floor"][-1]), one["mean"][-1]
    return float(apart / math.hypot(apart, 2 * mean)) if apart else 0.0


def is_collapsed(one: Network) -> bool:
    return last_ratio(one) < MERGED


def most(group: Networks, holds: Callable[[Network], bool]) -> bool | None:
    """True if it holds in all and their number makes more than half likely, False if in less than half, else None."""
    count = sum(map(holds, group))
    low, high = wilson(count, len(group))
    if count == len(group) and low > 0.5:
        return True
    return False if high < 0.5 else None


def leaving_growth(steps: int, points: int) -> float:
    """The growth per step that takes the mean of the first pair out to the radius within the steps followed.

    It starts with ``radius sin(pi / points)``, so that ``g^steps sin(pi / points) = 1``.
    """
    return float(math.sin(math.pi / points) ** (-1 / steps))


def is_fastest(groups: Sequence[Networks]) -> tuple[bool | None, float | None]:
    """Whether the first group merges before all others together, and how likely such a difference is by chance.

    Ranks of the step of merging, never being last, against those after networks change groups at random (two-sided
    permutation test). None if that is not below 5%.
    """
    if len(groups) < 2 or not any(is_merged(one) for group in groups for one in group):
        return None, None
    steps = [math.inf if one["merged_at"] is None else one["merged_at"] for group in groups for one in group]
    ranks, first = stats.rankdata(steps), len(groups[0])
    if len(set(steps)) == 1:
        return None, 1.0

    def later(one: np.ndarray, others: np.ndarray) -> float:
        return float(one.mean() - others.mean())

    found = stats.permutation_test(
        (ranks[:first], ranks[first:]), later, n_resamples=9999, random_state=np.random.default_rng(0)
    )
    chance = float(found.pvalue)
    return (bool(found.statistic < 0) if chance < LEVEL else None), chance


def is_rare(group: Networks) -> bool | None:
    """Whether fewer than half merge, or more, by the interval of the share."""
    low, high = wilson(sum(map(is_merged, group)), len(group))
    return True if high < 0.5 else False if low > 0.5 else None
