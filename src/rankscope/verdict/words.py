"""The verdict in plain words, with the numbers that say so."""

import math
from collections.abc import Sequence
from itertools import pairwise

from rankscope.verdict.facts import (
    CENTERED_RANK,
    CHANNEL,
    COSINE,
    RANK,
    RAW,
    TOKEN,
    UNIT,
    UNIT_CHANNEL,
    Facts,
)
from rankscope.verdict.rules import COLLAPSING, HEALTHY, LOW_PRECISION, NO_STATES, StackVerdict

EVIDENCE = {
    COLLAPSING: (UNIT, RAW, COSINE, RANK, CENTERED_RANK),
    HEALTHY: (UNIT, RAW, COSINE, RANK),
    LOW_PRECISION: (UNIT, RAW, COSINE),
    NO_STATES: (),
    "massive token": (TOKEN, RAW, UNIT, RANK, COSINE),
    "massive channel": (CHANNEL, UNIT_CHANNEL, COSINE, UNIT, CENTERED_RANK),
    "shared mean": (COSINE, UNIT, CENTERED_RANK, RANK),
    "clusters": (RANK, CENTERED_RANK, COSINE, UNIT),
    "cone": (COSINE, UNIT, CENTERED_RANK),
    "dead directions": (RANK, CENTERED_RANK, COSINE, UNIT),
}
"""The numbers that each name rests on."""


def number(value: float) -> str:
    """Two significant digits, as people write them.

    >>> number(0.0312), number(12.34), number(0.98)
    ('.031', '12', '.98')
    """
    if math.isnan(value):
        return "none"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.1e}"
    if abs(value) >= 10:
        return f"{value:.0f}"
    text = f"{value:.2g}" if abs(value) < 0.095 else f"{value:.2f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def of_layer(name: str, one: Facts) -> str:
    """What one layer shows, in a sentence."""
    ratio, cosine, allowed = number(one[UNIT]), number(one[COSINE]), number(one.most_rank)
    match name:
        case "collapsing":
            return f"tokens differ by {ratio} of their length only (mean cosine {cosine})"
        case "healthy":
            return f"tokens differ by {ratio} of their length (mean cosine {cosine})"
        case "low precision":
            return (
                f"the residual ratio reads {ratio}, but this arithmetic cannot tell it from anything up to "
                f"{number(min(one.floor, 1.0))}; scan in a finer dtype"
            )
        case "massive token":
            least, _, most = one.others()
            return (
                f"one token is {number(one.times_longer)} times longer than the others and holds {number(one[TOKEN])} "
                f"of the energy: the residual ratio reads {number(one[RAW])} and the effective rank "
                f"{number(one[RANK])}, with every token at unit length the ratio is {ratio} "
                f"(of the other tokens alone between {number(least)} and {number(most)})"
            )
        case "massive channel":
            return (
                f"one channel holds {number(one[UNIT_CHANNEL])} of the energy and makes the mean cosine {cosine}; "
                f"without it tokens differ by {number(one.without_channel)} of their length"
            )
        case "shared mean":
            return (
                f"all tokens share one large row (mean cosine {cosine}), and what is left of them "
                f"({ratio} of their length) still spans {number(one[CENTERED_RANK])} of {allowed} directions"
            )
        case "clusters":
            return (
                f"tokens stand in about {round(one[RANK])} groups: effective rank {number(one[RANK])} "
                f"({number(one[CENTERED_RANK])} centered) of {allowed}, mean cosine {cosine}"
            )
        case "cone":
            return f"tokens point the same way (mean cosine {cosine}) but differ by {ratio} of their length"
        case "dead directions":
            return (
                f"tokens are distinct (mean cosine {cosine}) but use {number(one[CENTERED_RANK])} of {allowed} "
                "directions"
            )
    return "the states hold NaN, infinity or only zeros"


def of_stack(found: StackVerdict, facts: Sequence[Facts]) -> str:
    """What a run of layers amounts to."""
    last = facts[-1]
    if found.verdict == COLLAPSING:
        return _collapse(found, facts)
    if found.verdict == HEALTHY:
        ratios = [(ratio, one.layer) for ratio, one in zip(found.ratios, facts, strict=True)]
        low = min(pair for pair in ratios if not math.isnan(pair[0]))
        words = f"Healthy: after the last block tokens differ by {number(last[UNIT])} of their length"
        lowest = f", the least is {number(low[0])} at layer {low[1]}"
        return words + ("." if low[1] == last.layer else lowest + ".")
    where = [one for name, one in zip(found.layers, facts, strict=True) if name == found.verdict]
    worst = max(where, key=lambda one: one[TOKEN]) if found.verdict == "massive token" else where[-1]
    title = {LOW_PRECISION: "Not resolved, because of low precision", NO_STATES: "No numbers"}.get(
        found.verdict, f"Not collapsing: {found.verdict}"
    )
    narrowing = _narrowing(found)
    title = title.replace("Not collapsing", "Not collapsed yet") if narrowing else title
    return f"{title} ({_layers(where)}). At layer {worst.layer} {of_layer(found.verdict, worst)}.{narrowing}"


def of_texts(collapsed: int, lost: int, texts: int) -> str:
    """What the texts say one by one, where they do not agree."""
    words = ""
    if 0 < collapsed < texts:
        words += (
            f" Of {texts} texts, {collapsed} collapse{'s' if collapsed == 1 else ''} and the others do not."
        )
    if lost:
        words += f" Of {texts} texts, {lost} end{'s' if lost == 1 else ''} in NaN, infinity or zeros."
    return words


def _narrowing(found: StackVerdict) -> str:
    """A warning where tokens that share a direction come closer with every one of the last layers."""
    end = found.ratios[-4:]
    falls = [after / before for before, after in pairwise(end) if before > 0]
    if found.verdict not in ("cone", "shared mean") or len(falls) < 3 or max(falls) > 0.97:
        return ""
    pace = math.prod(falls) ** (1 / len(falls))
    return f" They come closer with every layer, by a factor {number(pace)}: more layers of this kind would collapse."


def _collapse(found: StackVerdict, facts: Sequence[Facts]) -> str:
    last, ratio = facts[-1], found.ratios[-1]
    hidden = found.layers[-1] == COLLAPSING and last[RAW] > 3 * max(ratio, 1e-300)
    if len(facts) == 1:
        return (
            f"Collapsed: tokens differ by {number(ratio)} of their length only. One state alone cannot tell collapse "
            "from a large row that all tokens share; scan more layers to be sure."
        )
    if max(one[UNIT] for one in facts if not math.isnan(one[UNIT])) <= facts[0].floor:
        return f"Collapsed: tokens are equal from the input on (up to {number(last.floor)} of their length)."
    start = next(place for place, one in enumerate(facts) if one.layer == found.starts)
    is_bound = hidden or not last.is_resolved
    end = f"no more than {number(max(ratio, last.floor))}" if is_bound else number(ratio)
    pace = f"{number(found.rate or 0.0)}{' or less' if is_bound else ''}"
    words = (
        f"Collapsing: from layer {found.starts} on tokens become equal, by a factor {pace} per layer; they differ by "
        f"{number(found.ratios[max(start - 1, 0)])} of their length before and by {end} after the last block "
        f"(mean cosine {number(last[COSINE])})."
    )
    if not last.is_resolved:
        words += " Below that this arithmetic sees only rounding."
    if hidden:
        words += (
            f" The residual ratio of the tokens as they are ({number(last[RAW])}) hides this: one token is "
            f"{number(last.times_longer)} times longer than the others."
        )
    return words


def _layers(where: Sequence[Facts]) -> str:
    """``layers 3-7, 9`` of these facts."""
    runs: list[list[int]] = []
    for one in where:
        if runs and one.layer == runs[-1][-1] + 1:
            runs[-1].append(one.layer)
        else:
            runs.append([one.layer])
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"layer{'s' if len(where) > 1 else ''} {text}"
