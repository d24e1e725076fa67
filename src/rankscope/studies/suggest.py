"""What would keep tokens apart: what-ifs that surgery can compute, each run through the tree, ranked.

Every what-if uses the weights of the unchanged network. It predicts the geometry of the tokens in the last layer, not
how well a network trained that way would do. ``tried`` runs them on a batch and keeps a few numbers of each text;
``ranked`` compares them over all batches, of one network or of networks of one shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rankscope.core.numerics import threads_for
from rankscope.errors import ConfigError, RankscopeError
from rankscope.measures import evaluate, evaluate_padded, find_measure
from rankscope.network import Context, Network
from rankscope.results import FACTORS
from rankscope.studies.blame import measured_tokens
from rankscope.studies.what_ifs import WhatIf, what_ifs

RANKED_BY = "residual_ratio[frobenius,mean,unit]"
"""On tokens of length one: a massive token can hide collapse, or fake its absence, in the plain ratio."""

MEASURES = ("residual_ratio[frobenius,mean]", RANKED_BY)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A measure of the last layer, mean over texts (geometric of residuals, ratios and diameters).

    A text that is not above its rounding floor counts with the larger of value and floor; then the mean is not
    resolved: the measure is at most this. None where it is not finite in every text.
    """

    value: float | None
    resolved: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """One what-if beside the unchanged network.

    Args:
        kind: skip-scale, mask, placement, temperature or branch-scale.
        setting: what it is set to; None for a kind that this network has nothing for.
        before: readings of the unchanged network, by definition.
        after: readings of the changed one, over the same texts; empty if it could not be made.
        texts: how many texts are compared: those that have a number in the unchanged network.
        left_out: how many are not, because it overflows on them or ends with a token of length zero.
        gain: mean over texts of ``ln(after / before)`` of the measure that ranks; above zero the tokens stay further
            apart.
        is_bound: the network itself is collapsed to its rounding floor in some text, so the gain is at least this. It
            is less than the truth by the same amount for every what-if, which leaves their order as it is.
        reason: why there is no gain.
    """

    kind: str
    setting: str | None
    before: dict[str, Reading]
    after: dict[str, Reading]
    texts: int
    left_out: int
    gain: float | None = None
    is_bound: bool = False
    reason: str | None = None

    @property
    def name(self) -> str:
        """Kind and setting, such as ``skip-scale 0.5``."""
        return self.kind if self.setting is None else f"{self.kind} {self.setting}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Numbers:
    """A measure of the last layer, one entry per text."""

    value: Tensor
    floor: Tensor
    resolved: Tensor

    def most(self) -> Tensor:
        """The value, or the most it can be where it is not above its floor."""
        return torch.where(self.resolved, self.value, torch.maximum(self.value, self.floor))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Outcome:
    """One what-if on one batch: its numbers by definition, or why there are none."""

    what_if: WhatIf
    numbers: dict[str, Numbers] | None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tried:
    """Every what-if on one batch."""

    before: dict[str, Numbers]
    outcomes: tuple[Outcome, ...]
    longest: int
    """Tokens of its longest text."""


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
    return ranked([tried(network, x, context, is_token=is_token, measures=measures, advance=advance)])


def tried(
    network: Network,
    x: Tensor,
    context: Context | None = None,
    *,
    is_token: Tensor | None = None,
    measures: Sequence[str] = MEASURES,
    advance: Callable[[int, int], None] | None = None,
) -> Tried:
    """Every what-if run on one batch of texts; of each text a few numbers are kept. Arguments as of ``suggest``."""
    context = network.checked(x, context)
    measured = measured_tokens(x, context, is_token)
    names = tuple(dict.fromkeys([*(find_measure(name).definition for name in measures), RANKED_BY]))

    def read(changed: Network) -> dict[str, Numbers]:
        last = Network(changed.blocks)(x, context).cpu()
        return _numbers(last, names, measured, layer=len(changed.blocks), dtype=x.dtype)

    longest = _longest(x, context)
    with torch.no_grad(), threads_for(x.shape[-2] * x.shape[-1]):
        before, found = read(network), list[Outcome]()
        tries = list(what_ifs(network, longest))
        runs, done = sum(not one.is_same for one in tries), 0
        for one in tries:
            found.append(_outcome(one, before, read))
            done += not one.is_same
            if advance is not None and not one.is_same:
                advance(done, runs)
    return Tried(before=before, outcomes=tuple(found), longest=longest)


def ranked(batches: Sequence[Tried]) -> list[Suggestion]:
    """The what-ifs over the texts of all batches, the largest gain first; what is moot on all of them is left out."""
    if not batches:
        raise ConfigError("no batch of texts was tried; what-ifs are compared on at least one")
    before = _joined([batch.before for batch in batches])
    most = before[RANKED_BY].most()
    is_used = torch.isfinite(most) & (most > 0)
    told = partial(
        Suggestion,
        before=_readings(before, is_used),
        texts=int(is_used.sum()),
        left_out=int((~is_used).sum()),
    )
    keys = dict.fromkeys(
        (one.what_if.kind, one.what_if.setting) for batch in batches for one in batch.outcomes
    )
    found = []
    for kind, setting in keys:
        same = [
            one
            for batch in batches
            for one in batch.outcomes
            if (one.what_if.kind, one.what_if.setting) == (kind, setting)
        ]
        if not all(one.what_if.is_moot for one in same):
            make = partial(told, kind=kind, setting=setting)
            found.append(_compared(make, same, before, is_used, is_whole=len(same) == len(batches)))
    if not any(one.kind == "mask" for one in found):
        longest = max(batch.longest for batch in batches)
        found.append(told(kind="mask", setting=None, after={}, reason=f"no other mask fits {longest} tokens"))
    return sorted(found, key=_rank)


def best_in_words(found: Sequence[Suggestion]) -> str:
    """One sentence on the best what-if, and on what it does not say."""
    best = next((one for one in found if one.gain is not None), None)
    if best is None:
        return "No what-if could be compared with the network as it is; the reasons are listed."
    before, after = best.before[RANKED_BY].value, best.after[RANKED_BY].value
    if best.gain is None or best.gain <= 0:
        return (
            "No what-if keeps the tokens further apart in the last layer than the network as it is"
            f"{_mean_of(best)}."
        )
    return (
        f"{best.name} keeps the tokens furthest apart: {RANKED_BY} of the last layer goes from "
        f"{'at most ' if best.is_bound else ''}{before:.3g} to {after:.3g}{_mean_of(best)}; the weights are those "
        "of the unchanged network, so this predicts the geometry of the tokens, not accuracy."
    )


def _mean_of(one: Suggestion) -> str:
    """How many texts, if there are several."""
    if one.texts + one.left_out == 1:
        return ""
    if not one.left_out:
        return f" (geometric mean of {one.texts} texts)"
    return (
        f" (geometric mean of {one.texts} of {one.texts + one.left_out} texts; on the others the network overflows, or "
        "ends with a token of length zero)"
    )


def _outcome(
    one: WhatIf, before: dict[str, Numbers], read: Callable[[Network], dict[str, Numbers]]
) -> Outcome:
    if one.is_same:
        return Outcome(what_if=one, numbers=before)
    if one.make is None:
        return Outcome(what_if=one, numbers=None, reason=one.reason)
    try:
        return Outcome(what_if=one, numbers=read(one.make()))
    except RankscopeError as error:
        return Outcome(what_if=one, numbers=None, reason=str(error))


def _compared(
    told: Callable[..., Suggestion],
    outcomes: Sequence[Outcome],
    before: dict[str, Numbers],
    is_used: Tensor,
    *,
    is_whole: bool,
) -> Suggestion:
    """The suggestion that ``told`` makes from the outcomes of one what-if on all batches."""
    reasons = [one.reason for one in outcomes if one.reason is not None]
    if reasons:
        return told(after={}, reason=reasons[0])
    if not is_whole:
        return told(after={}, reason="it has a place in some of the networks only")
    numbers = _joined([one.numbers for one in outcomes if one.numbers is not None])
    told, count = partial(told, after=_readings(numbers, is_used)), int(is_used.sum())
    if not count:
        return told(reason="the unchanged network overflows, or ends with a token of length zero")
    own, new = before[RANKED_BY], numbers[RANKED_BY]
    overflown = int((~torch.isfinite(new.value[is_used])).sum())
    if overflown:
        return told(
            reason=f"in {overflown} of {count} texts the last state overflows, or holds a token of length zero"
        )
    equal = int((~new.resolved[is_used]).sum())
    if equal:
        return told(reason=f"in {equal} of {count} texts the tokens are equal up to rounding")
    gain = (new.value[is_used].log() - own.most()[is_used].log()).mean()
    return told(gain=float(gain), is_bound=not bool(own.resolved[is_used].all()))


def _rank(one: Suggestion) -> tuple[int, float]:
    """Gains first, the largest before all; then what was run without a gain, then what this network has nothing for."""
    if one.gain is not None:
        return 0, -one.gain
    return (1 if one.after else 2), 0.0


def _numbers(
    last: Tensor, names: Sequence[str], measured: Tensor | None, *, layer: int, dtype: torch.dtype
) -> dict[str, Numbers]:
    found = {}
    for measure in map(find_measure, names):
        if measured is None:
            one = evaluate(measure, last, layer=layer, dtype=dtype)
        else:
            one = evaluate_padded(measure, last, measured.cpu(), layer=layer, dtype=dtype)
        found[measure.definition] = Numbers(
            value=one.value.reshape(-1), floor=one.floor.reshape(-1), resolved=one.resolved.reshape(-1)
        )
    return found


def _joined(batches: Sequence[dict[str, Numbers]]) -> dict[str, Numbers]:
    return {
        name: Numbers(
            value=torch.cat([batch[name].value for batch in batches]),
            floor=torch.cat([batch[name].floor for batch in batches]),
            resolved=torch.cat([batch[name].resolved for batch in batches]),
        )
        for name in batches[0]
    }


def _readings(numbers: dict[str, Numbers], is_used: Tensor) -> dict[str, Reading]:
    found = {}
    for name, one in numbers.items():
        most = one.most()[is_used]
        mean = most.log().mean().exp() if find_measure(name).name in FACTORS else most.mean()
        found[name] = Reading(
            value=float(mean) if bool(torch.isfinite(mean)) else None,
            resolved=bool(one.resolved[is_used].all()),
        )
    return found


def _longest(x: Tensor, context: Context) -> int:
    """Tokens of the longest text."""
    return x.shape[-2] if context.is_token is None else int(context.is_token.sum(dim=-1).max())
