"""The stream of a network, step by step: norms and scales on it, and sums of a skip with the pieces of a branch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.core.numerics import broadcast, checked
from rankscope.mechanism.looks import AttentionLook
from rankscope.mechanism.pieces import MECHANISM, Flow, Piece, Walker, branch
from rankscope.mechanism.states import by_channel, measured, of_tokens, plus
from rankscope.network import Context, Network, Norm, Part, Scale
from rankscope.network.known import check_tree
from rankscope.network.parts import around, flat, leaves, scaled
from rankscope.network.seeds import weight_axes
from rankscope.network.surgery import is_attention, is_mlp
from rankscope.split.run import in_float64
from rankscope.split.state import Split, split_tokens


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Added:
    """``y = own + sum of the pieces``: a branch beside what the skip brings.

    Args:
        block: from 1.
        site: ``attention``, ``mlp``, or ``block`` for a branch that is neither or both.
        x, y: the stream before and after, its measured tokens.
        own: what the skip brings, None without one.
        pieces: what the branch writes.
        reads_normed: whether it reads tokens that a norm has brought to one size.
        looks: what its attentions look like.
    """

    block: int
    site: str
    x: Split
    y: Split
    own: Split | None
    pieces: tuple[Piece, ...]
    reads_normed: bool
    looks: tuple[AttentionLook, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Normed:
    """A norm on the stream; ``bare`` is what leaves it without its bias."""

    block: int
    part: Norm
    x: Split
    y: Split
    bare: Split


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scaled:
    """A scale on the stream."""

    block: int
    x: Split
    y: Split


Move = Added | Normed | Scaled


def start(network: Network, x: Tensor, context: Context, *, is_split: bool) -> Split:
    """The state that enters the first block, in float64, with the axes that stacked weights have."""
    x = checked(x, tokens=1)
    x = x.expand(*broadcast(weight_axes(network), x.shape[:-2]), *x.shape[-2:])
    is_token = None if context.is_token is None else context.is_token.expand(x.shape[:-1])
    return split_tokens(x, is_token) if is_split else of_tokens(x, is_token)


def moves(
    network: Network,
    x: Tensor,
    context: Context,
    *,
    keep: Tensor | None = None,
    is_split: bool = False,
    looks: bool = True,
) -> Iterator[Move]:
    """Every step of the stream in order of execution, with the tokens of ``keep`` measured (None: all).

    Weights are brought to float64 block by block and dropped again.
    """
    check_tree(MECHANISM, network)
    network.check_length(x.shape[-2])
    walker = Walker(context=context, is_split=is_split, looks=looks)
    state, is_normed = start(network, x, context, is_split=is_split), False
    for number, block in enumerate(network.blocks, start=1):
        for part in flat(in_float64(block)):
            before = measured(state, keep)
            is_plain = isinstance(part, Norm) or type(part) is Scale
            if is_plain or is_split:
                after = walker.run(part, state)
            if not is_plain:
                scales, inner = around(part)
                written = branch(inner, Flow(state=state), walker)
                if not is_split:  # the branch has run already
                    after = _joined(state, scales, written.state)
            reached = measured(after, keep)
            if isinstance(part, Norm):
                bare = reached
                if part.bias is not None:
                    bare = _shifted(reached, -part.bias)
                yield Normed(block=number, part=part, x=before, y=reached, bare=bare)
                is_normed = True
            elif type(part) is Scale:
                yield Scaled(block=number, x=before, y=reached)
            else:
                own = [by_channel(before, one) for one in scales]
                brought = plus(own) if own else None
                yield Added(
                    block=number,
                    site=site_of(part),
                    x=before,
                    y=reached,
                    own=None if brought is None or _is_nothing(brought) else brought,
                    pieces=tuple(one.through(measured(one.state, keep)) for one in written.terms()),
                    reads_normed=written.is_normed or is_normed,
                    looks=written.looks,
                )
                is_normed = False
            state = after


def site_of(part: Part) -> str:
    """``attention`` or ``mlp`` where a part holds one kind alone, else ``block``."""
    held = list(leaves(part))
    kinds = {"attention": any(map(is_attention, held)), "mlp": any(map(is_mlp, held))}
    found = [name for name, there in kinds.items() if there]
    return found[0] if len(found) == 1 else "block"


def _joined(state: Split, scales: list[float | Tensor], written: Split) -> Split:
    """What leaves a sum, from what entered it and what its branch wrote; added in the order in which the tree does."""
    x = state.tokens()
    total = written.tokens()
    for scale in scales:
        is_one = isinstance(scale, float) and scale == 1.0
        total = total + (x if is_one else scaled(x, scale))
    return of_tokens(total, state.is_token)


def _shifted(state: Split, by: Tensor) -> Split:
    direct = None if state.direct is None else state.direct + by.unsqueeze(-2)
    return replace(state, common=state.common + by, direct=direct)


def _is_nothing(state: Split) -> bool:
    return not bool((state.common != 0).any()) and not bool((state.log_scale > -torch.inf).any())
