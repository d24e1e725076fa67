"""The split pass through a whole network, block by block, with a perturbed twin from which its errors are estimated."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from rankscope.core.numerics import broadcast, checked
from rankscope.errors import NumericalError
from rankscope.network import Context, Network
from rankscope.network.known import check_tree
from rankscope.network.seeds import weight_axes
from rankscope.split.maps import SPLIT
from rankscope.split.rules import split_part
from rankscope.split.state import Split, split_tokens
from rankscope.split.twin import paired, parted

P = TypeVar("P", bound=nn.Module)


def split_states(
    network: Network,
    x: Tensor,
    context: Context | None = None,
    *,
    error: bool = True,
    may_overflow: bool = False,
) -> tuple[Split, ...]:
    """The split of every layer's state, layers 0 .. L, in float64 whatever the network's dtype.

    With ``error`` a perturbed twin runs along, from which ``log_measure`` estimates the floor of every number; without
    it the pass takes half the time and its numbers have no floor. A state beyond the range of float64 is an error; if
    it ``may_overflow``, the ``log_scale`` of that matrix is NaN from there on, and the others of the batch go on.
    """
    return tuple(stream(network, x, context, error=error, may_overflow=may_overflow))


def stream(
    network: Network,
    x: Tensor,
    context: Context | None = None,
    *,
    error: bool = True,
    may_overflow: bool = False,
) -> Iterator[Split]:
    """The same one layer at a time; weights are brought to float64 block by block and dropped again."""
    context = Context() if context is None else context
    context.check(x)
    check_tree(SPLIT, network)
    network.check_length(x.shape[-2])
    x = checked(x, tokens=1)
    if error:  # the axis of run and twin stands before all others, those of stacked weights too
        x = x.expand(*broadcast(weight_axes(network), x.shape[:-2]), *x.shape[-2:])
    state = split_tokens(x, context.is_token)
    yield from _layers(network, paired(state) if error else state, context, may_overflow=may_overflow)


def stream_near(network: Network, state: Split, context: Context) -> Iterator[Split]:
    """The same from a state that is split already, without a twin unless the state has one."""
    check_tree(SPLIT, network)
    network.check_length(state.residual.shape[-2])
    yield from _layers(network, state, context)


def _layers(
    network: Network, state: Split, context: Context, *, may_overflow: bool = False
) -> Iterator[Split]:
    yield _finite(parted(state), 0)
    gone = torch.zeros_like(state.log_scale, dtype=torch.bool)
    for layer, block in enumerate(network.blocks, start=1):
        with torch.no_grad():
            state = split_part(in_float64(block), state, context)
        if not may_overflow:
            yield _finite(parted(state), layer)
            continue
        gone = gone | ~_is_finite(state)
        if bool(gone.any()):
            state = _emptied(
                state, gone
            )  # matrices do not see each other: zeros in the place of one change no other
        yield parted(replace(state, log_scale=state.log_scale.masked_fill(gone, torch.nan)))


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


def _emptied(state: Split, where: Tensor) -> Split:
    """The state with zeros in all entries of the matrices that are named."""
    wide = where[..., None, None]
    return replace(
        state,
        common=state.common.masked_fill(where[..., None], 0.0),
        residual=state.residual.masked_fill(wide, 0.0),
        log_scale=state.log_scale.masked_fill(where, 0.0),
        direct=None if state.direct is None else state.direct.masked_fill(wide, 0.0),
    )


def _is_finite(state: Split) -> Tensor:
    """Of every matrix, whether its numbers are in the range of float64."""
    numbers = torch.isfinite(state.common).all(dim=-1) & torch.isfinite(state.residual).all(dim=(-2, -1))
    return numbers & (state.log_scale < torch.inf)  # false for NaN too


def _finite(state: Split, layer: int) -> Split:
    if not bool(_is_finite(state).all()):
        raise NumericalError(
            f"the state after layer {layer} is beyond the range of float64; scale the input or the weights down"
        )
    return state
