"""The verdict in plain words, with the numbers that say so."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.sources.weights import NotFinite, not_finite_words
from rankscope.verdict.facts import (
    CENTERED_RANK,
    CHANNEL,
    COSINE,
    MASSIVE_CHANNEL_SHARE,
    MASSIVE_CHANNELS,
    MASSIVE_SHARE,
    MASSIVE_TOKENS,
    OTHER_CHANNELS,
    OTHERS,
    RANK,
    RAW,
    TOKEN,
    UNIT,
    UNIT_CHANNEL,
    Facts,
    Precision,
)
from rankscope.verdict.falls import COLLAPSED, COLLAPSING, NO_STATES, UNDECIDED, Dip, number_of
from rankscope.verdict.rules import HEALTHY, ILL, StackVerdict

EVIDENCE = {
    COLLAPSING: (UNIT, RAW, COSINE, RANK, CENTERED_RANK),
    COLLAPSED: (UNIT, RAW, COSINE, CENTERED_RANK),
    HEALTHY: (UNIT, RAW, COSINE, RANK),
    UNDECIDED: (UNIT, RAW, COSINE),
    NO_STATES: (),
    ILL: (),
    "massive token": (MASSIVE_TOKENS, MASSIVE_SHARE, OTHERS, TOKEN, RAW, UNIT, RANK, COSINE),
    "massive channel": (
        *(MASSIVE_CHANNELS, MASSIVE_CHANNEL_SHARE, CHANNEL, UNIT_CHANNEL),
        *(OTHER_CHANNELS, COSINE, UNIT, CENTERED_RANK),
    ),
    "shared mean": (COSINE, UNIT, CENTERED_RANK, RANK),
    "clusters": (RANK, CENTERED_RANK, COSINE, UNIT),
    "cone": (COSINE, UNIT, CENTERED_RANK),
    "dead directions": (RANK, CENTERED_RANK, COSINE, UNIT),
}
"""The numbers that each name rests on."""


def of_weights(ill: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with a model whose weights are not finite."""
    found = not_finite_words([NotFinite(**one) for one in ill])
    return (
        f"Ill: {found}. Nothing that the model computes with such weights means anything, also where its states look "
        "like numbers."
    )


def number(value: float | None) -> str:
    """Two significant digits, as people write them.

    >>> number(0.0312), number(12.34), number(0.98)
    ('.031', '12', '.98')
    """
    if value is None or math.isnan(value):
        return "none"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.1e}"
    if abs(value) >= 10:
        return f"{value:.0f}"
    text = f"{value:.2g}" if abs(value) < 0.095 else f"{value:.2f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def of_layer(name: str, one: Facts, precision: Precision) -> str:
    """What one layer shows, in a sentence; only numbers above their floor are told."""
    ratio, allowed = number(one[UNIT]), number(one.most_rank)
    cosine = number(one.cosine)
    if one[UNIT] is None and name in (COLLAPSING, COLLAPSED):
        return f"all tokens are equal to the precision of {precision.name}"
    match name:
        case "collapsing" | "collapsed":
            return f"tokens differ by {ratio} of their length only (mean cosine {cosine})"
        case "healthy":
            return f"tokens differ by {ratio} of their length (mean cosine {cosine})"
        case "undecided":
            most = min(one.most(UNIT) or 1.0, 1.0)
            unknown = f"{precision.name} cannot tell the residual ratio from anything up to {number(most)}"
            return unknown + precision.advice
        case "massive token":
            hold = "holds" if _is_single(one) else "hold"
            return (
                f"{_longer(one)} and {hold} {number(one.massive_share)} of the energy: the residual ratio reads "
                f"{number(one[RAW])}{_rank(one)}, with every token at unit length the ratio is {ratio}{_others(one)}"
            )
        case "massive channel":
            rest = f"tokens differ by {number(one[OTHER_CHANNELS])} of their length"
            if one.has_massive_channels:
                return (
                    f"{round(one[MASSIVE_CHANNELS] or 0.0)} of {one.dim} channels hold "
                    f"{number(one[MASSIVE_CHANNEL_SHARE])} of the energy and make the mean cosine {cosine}; "
                    f"without them {rest}"
                )
            return (
                f"one channel holds {number(one[UNIT_CHANNEL])} of the energy and makes the mean cosine {cosine}; "
                f"without it {rest}"
            )
        case "shared mean":
            spans = one[CENTERED_RANK]
            kept = (
                f" still spans {number(spans)} of {allowed} directions" if spans is not None else " is small"
            )
            return (
                f"all tokens share one large row (mean cosine {cosine}), and what is left of them "
                f"({ratio} of their length){kept}"
            )
        case "clusters":
            return (
                f"tokens stand in about {round(one[RANK] or 0.0)} groups: effective rank {number(one[RANK])} "
                f"({number(one[CENTERED_RANK])} centered) of {allowed}, mean cosine {cosine}"
            )
        case "cone":
            return f"tokens point the same way (mean cosine {cosine}) but differ by {ratio} of their length"
        case "dead directions":
            spans = one[CENTERED_RANK]
            use = (
                "leave directions unused" if spans is None else f"use {number(spans)} of {allowed} directions"
            )
            return f"tokens are distinct (mean cosine {cosine}) but {use}"
    if one.is_number(RAW):
        return "some token is exactly zero and has no direction"
    return "the states hold NaN, infinity or only zeros"


def _is_single(one: Facts) -> bool:
    return round(one.massive_tokens or 1.0) <= 1


def _longer(one: Facts) -> str:
    """How many tokens are how much longer than the others."""
    times = f"{number(one.times_longer)} times longer than the others"
    if _is_single(one):
        return f"one token is {times}"
    return f"{round(one.massive_tokens or 0.0)} of {round(one.tokens)} tokens are {times}"


def _others(one: Facts) -> str:
    if OTHERS not in one.numbers:
        return "; how the other tokens are is not in this table"
    known, most = one[OTHERS], one.most(OTHERS)
    if known is None:
        return f", of the other tokens alone no more than {number(most)}"
    return f", of the other tokens alone {number(known)}"


def _rank(one: Facts) -> str:
    return "" if one[RANK] is None else f" and the effective rank {number(one[RANK])}"


def of_stack(found: StackVerdict, facts: Sequence[Facts], precision: Precision, *, texts: str = "") -> str:
    """What a run of layers amounts to; ``texts`` are those that say so by themselves, if not all do."""
    last = facts[-1]
    where = [one for name, one in zip(found.names, facts, strict=True) if name == found.verdict]
    if found.verdict == COLLAPSING:
        return _collapse(found, facts, precision)
    if found.verdict == COLLAPSED:
        return _collapsed(where, facts, precision, texts)
    if found.verdict == HEALTHY:
        known = [(one.log10, one.layer) for one in found.points if one.log10 is not None]
        low, layer = min(known)
        words = f"Healthy: after the last block tokens differ by {number(last[UNIT])} of their length"
        if found.fall.dip is not None:
            return f"{words}. {_dipped(found.fall.dip)}"
        return words + (
            "." if layer == last.layer else f", the least is {number(number_of(low))} at layer {layer}."
        )
    worst = (
        max(where, key=lambda one: one.massive_share or 0.0)
        if found.verdict == "massive token"
        else where[-1]
    )
    title = {UNDECIDED: "Undecided", NO_STATES: "No numbers"}.get(
        found.verdict, f"Not collapsing: {found.verdict}"
    )
    narrowing = _narrowing(found)
    title = title.replace("Not collapsing", "Not collapsed yet") if narrowing else title
    told = of_layer(found.verdict, worst, precision)
    return f"{title} ({_layers(where)}). At layer {worst.layer} {told}.{narrowing}"


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


def _dipped(dip: Dip) -> str:
    depth = f"to {number(number_of(dip.log10))}" if dip.log10 is not None else "below the rounding floor"
    return f"The ratio dips {depth} at layer {dip.layer} and is back at layer {dip.recovered}."


def _narrowing(found: StackVerdict) -> str:
    """A warning where tokens that share a direction come closer with every one of the last layers."""
    fall = found.fall
    if found.verdict not in ("cone", "shared mean") or fall.leads_to is None:
        return ""
    return (
        f" They come closer with every layer, by a factor {number(fall.pace)}; at this pace they differ by "
        f"{number(fall.leads_to)} of their length at layer {fall.leads_at}."
    )


def _collapsed(where: Sequence[Facts], facts: Sequence[Facts], precision: Precision, texts: str) -> str:
    """Equal tokens whose fall is not in the states."""
    unseen = "where and how fast they became equal is not in these states."
    last = facts[-1]
    if last[UNIT] is None:
        some = f"In {texts} all tokens" if texts else "All tokens"
        return f"{some} are equal to the precision of {precision.name} at {_layers(where)}; {unseen}"
    words = (
        f"Collapsed: tokens differ by {number(last[UNIT])} of their length only at {_layers(where)}; {unseen}"
    )
    if len(facts) == 1:
        words += (
            " One state alone cannot tell collapse from a large row that all tokens share; scan more layers to be "
            "sure."
        )
    return words


def _collapse(found: StackVerdict, facts: Sequence[Facts], precision: Precision) -> str:
    fall, last = found.fall, facts[-1]
    ratio = number_of(found.points[-1].log10)
    start = next(place for place, one in enumerate(facts) if one.layer == fall.starts)
    raw = last[RAW]
    hidden = raw is not None and raw > 3 * max(number_of(found.points[-1].log10_most) or 0.0, 1e-300)
    before = number(number_of(found.points[max(start - 1, 0)].log10))
    pace = f"{number(fall.rate)}{' or less' if fall.rate_is_bound else ''} per layer"
    words = (
        f"Collapsing: from layer {fall.starts} on tokens become equal, by a factor {pace}; they differ by {before} of "
        "their length before and by "
    )
    if ratio is None:
        known = "" if fall.rate_is_bound else f"{number(fall.value)} at layer {fall.last}, and "
        words += f"{known}no more than {number(number_of(found.points[-1].log10_most))} after the last block."
        words += (
            f" From layer {fall.equal_from} on all tokens are equal to the precision of {precision.name}."
        )
    else:
        words += f"{number(ratio)} after the last block (mean cosine {number(last.cosine)})."
        if fall.leads_to is not None:
            words += f" At the pace of the last layers they differ by {number(fall.leads_to)} at layer {fall.leads_at}."
    if hidden:
        words += f" The residual ratio of the tokens as they are ({number(raw)}) hides this"
        words += (
            f": {_longer(last)}." if last.at_least(MASSIVE_TOKENS, 0.5) else ", because their lengths differ."
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
