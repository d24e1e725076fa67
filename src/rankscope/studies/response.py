"""One pass of a tree taken apart sum by sum, and what the last state would be after a change, by linear response.

Every sum of the stream is ``Y = s X + F`` with a branch F, and every branch is three pieces that add up to it exactly:

    f(0)              what it writes whatever it reads (bias)
    f(1m') - f(0)     its answer to the common row m, the mean token of what it reads (common)
    f(H) - f(1m')     its answer to the differences between tokens (own)

If a change lets another stream Z reach a sum that X reached before, the branch is not run again. Its bias piece stays,
its common piece grows with the common part of what it reads, its own piece with the differences. With M the energy of
the common part and R that of the differences, the factors are the roots of M(Z)/M(X) and R(Z)/R(X), of the shares
M/(M+R) and R/(M+R) where the branch reads a norm, which divides by the length. This is exact for linear branches and
ignores how a softmax sharpens and how an activation bends; on the networks of the study it was within 4% (median).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn

from rankscope.core.processor import safe_products
from rankscope.mechanism.identities import response
from rankscope.network import (
    Chain,
    Context,
    CrossAttention,
    LayerNorm,
    Network,
    Norm,
    Part,
    Scale,
    SelfAttention,
    Skip,
    Sum,
)
from rankscope.network.parts import carries, flat, leaves, row, scaled

TINY = 1e-300
"""Stands for zero where a logarithm or a quotient is taken."""

PIECES = ("bias", "common", "own")


@dataclass(slots=True, eq=False)
class Move:
    """One step of the stream: a sum, or a norm or a scale on the stream itself.

    Args:
        block: number of the block, from 1.
        part: what stands there: a skip, a bare sublayer, a norm, a scale.
        x: what reaches it, ``texts tokens dim``; padding is zero.
        pieces: of a sum, those of its branch.
        skip: of a sum, the factor of the skip; None without one.
        reads_norm: whether the branch reads what a norm gave.
        site: ``attention``, ``mlp`` or ``other``, what the branch holds.
        entropy: of attention, over the logarithm of the keys allowed; NaN elsewhere.
    """

    block: int
    part: Part
    x: Tensor
    pieces: dict[str, Tensor] = field(default_factory=dict)
    skip: float | Tensor | None = None
    reads_norm: bool = False
    site: str = "other"
    entropy: float = math.nan

    @property
    def is_sum(self) -> bool:
        return bool(self.pieces)

    @property
    def branch(self) -> Tensor:
        return added(self.pieces.values())

    @property
    def carried(self) -> Tensor:
        """What the skip brings."""
        return torch.zeros_like(self.x) if self.skip is None else scaled(self.x, self.skip)


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """All steps of one pass, and which tokens are measured (None: all)."""

    steps: tuple[Move, ...]
    last: Tensor
    keep: Tensor | None

    @property
    def sums(self) -> list[Move]:
        return [move for move in self.steps if move.is_sum]

    def input_share(self) -> float:
        """Product over all sums of the share that the skip brings, ``|sX| / |sX + F|``, geometric mean over texts.

        It is above one only where branches cancel what the skip brings; then it is one.
        """
        logs = torch.zeros(self.last.shape[:-2], dtype=torch.float64)
        for move in self.sums:
            brought = squared(self.kept(move.carried))
            whole = squared(self.kept(move.carried + move.branch))
            logs = logs + 0.5 * (brought.clamp(min=TINY).log() - whole.clamp(min=TINY).log())
        return math.exp(min(float(logs.mean()), 0.0))

    def branch_size(self) -> float | None:
        """The largest ``|F| / |sX|`` of a sum with a skip, mean over texts; None where there is no skip.

        Where branches read norms and the stream is not normed, it grows with what the first of them write, so that
        later sums tell less than the first.
        """
        found = [
            (squared(self.kept(move.branch)) / squared(self.kept(move.carried)).clamp(min=TINY)).sqrt().mean()
            for move in self.sums
            if move.skip is not None
        ]
        return float(torch.stack(found).max()) if found else None

    def entropy(self) -> float | None:
        """Mean over all attentions."""
        found = [move.entropy for move in self.sums if not math.isnan(move.entropy)]
        return sum(found) / len(found) if found else None

    def kept(self, x: Tensor) -> Tensor:
        return x if self.keep is None else x * self.keep[..., None].to(x.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """One plain pass: its last state, the share of the input that is left, and the mean entropy of attention."""

    last: Tensor
    input_share: float
    entropy: float | None


@torch.no_grad()
def passed(network: Network, x: Tensor, context: Context, keep: Tensor | None) -> Passed:
    """One pass of a network, sum by sum; the numbers are those of ``Moves`` at the price of one run."""
    logs = torch.zeros(x.shape[:-2], dtype=torch.float64, device=x.device)
    entropies = list[float]()

    def seen(_: nn.Module, __: object, maps: Tensor) -> None:
        entropies.append(_mean_entropy(maps))

    mixers = {part.mixer for part in network.blocks.modules() if isinstance(part, SelfAttention)}
    handles = [mixer.register_forward_hook(seen) for mixer in mixers if mixer.rows_sum_to_one]
    try:
        with safe_products(x):
            for part in (part for block in network.blocks for part in flat(block)):
                y = part(x, context)
                if not isinstance(part, Norm | Scale):
                    brought = scaled(x, part.scale) if isinstance(part, Skip) else torch.zeros_like(x)
                    sizes = [
                        squared(one if keep is None else one * keep[..., None].to(one.dtype))
                        for one in (brought, y)
                    ]
                    logs = logs + 0.5 * (sizes[0].clamp(min=TINY).log() - sizes[1].clamp(min=TINY).log())
                x = y
    finally:
        for handle in handles:
            handle.remove()
    known = [one for one in entropies if not math.isnan(one)]
    share = math.exp(min(float(logs.mean()), 0.0)) if bool(torch.isfinite(logs).all()) else 0.0
    return Passed(x, share, sum(known) / len(known) if known else None)


def added(pieces: Iterable[Tensor]) -> Tensor:
    """The sum of some tensors in their order."""
    total, *others = pieces
    for other in others:
        total = total + other
    return total


def squared(x: Tensor) -> Tensor:
    """Energy of every text."""
    return x.double().square().sum(dim=(-2, -1))


def mean_row(x: Tensor, keep: Tensor | None) -> Tensor:
    """The mean token of every text, ``texts 1 dim``, padding left out."""
    if keep is None:
        return x.mean(dim=-2, keepdim=True)
    weights = keep[..., None].to(x.dtype)
    return (x * weights).sum(dim=-2, keepdim=True) / weights.sum(dim=-2, keepdim=True).clamp(min=1)


def energies(x: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """Energy of the common part, ``n |m|^2``, and of the differences."""
    common = mean_row(x, keep).expand_as(x)
    inside = torch.ones_like(x[..., :1]) if keep is None else keep[..., None].to(x.dtype)
    return squared(common * inside), squared((x - common) * inside)


def log_ratio(x: Tensor, keep: Tensor | None) -> Tensor:
    """Logarithm of the residual ratio (Frobenius, mean, unit tokens) of every text; no floor is known here."""
    unit = x.double() / x.double().norm(dim=-1, keepdim=True).clamp(min=TINY)
    common, own = energies(unit, keep)
    return 0.5 * (own.clamp(min=TINY).log() - (common + own).clamp(min=TINY).log())


# ------------------------------------------------------------------------------------------------------ taking it apart


@torch.no_grad()
def moves_of(
    network: Network, x: Tensor, context: Context | None = None, *, keep: Tensor | None = None
) -> Moves:
    """Every step of one pass, branches in pieces. ``keep`` says which tokens are measured; padding never is."""
    context = network.checked(x, context)
    if keep is None and context.is_token is not None:
        keep = context.is_token.expand(x.shape[:-1])
    steps, normed = list[Move](), False
    for number, block in enumerate(network.blocks, start=1):
        for part in flat(block):
            if isinstance(part, Norm | Scale):
                steps.append(Move(number, part, x))
                x, normed = part(x, context), normed or isinstance(part, Norm)
                continue
            inner = part.inner if isinstance(part, Skip) else part
            pieces, reads, entropy = _branch(inner, x, context, keep)
            skip = part.scale if isinstance(part, Skip) else None
            move = Move(
                number,
                part,
                x,
                pieces,
                skip=skip,
                reads_norm=reads or normed,
                site=_site(inner),
                entropy=entropy,
            )
            steps.append(move)
            x, normed = move.carried + move.branch, False
    return Moves(tuple(steps), x, keep)


def _site(part: Part) -> str:
    held = list(leaves(part))
    if any(isinstance(leaf, SelfAttention | CrossAttention) for leaf in held):
        return "attention"
    sites = {str(getattr(leaf, "site", "")) for leaf in held}
    return next((site for site in ("attention", "mlp") if site in sites), "other")


def _branch(
    part: Part, x: Tensor, context: Context, keep: Tensor | None
) -> tuple[dict[str, Tensor], bool, float]:
    """Pieces of a branch at what it reads, whether it reads a norm, and the entropy of its attention."""
    if type(part) is Sum:
        found = [_branch(one, x, context, keep) for one in part.parts]
        pieces = {
            name: added([one[0].get(name, torch.zeros_like(x)) for one in found]) for name in PIECES if found
        }
        entropies = [one[2] for one in found if not math.isnan(one[2])]
        mean = sum(entropies) / len(entropies) if entropies else math.nan
        return pieces or dict.fromkeys(PIECES, torch.zeros_like(x)), all(one[1] for one in found), mean
    taken: dict[str, Tensor] | None = None
    reads, entropy = False, math.nan
    for one in flat(part):
        if taken is None:
            if isinstance(one, Norm | Scale):
                x, reads = one(x, context), reads or isinstance(one, Norm)
            elif type(one) is Sum:
                taken, inside, entropy = _branch(one, x, context, keep)
                reads = reads or inside
            else:
                taken, entropy = _core(one, x, context, keep)
        elif isinstance(one, Scale):
            taken = {name: one(piece, context) for name, piece in taken.items()}
        elif isinstance(one, Norm):
            taken = _through(one, taken)
        else:  # two cores one after the other: the second answers to all of the first
            taken, entropy = _core(one, added(taken.values()), context, keep)
    if taken is None:  # a branch of norms and scales alone
        zero = torch.zeros_like(x)
        common = mean_row(x, keep).expand_as(x)
        taken = {"bias": zero, "common": common, "own": x - common}
    return taken, reads, entropy


def _core(part: Part, h: Tensor, context: Context, keep: Tensor | None) -> tuple[dict[str, Tensor], float]:
    common = mean_row(h, keep).expand_as(h).contiguous()
    nothing, level, whole = (part(one, context) for one in (torch.zeros_like(h), common, h))
    entropy = _entropy(part, h, context) if isinstance(part, SelfAttention) else math.nan
    return {"bias": nothing, "common": level - nothing, "own": whole - level}, entropy


def _entropy(part: SelfAttention, h: Tensor, context: Context) -> float:
    """Mean entropy of the rows of the maps that may read two keys or more, over the logarithm of those keys."""
    if not part.mixer.rows_sum_to_one:
        return math.nan
    return _mean_entropy(part.mixer(h, context))


def _mean_entropy(maps: Tensor) -> float:
    maps = maps.double()
    keys = (maps > 0).sum(dim=-1)
    several = keys > 1
    if not bool(several.any()):
        return math.nan
    own = -(maps.clamp(min=TINY).log() * maps).sum(dim=-1)
    return float((own[several] / keys[several].double().log()).mean())


def _through(norm: Norm, pieces: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pieces after a norm whose row scales are held: it is then linear, and its bias is one more piece."""
    whole = added(pieces.values())
    after = norm(whole)
    bias = torch.zeros_like(after) if norm.bias is None else row(norm.bias).expand_as(after)
    gain = norm.gain

    def centred(x: Tensor) -> Tensor:
        return x - x.mean(dim=-1, keepdim=True) if isinstance(norm, LayerNorm) else x

    unit = norm.unit(whole)
    length = centred(whole).norm(dim=-1, keepdim=True).clamp(min=TINY)
    factor = unit.norm(dim=-1, keepdim=True) / length
    done = {
        name: centred(piece) * factor * (1 if gain is None else row(gain)) for name, piece in pieces.items()
    }
    done["bias"] = done["bias"] + bias
    return done


# ----------------------------------------------------------------------------------------------------------- predicting


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What a remedy does to the steps of a pass.

    Args:
        pre: norms of the stream are gone, and every branch reads one.
        branch: factor on the branches of each block.
        skip: factor of every skip.
        add_skips: sums without a skip get one that carries 1.
        without_bias: sites whose branches write no bias; ``norm``: norms of the stream have none.
        unit_gains: norms of the stream multiply by 1.
        mixers: the network with other mixers, whose attentions take the place of the recorded ones at what was read.
        shuffle: draws an order of the channels for what each branch writes: directions have nothing to do with each
            other any more.
    """

    pre: bool = False
    branch: Callable[[int], float] | None = None
    skip: float | None = None
    add_skips: bool = False
    without_bias: tuple[str, ...] = ()
    unit_gains: bool = False
    mixers: Network | None = None
    shuffle: torch.Generator | None = None


@torch.no_grad()
def predicted(moves: Moves, change: Change, context: Context) -> Tensor:
    """Logarithm of the unit residual ratio of the last state after a change, by text, without running the network."""
    keep, z = moves.keep, moves.steps[0].x if moves.steps else moves.last
    others = None if change.mixers is None else _other_pieces(moves, change.mixers, context)
    for place, move in enumerate(moves.steps):
        if not move.is_sum:
            if isinstance(move.part, Norm) and change.pre:
                continue
            z = _norm(move.part, z, change) if isinstance(move.part, Norm) else move.part(z, context)
            continue
        pieces = dict(move.pieces if others is None else others.get(place, move.pieces))
        if move.site in change.without_bias:
            pieces["bias"] = torch.zeros_like(pieces["bias"])
        f = _response(pieces, move.x, z, reads_norm=move.reads_norm or change.pre, keep=keep)
        if change.shuffle is not None:
            f = f[..., torch.randperm(f.shape[-1], generator=change.shuffle).to(f.device)]
        if change.branch is not None:
            f = f * change.branch(move.block)
        if change.skip is not None and move.skip is not None:
            z = change.skip * z + f
        elif change.add_skips and not carries(move.part):
            z = z + f
        elif move.skip is None:
            z = f
        else:
            z = scaled(z, move.skip) + f
    return log_ratio(z, keep)


def _norm(norm: Norm, z: Tensor, change: Change) -> Tensor:
    unit = norm.unit(z)
    gain = None if change.unit_gains else norm.gain
    bias = None if "norm" in change.without_bias else norm.bias
    unit = unit if gain is None else unit * row(gain)
    return unit if bias is None else unit + row(bias)


def _response(
    pieces: Mapping[str, Tensor], x: Tensor, z: Tensor, *, reads_norm: bool, keep: Tensor | None
) -> Tensor:
    (common, own), (common_z, own_z) = energies(x, keep), energies(z, keep)
    logs = response((common.log(), own.log()), (common_z.log(), own_z.log()), reads_norm=reads_norm)
    of_common, of_own = (log.exp()[..., None, None].to(x.dtype) for log in logs)
    return pieces["bias"] + of_common * pieces["common"] + of_own * pieces["own"]


def _other_pieces(moves: Moves, network: Network, context: Context) -> dict[int, dict[str, Tensor]]:
    """Pieces of every attention of a network with the same skeleton, at what the recorded ones read."""
    parts = [part for block in network.blocks for part in flat(block)]
    if len(parts) != len(moves.steps):
        raise ValueError("another mixer leaves the steps of the stream as they are")
    found = {}
    for place, (part, move) in enumerate(zip(parts, moves.steps, strict=True)):
        if move.is_sum and move.site == "attention":
            inner = part.inner if isinstance(part, Skip) else part
            found[place] = _branch(inner, move.x, context, moves.keep)[0]
    return found


# ------------------------------------------------------------------------------------------- a recording without a tree

RELATIVE = 1e-3
"""So far a state may be from the sum that it is taken for, relative to its size."""


@torch.no_grad()
def recorded_moves(
    states: Sequence[Tensor], sites: Mapping[tuple[int, str], Tensor], keep: Tensor | None = None
) -> Moves | None:
    """The steps of a live model from its states and what its sublayers put out; None where these do not explain it.

    A block is read as pre-norm if its state is what entered it plus what attention and MLP put out, and as post-norm if
    layer norms without gain stand after each of the two sums. Without the weights a branch has two pieces only: its
    mean token counts as the answer to the common row, the rest as that to the differences; biases are not told apart.
    """
    steps = list[Move]()
    for number, (x, after) in enumerate(pairwise(states), start=1):
        wrote = [sites.get((number, site)) for site in ("attention", "mlp")]
        if any(one is None or one.shape != x.shape for one in wrote):
            return None
        branches = [one for one in wrote if one is not None]
        found = _read_block(number, x, after, branches, keep)
        if found is None:
            return None
        steps += found
    return Moves(tuple(steps), states[-1], keep) if steps else None


def _read_block(
    number: int, x: Tensor, after: Tensor, branches: Sequence[Tensor], keep: Tensor | None
) -> list[Move] | None:
    norm = LayerNorm(eps=1e-5)
    for is_post in (False, True):
        state, steps = x, list[Move]()
        for site, branch in zip(("attention", "mlp"), branches, strict=True):
            common = mean_row(branch, keep).expand_as(branch)
            pieces = {"bias": torch.zeros_like(branch), "common": common, "own": branch - common}
            whole = Skip(Chain(()))
            steps.append(Move(number, whole, state, pieces, skip=1.0, reads_norm=True, site=site))
            state = state + branch
            if is_post:
                steps.append(Move(number, norm, state))
                state = norm(state)
        inside = torch.ones_like(after[..., :1]) if keep is None else keep[..., None].to(after.dtype)
        off = float(((state - after) * inside).abs().max())
        if off <= RELATIVE * float((after * inside).abs().max()):
            return steps
    return None
