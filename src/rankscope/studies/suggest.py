"""What would keep tokens apart: what-ifs that surgery can compute, each run through the tree, ranked.

Every what-if uses the weights of the unchanged network. It predicts the geometry of the tokens in the last layer, not
how well a network trained that way would do. ``what_ifs`` lists the changes that differ from what a network already
is; ``try_what_ifs`` runs them on a batch and keeps a few numbers of each text; ``rank_what_ifs`` compares them over all
batches, of one network or of networks of one shape.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from rankscope.core.numerics import threads_for
from rankscope.errors import ConfigError, RankscopeError
from rankscope.findings.blame import Headline
from rankscope.findings.suggest import RANKED_BY, Declined, Kind, MeasuredReading, Suggestion, Suggestions
from rankscope.masks import MaskRule, parse_mask
from rankscope.measures import evaluate, evaluate_padded, find_measure
from rankscope.network import (
    Context,
    CrossAttention,
    Fixed,
    Network,
    Norm,
    SelfAttention,
    SinkSoftmax,
    Skip,
    Softmax,
    with_mask,
    with_skip_scale,
)
from rankscope.network.foreign import Foreign
from rankscope.network.parts import leaves
from rankscope.network.placement import PLACEMENTS, placement_of, with_placement
from rankscope.network.rewrites import with_branch_scale, with_temperature
from rankscope.results import FACTORS
from rankscope.studies.blame import log_error, measured_tokens

MEASURES = ("residual_ratio[frobenius,mean]", RANKED_BY)

SKIP_SCALES = (0.5, 0.9, 1.1, 1.5, 2.0)
TEMPERATURES = (0.5, 0.7, 1.4, 2.0)
WINDOWS = (1, 4, 16, 64, 256)

BRANCH_SCALES: dict[str, Callable[[int, int], float]] = {
    "1/sqrt(2L)": lambda block, layers: 1 / math.sqrt(2 * layers),
    "1/sqrt(l)": lambda block, layers: 1 / math.sqrt(block),
    "1/L": lambda block, layers: 1 / layers,
}
"""Factors on the branches by depth, from the number of the block l and the number of blocks L."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """A change to a network, made on demand; without ``make`` the kind has no place here, as ``declined`` says.

    One that ``is_moot`` says nothing on texts so short, but may on others: a window wider than they are, or a mask that
    allows the same as the network's own. In the latter case there is nothing to make.
    """

    kind: Kind
    setting: str | None = None
    make: Callable[[], Network] | None = None
    is_moot: bool = False
    declined: Declined | None = None
    block: int | None = None
    obstacle: str = ""

    @property
    def is_same(self) -> bool:
        """Whether the network stays what it is on these texts."""
        return self.is_moot and self.make is None


def what_ifs(network: Network, tokens: int) -> Iterator[WhatIf]:
    """Every what-if for ``network``; those that are moot on texts of up to ``tokens`` tokens say so."""
    yield from _skip_scales(network)
    yield from _masks(network, tokens)
    yield from _placements(network)
    yield from _temperatures(network)
    yield from _branch_scales(network)


def _skip_scales(network: Network) -> Iterator[WhatIf]:
    scales = [part.scale for part in network.blocks.modules() if isinstance(part, Skip)]
    if not scales:
        yield WhatIf(kind="skip-scale", declined="no skips")
        return
    for scale in SKIP_SCALES:
        if any(isinstance(own, Tensor) or own != scale for own in scales):
            yield WhatIf(
                kind="skip-scale", setting=f"{scale:g}", make=partial(with_skip_scale, network, scale)
            )


def _masks(network: Network, tokens: int) -> Iterator[WhatIf]:
    mixers = [part.mixer for part in network.blocks.modules() if isinstance(part, SelfAttention)]
    rules = {mixer.rule for mixer in mixers}
    unknown = next((part for part in network.blocks.modules() if _mixes_unseen(part)), None)
    if unknown is not None:
        yield WhatIf(kind="mask", declined="unknown mixing", obstacle=unknown.words)
        return
    if not rules:
        yield WhatIf(kind="mask", declined="no attention")
        return
    own = [rule.matrix(tokens) for rule in rules]
    is_causal = all(not np.triu(mask, k=1).any() for mask in own)
    name = "causal-window" if is_causal else "window"
    widths: dict[str, int] = {"causal": 0} | {f"{name}:{width}": width for width in WINDOWS}
    for text, width in widths.items():
        rule = parse_mask(text)
        is_present = _is_present(rule, own, tokens)
        yield WhatIf(
            kind="mask",
            setting=rule.text,
            make=None if is_present else partial(with_mask, network, rule),
            obstacle="fixed maps" if any(isinstance(mixer, Fixed) for mixer in mixers) else "",
            is_moot=is_present or (width > 0 and width >= tokens - 1),
        )


def _mixes_unseen(part: nn.Module) -> TypeGuard[Foreign]:
    return isinstance(part, Foreign) and not part.tokenwise


def _is_present(rule: MaskRule, own: list[np.ndarray], tokens: int) -> bool:
    """Whether all masks of the network allow the same as ``rule``."""
    return all(np.array_equal(rule.matrix(tokens), mask) for mask in own)


def _placements(network: Network) -> Iterator[WhatIf]:
    if not any(isinstance(leaf, Norm) for block in network.blocks for leaf in leaves(block)):
        yield WhatIf(kind="placement", declined="no norms")
        return
    try:
        present = placement_of(network)
    except ConfigError:
        yield WhatIf(kind="placement", declined="norms elsewhere", block=_first_odd_block(network))
        return
    for placement in PLACEMENTS:
        if placement != present:
            yield WhatIf(
                kind="placement", setting=placement, make=partial(with_placement, network, placement)
            )


def _first_odd_block(network: Network) -> int | None:
    """The first block whose norms stand where placement cannot move them."""
    for number, block in enumerate(network.blocks, start=1):
        if any(isinstance(leaf, Norm) for leaf in leaves(block)):
            try:
                placement_of(Network([block]))
            except ConfigError:
                return number
    return None


def _temperatures(network: Network) -> Iterator[WhatIf]:
    held = network.blocks.modules()
    mixers = [part.mixer for part in held if isinstance(part, SelfAttention | CrossAttention)]
    if not any(isinstance(mixer, Softmax | SinkSoftmax) for mixer in mixers):
        yield WhatIf(kind="temperature", declined="no softmax")
        return
    for temperature in TEMPERATURES:
        make = partial(with_temperature, network, temperature)
        yield WhatIf(kind="temperature", setting=f"{temperature:g}", make=make)


def _branch_scales(network: Network) -> Iterator[WhatIf]:
    if not any(isinstance(part, Skip) for part in network.blocks.modules()):
        yield WhatIf(kind="branch-scale", declined="no skips")
        return
    for setting, factor in BRANCH_SCALES.items():
        factors = partial(_factor, factor, len(network.blocks))
        yield WhatIf(kind="branch-scale", setting=setting, make=partial(with_branch_scale, network, factors))


def _factor(rule: Callable[[int, int], float], layers: int, block: int) -> float:
    return rule(block, layers)


# -------------------------------------------------------------------------------------------------- run and compared


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
class WhatIfOutcome:
    """One what-if on one batch: its numbers by definition, or why there are none."""

    what_if: WhatIf
    numbers: dict[str, Numbers] | None
    declined: Declined | None = None
    obstacle: str = ""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WhatIfOutcomes:
    """Every what-if on one batch."""

    before: dict[str, Numbers]
    outcomes: tuple[WhatIfOutcome, ...]
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
) -> Suggestions:
    """Every what-if for this network, the largest gain in token diversity first; those without a gain last, with why.

    ``is_token`` says which tokens are measured; by default all but the padding of ``context``. ``advance`` is told
    after every run how many of how many are done.
    """
    return rank_what_ifs(
        [try_what_ifs(network, x, context, is_token=is_token, measures=measures, advance=advance)]
    )


def try_what_ifs(
    network: Network,
    x: Tensor,
    context: Context | None = None,
    *,
    is_token: Tensor | None = None,
    measures: Sequence[str] = MEASURES,
    advance: Callable[[int, int], None] | None = None,
) -> WhatIfOutcomes:
    """Every what-if run on one batch of texts; of each text a few numbers are kept. Arguments as of ``suggest``."""
    context = network.checked(x, context)
    measured = measured_tokens(x, context, is_token)
    names = tuple(dict.fromkeys([*(find_measure(name).definition for name in measures), RANKED_BY]))

    def read(changed: Network) -> dict[str, Numbers]:
        last = Network(changed.blocks)(x, context).cpu()
        return _numbers(last, names, measured, layer=len(changed.blocks), dtype=x.dtype)

    longest = _longest(x, context)
    with torch.no_grad(), threads_for(x.shape[-2] * x.shape[-1]):
        before, found = read(network), list[WhatIfOutcome]()
        tries = list(what_ifs(network, longest))
        runs, done = sum(not one.is_same for one in tries), 0
        for one in tries:
            found.append(_outcome(one, before, read))
            done += not one.is_same
            if advance is not None and not one.is_same:
                advance(done, runs)
    return WhatIfOutcomes(before=before, outcomes=tuple(found), longest=longest)


def rank_what_ifs(batches: Sequence[WhatIfOutcomes], network: Headline | None = None) -> Suggestions:
    """The what-ifs over the texts of all batches, the largest gain first; what is moot on all of them is left out."""
    if not batches:
        raise ConfigError("no batch of texts was tried; what-ifs are compared on at least one")
    before = _join_batches([batch.before for batch in batches])
    most = before[RANKED_BY].most()
    is_used = torch.isfinite(most) & (most > 0)
    own, longest = _readings(before, is_used), max(batch.longest for batch in batches)
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
            made = partial(Suggestion, kind=kind, setting=setting, before=own)
            found.append(_suggestion(made, same, before, is_used, is_whole=len(same) == len(batches)))
    if not any(one.kind == "mask" for one in found):
        found.append(
            Suggestion(kind="mask", setting=None, gain=None, before=own, after={}, declined="no other mask")
        )
    return Suggestions(
        network=network or Headline.unchanged(),
        ranked_by=RANKED_BY,
        texts=int(is_used.sum()),
        left_out=int((~is_used).sum()),
        longest=longest,
        what_ifs=tuple(sorted(found, key=_rank)),
    )


def _outcome(
    one: WhatIf, before: dict[str, Numbers], read: Callable[[Network], dict[str, Numbers]]
) -> WhatIfOutcome:
    if one.is_same:
        return WhatIfOutcome(what_if=one, numbers=before)
    if one.make is None:
        return WhatIfOutcome(what_if=one, numbers=None, declined=one.declined, obstacle=one.obstacle)
    try:
        return WhatIfOutcome(what_if=one, numbers=read(one.make()))
    except RankscopeError as error:
        obstacle = one.obstacle or type(error).__name__
        return WhatIfOutcome(what_if=one, numbers=None, declined="refused", obstacle=obstacle)


def _suggestion(
    made: Callable[..., Suggestion],
    outcomes: Sequence[WhatIfOutcome],
    before: dict[str, Numbers],
    is_used: Tensor,
    *,
    is_whole: bool,
) -> Suggestion:
    """The suggestion that ``made`` makes from the outcomes of one what-if on all batches."""
    refused = next((one for one in outcomes if one.declined is not None), None)
    if refused is not None:
        what = {"declined": refused.declined, "block": refused.what_if.block, "obstacle": refused.obstacle}
        return made(gain=None, after={}, **what)
    if not is_whole:
        return made(gain=None, after={}, declined="some networks")
    numbers = _join_batches([one.numbers for one in outcomes if one.numbers is not None])
    made = partial(made, after=_readings(numbers, is_used))
    if not bool(is_used.any()):
        return made(gain=None, declined="network overflows")
    own, new = (_used_texts(one[RANKED_BY], is_used) for one in (before, numbers))
    overflown = int((~torch.isfinite(new.value)).sum())
    if overflown:
        return made(gain=None, declined="overflow", failed_texts=overflown)
    equal = int((~new.resolved).sum())
    if equal:
        return made(gain=None, declined="equal tokens", failed_texts=equal)
    gain = (new.value.log() - own.most().log()).mean()
    # Where the network itself is at its floor, the gain is a lower bound: the floor stands for its ratio, exactly.
    errors = log_error(new.floor / new.value) + torch.where(
        own.resolved, log_error(own.floor / own.value), 0.0
    )
    return made(gain=float(gain), floor=float(errors.mean()), is_bound=not bool(own.resolved.all()))


def _used_texts(numbers: Numbers, is_used: Tensor) -> Numbers:
    return Numbers(
        value=numbers.value[is_used], floor=numbers.floor[is_used], resolved=numbers.resolved[is_used]
    )


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


def _join_batches(batches: Sequence[dict[str, Numbers]]) -> dict[str, Numbers]:
    return {
        name: Numbers(
            value=torch.cat([batch[name].value for batch in batches]),
            floor=torch.cat([batch[name].floor for batch in batches]),
            resolved=torch.cat([batch[name].resolved for batch in batches]),
        )
        for name in batches[0]
    }


def _readings(numbers: dict[str, Numbers], is_used: Tensor) -> dict[str, MeasuredReading]:
    found = {}
    for name, one in numbers.items():
        most = one.most()[is_used]
        mean = most.log().mean().exp() if find_measure(name).name in FACTORS else most.mean()
        found[name] = MeasuredReading(
            value=float(mean) if bool(torch.isfinite(mean)) else None,
            resolved=bool(one.resolved[is_used].all()),
        )
    return found


def _longest(x: Tensor, context: Context) -> int:
    """Tokens of the longest text."""
    return x.shape[-2] if context.is_token is None else int(context.is_token.sum(dim=-1).max())
