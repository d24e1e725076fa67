"""Remedies of one network: which changes fit it, what each does when it is run, predicted, and trained for three steps.

``candidates`` lists the changes that fit a network. ``try_remedies`` runs each of them on a batch; ``rank_remedies``
drops what does not help, lets the probe speak, and ranks the rest by the share of the input that is left, ties as ties.
"""

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor, threads_for
from rankscope.errors import ConfigError, RankscopeError
from rankscope.findings.mechanism import CAUSE_SITES
from rankscope.findings.remedies import (
    LEAST_RATIO,
    LEAST_RECOVERY,
    PREFERRED,
    DropReason,
    Kind,
    LossKind,
    NotProbed,
    Price,
    Probe,
    Remedies,
    Remedy,
)
from rankscope.findings.suggest import RANKED_BY
from rankscope.masks import MaskRule, parse_mask
from rankscope.measures import Evaluation, evaluate, evaluate_padded, find_measure
from rankscope.network import (
    Context,
    CrossAttention,
    Network,
    Norm,
    SelfAttention,
    SinkSoftmax,
    Skip,
    Softmax,
    equal_blocks,
    placement_of,
    redrawn,
    with_branch_scale,
    with_deepnorm,
    with_layerscale,
    with_mask,
    with_placement,
    with_qk_norm,
    with_skip_scale,
    with_skips,
    with_temperature,
    with_unit_gains,
    without_biases,
)
from rankscope.network.cures import bias_sites, has_gains, lacks_qk_norm, lacks_skip
from rankscope.network.foreign import Foreign
from rankscope.network.parts import leaves
from rankscope.probe.gradients_loss import LossFn
from rankscope.probe.graft import Stock
from rankscope.split.consensus import factor_near
from rankscope.studies.blame import measured_tokens
from rankscope.studies.probe import LONGER, LR, STEPS, GraftTrainee, TreeTrainee, probed
from rankscope.studies.response import Change, Moves, log_ratio, moves_of, passed, predicted

WINDOW = 16
"""Distance of the window mask that is tried."""

TEMPERATURE = 0.5
LAYERSCALE = 1e-4
SKIP_SCALE = 2.0

DECADES = 2.0
"""Shares of the input count as equal within so many powers of ten: among designs that train, none was seen to tell
better from worse."""

LEAST_FALL = 0.1
"""A fall of ln(ratio) below this is none, and nothing can give it back."""

MAP_KINDS: tuple[Kind, ...] = ("temperature", "qk-norm", "mask")
"""Remedies that change what attention reads and nothing on the stream: one that is stuck has nothing for it."""

OF_MAPS = ("branch-size", "averaging")
"""Causes that what attention reads has a part in: it is a product of sizes and averages."""

ANSWERS: dict[str, tuple[Kind, ...]] = {
    "no-skip": ("skip",),
    "norm-rescale": ("placement", "branch-scale", "skip-scale", "deepnorm"),
    "norm-gain": ("gain",),
    "norm-direct": ("bias",),
    "skip-scale": ("skip-scale",),
    "attention-bias": ("bias",),
    "mlp-bias": ("bias",),
    "same-direction": ("redraw",),
    "branch-size": ("branch-scale",),
}
"""Which kinds answer to which cause: among remedies that are tied they stand first."""

Prober = Callable[[Network], Probe | NotProbed]
"""The probe of a changed network."""

Forecaster = Callable[[Network], tuple[float | None, float | None]]
"""Order and rate of a network near equal tokens; None where no law is known."""

FORECAST_TOKENS = 16
"""Tokens of the forecast; near consensus more of them change little, and it is to cost next to nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A change that fits a network.

    Args:
        name: kind and dose.
        kind: what is changed.
        make: the changed network from the network.
        change: what it does to the steps of a recorded pass; None where linear response has no rule.
        factor: the dose as a number.
        price: what it costs.
        sites: of biases, where they stand.
        only_if_it_helps: not worth a word otherwise.
    """

    name: str
    kind: Kind
    make: Callable[[Network], Network]
    change: Callable[[Network], Change] | None = None
    factor: float | None = None
    price: Price | None = None
    sites: tuple[str, ...] = ()
    only_if_it_helps: bool = False


def candidates(
    network: Network,
    *,
    tokens: int,
    beta: float | None = None,
    causes: Sequence[str] | None = None,
    seed: int = 0,
) -> Iterator[Candidate]:
    """Every change that fits a network.

    Args:
        tokens: of the longest text.
        beta: measured size of branches over that of what skips bring; the dose of branch-scale rests on it.
        causes: names of the causes that were found, where that is known: of biases and gains these say which to leave
            out. None: biases and gains are tried, and only told of where they help.
        seed: of the weights that are drawn again.
    """
    if lacks_skip(network):
        yield Candidate(
            name="skip:add", kind="skip", make=with_skips, change=lambda _: Change(add_skips=True)
        )
    yield from _placement(network)
    layers = len(network.blocks)
    skips = [part.scale for part in network.blocks.modules() if isinstance(part, Skip)]
    if skips:
        # The usual dose takes branches of the size of the stream for granted. Larger ones need less of them; smaller
        # ones get no more than the usual dose, which is what was seen to train.
        size = beta if beta is not None and math.isfinite(beta) else 1.0
        dose = 1 / (max(size, 1.0) * math.sqrt(2 * layers))
        yield Candidate(
            name="branch-scale:1/sqrt(2L)",
            kind="branch-scale",
            make=lambda net: with_branch_scale(net, dose),
            change=lambda _: Change(branch=lambda block: dose),
            factor=dose,
        )
        if any(isinstance(own, Tensor) or own != SKIP_SCALE for own in skips):
            yield Candidate(
                name=f"skip-scale:{SKIP_SCALE:g}",
                kind="skip-scale",
                make=lambda net: with_skip_scale(net, SKIP_SCALE),
                change=lambda _: Change(skip=SKIP_SCALE),
                factor=SKIP_SCALE,
            )
        yield from _deepnorm(network)
        yield Candidate(
            name="layerscale:1e-4",
            kind="layerscale",
            make=lambda net: with_layerscale(net, LAYERSCALE),
            change=lambda _: Change(branch=lambda block: LAYERSCALE),
            factor=LAYERSCALE,
        )
    if equal_blocks(network):
        yield Candidate(
            name="redraw",
            kind="redraw",
            make=lambda net: redrawn(net, generator=torch.Generator().manual_seed(seed)),
            change=lambda _: Change(shuffle=torch.Generator().manual_seed(seed)),
        )
    yield from _biases(network, causes)
    yield from _maps(network, tokens)


def _placement(network: Network) -> Iterator[Candidate]:
    if not any(isinstance(leaf, Norm) for block in network.blocks for leaf in leaves(block)):
        return
    present: str | None = None
    try:
        present = placement_of(network)
        if present == "pre":
            return
        with_placement(network, "pre")
    except ConfigError:
        if lacks_skip(network):  # without skips there is no place before or after one
            return
    yield Candidate(
        name="placement:pre",
        kind="placement",
        make=lambda net: with_placement(net, "pre"),
        # of other placements the recorded branch holds norms that the rule would keep
        change=(lambda _: Change(pre=True)) if present == "post" else None,
    )


def _deepnorm(network: Network) -> Iterator[Candidate]:
    try:
        with_deepnorm(network)
    except RankscopeError:
        return
    layers = len(network.blocks)
    yield Candidate(
        name="deepnorm",
        kind="deepnorm",
        make=with_deepnorm,
        # two maps of each branch start smaller, so that the branch is their product smaller
        change=lambda _: Change(skip=(2 * layers) ** 0.25, branch=lambda block: (8 * layers) ** -0.5),
        factor=(2 * layers) ** 0.25,
    )


def _biases(network: Network, causes: Sequence[str] | None) -> Iterator[Candidate]:
    present = bias_sites(network)
    named = None if causes is None else [CAUSE_SITES[one] for one in causes if one in CAUSE_SITES]
    sites = tuple(site for site in present if named is None or site in named)
    if sites:
        yield Candidate(
            name="bias:0",
            kind="bias",
            make=lambda net: without_biases(net, sites),
            change=lambda _: Change(without_bias=sites),
            factor=0.0,
            sites=sites,
            only_if_it_helps=causes is None,
        )
    if has_gains(network) and (causes is None or "norm-gain" in causes):
        yield Candidate(
            name="gain:1",
            kind="gain",
            make=with_unit_gains,
            change=lambda _: Change(unit_gains=True),
            factor=1.0,
            only_if_it_helps=causes is None,
        )


def _maps(network: Network, tokens: int) -> Iterator[Candidate]:
    held = list(network.blocks.modules())
    mixers = [part.mixer for part in held if isinstance(part, SelfAttention | CrossAttention)]
    if any(isinstance(mixer, Softmax | SinkSoftmax) for mixer in mixers):

        def tempered(net: Network) -> Network:
            return with_temperature(net, TEMPERATURE)

        yield Candidate(
            name=f"temperature:{TEMPERATURE:g}",
            kind="temperature",
            make=tempered,
            change=lambda net: Change(mixers=tempered(net)),
            factor=TEMPERATURE,
        )
    if any(lacks_qk_norm(mixer) for mixer in mixers):
        yield Candidate(
            name="qk-norm",
            kind="qk-norm",
            make=with_qk_norm,
            change=lambda net: Change(mixers=with_qk_norm(net)),
        )
    rules = {part.mixer.rule for part in held if isinstance(part, SelfAttention)}
    unknown = any(isinstance(part, Foreign) and not part.tokenwise for part in held)
    if not rules or unknown or tokens <= WINDOW + 1:
        return
    own = [rule.matrix(tokens) for rule in rules]
    is_causal = all(not np.triu(mask, k=1).any() for mask in own)
    rule = parse_mask(f"{'causal-' * is_causal}window:{WINDOW}")
    price = _price(rule, own, tokens, len(network.blocks))
    if price.lost > 0:

        def masked(net: Network) -> Network:
            return with_mask(net, rule)

        yield Candidate(
            name=f"mask:window:{WINDOW}",
            kind="mask",
            make=masked,
            change=lambda net: Change(mixers=masked(net)),
            factor=float(WINDOW),
            price=price,
        )


def _price(rule: MaskRule, own: list[np.ndarray], tokens: int, layers: int) -> Price:
    read, after = np.mean([mask.sum() for mask in own]), rule.matrix(tokens)
    kept = np.mean([(mask & after).sum() for mask in own])
    return Price(farthest=WINDOW, reach=WINDOW * layers, lost=float(1 - kept / read))


# ---------------------------------------------------------------------------------------------------- run and predicted


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Outcome:
    """One candidate on one batch: logarithms of ratios by text, or what stood in the way."""

    candidate: Candidate
    measured: Tensor | None = None
    floor: Tensor | None = None
    resolved: bool = True
    predicted: Tensor | None = None
    input_share: float | None = None
    entropy: float | None = None
    keeps_function: bool = False
    refused: str = ""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Outcomes:
    """Every candidate on one batch, beside the network as it is."""

    start: Tensor
    before: Tensor
    outcomes: tuple[Outcome, ...]
    is_run: bool = True


def remedies(
    network: Network,
    x: Tensor,
    context: Context | None = None,
    *,
    is_token: Tensor | None = None,
    beta: float | None = None,
    causes: Sequence[str] | None = None,
    seed: int = 0,
    prober: Prober | None = None,
    run: bool = True,
    advance: Callable[[int, int], None] | None = None,
) -> Remedies:
    """The remedies of a tree on a batch of tokens, best first.

    Args:
        is_token: which tokens are measured; by default all but the padding of ``context``.
        beta: size of branches over that of what skips bring, where somebody has measured it; else it is measured here.
        causes: names of causes that were found (``attention-bias``, ``norm-gain``, ...); see ``candidates``.
        seed: of what is drawn again.
        prober: trains a changed network for three steps; without it the probe takes no part in the ranking.
        run: whether changed trees are run; else everything is predicted by linear response.
        advance: told after every change how many of how many are done.
    """
    tried = try_remedies(
        network,
        x,
        context,
        is_token=is_token,
        beta=beta,
        causes=causes,
        seed=seed,
        run=run,
        advance=advance,
    )
    return rank_remedies(
        [tried], network=network, prober=prober, forecaster=forecaster(x, seed=seed), causes=causes
    )


def try_remedies(
    network: Network,
    x: Tensor,
    context: Context | None = None,
    *,
    is_token: Tensor | None = None,
    beta: float | None = None,
    causes: Sequence[str] | None = None,
    seed: int = 0,
    run: bool = True,
    advance: Callable[[int, int], None] | None = None,
) -> Outcomes:
    """Every candidate on one batch; arguments as of ``remedies``. Of a collapsed network that no single change cures,
    pairs of those that help most are tried too."""
    context = network.checked(x, context)
    keep = measured_tokens(x, context, is_token)
    tokens = x.shape[-2] if context.is_token is None else int(context.is_token.sum(dim=-1).max())
    with torch.no_grad(), threads_for(x.shape[-2] * x.shape[-1]):
        recorded = _recorded(network, x, context, keep)
        own = _Own(network, x, context, keep, recorded, run=run)
        chosen = list(
            candidates(
                network,
                tokens=tokens,
                beta=recorded.branch_size() if beta is None and recorded is not None else beta,
                causes=causes,
                seed=seed,
            )
        )
        found = list[Outcome]()
        for place, candidate in enumerate(chosen, start=1):
            found.append(own.tried(candidate))
            if advance is not None:
                advance(place, len(chosen))
        if run and _mean(own.before) <= math.log(LEAST_RATIO):
            found += own.pairs(found)
    return Outcomes(start=own.start, before=own.before, outcomes=tuple(found), is_run=run)


def _recorded(network: Network, x: Tensor, context: Context, keep: Tensor | None) -> Moves | None:
    """One pass in pieces; None where a part cannot be run on anything but what it was seen with."""
    try:
        return moves_of(network, x, context, keep=keep)
    except RankscopeError:
        return None


def predict_remedies(recorded: Moves, *, beta: float | None = None) -> Remedies:
    """The remedies of a recording without a tree, by linear response alone; nothing is run, and they say so.

    Only what moves the stream can be predicted: where norms stand, and what skips and branches are multiplied by. What
    changes attention itself, weights or biases needs a tree.
    """
    layers = max((move.block for move in recorded.steps), default=0)
    is_post = any(isinstance(move.part, Norm) for move in recorded.steps)
    size = recorded.branch_size() if beta is None else beta
    dose = 1 / (max(size if size is not None and math.isfinite(size) else 1.0, 1.0) * math.sqrt(2 * layers))
    changes: list[tuple[str, Kind, float | None, Change]] = [
        ("branch-scale:1/sqrt(2L)", "branch-scale", dose, Change(branch=lambda block: dose)),
        (f"skip-scale:{SKIP_SCALE:g}", "skip-scale", SKIP_SCALE, Change(skip=SKIP_SCALE)),
        ("layerscale:1e-4", "layerscale", LAYERSCALE, Change(branch=lambda block: LAYERSCALE)),
    ]
    if is_post:
        changes.append(("placement:pre", "placement", None, Change(pre=True)))
    outcomes = tuple(
        Outcome(
            candidate=Candidate(name=name, kind=kind, make=lambda net: net, factor=factor),
            predicted=predicted(recorded, change, Context()).reshape(-1),
        )
        for name, kind, factor, change in changes
    )
    start, before = (
        log_ratio(state, recorded.keep).reshape(-1) for state in (recorded.steps[0].x, recorded.last)
    )
    return rank_remedies([Outcomes(start=start, before=before, outcomes=outcomes, is_run=False)])


class _Own:
    """A network on a batch, beside which changed ones are run."""

    def __init__(
        self,
        network: Network,
        x: Tensor,
        context: Context,
        keep: Tensor | None,
        recorded: Moves | None,
        *,
        run: bool,
    ) -> None:
        self.network, self.x, self.context, self.keep = network, x, context, keep
        self.recorded, self.run = recorded, run
        self.layers = len(network.blocks)
        last = Network(network.blocks)(x, context) if recorded is None else recorded.last
        self.last = network.finish(last)
        self.start = _log_most(self._ratio(x, 0))
        self.before = _log_most(self._ratio(last, self.layers))

    def _ratio(self, state: Tensor, layer: int) -> Evaluation:
        measure, state = find_measure(RANKED_BY), state.cpu()
        if self.keep is None:
            return evaluate(measure, state, layer=layer, dtype=self.x.dtype)
        return evaluate_padded(measure, state, self.keep.cpu(), layer=layer, dtype=self.x.dtype)

    def tried(self, candidate: Candidate) -> Outcome:
        foretold = self._predicted(candidate)
        if not self.run:
            return Outcome(candidate=candidate, predicted=foretold)
        try:
            changed = candidate.make(self.network)
            seen = passed(changed, self.x, self.context, self.keep)
            ratio = self._ratio(seen.last, self.layers)
        except RankscopeError as error:
            return Outcome(candidate=candidate, predicted=foretold, refused=type(error).__name__)
        return Outcome(
            candidate=candidate,
            measured=ratio.value.reshape(-1).log(),
            floor=ratio.floor.reshape(-1),
            resolved=bool(ratio.resolved.all()),
            predicted=foretold,
            input_share=seen.input_share,
            entropy=seen.entropy,
            keeps_function=self._is_same(changed.finish(seen.last)),
        )

    def _predicted(self, candidate: Candidate) -> Tensor | None:
        if candidate.change is None or self.recorded is None:
            return None
        try:
            return predicted(self.recorded, candidate.change(self.network), self.context)
        except (RankscopeError, ValueError):
            return None

    def _is_same(self, last: Tensor) -> bool:
        """Whether a state is that of the unchanged network up to rounding."""
        if not bool(torch.isfinite(last).all()):
            return False
        off, size = (last - self.last).abs().max(), self.last.abs().max()
        return bool(off <= relative_floor(self.layers, self.x.dtype) * size)

    def pairs(self, singles: Sequence[Outcome]) -> list[Outcome]:
        """Pairs of the changes that help most, where none is enough alone."""
        known = [one for one in singles if one.measured is not None and not one.refused]
        if any(_mean(one.measured) > math.log(LEAST_RATIO) for one in known):
            return []
        better = sorted(known, key=lambda one: -_mean(one.measured))[:4]
        found = []
        for first, second in combinations(better, 2):
            pair = sorted((first.candidate, second.candidate), key=lambda one: one.kind != "redraw")
            found.append(self.tried(joined(*pair)))
        return found


def joined(first: Candidate, second: Candidate) -> Candidate:
    """Two changes one after the other."""
    return Candidate(
        name=f"{first.name} + {second.name}",
        kind="several",
        make=lambda net: second.make(first.make(net)),
        price=first.price or second.price,
        only_if_it_helps=True,
    )


def _log_most(found: Evaluation) -> Tensor:
    """Logarithm of the ratio, or of the most that it can be where it is not above its floor."""
    value = torch.where(found.resolved, found.value, torch.maximum(found.value, found.floor))
    return value.reshape(-1).clamp(min=1e-300).log()


def _mean(logs: Tensor | None) -> float:
    return math.nan if logs is None else float(logs.mean())


# --------------------------------------------------------------------------------------------------------------- ranked


def rank_remedies(
    batches: Sequence[Outcomes],
    *,
    network: Network | None = None,
    prober: Prober | None = None,
    forecaster: Forecaster | None = None,
    causes: Sequence[str] | None = None,
) -> Remedies:
    """The remedies over all batches. ``prober`` and ``forecaster`` are asked about those that are not dropped, on the
    changed network; of remedies that are tied, those that answer to a cause stand first."""
    if not batches:
        raise ConfigError("no batch of texts was tried; remedies are compared on at least one")
    start, before = (torch.cat([getattr(one, name) for one in batches]) for name in ("start", "before"))
    used = torch.isfinite(start) & torch.isfinite(before)  # on other texts the network itself overflows
    start, before = start[used], before[used]
    names = dict.fromkeys(one.candidate.name for batch in batches for one in batch.outcomes)
    found, fall = list[Remedy](), float((start - before).mean()) if len(before) else math.nan
    for name in names:
        same = [one for batch in batches for one in batch.outcomes if one.candidate.name == name]
        if len(same) < len(batches):
            continue  # it fits some of the batches only: a window on short texts
        candidate = same[0].candidate
        remedy = _remedy(candidate, same, before, fall, used)
        if remedy.dropped is None and causes and _is_beside(candidate.kind, causes):
            remedy = remedy.model_copy(update={"dropped": "another cause"})
        if remedy.dropped is not None and candidate.only_if_it_helps:
            continue
        if remedy.dropped is None and prober is not None and network is not None:
            remedy = _after_probe(remedy, prober(candidate.make(network)))
        if remedy.dropped is None and forecaster is not None and network is not None:
            order, rate = forecaster(candidate.make(network))
            remedy = remedy.model_copy(update={"order": order, "rate": rate})
        found.append(remedy)
    advised = _ranked([one for one in found if one.dropped is None], causes or ())
    dropped = sorted((one for one in found if one.dropped is not None), key=_order)
    order, rate = None, None
    if advised and forecaster is not None and network is not None:
        order, rate = forecaster(network)
    return Remedies(
        order=order,
        rate=rate,
        before=_ratio_of(before),
        start=_ratio_of(start),
        is_run=all(batch.is_run for batch in batches),
        probed=any(isinstance(one.probe, Probe) for one in found),
        advised=tuple(advised),
        dropped=tuple(dropped),
    )


def _remedy(
    candidate: Candidate, outcomes: Sequence[Outcome], before: Tensor, fall: float, used: Tensor
) -> Remedy:
    measured = _joined_logs([one.measured for one in outcomes], used)
    foretold = _joined_logs([one.predicted for one in outcomes], used)
    floors = _joined_logs([one.floor for one in outcomes], used)
    refused = next((one.refused for one in outcomes if one.refused), "")
    logs = measured if measured is not None else foretold
    recovery = None
    if logs is not None and bool(torch.isfinite(logs).all()):
        recovery = float((logs - before).mean()) / fall if fall > LEAST_FALL else 0.0
    is_resolved = all(one.resolved for one in outcomes)
    shares = [one.input_share for one in outcomes if one.input_share is not None]
    entropies = [one.entropy for one in outcomes if one.entropy is not None]
    return Remedy(
        name=candidate.name,
        kind=candidate.kind,
        factor=candidate.factor,
        price=candidate.price,
        sites=candidate.sites,
        keeps_function=bool(outcomes) and all(one.keeps_function for one in outcomes),
        before=_ratio_of(before),
        predicted=_ratio_of(foretold),
        measured=_ratio_of(measured),
        floor=None if floors is None else _number(float(floors.mean())),
        recovery=_number(recovery),
        input_share=None if not shares else _number(_geometric(shares)),
        entropy=None if not entropies else _number(sum(entropies) / len(entropies)),
        dropped=_dropped(logs, recovery, refused, is_resolved=is_resolved),
        obstacle=refused,
    )


def _dropped(
    logs: Tensor | None, recovery: float | None, refused: str, *, is_resolved: bool
) -> DropReason | None:
    if refused:
        return "refused"
    if logs is None:
        return "no number"
    if recovery is None:
        return "not finite"
    if not is_resolved:
        return "equal tokens"
    if _mean(logs) <= math.log(LEAST_RATIO):
        return "still collapsed"
    return "little change" if recovery < LEAST_RECOVERY else None


def _after_probe(remedy: Remedy, probe: Probe | NotProbed) -> Remedy:
    remedy = remedy.model_copy(update={"probe": probe})
    is_none = remedy.stuck and remedy.kind in MAP_KINDS
    return remedy.model_copy(update={"dropped": "stuck" if is_none else remedy.dropped})


def _is_beside(kind: Kind, causes: Sequence[str]) -> bool:
    """Whether a change of what attention reads is offered where norms, skips, biases or copies made tokens equal."""
    return kind in MAP_KINDS and not set(causes) & set(OF_MAPS)


def _ranked(found: Sequence[Remedy], causes: Sequence[str]) -> list[Remedy]:
    """Those that the probe does not call stuck first, then by the share of the input that is left, with ties."""
    sound = [one.input_share for one in found if not one.stuck and one.input_share]
    leader = max(sound, default=max((one.input_share or 0.0 for one in found), default=0.0))

    def place(one: Remedy) -> tuple[bool, int]:
        if one.input_share is None or leader <= 0:
            return one.stuck, 0
        behind = math.inf if one.input_share <= 0 else math.log10(leader / one.input_share)
        return one.stuck, 10**6 if math.isinf(behind) else max(int(behind / DECADES), 0)

    answers = {kind for cause in causes for kind in ANSWERS.get(cause, ())}
    ordered = sorted(found, key=lambda one: (place(one), one.kind not in answers, *_order(one)))
    ranks: dict[tuple[bool, int], int] = {}
    for number, one in enumerate(ordered, start=1):
        ranks.setdefault(place(one), number)
    return [one.model_copy(update={"rank": ranks[place(one)]}) for one in ordered]


def _order(one: Remedy) -> tuple[int, str]:
    return PREFERRED.index(one.kind), one.name


def _joined_logs(logs: Sequence[Tensor | None], used: Tensor) -> Tensor | None:
    held = [one for one in logs if one is not None]
    if not held or len(held) < len(logs) or not bool(used.any()):
        return None
    return torch.cat([one.reshape(-1) for one in held])[used]


def _geometric(values: Sequence[float]) -> float:
    return 0.0 if min(values) <= 0 else math.exp(sum(map(math.log, values)) / len(values))


def _ratio_of(logs: Tensor | None) -> float | None:
    """The geometric mean; None where there is none, or it is not finite."""
    mean = math.nan if logs is None or not len(logs) else _mean(logs)
    return math.exp(mean) if math.isfinite(mean) else None


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def forecaster(x: Tensor, *, seed: int = 0) -> Forecaster:
    """Order and rate near copies of the mean token of the first text, by the map at consensus."""
    first = x.reshape(-1, *x.shape[-2:])[0]
    tokens, common = min(len(first), FORECAST_TOKENS), first.double().mean(dim=0)

    def forecast(network: Network) -> tuple[float | None, float | None]:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad(), threads_for(common.numel() * tokens):
            return factor_near(network, common, tokens=tokens, generator=generator)

    return forecast


# --------------------------------------------------------------------------------------------------------------- probes


def tree_prober(
    x: Tensor,
    context: Context | None = None,
    *,
    keep: Tensor | None = None,
    seed: int = 0,
    lr: float = LR,
    steps: int = STEPS,
) -> Prober:
    """The probe of a tree alone: its loss is a fixed random projection of what it puts out."""
    known = context or Context()

    def probe(network: Network) -> Probe | NotProbed:
        return probed(
            lambda: TreeTrainee(network, x, known, keep, seed=seed),
            lr=lr,
            steps=steps,
            longer=LONGER,
            coherence=False,
        )

    return probe


def graft_prober(
    stock: Stock, loss: tuple[LossKind, LossFn], *, lr: float = LR, steps: int = STEPS
) -> Prober:
    """The probe of a live model that runs the changed tree in place of its blocks, with the model's own loss."""

    def probe(network: Network) -> Probe | NotProbed:
        found = probed(
            lambda: GraftTrainee(stock, network, loss), lr=lr, steps=steps, longer=LONGER, coherence=False
        )
        gc.collect()  # a copy with its hooks refers to itself: without this several whole models are held at once
        return found

    return probe
