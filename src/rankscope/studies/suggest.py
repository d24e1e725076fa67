"""What would keep tokens apart: what-ifs that surgery can compute, each run through the tree, ranked.

Every what-if uses the weights of the unchanged network. It predicts the geometry of the tokens in the last layer, not
how well a network trained that way would do.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rankscope.core.numerics import threads_for
from rankscope.errors import RankscopeError
from rankscope.measures import evaluate, evaluate_padded, find_measure
from rankscope.network import Context, Network
from rankscope.studies.blame import measured_tokens
from rankscope.studies.what_ifs import WhatIf, what_ifs

RANKED_BY = "residual_ratio[frobenius,mean,unit]"
"""On tokens of length one: a massive token can hide collapse, or fake its absence, in the plain ratio."""

MEASURES = ("residual_ratio[frobenius,mean]", RANKED_BY)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A measure of the last layer, mean over texts; None where it is not finite, resolved if it is in every text."""

    value: float | None
    floor: float | None
    resolved: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """One what-if beside the unchanged network.

    Args:
        kind: skip-scale, mask, placement, temperature or branch-scale.
        setting: what it is set to; None for a kind that this network has nothing for.
        before: readings of the unchanged network, by definition.
        after: readings of the changed one; empty if it could not be made.
        gain: ``ln(after / before)`` of the measure that ranks; above zero the tokens stay further apart.
        is_bound: the network itself is collapsed to its rounding floor, so the gain is at least this.
        reason: why there is no gain.
    """

    kind: str
    setting: str | None
    before: dict[str, Reading]
    after: dict[str, Reading]
    gain: float | None = None
    is_bound: bool = False
    reason: str | None = None

    @property
    def name(self) -> str:
        """Kind and setting, such as ``skip-scale 0.5``."""
        return self.kind if self.setting is None else f"{self.kind} {self.setting}"


def suggest(
    network: Network,
    x: Tensor,
    context: Context | None = None,
    *,
    is_token: Tensor | None = None,
    measures: Sequence[str] = MEASURES,
    advance: Callable[[int, int], None] | None = None,
) -> list[Suggestion]:
    """Every what-if for this network, the largest gain in token diversity first; those without a gain last, with why.

    ``is_token`` says which tokens are measured; by default all but the padding of ``context``. ``advance`` is told
    after every run how many of how many are done.
    """
    context = network.checked(x, context)
    measured = measured_tokens(x, context, is_token)
    names = tuple(dict.fromkeys([*(find_measure(name).definition for name in measures), RANKED_BY]))

    def read(changed: Network) -> dict[str, Reading]:
        last = Network(changed.blocks)(x, context).cpu()
        return _readings(last, names, measured, layer=len(changed.blocks), dtype=x.dtype)

    with torch.no_grad(), threads_for(x.shape[-2] * x.shape[-1]):
        before, found = read(network), list[Suggestion]()
        tries = list(what_ifs(network, _longest(x, context)))
        for done, one in enumerate(tries, start=1):
            found.append(_tried(one, before, read))
            if advance is not None:
                advance(done, len(tries))
    return sorted(found, key=_rank)


def best_in_words(found: Sequence[Suggestion]) -> str:
    """One sentence on the best what-if, and on what it does not say."""
    best = next((one for one in found if one.gain is not None), None)
    if best is None:
        return "No what-if could be compared with the network as it is; the reasons are listed."
    before, after = _most(best.before[RANKED_BY]), best.after[RANKED_BY].value
    if best.gain is None or best.gain <= 0:
        return "No what-if keeps the tokens further apart in the last layer than the network as it is."
    return (
        f"{best.name} keeps the tokens furthest apart: {RANKED_BY} of the last layer goes from "
        f"{'at most ' if best.is_bound else ''}{before:.3g} to {after:.3g}; the weights were trained or drawn for the "
        "unchanged network, so this predicts the geometry of the tokens, not accuracy."
    )


def _tried(
    one: WhatIf, before: dict[str, Reading], read: Callable[[Network], dict[str, Reading]]
) -> Suggestion:
    told = partial(Suggestion, kind=one.kind, setting=one.setting, before=before)
    if one.make is None:
        return told(after={}, reason=one.reason)
    try:
        after = read(one.make())
    except RankscopeError as error:
        return told(after={}, reason=str(error))
    own, new = before[RANKED_BY], after[RANKED_BY]
    if new.value is None:
        return told(after=after, reason="the last state overflows, or holds a token of length zero")
    if not new.resolved:
        return told(after=after, reason="the tokens of some text are equal up to rounding")
    most = _most(own)
    if most is None:
        return told(
            after=after, reason="the unchanged network overflows, or ends with a token of length zero"
        )
    return told(after=after, gain=math.log(new.value / most), is_bound=not own.resolved)


def _most(own: Reading) -> float | None:
    """The value, or the most it can be if it is not above its floor."""
    if own.value is None or own.floor is None:
        return None
    return own.value if own.resolved else max(own.value, own.floor)


def _rank(one: Suggestion) -> tuple[int, float]:
    """Gains first, the largest before all; then what was run without a gain, then what this network has nothing for."""
    if one.gain is not None:
        return 0, -one.gain
    return (1 if one.after else 2), 0.0


def _readings(
    last: Tensor, names: Sequence[str], measured: Tensor | None, *, layer: int, dtype: torch.dtype
) -> dict[str, Reading]:
    found = {}
    for measure in map(find_measure, names):
        if measured is None:
            one = evaluate(measure, last, layer=layer, dtype=dtype)
        else:
            one = evaluate_padded(measure, last, measured.cpu(), layer=layer, dtype=dtype)
        value, floor = float(one.value.mean()), float(one.floor.mean())
        found[measure.definition] = Reading(
            value=value if math.isfinite(value) else None,
            floor=floor if math.isfinite(floor) else None,
            resolved=bool(one.resolved.all()),
        )
    return found


def _longest(x: Tensor, context: Context) -> int:
    """Tokens of the longest text."""
    return x.shape[-2] if context.is_token is None else int(context.is_token.sum(dim=-1).max())
