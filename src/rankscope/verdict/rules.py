"""From the panel to a name: what each layer shows, and what the whole run of layers amounts to."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rankscope.findings.verdict import (
    CENTERED_RANK,
    CHANNEL,
    COSINE,
    MASSIVE_CHANNEL_SHARE,
    MASSIVE_SHARE,
    MASSIVE_TOKENS,
    OTHER_CHANNELS,
    OTHERS,
    RANK,
    TOKEN,
    UNIT,
    UNIT_CHANNEL,
    Thresholds,
)
from rankscope.verdict.facts import SMALLEST, PanelFacts
from rankscope.verdict.falls import (
    COLLAPSED,
    COLLAPSING,
    NO_STATES,
    NOT_COLLAPSING,
    UNDECIDED,
    Fall,
    RatioPoint,
    is_low,
    judge_fall,
)

HEALTHY, ILL = "healthy", "ill"
CONFOUNDERS = ("massive token", "massive channel", "shared mean", "clusters", "cone", "dead directions")
"""In the order in which they name a stack that shows several."""

VERDICTS = (ILL, COLLAPSING, COLLAPSED, UNDECIDED, *CONFOUNDERS, HEALTHY)
"""In order of urgency: the first that holds of any stack names the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """The name of a layer, and the names that its numbers can neither give nor deny."""

    name: str
    untold: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StackJudgement:
    """A name for the run of layers and for each layer, and what the curve of its ratios amounts to."""

    verdict: str
    layers: tuple[Layer, ...]
    points: tuple[RatioPoint, ...]  # per layer: the ratio that was judged
    fall: Fall

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.layers)


def judge_stack(facts: Sequence[PanelFacts], limits: Thresholds) -> StackJudgement:
    """Collapse is judged over all layers, everything else layer by layer."""
    points = tuple(judged_ratio(one, limits) for one in facts)
    layers = tuple(confounder(one, limits) for one in facts)
    found = judge_fall(points, limits, level=facts[-1].ratio_at(limits.offset_cosine))
    verdict = found.verdict
    if verdict == COLLAPSING and is_offset(facts, points, limits):
        verdict = NOT_COLLAPSING
    if verdict == NOT_COLLAPSING and is_low(points, limits) and _is_flat(facts, points, limits):
        verdict = COLLAPSED
    if verdict == COLLAPSING:
        layers = tuple(
            Layer(name=COLLAPSING) if facts[place].layer >= (found.starts or 0) else one
            for place, one in enumerate(layers)
        )
    elif verdict == COLLAPSED:
        layers = tuple(
            Layer(name=COLLAPSED) if is_low(points[: place + 1], limits) else one
            for place, one in enumerate(layers)
        )
    else:
        found = replace(found, starts=None, log10_rate=None, rate_is_bound=False)
    if verdict == NOT_COLLAPSING:
        verdict = _of_layers([one.name for one in layers], limits)
    return StackJudgement(verdict=verdict, layers=layers, points=points, fall=replace(found, verdict=verdict))


def judged_ratio(one: PanelFacts, limits: Thresholds) -> RatioPoint:
    """The residual ratio of unit tokens, with what is known to distort it taken out: massive tokens or channels.

    Tokens that are equal with massive channels, and perhaps not without them, have no ratio: coarse dtypes may leave
    open whether channels are massive, and how far tokens differ in the others.
    """
    # Their number is a mean over texts: one half means one massive token in every other text, or several in fewer.
    if one.at_least(MASSIVE_TOKENS, 0.5) and one.is_number(OTHERS):
        return RatioPoint.of(one.layer, one[OTHERS], one.most(OTHERS))
    ratio, most = one[UNIT], one.most(UNIT)
    if is_massive_channel(one, limits) is not False and one.is_number(OTHER_CHANNELS):
        rest = one[OTHER_CHANNELS]
        if rest is not None:
            ratio = max(ratio or 0.0, rest)
        elif ratio is None or ratio <= limits.collapsed:
            ratio, most = None, one.most(OTHER_CHANNELS)
    return RatioPoint.of(one.layer, ratio, most)


def is_massive_token(one: PanelFacts, limits: Thresholds) -> bool | None:
    """Whether massive tokens, one or several, hold most of the energy."""
    share = MASSIVE_SHARE if MASSIVE_SHARE in one.numbers else TOKEN
    return _both(
        one.at_least(share, limits.massive_share),
        None if one.times_longer is None else one.times_longer >= limits.massive_length,
    )


def is_massive_channel(one: PanelFacts, limits: Thresholds) -> bool | None:
    """Whether one channel, or several massive ones together, hold most of the energy."""
    limit = limits.massive_channel
    return _either(
        _both(one.at_least(CHANNEL, limit), one.at_least(UNIT_CHANNEL, limit)),
        _both(one.has_massive_channels, one.at_least(MASSIVE_CHANNEL_SHARE, limit)),
    )


def _both(*answers: bool | None) -> bool | None:
    """Yes if all say yes, no if one says no, None otherwise."""
    return False if False in answers else None if None in answers else True


def _is_flat(facts: Sequence[PanelFacts], points: Sequence[RatioPoint], limits: Thresholds) -> bool:
    """Whether tokens that are equal up to ``collapsed`` from the first layer on have also lost their directions.

    Then they are not distinct tokens with a large row in common. Of one state alone a tenth of ``collapsed`` is enough.
    """
    # Distinct tokens around a large common row fill their directions as random ones do: the centered effective rank of
    # Gaussian tokens is 0.8 or more of what tokens and width allow. Tokens that attention made equal keep the few
    # directions that decay slowest: 0.2 of it for random attention alone, just below half with MLPs. Skips without MLPs
    # keep 0.8 while tokens become equal, so of their last states alone this rule cannot tell.
    rank, most = facts[-1][CENTERED_RANK], points[-1].log10_most
    if len(facts) == 1 and most is not None and most < math.log10(limits.collapsed / 10):
        return True
    return rank is not None and rank < facts[-1].most_rank / 2


def is_offset(facts: Sequence[PanelFacts], points: Sequence[RatioPoint], limits: Thresholds) -> bool:
    """Whether the ratio drops once and then stays, while the residual keeps its directions: a row that all share."""
    if is_massive_token(facts[-1], limits):
        return False
    # A shared row c added once to tokens of residual R gives the ratio |R| / |R + 1 c| from there on, a step down by
    # ``fall`` or more. Later layers then change it by no more than a factor 2, where a collapse would go on falling; at
    # least three layers must show that. Below a tenth of ``collapsed`` tokens count as equal, whatever the reason.
    logs = [one.log10 for one in points]
    for place in range(1, len(logs) - 2):
        before, after = logs[place - 1], [log for log in logs[place:] if log is not None]
        if before is None or len(after) < len(logs) - place:
            continue
        is_steady = all(abs(log - after[0]) <= math.log10(2) for log in after)
        if before >= after[0] + math.log10(limits.fall) and is_steady:
            kept = _keeps_rank(facts[-1], facts[place - 1])
            return kept and after[-1] >= math.log10(limits.collapsed / 10)
    return False


def _keeps_rank(last: PanelFacts, first: PanelFacts) -> bool:
    """Whether centered tokens use half as many directions as before; without spectra that is taken for granted."""
    if CENTERED_RANK not in last.numbers:
        return True
    ranks = last[CENTERED_RANK], first[CENTERED_RANK]
    return ranks[0] is not None and ranks[1] is not None and ranks[0] >= ranks[1] / 2


def confounder(one: PanelFacts, limits: Thresholds) -> Layer:
    """The name of one layer that is not part of a collapse: the first that its resolved numbers give.

    Names whose numbers are not resolved are listed as untold.
    """
    if not one.is_number(UNIT):
        return Layer(name=NO_STATES)
    if one[UNIT] is None:
        most = judged_ratio(one, limits).log10_most
        is_equal = most is not None and most < math.log10(limits.collapsed)
        return Layer(name=COLLAPSED if is_equal else UNDECIDED)
    channel = _both(is_massive_channel(one, limits), one.at_least(COSINE, limits.cone_cosine))
    is_distinct = one.at_least(OTHER_CHANNELS, limits.distinct)
    few = few_directions(one, limits)
    answers = {
        "massive token": is_massive_token(one, limits),
        "massive channel": _both(channel, is_distinct),
        "shared mean": _either(
            _both(channel, None if is_distinct is None else not is_distinct),
            one.at_least(COSINE, limits.offset_cosine),
        ),
        "clusters": few["clusters"],
        "cone": one.at_least(COSINE, limits.cone_cosine),
        "dead directions": _either(few["dead directions"], _has_kernel(one, limits)),
    }
    if answers["dead directions"] and few["dead directions"]:  # few directions outweigh a cone
        answers["cone"] = False
    untold = tuple(name for name, answer in answers.items() if answer is None)
    named = [name for name, answer in answers.items() if answer]
    return Layer(name=named[0] if named else HEALTHY, untold=untold)


def _either(*answers: bool | None) -> bool | None:
    """Yes if one says yes, None if one cannot tell, no otherwise."""
    return True if True in answers else None if None in answers else False


def _has_kernel(one: PanelFacts, limits: Thresholds) -> bool | None:
    """Whether some direction is exactly unused: its singular value is below a low floor in every text."""
    found = one.numbers.get(SMALLEST)
    if found is None:
        return False
    return found.resolved == 0.0 and found.floor is not None and found.floor < limits.collapsed


def few_directions(one: PanelFacts, limits: Thresholds) -> dict[str, bool | None]:
    """Clusters or dead directions, where the effective rank is far below what tokens and width allow.

    k groups of equal tokens have a mean cosine near 1/k, rank k, and lose one of it by centering; distinct tokens
    that leave directions unused have a cosine near 0 and lose nothing. What is neither has no name.

    Of n tokens in k groups of one size, orthogonal to each other, a pair is in the same group (cosine 1) with
    probability (n/k - 1) / (n - 1), about 1/k, and has cosine 0 otherwise: cosine times rank is about 1. The mean of
    the k directions is taken out by centering, which leaves k - 1. Both ``rank - 1`` and the centered rank must be few:
    a large common row alone makes the rank nearly 1, and leaves the centered one as it is.
    """
    rank, centered, cosine = one[RANK], one[CENTERED_RANK], one.cosine
    if RANK not in one.numbers:
        return {"clusters": False, "dead directions": False}
    if rank is None or centered is None or cosine is None:
        return {"clusters": None, "dead directions": None}
    is_few = max(rank - 1, centered) <= limits.low_rank * one.most_rank
    is_dead = cosine * rank < limits.grouped
    return {
        "clusters": is_few and not is_dead and rank - centered >= limits.lost_by_centering,
        "dead directions": is_few and is_dead,
    }


def _of_layers(names: Sequence[str], limits: Thresholds) -> str:
    """One name for layers that do not collapse: the last layer's, or one that holds of enough layers."""
    counts, last = Counter(names), names[-1]
    for name in (UNDECIDED, NO_STATES):
        if last == name or counts[name] > len(names) / 2:
            return name
    enough = max(1.0, limits.coverage * len(names))  # of few layers one is enough
    frequent = [name for name in CONFOUNDERS if counts[name] >= enough or name == last]
    return frequent[0] if frequent else HEALTHY
