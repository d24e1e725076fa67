"""A few numbers of a scan for loggers: the last block and the worst layer of every stack."""

import math
from collections.abc import Callable, Iterable, Sequence

from rankscope.findings.scan.entries import Entry
from rankscope.findings.watch.alarms import INPUT_RATIO, RATIO, SHARE
from rankscope.verdict import EQUAL, UNDECIDED, VERDICTS

HEADLINES: dict[str, tuple[str, Callable[[Iterable[float]], float]]] = {
    "residual_ratio[composite,mean]": ("residual_ratio", min),
    "residual_ratio[composite,mean,unit]": ("residual_ratio_unit", min),
    "residual_ratio[frobenius,mean,unit]": ("residual_ratio_frobenius_unit", min),
    "cosine[off_diagonal]": ("cosine", max),
    "token_share[largest]": ("token_share", max),
    "channel_share[largest]": ("channel_share", max),
    "effective_rank[entropy]": ("effective_rank", min),
    "effective_rank[entropy,centered]": ("effective_rank_centered", min),
}
"""Definition to its name in a logger, and which end of it is the worst layer."""

LENGTHS = "residual_ratio[composite,mean]"
"""The measure whose missing numbers tell of states that are not finite, or all zero."""


def headlines(summary: Sequence[Entry], verdict: str | None, *, not_finite: bool = False) -> dict[str, float]:
    """Names such as ``residual_ratio_unit/last_block`` to numbers; several stacks come before the measure.

    Means over texts at the site ``block``. A residual ratio below its floor is given as the floor: that is all that is
    known, and a curve that falls onto it is not mistaken for one that ends. What is no number is NaN, so that a logger
    never shows the last good one in its place: a measure of a state that is not finite, and so the worst layer.
    ``verdict`` is the name of that on the scan.
    ``collapsing`` is 1 or 0, and NaN where nothing is decided. ``not_finite`` is the share of texts without a number at
    the last block of some stack, 1 where weights are ``not_finite``.
    """
    states = [entry for entry in summary if entry.site == "block"]
    stacks = list(dict.fromkeys(entry.stack for entry in states))
    found: dict[str, float] = {}
    lost = [1.0 if not_finite else 0.0]
    for stack in stacks:
        prefix = "" if len(stacks) == 1 else f"{stack}/"
        layers = max(entry.layer for entry in states if entry.stack == stack)
        for definition, (name, worst) in HEADLINES.items():
            values = {
                entry.layer: _shown_value(entry)
                for entry in states
                if (entry.stack, entry.definition) == (stack, definition) and (entry.layer or not layers)
            }
            if values:
                is_number = all(not math.isnan(value) for value in values.values())
                found[f"{prefix}{name}/last_block"] = values.get(layers, math.nan)
                found[f"{prefix}{name}/worst_layer"] = worst(values.values()) if is_number else math.nan
        lost += [
            1 - (entry.numbers or 0) / max(entry.texts, 1)
            for entry in states
            if (entry.stack, entry.layer, entry.definition) == (stack, layers, LENGTHS)
        ]
    is_decided = verdict in VERDICTS and verdict != UNDECIDED and not not_finite
    found["collapsing"] = float(verdict in EQUAL) if is_decided else math.nan
    found["not_finite"] = max(lost)
    return found


def _shown_value(entry: Entry) -> float:
    if entry.mean is None:
        return math.nan
    return max(entry.mean, entry.floor or 0.0) if entry.measure == "residual_ratio" else entry.mean


def alarm_signals(summary: Sequence[Entry]) -> dict[str, dict[str, float]]:
    """What the alarms read of a scan: ratios at both ends of every stack, and the largest share of one token."""
    found: dict[str, dict[str, float]] = {}
    states = [entry for entry in summary if entry.site == "block" and entry.mean is not None]
    for stack in dict.fromkeys(entry.stack for entry in states):
        own = [entry for entry in states if entry.stack == stack]
        last = max(entry.layer for entry in own)
        for entry in own:
            value = _shown_value(entry)
            if entry.definition == "residual_ratio[frobenius,mean,unit]" and entry.layer in (0, last):
                found.setdefault(RATIO if entry.layer else INPUT_RATIO, {})[stack] = value
            if entry.definition == "token_share[largest]":
                shares = found.setdefault(SHARE, {})
                shares[stack] = max(value, shares.get(stack, 0.0))
    return found
