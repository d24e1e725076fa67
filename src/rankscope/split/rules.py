"""One rule per part: how a split token matrix goes through it."""

import torch
from torch import Tensor

from rankscope.network import Attention, Chain, Context, Mlp, Norm, Part, Scale, Skip, Sum
from rankscope.network.heads import join_heads, repeat_groups, split_heads
from rankscope.network.known import NORMS
from rankscope.network.parts import affine
from rankscope.split.maps import SPLIT, split_maps
from rankscope.split.quotients import activation_quotient, activation_value, norm_quotient
from rankscope.split.state import Split, added, aligned


@SPLIT.rules
def split_part(part: Part, state: Split, context: Context) -> Split:  # type: ignore[empty-body]
    """The split of ``part(X)`` from the split of ``X``."""


@split_part.register
def _chain(part: Chain, state: Split, context: Context) -> Split:
    for child in part.parts:
        state = split_part(child, state, context)
    return state


@split_part.register
def _sum(part: Sum, state: Split, context: Context) -> Split:
    if not len(part.parts):
        return state.moved(torch.zeros_like(state.common), torch.zeros_like(state.residual), state.log_scale)
    return added([split_part(child, state, context) for child in part.parts])


@split_part.register
def _skip(part: Skip, state: Split, context: Context) -> Split:
    return added([_times(state, part.scale), split_part(part.inner, state, context)])


@split_part.register
def _scale(part: Scale, state: Split, context: Context) -> Split:
    return _times(state, part.value)


def _times(state: Split, scale: float | Tensor) -> Split:
    if isinstance(scale, Tensor):
        return state.moved(state.common * scale, state.residual * scale.unsqueeze(-2), state.log_scale)
    return (
        state if scale == 1.0 else state.moved(state.common * scale, state.residual * scale, state.log_scale)
    )


@split_part.register(*NORMS)
def _norm(part: Norm, state: Split, context: Context) -> Split:
    row, change = norm_quotient(part, state.common.unsqueeze(-2), state.residual, state.scale)
    return state.moved(row.squeeze(-2), change, state.log_scale)


@split_part.register
def _mlp(part: Mlp, state: Split, context: Context) -> Split:
    row, scale = state.common.unsqueeze(-2), state.scale
    up, up_change = affine(row, part.up, part.up_bias), state.residual @ part.up
    if part.gate is None:
        inner = activation_value(part.activation, up)
        change = activation_quotient(part.activation, up, up_change, scale)
    else:
        gate, gate_change = affine(row, part.gate, part.gate_bias), state.residual @ part.gate
        opened = activation_value(part.activation, gate)
        opened_change = activation_quotient(part.activation, gate, gate_change, scale)
        inner, change = opened * up, opened_change * (up + scale * up_change) + opened * up_change
    common = affine(inner, part.down, part.down_bias).squeeze(-2)
    return state.moved(common, change @ part.down, state.log_scale)


@split_part.register
def _attention(part: Attention, state: Split, context: Context) -> Split:
    held, maps = part.values, split_maps(part.mixer, state, context)
    change = repeat_groups(split_heads(state.residual @ held.value, held.value_heads), held.heads)
    log_scale, weights = aligned(maps.log_scale, dim=-1)
    mixed = weights[..., None, None] * (maps.rest @ change)
    moved = join_heads(maps.shared @ change) @ held.out
    row = affine(join_heads(held.project(state.common.unsqueeze(-2))), held.out, held.out_bias)
    common = (row + state.scale * moved).squeeze(-2)
    return state.moved(common, join_heads(mixed) @ held.out, state.log_scale + log_scale)
