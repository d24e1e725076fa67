"""What a certificate says in plain words: of one text, and of all of them together."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rankscope.bounds.certificate import COLUMNS, COMPOSITE, FROBENIUS
from rankscope.results.certify_lines import power_text
from rankscope.studies.certify_found import Line

COLLAPSED = 0.01
"""A state is proven to have collapsed where its residual is proven to be at most this part of its size."""

CLOSE = 0.01
"""What was measured counts as proven where the bounds of its rounding are no farther apart than this part of it."""

NAMES = {
    FROBENIUS: "residual (Frobenius)",
    COMPOSITE: "residual (composite)",
    COLUMNS: "residual (largest column)",
    "diameter[l1]": "largest distance of two tokens (l1)",
    "diameter[l2]": "largest distance of two tokens (l2)",
    "diameter[linf]": "largest distance of two tokens (linf)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """What is proven of the whole network in one definition; logarithms relative to the input.

    Args:
        lower: of the last layer over the input, at least; minus infinity where nothing is proven.
        upper: the same, at most; infinity where nothing is proven.
        upper_vacuous: whether the size of the last state says as much.
        collapse_layer: the first layer from which on every state is proven to have collapsed.
        lower_until: the last layer up to which every layer has a lower bound.
        upper_until: the last layer with an upper bound beyond the trivial.
        proven_until: the last layer of which anything beyond the trivial is proven.
        enclosed_until: the last layer up to which what was measured is itself proven, to ``CLOSE``.
        why_lower: what the lower bound lacked in the block after ``lower_until``; empty where nothing did.
        why_upper: what the upper bound lacked in the block after ``upper_until``.
    """

    definition: str
    layers: int
    lower: float
    measured: float
    upper: float
    upper_vacuous: bool
    collapse_layer: int | None
    lower_until: int
    upper_until: int
    proven_until: int
    enclosed_until: int
    why_lower: str = ""
    why_upper: str = ""

    def told(self) -> dict[str, Any]:
        """For a section of the table, which holds no infinities and no NaN.

        An upper bound of zero, and a bound whose number was lost (0/0, or beyond the range of floats), are told apart
        from one of which nothing is proven.
        """
        return asdict(self) | {
            "upper_is_zero": self.upper == -math.inf,
            "lower_is_lost": math.isnan(self.lower),
            "upper_is_lost": math.isnan(self.upper),
        }


def standing_of(lines: Sequence[Line]) -> Standing:
    """What the lines of one definition of one text, from the input to the last layer, say of the whole."""
    first, last = lines[0], lines[-1]
    low = [line.upper == -math.inf or line.upper - line.trivial <= math.log(COLLAPSED) for line in lines]
    collapse = next((line.layer for at, line in enumerate(lines) if line.layer and all(low[at:])), None)
    kept = next((line.layer - 1 for line in lines if line.lower_vacuous), last.layer)
    bounded = max((line.layer for line in lines if not line.upper_vacuous), default=0)
    proven = max((line.layer for line in lines if not line.vacuous), default=0)
    return Standing(
        definition=first.definition,
        layers=last.layer,
        lower=_relative(last.lower, first.upper),
        measured=_relative(last.measured, first.measured),
        upper=_relative(last.upper, first.lower),
        upper_vacuous=last.upper_vacuous,
        collapse_layer=collapse,
        lower_until=max(kept, 0),
        upper_until=bounded,
        proven_until=proven,
        enclosed_until=max(0, next((line.layer - 1 for line in lines if not _is_close(line)), last.layer)),
        why_lower=next((line.no_lower[0] for line in lines if line.layer == kept + 1 and line.no_lower), ""),
        why_upper=next(
            (line.no_upper[0] for line in lines if line.layer == bounded + 1 and line.no_upper), ""
        ),
    )


def together(standings: Sequence[Standing]) -> Standing:
    """What holds of every text: the weakest statement of each kind."""
    first = standings[0]
    ends = [one.collapse_layer for one in standings]
    known = [one for one in ends if one is not None]
    least = min(standings, key=lambda one: (one.lower_until, not one.why_lower))
    highest = min(standings, key=lambda one: (one.upper_until, not one.why_upper))
    return Standing(
        definition=first.definition,
        layers=first.layers,
        lower=_least([one.lower for one in standings]),
        measured=sum(one.measured for one in standings) / len(standings),
        upper=-_least([-one.upper for one in standings]),
        upper_vacuous=any(one.upper_vacuous for one in standings),
        collapse_layer=max(known) if len(known) == len(ends) else None,
        lower_until=least.lower_until,
        upper_until=highest.upper_until,
        proven_until=min(one.proven_until for one in standings),
        enclosed_until=min(one.enclosed_until for one in standings),
        why_lower=least.why_lower,
        why_upper=highest.why_upper,
    )


def _least(bounds: Sequence[float]) -> float:
    """The weakest of the bounds; one that is lost (NaN) leaves nothing to say of all of them."""
    return math.nan if any(map(math.isnan, bounds)) else min(bounds)


def sentences(standings: Sequence[Standing]) -> list[str]:
    """The verdict: what is proven of the whole network in each definition, then where it ends and why."""
    told = [words for one in standings for words in _proven(one)]
    ends: dict[tuple[str, ...], list[str]] = {}
    for one in standings:
        lower = f"no lower bound{{}} beyond layer {one.lower_until}{_because(one.why_lower)}"
        upper = f"no upper bound beyond layer {one.upper_until}{_because(one.why_upper)}"
        if one.proven_until < one.layers:
            ends.setdefault((f"nothing{{}} beyond layer {one.proven_until}: ", lower, upper), []).append(
                one.definition
            )
        elif one.lower_until < one.layers and one.upper > -math.inf:
            ends.setdefault((lower,), []).append(one.definition)
    for end, definitions in ends.items():
        names = [NAMES[definition] for definition in definitions]
        of = "" if len(names) == len(standings) else f" of the {' and the '.join(names)}"
        first, *others = end
        told.append(f"Blocks prove {first.replace('{}', of)}{'; '.join(others).replace('{}', '')}.")
    known = min(one.enclosed_until for one in standings)
    if known and ends:
        of = "of every layer" if known == standings[0].layers else f"up to layer {known}"
        told.append(
            f"Running the network proves the measured values {of} to {CLOSE:.0%} all the same: what rounding can have "
            "done is bounded. That gives the number and no reason for it."
        )
    return told


def _because(why: str) -> str:
    return f", because this does not hold: {why}" if why else ""


def _is_close(line: Line) -> bool:
    """Whether running the network encloses its residual, and the measured value, within a small factor."""
    low, high, width = line.enclosed_lower, line.enclosed_upper, math.log1p(CLOSE)
    if low is None or high is None:
        return False
    return high - low <= width and low - width <= line.measured <= high + width


def _proven(one: Standing) -> list[str]:
    name, told = NAMES[one.definition], []
    if one.upper == -math.inf:
        return [f"Proven: at layer {one.layers} all tokens are equal, the {name} is zero."]
    if one.collapse_layer is not None:
        told.append(
            f"Proven: from layer {one.collapse_layer} on the {name} is below {COLLAPSED:.0%} of the tokens' own size, "
            f"at layer {one.layers} at most {_times(one.upper, 1)}."
        )
    elif not one.upper_vacuous:
        told.append(f"Proven: at layer {one.layers} the {name} is at most {_times(one.upper, 1)}.")
    if one.lower_until == one.layers and one.lower > -math.inf:
        told.append(f"Proven: at layer {one.layers} the {name} is at least {_times(one.lower, -1)}.")
    return told


def _relative(bound: float, of: float) -> float:
    """A difference of logarithms in which nothing proven stays nothing proven."""
    return bound if math.isinf(bound) else bound - of if math.isfinite(of) else math.nan


def _times(log: float, toward: int) -> str:
    return f"{power_text(log, toward=toward)} {'times' if log > 0 else 'of'} the input's"
