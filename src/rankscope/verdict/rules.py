"""From the panel to a name: what each layer shows, and what the whole run of layers amounts to."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.verdict.facts import (
    CENTERED_RANK,
    CHANNEL,
    COSINE,
    RANK,
    SMALLEST,
    TOKEN,
    UNIT,
    UNIT_CHANNEL,
    Facts,
)
from rankscope.verdict.thresholds import Thresholds

COLLAPSING, HEALTHY, LOW_PRECISION = "collapsing", "healthy", "low precision"
NO_STATES = "no numbers"
CONFOUNDERS = ("massive token", "massive channel", "shared mean", "clusters", "cone", "dead directions")
"""In the order in which they name a stack that shows several."""

VERDICTS = (COLLAPSING, LOW_PRECISION, *CONFOUNDERS, HEALTHY)
"""In order of urgency: the first that holds of any stack names the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StackVerdict:
    """A name for the run of layers, where collapse starts, how fast it goes, and a name for each layer."""

    verdict: str
    layers: tuple[str, ...]
    ratios: tuple[float, ...]  # per layer: the ratio that was judged
    starts: int | None = None
    rate: float | None = None


def judge_stack(facts: Sequence[Facts], limits: Thresholds) -> StackVerdict:
    """Collapse is judged over all layers, everything else layer by layer."""
    ratios = [judged_ratio(one, limits) for one in facts]
    names = [confounder(one, limits) for one in facts]
    if is_collapsing(facts, ratios, limits):
        starts, rate = fall(ratios, [one.floor for one in facts])
        layers = [COLLAPSING if place >= starts else name for place, name in enumerate(names)]
        return StackVerdict(
            verdict=COLLAPSING,
            layers=tuple(layers),
            ratios=tuple(ratios),
            starts=facts[starts].layer,
            rate=rate,
        )
    return StackVerdict(verdict=_of_layers(names, limits), layers=tuple(names), ratios=tuple(ratios))


def judged_ratio(one: Facts, limits: Thresholds) -> float:
    """The residual ratio of unit tokens, with what is known to distort it taken out.

    A massive token is left out (taken to be at right angles to the others), a massive channel too.
    """
    ratio = one[UNIT]
    if math.isnan(ratio):
        return ratio
    if is_massive_token(one, limits):
        _, usual, _ = one.others()
        slack, distinct = _slack(one, limits), math.sqrt(max(one.tokens - 2, 0) / (one.tokens - 1))
        if slack > distinct / 2:  # so few tokens that equal and distinct others may read the same
            return ratio
        return limits.collapsed if usual <= slack else usual  # no finer: the panel has one number
    if is_massive_channel(one, limits):
        return max(ratio, one.without_channel)
    return ratio


def _slack(one: Facts, limits: Thresholds) -> float:
    """What others that are equal up to ``collapsed`` can read: the massive token may lean away by cosine -1/2."""
    return math.sqrt(limits.collapsed**2 + 1 / (one.tokens - 1))


def is_massive_token(one: Facts, limits: Thresholds) -> bool:
    return one[TOKEN] >= limits.massive_share and one.times_longer >= limits.massive_length


def is_massive_channel(one: Facts, limits: Thresholds) -> bool:
    return min(one[CHANNEL], one[UNIT_CHANNEL]) >= limits.massive_channel


def is_collapsing(facts: Sequence[Facts], ratios: Sequence[float], limits: Thresholds) -> bool:
    """Whether the tokens that leave the last block are equal, or all but, and became so on the way.

    A ratio below its floor is known to be at most that. A ratio that is low from the first layer on, or that drops
    once and then stays while the residual keeps its directions, is an offset that all tokens share.
    """
    last, ratio = facts[-1], ratios[-1]
    is_equal = ratio <= limits.collapsed
    if math.isnan(ratio) or not (is_equal or last[COSINE] >= limits.offset_cosine):
        return False
    if not last.is_resolved and last.floor > limits.collapsed:
        return False
    if len(facts) == 1:
        return ratio < limits.collapsed / 10 or (is_equal and last[CENTERED_RANK] < last.most_rank / 2)
    known = [one for one in ratios if not math.isnan(one)]
    if max(known) < limits.fall * ratio:
        return is_equal and last[CENTERED_RANK] < last.most_rank / 2
    return is_massive_token(last, limits) or not _is_offset(facts, ratios, limits)


def _is_offset(facts: Sequence[Facts], ratios: Sequence[float], limits: Thresholds) -> bool:
    for place in range(1, len(ratios) - 2):
        before, after = ratios[place - 1], ratios[place:]
        if before >= limits.fall * after[0] and all(after[0] / 2 <= one <= after[0] * 2 for one in after):
            ranks = facts[-1][CENTERED_RANK], facts[place - 1][CENTERED_RANK]
            kept = math.isnan(ranks[0]) or ranks[0] >= ranks[1] / 2
            return kept and ratios[-1] >= limits.collapsed / 10
    return False


def fall(ratios: Sequence[float], floors: Sequence[float]) -> tuple[int, float]:
    """The first layer of the fall, and the factor per layer from the layer before it to the end.

    It starts after the last layer that is within a tenth of the largest ratio, and ends with the last layer or the
    first one at its floor, which it is taken to be: then the factor is at least that small.
    """
    known = [max(one, floor) for one, floor in zip(ratios, floors, strict=True) if not math.isnan(one)]
    if len(known) < len(ratios):  # layers without a number say nothing about the pace
        places = [place for place, one in enumerate(ratios) if not math.isnan(one)]
        starts, rate = fall([ratios[place] for place in places], [floors[place] for place in places])
        return places[starts], rate
    largest = max(known)
    before = max(place for place, one in enumerate(known) if one >= 0.9 * largest)
    if before == len(known) - 1:
        return before, 1.0
    at_floor = [place for place in range(before + 1, len(known)) if known[place] <= floors[place]]
    end = min(at_floor, default=len(known) - 1)
    return before + 1, float((known[end] / known[before]) ** (1 / (end - before)))


def confounder(one: Facts, limits: Thresholds) -> str:
    """The name of one layer that is not part of a collapse."""
    if math.isnan(one[UNIT]):
        return NO_STATES
    if not one.is_resolved and one.floor > limits.collapsed:
        return LOW_PRECISION
    if is_massive_token(one, limits):
        return "massive token"
    if is_massive_channel(one, limits) and one[COSINE] >= limits.cone_cosine:
        return "massive channel" if one.without_channel >= limits.distinct else "shared mean"
    if one[COSINE] >= limits.offset_cosine:
        return "shared mean"
    few = few_directions(one, limits)
    if few is not None:
        return few
    if one[COSINE] >= limits.cone_cosine:
        return "cone"
    if one.resolved.get(SMALLEST) == 0.0 and one.floors[SMALLEST] < limits.collapsed:
        return "dead directions"
    return HEALTHY


def few_directions(one: Facts, limits: Thresholds) -> str | None:
    """Clusters or dead directions, where the effective rank is far below what tokens and width allow.

    k groups of equal tokens have a mean cosine near 1/k, rank k, and lose one of it by centering; distinct tokens
    that leave directions unused have a cosine near 0 and lose nothing. What is neither has no name.
    """
    rank, centered = one[RANK], one[CENTERED_RANK]
    if math.isnan(rank) or max(rank - 1, centered) > limits.low_rank * one.most_rank:
        return None
    if one[COSINE] * rank < limits.grouped:
        return "dead directions"
    return "clusters" if rank - centered >= limits.lost_by_centering else None


def _of_layers(names: Sequence[str], limits: Thresholds) -> str:
    """One name for layers that do not collapse: the last layer's, or one that holds of enough layers."""
    counts, last = Counter(names), names[-1]
    if last == LOW_PRECISION or counts[LOW_PRECISION] > len(names) / 2:
        return LOW_PRECISION
    if counts[NO_STATES] > len(names) / 2 or last == NO_STATES:
        return NO_STATES
    enough = max(1.0, limits.coverage * len(names))
    frequent = [name for name in CONFOUNDERS if counts[name] >= enough or name == last]
    return frequent[0] if frequent else HEALTHY
