"""The one rule for the word collapse: a curve of residual ratios by layer in, its name and its numbers out.

Scans, ablations, random networks and the monitor all ask here. Ratios are logarithms to base ten, because the split
pass follows them far below the smallest float. A ratio that is not above its rounding floor has no value here, only
the floor as a bound: no rule can read the rounding.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rankscope.findings.verdict import STEPS, STILL, Thresholds

COLLAPSING, COLLAPSED, UNDECIDED = "collapsing", "collapsed", "undecided"
NOT_COLLAPSING, NO_STATES = "not collapsing", "no numbers"

EQUAL = (COLLAPSING, COLLAPSED)
"""Verdicts that say that tokens become or are equal."""

TOP = math.log10(0.9)
"""A fall starts after the last layer that is within a tenth of the largest ratio."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioPoint:
    """The ratio of one layer: its logarithm if it is above its floor, else what it is at most, else nothing."""

    layer: int
    log10: float | None
    log10_most: float | None
    """The ratio itself where it is known, its floor where it is not, None where there is no number at all."""

    @classmethod
    def of(cls, layer: int, value: float | None, floor: float | None) -> "RatioPoint":
        """A value that is resolved, or None and the floor; without either there is no number.

        >>> RatioPoint.of(3, None, 0.01).log10_most
        -2.0
        """
        known = None if value is None else _log10(value)
        most = known if known is not None else None if floor is None else _log10(floor)
        return cls(layer=layer, log10=known, log10_most=most)


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioDip:
    """A ratio that falls and comes back: the lowest layer, its ratio there, and where it is back."""

    layer: int
    log10: float | None
    """None where the lowest layer is not above its rounding floor; then ``log10_most`` is all that is known."""

    log10_most: float
    recovered: int
    """The first later layer that is within a tenth of the smaller of the largest ratios before and after."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fall:
    """What a curve of residual ratios amounts to.

    Args:
        verdict: collapsing (a fall is seen), collapsed (equal tokens, and no fall in these layers), not collapsing,
            undecided (the end is not above a floor that is itself above the threshold), no numbers.
        starts: first layer of the fall.
        log10_rate: factor per layer from the layer before the fall to ``last``.
        rate_is_bound: no layer of the fall is above its floor, so the factor is at most this.
        last: the last layer that is above its floor, ``log10_value`` its ratio.
        equal_from: first layer of those at the end that are not above their floor, if that floor is low enough to
            call their tokens equal.
        log10_pace: factor per layer of the last steps, if every one of them falls; None otherwise.
        leads_at: the layer after as many layers again, ``log10_leads_to`` the ratio there at that pace.
        dip: the deepest dip of a curve that comes back.
    """

    verdict: str
    starts: int | None = None
    log10_rate: float | None = None
    rate_is_bound: bool = False
    last: int | None = None
    log10_value: float | None = None
    equal_from: int | None = None
    log10_pace: float | None = None
    leads_at: int | None = None
    log10_leads_to: float | None = None
    dip: RatioDip | None = None

    @property
    def rate(self) -> float | None:
        return number_of(self.log10_rate)

    @property
    def value(self) -> float | None:
        return number_of(self.log10_value)

    @property
    def pace(self) -> float | None:
        return number_of(self.log10_pace)

    @property
    def leads_to(self) -> float | None:
        return number_of(self.log10_leads_to)

    def facts(self) -> dict[str, Any]:
        """The same as JSON values."""
        dip = self.dip and {
            "layer": self.dip.layer,
            "value": number_of(self.dip.log10),
            "at_most": number_of(self.dip.log10_most),
            "recovered": self.dip.recovered,
        }
        leads = None
        if self.leads_at is not None and self.log10_leads_to is not None:
            leads = {"layer": self.leads_at, "value": self.leads_to, "log10_value": self.log10_leads_to}
        return {
            "starts": self.starts,
            "rate": self.rate,
            "rate_is_bound": self.rate_is_bound,
            "last_resolved": self.last,
            "last_value": self.value,
            "equal_from": self.equal_from,
            "pace": self.pace,
            "leads_to": leads,
            "dip": dip,
        }


def judge_fall(points: Sequence[RatioPoint], limits: Thresholds, *, level: float | None = None) -> Fall:
    """The verdict on a curve whose first point is what enters the first layer.

    Tokens are equal from a ratio of ``collapsed`` on, or from ``level`` on if that is more. It is collapse if the
    ratio was ``fall`` times larger before and has arrived there, or gets there in as many layers again at the pace of
    its last steps, every one of which must be a fall. A ratio that is not above its floor is at most that floor.
    """
    if not points or points[-1].log10_most is None:
        return Fall(verdict=NO_STATES)
    known = {place: one.log10 for place, one in enumerate(points) if one.log10 is not None}
    last = max(known, default=-1)
    end, equal = points[-1].log10_most, math.log10(max(limits.collapsed, level or 0.0))
    seen: dict[str, Any] = {"dip": _dip(points)} | _leads(points)
    if known:
        seen |= {"last": points[last].layer, "log10_value": known[last]}
    if points[-1].log10 is None:
        if end > math.log10(limits.collapsed):
            return Fall(verdict=UNDECIDED, **seen)
        seen["equal_from"] = points[last + 1].layer
    if not any(log >= end + math.log10(limits.fall) for log in known.values()):
        return Fall(verdict=NOT_COLLAPSING if points[-1].log10 is not None else COLLAPSED, **seen)
    leads = seen.get("log10_leads_to")
    if end <= equal or (leads is not None and leads <= math.log10(limits.collapsed)):
        return Fall(verdict=COLLAPSING, **seen, **_fallen(points, known))
    return Fall(verdict=NOT_COLLAPSING, **seen)


def is_low(points: Sequence[RatioPoint], limits: Thresholds) -> bool:
    """Whether the last ratio is known to be at most ``collapsed``."""
    return bool(
        points and points[-1].log10_most is not None and points[-1].log10_most <= math.log10(limits.collapsed)
    )


def _fallen(points: Sequence[RatioPoint], logs: Mapping[int, float]) -> dict[str, Any]:
    """Where the fall starts and its mean factor per layer, from the layers above their floor alone.

    If none of the fall is above its floor, the first layer of it that has one bounds the factor.
    """
    largest = max(logs.values())
    before = max(place for place, log in logs.items() if log >= largest + TOP)
    later = [(place, log) for place, log in logs.items() if place > before]
    bounds = ((k, one.log10_most) for k, one in enumerate(points) if k > before)
    end, most = later[-1] if later else next((k, log) for k, log in bounds if log is not None)
    return {
        "starts": points[before + 1].layer,
        "log10_rate": (most - logs[before]) / (points[end].layer - points[before].layer),
        "rate_is_bound": not later,
    }


def _leads(points: Sequence[RatioPoint]) -> dict[str, Any]:
    """The pace of the last steps and where it leads, if the curve ends above its floor and falls in all of them."""
    end = [one for one in points[-STEPS - 1 :] if one.log10 is not None]
    if len(end) < min(STEPS + 1, len(points)) or len(end) < 3:
        return {}
    logs = [one.log10 for one in end if one.log10 is not None]
    falls = [
        (after - before) / (second.layer - first.layer)
        for (before, after), (first, second) in zip(pairwise(logs), pairwise(end), strict=True)
    ]
    if max(falls) > math.log10(STILL) or not all(map(math.isfinite, falls)):
        return {}
    pace, depth = sum(falls) / len(falls), points[-1].layer - points[0].layer
    return {
        "log10_pace": pace,
        "leads_at": points[-1].layer + depth,
        "log10_leads_to": logs[-1] + pace * depth,
    }


def _dip(points: Sequence[RatioPoint]) -> RatioDip | None:
    """The deepest layer that is at most half of the largest ratio before it and of the largest one after it."""
    deepest = None
    for place, one in enumerate(points):
        sides = [
            max((other.log10 for other in side if other.log10 is not None), default=None)
            for side in (points[:place], points[place + 1 :])
        ]
        if one.log10_most is None or sides[0] is None or sides[1] is None:
            continue
        back = min(sides[0], sides[1])
        if one.log10_most > back - math.log10(2) or (deepest and one.log10_most >= deepest.log10_most):
            continue
        later = (k for k in points[place + 1 :] if k.log10 is not None and k.log10 >= back + TOP)
        deepest = RatioDip(
            layer=one.layer, log10=one.log10, log10_most=one.log10_most, recovered=next(later).layer
        )
    return deepest


def number_of(log10: float | None) -> float | None:
    """The number of that logarithm; 0 below the smallest float.

    >>> number_of(-2.0)
    0.01
    """
    return None if log10 is None else 0.0 if log10 < -323 else float(10.0**log10)


def _log10(value: float) -> float:
    return math.log10(value) if value > 0 else -math.inf
