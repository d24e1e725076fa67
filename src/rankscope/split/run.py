"""The split pass through a whole network, block by block."""

import copy
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from rankscope.core.numerics import checked
from rankscope.errors import NumericalError
from rankscope.network import Context, Network, Part
from rankscope.network.known import check_tree
from rankscope.split.maps import SPLIT
from rankscope.split.rules import split_part
from rankscope.split.state import Split, split_tokens

P = TypeVar("P", bound=nn.Module)

FAR = 0.1
"""Tokens whose residual is more than this share of them are far from consensus."""

UNEVEN = 100.0
"""Tokens so many times shorter than their mean are not well described by it and a residual: they lose digits."""


def split_states(network: Network, x: Tensor, context: Context | None = None) -> tuple[Split, ...]:
    """The split of every layer's state, layers 0 .. L, in float64 whatever the network's dtype."""
    return tuple(stream(network, x, context))


def stream(network: Network, x: Tensor, context: Context | None = None) -> Iterator[Split]:
    """The same one layer at a time; weights are brought to float64 block by block and dropped again."""
    context = Context() if context is None else context
    context.check(x)
    check_tree(SPLIT, network)
    network.check_length(x.shape[-2])
    x = checked(x, tokens=1)
    state = split_tokens(x, context.is_token)
    yield _finite(state, 0)
    for layer, block in enumerate(network.blocks, start=1):
        with torch.no_grad():
            x, state = _next(in_float64(block), x, state, context)
        yield _finite(state, layer)


def stream_near(network: Network, state: Split, context: Context) -> Iterator[Split]:
    """The same from a state that is split already and near consensus, all the way by the rules of the split pass."""
    check_tree(SPLIT, network)
    network.check_length(state.residual.shape[-2])
    yield _finite(state, 0)
    for layer, block in enumerate(network.blocks, start=1):
        with torch.no_grad():
            state = _finite(split_part(in_float64(block), state, context), layer)
        yield state


def _next(block: Part, x: Tensor, state: Split, context: Context) -> tuple[Tensor, Split]:
    """Tokens and split after a block.

    Far from consensus, tokens of very different lengths go the ordinary way, which takes each by itself and is exact
    to rounding there; everything else goes by the rules of the split pass.
    """
    uneven = _is_uneven(x, state)
    near = split_part(block, state, context)
    if not bool(uneven.any()):
        return near.tokens(), near
    after = block(x, context)
    ordinary = split_tokens(after, state.is_token)
    mean = torch.linalg.vector_norm(ordinary.common, dim=-1)
    ordinarily = uneven & (ordinary.log_scale > (FAR * mean).log())
    chosen = Split(
        common=torch.where(ordinarily[..., None], ordinary.common, near.common),
        residual=torch.where(ordinarily[..., None, None], ordinary.residual, near.residual),
        log_scale=torch.where(ordinarily, ordinary.log_scale, near.log_scale),
        is_token=state.is_token,
    )
    return torch.where(ordinarily[..., None, None], after, chosen.tokens()), chosen


def _is_uneven(x: Tensor, state: Split) -> Tensor:
    """Whether some token is much shorter than the mean and the residual that would have to add up to it."""
    length = torch.linalg.vector_norm(x, dim=-1)
    if state.is_token is not None:
        length = length.masked_fill(~state.is_token, torch.inf)
    mean = torch.linalg.vector_norm(state.common, dim=-1)
    return torch.gt(mean, UNEVEN * length.amin(dim=-1))


def in_float64(block: P) -> P:
    """The block itself if all its numbers are float64, otherwise a copy in which they are."""
    return in_dtype(block, torch.float64)


def in_dtype(block: P, dtype: torch.dtype) -> P:
    """The block itself if all its numbers are of that dtype, otherwise a copy in which they are."""
    weights, buffers = (
        [t for t in kind if t.is_floating_point()] for kind in (block.parameters(), block.buffers())
    )
    if all(tensor.dtype == dtype for tensor in (*weights, *buffers)):
        return block
    cast: dict[int, Tensor] = {id(t): nn.Parameter(t.detach().to(dtype), t.requires_grad) for t in weights}
    cast |= {id(t): t.to(dtype) for t in buffers}
    return copy.deepcopy(block, cast)  # everything but the numbers, which are copied and cast in one go


def _finite(state: Split, layer: int) -> Split:
    numbers = torch.isfinite(state.common).all() & torch.isfinite(state.residual).all()
    if not bool(numbers & (state.log_scale < torch.inf).all()):  # false for NaN too
        raise NumericalError(
            f"the state after layer {layer} is beyond the range of float64; scale the input or the weights down"
        )
    return state
