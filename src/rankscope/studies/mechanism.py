"""Why a network collapses: the fall of its ratio taken apart, causes by name and block, and what undoing them gives.

``take_apart`` decomposes one batch of texts, in float64; where tokens come closer than rounding it uses the split pass.
``explain`` joins batches and names the causes of the mean over their texts. Each cause is undone alone by surgery and
the network is run again. To find what one cause hides, the first is undone and what is left is taken apart once more,
up to three rounds.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from rankscope.core.numerics import broadcast, relative_floor, threads_for
from rankscope.errors import (
    ConfigError,
    ModelError,
    NotUnderstood,
    NumericalError,
    RankscopeError,
    ShapeError,
)
from rankscope.findings.blame import Headline
from rankscope.findings.mechanism import (
    CAUSE_SITES,
    COLLAPSED,
    FALL,
    GROUPS,
    NOTED,
    SHARE,
    BlockShare,
    Cause,
    CauseName,
    CauseNumbers,
    CureName,
    Declined,
    Group,
    Mechanism,
    MechanismBlock,
    Note,
    Site,
    Unresolved,
)
from rankscope.measures.massive import massive_channels, massive_count, massive_share, other_channels_of
from rankscope.mechanism.decompose import Decomposition, Key, NormNumbers, SumNumbers, decompose
from rankscope.mechanism.states import measured, of_tokens, unit_log_ratio
from rankscope.mechanism.trace import moves, start
from rankscope.network import (
    Context,
    Network,
    SelfAttention,
    Skip,
    only_in,
    redrawn,
    with_branch_scale,
    with_skip_scale,
    with_skips,
    with_temperature,
    with_unit_gains,
    without_biases,
)
from rankscope.network.cures import bare_sublayers, bias_sites, equal_layers, unshared, with_pre_norm
from rankscope.network.foreign import Foreign
from rankscope.network.masking import allowed_keys
from rankscope.network.seeds import weight_axes
from rankscope.split import LOST, split_states
from rankscope.split.run import in_float64, stream
from rankscope.studies.blame import SplitPass, measured_tokens

NEAR = math.log(1e-8)
"""Below this ratio the split pass takes over: of sixteen digits of a token half are common to all."""

ROUNDS = 3
"""How often the first cause is undone to see what it hides, the first look included."""

UNIFORM, DEAD = 0.05, 1e-3
"""Attention reads evenly where its logits differ by less than the first number times what its input does, and adds next
to nothing where its branch is smaller than the second times the stream."""

SATURATED, STEEP = 0.25, 4.0
"""Attention reads one key where its entropy is below the first number and its logits differ by more than the second."""

COLD = 0.05
"""The temperature that makes attention read few keys."""

MOSTLY = 0.75
"""A site is named where it makes this part of a cause, a block where undoing the cause there alone gives back this part
of what undoing it everywhere does: in two blocks of one fault each gives back about a half."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Run:
    """A network with the texts it reads; ``keep`` are the tokens that count, None for all."""

    network: Network
    x: Tensor
    context: Context
    keep: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TakenApart:
    """One batch of texts, decomposed; all numbers have one entry per text.

    Args:
        parts: the decomposition.
        resolved: which texts have one.
        why, obstacle: why the others have none.
        massive: how many massive tokens are not measured.
        longer: how many times longer they are than the others.
        apart: whether tokens are distinct once massive channels are left out.
        groups: into how many groups the mask divides the tokens.
        inside: residual ratio inside these groups at the end; NaN without groups.
        keep: the tokens that were measured.
    """

    parts: Decomposition
    resolved: Tensor
    why: Unresolved | None
    obstacle: str
    massive: Tensor
    longer: Tensor
    apart: Tensor
    groups: Tensor
    inside: Tensor
    keep: Tensor | None


def mechanism(
    network: Network,
    x: Tensor,
    context: Context | None = None,
    *,
    is_token: Tensor | None = None,
    recover: bool = True,
    seed: int = 0,
    about: Headline | None = None,
) -> Mechanism:
    """Why the unit residual ratio of this network falls on these tokens (leading axes are texts).

    ``is_token`` says which tokens are measured; by default all but the padding of ``context``. With ``recover`` every
    cause is undone and the network run again, which also finds what the first cause hides. ``seed`` draws the rotations
    that turn what blocks write into directions of their own.
    """
    context = network.checked(x, context)
    run = Run(network=network, x=x, context=context, keep=measured_tokens(x, context, is_token))
    with torch.no_grad(), threads_for(x.shape[-2] * x.shape[-1]):
        return explain([take_apart(run)], [run], about or Headline.unchanged(), recover=recover, seed=seed)


# ------------------------------------------------------------------------------------------------------- one batch


def take_apart(run: Run, keep: Tensor | None = None) -> TakenApart:
    """The decomposition of one batch; ``keep`` are tokens that were chosen before, else massive ones are left out."""
    with torch.no_grad():
        states = _ends(run)
        massive, longer, chosen = _without_massive(states, run)
        if keep is not None:
            chosen = keep
        parts, resolved, why, obstacle = _decomposed(run, chosen)
        groups, inside = _groups(run, states[-1], chosen)
        apart = _apart_by_channels(states[-1], chosen)
    flat = parts.first.reshape(-1).shape
    massive, longer, apart, groups, inside = (one.cpu() for one in (massive, longer, apart, groups, inside))
    return TakenApart(
        parts=parts.flattened(),
        resolved=resolved.reshape(-1),
        why=why,
        obstacle=obstacle,
        massive=massive.reshape(-1).expand(flat),
        longer=longer.reshape(-1).expand(flat),
        apart=apart.reshape(-1).expand(flat),
        groups=groups.reshape(-1).expand(flat),
        inside=inside.reshape(-1).expand(flat),
        keep=chosen,
    )


def _ends(run: Run) -> list[Tensor]:
    """Every state of the network in its own dtype, as float64."""
    return [state.double() for state in Network(run.network.blocks).states(run.x, run.context)]


def _without_massive(states: Sequence[Tensor], run: Run) -> tuple[Tensor, Tensor, Tensor | None]:
    """How many tokens are massive in some state, how many times longer than the others, and which are left to measure.

    Massive tokens hold at least half of the energy of their state and are five times as long as the others.
    """
    shape = states[-1].shape[:-1]
    device = states[-1].device
    keep = torch.ones(shape, dtype=torch.bool, device=device) if run.keep is None else run.keep.expand(shape)
    left = keep.clone()
    longer = torch.zeros(shape[:-1], dtype=torch.float64, device=device)
    for state in states:
        lengths = torch.linalg.vector_norm(state, dim=-1).expand(shape) * keep
        if not bool(torch.isfinite(lengths).all()):
            continue
        many = massive_count(lengths, number=keep.sum(dim=-1).double())
        is_large = massive_share(lengths, many) >= 0.5
        many = torch.where(is_large, many, torch.zeros_like(many))
        if not bool((many > 0).any()):
            continue
        order = lengths.argsort(dim=-1, descending=True).argsort(dim=-1)
        is_massive = keep & (order < many[..., None])
        rest = keep & ~is_massive
        usual = (lengths.square() * rest).sum(dim=-1) / rest.sum(dim=-1).clamp(min=1)
        length = (lengths.square() * is_massive).sum(dim=-1) / is_massive.sum(dim=-1).clamp(min=1)
        longer = torch.maximum(longer, torch.where(many > 0, (length / usual.clamp(min=1e-300)).sqrt(), 0.0))
        left = left & ~is_massive
    enough = left.sum(dim=-1) >= 2
    left = torch.where(enough[..., None], left, keep)
    count = keep.sum(dim=-1) - left.sum(dim=-1)
    longer = torch.where(count > 0, longer, 0.0)
    return count, longer, None if run.keep is None and bool(left.all()) else left


def _decomposed(run: Run, keep: Tensor | None) -> tuple[Decomposition, Tensor, Unresolved | None, str]:
    """The decomposition by the ordinary pass, or by the split pass where tokens come too close for it."""
    try:
        found = _pass(run, keep, is_split=False)
    except (ModelError, ShapeError):
        found = _nothing(run)
        return found, torch.zeros_like(found.cancelled), "own dtype", ""
    if not len(run.network.blocks):
        return found, torch.isfinite(found.last), None, ""
    lost = ~torch.isfinite(found.last) | ~torch.isfinite(found.error) | found.cancelled
    close = lost | (found.lowest < NEAR)
    least = math.log(10 * relative_floor(len(run.network.blocks), torch.float64))
    if not bool(close.any()):
        return found, ~close, None, ""
    try:
        split = _pass(run, keep, is_split=True)
        error, known = _split_floor(run, keep)
        split = replace(split, floor=error.reshape(split.first.shape))
        ok = torch.isfinite(split.last) & torch.isfinite(split.error) & known.reshape(split.first.shape)
        ok = ok & ~split.cancelled
        return split, ok, None if bool(ok.all()) else "rounding", ""
    except NotUnderstood as refused:
        ok = ~lost & (found.lowest > least)
        return found, ok, None if bool(ok.all()) else "no split rule", type(refused.part).__name__
    except NumericalError:
        ok = ~lost & (found.lowest > least)
        return found, ok, None if bool(ok.all()) else "overflow", ""


def _nothing(run: Run) -> Decomposition:
    """No numbers for any text."""
    axes = broadcast(weight_axes(run.network), run.x.shape[:-2])
    lost = torch.full(axes, torch.nan, dtype=torch.float64)
    return Decomposition(
        rows={},
        first=lost,
        last=lost,
        free=lost,
        lowest=lost,
        floor=lost,
        error=lost,
        cancelled=torch.ones(axes, dtype=torch.bool),
        layers=(lost,) * (len(run.network.blocks) + 1),
        sums=(),
        norms=(),
    )


def _pass(run: Run, keep: Tensor | None, *, is_split: bool) -> Decomposition:
    entering = measured(start(run.network, run.x, run.context, is_split=is_split), keep)
    steps = moves(run.network, run.x, run.context, keep=keep, is_split=is_split)
    return decompose(steps, entering, len(run.network.blocks), is_split=is_split)


def _split_floor(run: Run, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """What rounding may change of a contribution in the split pass, and where it is known: from perturbed twins."""
    reader = SplitPass(x=run.x, context=run.context, measured=keep)
    found = [
        reader.read(state, layer) for layer, state in enumerate(split_states(run.network, run.x, run.context))
    ]
    error = torch.stack([one.error for one in found]).sum(dim=0)
    known = torch.stack([one.resolved for one in found]).all(dim=0)
    return error, known & (error < LOST * len(found) + LOST)


def _apart_by_channels(last: Tensor, keep: Tensor | None) -> Tensor:
    """Whether tokens are distinct once a few massive channels are left out, which hide it."""
    found = []
    texts = last.reshape(-1, *last.shape[-2:])
    kept = None if keep is None else keep.expand(last.shape[:-1]).reshape(len(texts), -1)
    for place, text in enumerate(texts):
        own = text if kept is None else text[kept[place]]
        is_plain = bool(torch.isfinite(own).all()) and bool((own != 0).any(dim=-1).all()) and len(own) > 1
        if not is_plain or not float(massive_channels(own)) > 0:
            found.append(False)
            continue
        ratio = float(other_channels_of(own))
        found.append(ratio > COLLAPSED)
    return torch.tensor(found)


def _groups(run: Run, last: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """Into how many groups no mask ever joins the tokens fall, and the residual ratio inside them at the end."""
    shape = last.shape[:-2]
    none = torch.ones(shape, dtype=torch.long), torch.full(shape, torch.nan, dtype=torch.float64)
    parts = list(run.network.blocks.modules())
    if any(isinstance(part, Foreign) and not part.tokenwise for part in parts):
        return none
    rules = {part.mixer.rule for part in parts if isinstance(part, SelfAttention)}
    seen = [allowed_keys(rule, last.shape[-2], run.context, last.device) for rule in rules]
    if not seen or any(one is None for one in seen):
        return none
    from scipy.sparse.csgraph import connected_components

    joined = torch.stack([one.expand(*shape, 1, *one.shape[-2:]) for one in seen if one is not None]).any(
        dim=0
    )
    many, inside = list[int](), list[float]()
    texts = last.reshape(-1, *last.shape[-2:])
    for place, text in enumerate(texts):
        mask = joined.reshape(len(texts), *joined.shape[-2:])[place].numpy()
        kept = np.ones(len(text), dtype=bool)
        if keep is not None:
            kept = keep.expand(last.shape[:-1]).reshape(len(texts), -1)[place].numpy()
        number, label = connected_components(mask, directed=False)
        labels = label[kept]
        sizes = [int((labels == one).sum()) for one in range(number)]
        used = [one for one, size in enumerate(sizes) if size]
        if len(used) < 2 or max(sizes) < 2:
            many.append(1)
            inside.append(math.nan)
            continue
        unit = torch.nn.functional.normalize(text[torch.from_numpy(kept)], dim=-1)
        off = [unit[torch.from_numpy(labels == one)] for one in used]
        rest = sum(float((one - one.mean(dim=0)).square().sum()) for one in off)
        many.append(len(used))
        inside.append(math.sqrt(rest / len(unit)))
    return torch.tensor(many).reshape(shape), torch.tensor(inside, dtype=torch.float64).reshape(shape)


# -------------------------------------------------------------------------------------------------- over all batches


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Means:
    """Means over the texts that have a decomposition."""

    rows: dict[Key, float]
    first: float
    last: float
    free: float
    floor: float
    error: float
    layers: list[float]
    sums: list[dict[str, float]]
    about: list[SumNumbers]
    norms: list[tuple[NormNumbers, float, float]]
    texts: int
    left_out: int
    why: Unresolved | None
    obstacle: str
    is_split: bool
    is_apart: bool
    massive: tuple[int, float]
    groups: tuple[int, float]

    @property
    def fall(self) -> float:
        return self.first - self.last

    @property
    def groups_sum(self) -> dict[Group, float]:
        found = dict.fromkeys(GROUPS, 0.0)
        for (group, _, _), value in self.rows.items():
            found[group] += value
        return found

    @property
    def is_collapsed(self) -> bool:
        return (
            self.texts > 0
            and self.last <= math.log(COLLAPSED)
            and self.fall >= math.log(FALL)
            and not self.is_apart
        )


def explain(
    batches: Sequence[TakenApart],
    runs: Sequence[Run],
    about: Headline,
    *,
    recover: bool = True,
    seed: int = 0,
) -> Mechanism:
    """What the decompositions of all batches amount to; ``runs`` are the first of them, which cures are tried on."""
    if not batches or not runs:
        raise ConfigError("no batch of texts was taken apart; a mechanism needs at least one")
    with torch.no_grad():
        return _explained(batches, runs, about, recover=recover, seed=seed)


def _explained(
    batches: Sequence[TakenApart], runs: Sequence[Run], about: Headline, *, recover: bool, seed: int
) -> Mechanism:
    means = _means(batches)
    clones = all(equal_layers(run.network) for run in runs)
    if not means.texts:
        return Mechanism(
            network=about,
            texts=0,
            left_out=means.left_out,
            unresolved=means.why or "rounding",
            obstacle=means.obstacle,
            split=means.is_split,
            log_start=None,
            log_end=None,
            log_free=None,
            collapsed=None,
            equal_layers=clones,
        )
    tried = runs if recover else ()
    causes = _peeled(batches, means, tried, clones=clones, seed=seed) if means.is_collapsed else ()
    groups = means.groups_sum
    price = math.fsum(one["price"] for one in means.sums if not math.isnan(one["price"]))
    return Mechanism(
        network=about,
        texts=means.texts,
        left_out=means.left_out,
        unresolved=means.why if means.left_out else None,
        obstacle=means.obstacle if means.left_out else "",
        split=means.is_split,
        log_start=means.first,
        log_end=means.last,
        log_free=_finite(means.free),
        collapsed=means.is_collapsed,
        groups=groups,
        floor=_finite(means.floor),
        error=_finite(means.error),
        equal_layers=clones,
        causes=causes,
        observations=(*_missing_skips(runs[0].network, causes), *_notes(means)),
        sums=tuple(_sum_value(means, place) for place in range(len(means.sums))),
        contributions=tuple(_contributions(means)),
        price=_finite(price),
        log_left=_log_left(means),
    )


def _means(batches: Sequence[TakenApart]) -> _Means:
    ok = torch.cat([one.resolved for one in batches])
    some = bool(ok.any())

    def mean(read: Callable[[TakenApart], Tensor]) -> float:
        values = torch.cat([read(one) for one in batches])[ok]
        known = values[~torch.isnan(values)]
        return float(known.mean()) if len(known) else math.nan

    keys = dict.fromkeys(key for one in batches for key in one.parts.rows)
    first = next((one.parts for one in batches if one.parts.sums), batches[0].parts)
    names = (
        [name for name in SumNumbers.__dataclass_fields__ if isinstance(getattr(first.sums[0], name), Tensor)]
        if first.sums
        else []
    )
    counts = [int(one.massive.max()) for one in batches]
    lengths = [float(one.longer.max()) for one in batches]
    inside = mean(lambda one: one.inside) if some else math.nan
    return _Means(
        rows={key: mean(partial(_row, key)) for key in keys} if some else {},
        first=mean(lambda one: one.parts.first),
        last=mean(lambda one: one.parts.last),
        free=mean(lambda one: one.parts.free),
        floor=mean(lambda one: one.parts.floor),
        error=float(torch.cat([one.parts.error for one in batches])[ok].max()) if some else math.nan,
        layers=[mean(partial(_layer, layer)) for layer in range(len(first.layers))],
        sums=[
            {name: mean(partial(_number, place, name)) for name in names} for place in range(len(first.sums))
        ],
        about=list(first.sums),
        norms=[
            (norm, mean(partial(_norm, place, "gain")), mean(partial(_norm, place, "bias")))
            for place, norm in enumerate(first.norms)
        ],
        texts=int(ok.sum()),
        left_out=int((~ok).sum()),
        why=next((one.why for one in batches if one.why is not None), None),
        obstacle=next((one.obstacle for one in batches if one.obstacle), ""),
        is_split=any(one.parts.is_split for one in batches),
        is_apart=2 * int(torch.cat([one.apart for one in batches])[ok].sum()) >= max(int(ok.sum()), 1),
        massive=(max(counts), max(lengths)),
        groups=(max(int(one.groups.max()) for one in batches), inside),
    )


def _row(key: Key, one: TakenApart) -> Tensor:
    return one.parts.rows.get(key, torch.zeros_like(one.parts.first))


def _layer(layer: int, one: TakenApart) -> Tensor:
    return one.parts.layers[layer]


def _number(place: int, name: str, one: TakenApart) -> Tensor:
    found: Tensor = getattr(one.parts.sums[place], name)
    return found


def _norm(place: int, name: str, one: TakenApart) -> Tensor:
    found: Tensor = getattr(one.parts.norms[place], name)
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _log_left(means: _Means) -> float | None:
    """The logarithm of the product of all skip shares."""
    shares = [one["share"] for one in means.sums]
    if not shares or any(not share > 0 for share in shares):
        return None
    return math.fsum(math.log(share) for share in shares)


def _sum_value(means: _Means, place: int) -> MechanismBlock:
    one, about = means.sums[place], means.about[place]
    ratio = means.layers[about.block]
    names = ("common", "residual", "cosine", "bias", "averaging", "entropy", "logit_std", "logit_gain")
    return MechanismBlock(
        block=about.block,
        site=_site_name(about.site),
        has_skip=about.has_skip,
        skip=_finite(one["skip"]) or 0.0,
        share=_finite(one["share"]) or 0.0,
        **{name: _finite(one[name]) for name in (*names, "value_gain", "price")},
        ratio=_finite(math.exp(ratio)) if math.isfinite(ratio) else None,
    )


def _site_name(site: str) -> Site:
    return (
        "attention"
        if site == "attention"
        else "mlp"
        if site == "mlp"
        else "norm"
        if site == "norm"
        else "block"
    )


def _contributions(means: _Means) -> Iterable[BlockShare]:
    sums: dict[tuple[int, Group], float] = {}
    for (group, block, _), value in means.rows.items():
        sums[block, group] = sums.get((block, group), 0.0) + value
    for (block, group), value in sorted(sums.items()):
        yield BlockShare(block=block, group=group, value=value)


# -------------------------------------------------------------------------------------------------- causes and cures


def _peeled(
    batches: Sequence[TakenApart], means: _Means, runs: Sequence[Run], *, clones: bool, seed: int
) -> tuple[Cause, ...]:
    """The causes, and those that show once the first ones are undone."""
    found, current = list[Cause](), list(runs)
    keeps = [one.keep for one in batches[: len(runs)]]
    for round_ in range(1, ROUNDS + 1):
        news = [
            _recovered(cause, current, keeps, means, seed=seed)
            for cause in _causes(means, round_, clones=clones)
            if not any(cause.name == one.name and one.block in (None, cause.block) for one in found)
        ]
        found += news
        curable = [one for one in news if one.log_after is not None and one.name != "averaging"]
        if round_ == ROUNDS or not curable:
            break
        first = curable[0]
        try:
            current = [replace(run, network=_cured(run.network, first, seed)) for run in current]
            again = [take_apart(run, keep) for run, keep in zip(current, keeps, strict=True)]
        except RankscopeError:
            break
        means = _means(again)
        if not means.is_collapsed:
            break
    return tuple(found)


def _causes(means: _Means, round_: int, *, clones: bool) -> list[Cause]:
    """Every group that makes a quarter of the fall, largest first; averaging only behind another cause."""
    groups = means.groups_sum
    shares = {group: -groups[group] / means.fall for group in GROUPS}
    named = sorted((group for group in GROUPS if shares[group] >= SHARE), key=lambda one: -shares[one])
    found = [_cause(means, group, shares[group], round_, clones=clones) for group in named]
    price = math.fsum(one["price"] for one in means.sums if not math.isnan(one["price"]))
    gains = [one["logit_gain"] for one in means.sums if not math.isnan(one["logit_gain"])]
    is_even = bool(gains) and 2 * sum(gain < UNIFORM for gain in gains) > len(gains)
    if found and is_even and price >= 0.5 * means.fall:
        found.append(_cause(means, "averaging", price / means.fall, round_, clones=clones))
    return found


def _cause(means: _Means, name: CauseName, share: float, round_: int, *, clones: bool) -> Cause:
    block, site = (None, "attention") if name == "averaging" else _place(means, name)
    numbers = _cause_numbers(means, name, block, site, clones=clones)
    cure = _cure_name(name, means)
    return Cause(
        name=name,
        block=block,
        site=_site_name(site),
        share=share,
        round=round_,
        cure=cure,
        dose=_dose(means, block) if cure == "branch-scale" else COLD if cure == "temperature" else None,
        declined="no surgery" if cure is None else None,
        numbers=numbers,
    )


def _place(means: _Means, group: Group, *, whole: bool = False) -> tuple[int | None, str]:
    """The block that makes more than half of a group, else None, and the site that makes most of it there."""
    own = {(block, site): value for (name, block, site), value in means.rows.items() if name == group}
    blocks: dict[int, float] = {}
    for (number, _), value in own.items():
        blocks[number] = blocks.get(number, 0.0) + value
    lower = {number: value for number, value in blocks.items() if value < 0}
    most = min(lower, key=lambda one: lower[one], default=None)
    block = most if not whole and most is not None and lower[most] < 0.5 * math.fsum(lower.values()) else None
    sites: dict[str, float] = {}
    for (place, site), value in own.items():
        if block in (None, place) and value < 0:
            sites[site] = sites.get(site, 0.0) + value
    total = math.fsum(sites.values())
    best = min(sites, key=lambda one: sites[one], default="block")
    return block, best if sites and sites[best] <= MOSTLY * total else "block"


def _cause_numbers(
    means: _Means, name: CauseName, block: int | None, site: str, *, clones: bool
) -> CauseNumbers:
    at = [place for place, one in enumerate(means.about) if block in (None, one.block)]
    if site in ("attention", "mlp") or name in ("attention-bias", "mlp-bias"):
        wanted = {"attention-bias": "attention", "mlp-bias": "mlp"}.get(name, site)
        at = [place for place in at if means.about[place].site in (wanted, "block")] or at

    def mean(what: str) -> float | None:
        values = [means.sums[place][what] for place in at if not math.isnan(means.sums[place][what])]
        return _finite(math.fsum(values) / len(values)) if values else None

    blocks = len(means.layers) - 1
    left = _log_left(means)
    norms = [(gain, bias) for norm, gain, bias in means.norms if block in (None, norm.block)]
    gains = [gain for gain, _ in norms if not math.isnan(gain)]
    biases = [bias for _, bias in norms if not math.isnan(bias)]
    skips = [means.sums[place]["skip"] for place in at if means.about[place].has_skip]
    following = [
        means.sums[place]["beta"]
        for place, one in enumerate(means.about)
        if block is None or one.block in (block, block + 1)
    ]
    return CauseNumbers(
        start=math.exp(means.first),
        log_end=means.last,
        log_free=_finite(means.free),
        blocks=blocks,
        kept=None if left is None else math.exp(left / max(blocks, 1)),
        log_left=left,
        common=mean("common"),
        residual=mean("residual"),
        cosine=mean("cosine"),
        averaging=mean("averaging"),
        entropy=mean("entropy"),
        bias=mean("bias"),
        gain=min(gains) if gains and block is not None else math.fsum(gains) / len(gains) if gains else None,
        beta=_finite(max(following, default=math.nan)) if block is not None else mean("beta"),
        norm_bias=max(biases, default=None) if biases else None,
        skip=_finite(min(skips)) if skips else None,
        logit_std=mean("logit_std"),
        equal_layers=clones,
        post_norm=bool(means.norms),
    )


def _dose(means: _Means, block: int | None) -> float | None:
    """``1 / (beta sqrt(2L))``: with it the branches of all 2L sums together are as large as what enters them.

    Beta is the size of a branch over that of the stream. Where the branch reads normed tokens and nothing shrinks the
    stream, the stream itself has grown by the branches, so the size is taken over that of the first state.
    """
    sizes = []
    for place, about in enumerate(means.about):
        if block in (None, about.block):
            one = means.sums[place]
            grows = about.reads_normed and not means.norms
            sizes.append(max(one["beta"], one["written"]) if grows else one["beta"])
    known = sorted(size for size in sizes if math.isfinite(size))
    if not known:
        return None
    beta = max(known[len(known) // 2], 1.0)
    return 1 / (beta * math.sqrt(max(len(means.about), 1)))


def _cure_name(name: CauseName, means: _Means) -> CureName | None:
    has_bias = any(bias > 0 for _, _, bias in means.norms) or any(
        group == "norm-direct" and site != "norm" for group, _, site in means.rows
    )
    cures: dict[CauseName, CureName | None] = {
        "no-skip": "skips",
        "norm-rescale": "placement:pre",
        "norm-gain": "gain:1",
        "norm-direct": "no-norm-bias" if has_bias else "gain:1",
        "skip-scale": "skip-scale:1",
        "attention-bias": "no-bias",
        "mlp-bias": "no-bias",
        "same-direction": "redraw",
        "branch-size": "branch-scale",
        "lengths": None,
        "averaging": "temperature",
    }
    return cures[name]


def _cured(network: Network, cause: Cause, seed: int) -> Network:
    """A copy of the network without the cause, in its block or in all."""
    changed = _cured_everywhere(network, cause, seed)
    return changed if cause.block is None else only_in(network, changed, (cause.block,))


def _cured_everywhere(network: Network, cause: Cause, seed: int) -> Network:
    match cause.cure:
        case "skips":
            return with_skips(network)
        case "placement:pre":
            return with_pre_norm(network)
        case "gain:1":
            return with_unit_gains(network)
        case "skip-scale:1":
            return with_skip_scale(network, 1.0)
        case "no-bias" | "no-norm-bias":
            site = CAUSE_SITES[cause.name]
            if site not in bias_sites(network):
                raise ConfigError(f"the blocks have no biases at the site {site!r} that could be taken out")
            return without_biases(network, (site,))
        case "redraw":
            # also a block that is called again gets weights for each call: it writes the same every time
            return redrawn(unshared(network), generator=torch.Generator().manual_seed(seed))
        case "branch-scale" if cause.dose is not None:
            if not any(isinstance(part, Skip) for part in network.blocks.modules()):
                raise ConfigError(
                    "this network has no skips, so its branches cannot be made smaller beside them"
                )
            return with_branch_scale(network, cause.dose)
        case "temperature":
            return with_temperature(network, COLD)
    raise ConfigError(f"nothing is known that undoes {cause.name}")


def _recovered(
    cause: Cause, runs: Sequence[Run], keeps: Sequence[Tensor | None], means: _Means, *, seed: int
) -> Cause:
    """The cause with what the network ends at when it alone is undone.

    Where all blocks have the same fault, the first or the last may make more than half of the fall: a block is named
    only if undoing the cause there gives back most of what undoing it everywhere does.
    """
    if cause.cure is None or not runs:
        return cause
    found = _tried(cause, runs, keeps, means, seed=seed)
    if cause.block is None:
        return found
    wide = _everywhere(cause, means, clones=cause.numbers.equal_layers)
    whole = _tried(wide, runs, keeps, means, seed=seed)
    if whole.recovered is None or found.recovered is None:
        return found
    alike = cause.name == "no-skip" and not any(one.has_skip for one in means.about)
    return whole if alike or found.recovered < MOSTLY * whole.recovered else found


def _everywhere(cause: Cause, means: _Means, *, clones: bool) -> Cause:
    """The same cause in every block."""
    site = "attention" if cause.name == "averaging" else _place(means, cause.name, whole=True)[1]
    return cause.model_copy(
        update={
            "block": None,
            "site": _site_name(site),
            "dose": _dose(means, None) if cause.cure == "branch-scale" else cause.dose,
            "numbers": _cause_numbers(means, cause.name, None, site, clones=clones),
        }
    )


def _tried(
    cause: Cause, runs: Sequence[Run], keeps: Sequence[Tensor | None], means: _Means, *, seed: int
) -> Cause:
    try:
        ends = [
            last_log_ratio(replace(run, network=_cured(run.network, cause, seed)), keep)
            for run, keep in zip(runs, keeps, strict=True)
        ]
    except RankscopeError:
        return cause.model_copy(update={"declined": "refused"})
    values = torch.cat([one.reshape(-1) for one in ends])
    if not bool(torch.isfinite(values).all()):
        declined: Declined = "not resolved"
        return cause.model_copy(update={"declined": declined})
    after = float(values.mean())
    return cause.model_copy(update={"log_after": after, "recovered": (after - means.last) / means.fall})


def last_log_ratio(run: Run, keep: Tensor | None = None) -> Tensor:
    """``ln`` of the unit residual ratio of the last block, per text; NaN where rounding hides it."""
    keep = run.keep if keep is None else keep
    state = start(run.network, run.x, run.context, is_split=False)
    x = state.tokens()
    with torch.no_grad():
        for block in run.network.blocks:
            x = in_float64(block)(x, run.context)
        found = unit_log_ratio(measured(of_tokens(x, run.context.is_token), keep))
        if bool((found > NEAR).all()):
            return found
        least = math.log(10 * relative_floor(len(run.network.blocks), torch.float64))
        try:
            *_, last = stream(run.network, run.x, run.context, error=False)
        except (NotUnderstood, NumericalError):
            return torch.where(found > least, found, torch.nan)
        return unit_log_ratio(measured(replace(last, twins=()), keep))


# ------------------------------------------------------------------------------------------------------------- notes


def _missing_skips(network: Network, causes: Sequence[Cause]) -> Iterable[Note]:
    """Blocks that have a sublayer without a skip where most blocks have skips around all of theirs; what has no skip
    by design lacks it in most blocks, and where that made tokens equal it is a cause."""
    bare = bare_sublayers(network)
    if not bare or 2 * len(bare) >= len(network.blocks) or any(one.name == "no-skip" for one in causes):
        return
    block, site = next(iter(bare.items()))
    yield Note(name="no-skip", count=len(bare), block=block, site=site)


def _notes(means: _Means) -> Iterable[Note]:
    """What is named beside the causes."""
    if (
        not means.is_collapsed
        and means.last <= math.log(NOTED)
        and means.fall >= math.log(FALL)
        and not means.is_apart
    ):
        groups = means.groups_sum
        worst = min(groups, key=lambda one: groups[one])
        yield Note(name="fall", group=worst, share=-groups[worst] / means.fall, value=math.exp(means.last))
    many, longer = means.massive
    if many:
        yield Note(name="massive", count=many, share=longer)
    groups_, inside = means.groups
    if groups_ > 1 and inside <= COLLAPSED and math.exp(means.first) >= FALL * inside:
        yield Note(name="groups", count=groups_, share=inside)
    attention = [one for one in means.sums if not math.isnan(one["entropy"])]
    if not attention:
        return

    def most(of: list[dict[str, float]]) -> bool:
        return 2 * len(of) > len(attention)

    def mean(of: list[dict[str, float]], name: str) -> float:
        return math.fsum(one[name] for one in of) / len(of)

    sharp = [
        one
        for one in attention
        if one["entropy"] < SATURATED and one["logit_std"] > STEEP and one["itself"] < 0.5
    ]
    if most(sharp):
        yield Note(
            name="saturated",
            count=len(sharp),
            value=mean(sharp, "entropy"),
            logit_std=mean(sharp, "logit_std"),
        )
    even = [one for one in attention if one["logit_gain"] < UNIFORM]
    if most(even):
        yield Note(name="uniform", count=len(even), value=mean(even, "logit_gain"))
    dead = [one for one in attention if one["beta"] < DEAD]
    if most(dead):
        yield Note(name="dead", count=len(dead), value=mean(dead, "beta"))
