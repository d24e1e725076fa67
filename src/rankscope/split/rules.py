"""One rule per part: how a split token matrix goes through it."""

import math

import torch
from torch import Tensor

import rankscope.split.gated_maps
import rankscope.split.linear_maps  # noqa: F401 - registers the rules of its mixers, as the one above does
from rankscope.network import Attention, Chain, Context, Mlp, Norm, Part, Scale, Skip, Sum
from rankscope.network.heads import join_heads, repeat_groups, split_heads
from rankscope.network.known import NORMS
from rankscope.network.parts import affine
from rankscope.split.logits import normed_change, row_through
from rankscope.split.maps import SPLIT, split_maps
from rankscope.split.normed import norm_rows
from rankscope.split.quotients import BENT, activation_quotient, activation_value
from rankscope.split.state import FAINT_SUM, Split, added, aligned, carrying, power

UNDERFLOWN = 1e-290
"""A token all of whose units are below this has left the floats, or is about to."""

LIFTED = 1e30
"""A norm that enlarges the common row by more than this may have enlarged differences that underflowed before it."""


@SPLIT.rules
def split_part(part: Part, state: Split, context: Context) -> Split:  # type: ignore[empty-body]
    """The split of ``part(X)`` from the split of ``X``; a perturbed twin is disturbed after every leaf and skip."""


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
    return skipped(part, state, split_part(part.inner, state, context))


def skipped(part: Skip, state: Split, inner: Split) -> Split:
    """What leaves a skip, from what entered it and what its inner part made of that."""
    return added([_times(state, part.scale), inner]).disturbed()


@split_part.register
def _scale(part: Scale, state: Split, context: Context) -> Split:
    return _times(state, part.value).disturbed()


def _times(state: Split, scale: float | Tensor) -> Split:
    if isinstance(scale, float) and scale == 1.0:
        return state
    wide = scale.unsqueeze(-2) if isinstance(scale, Tensor) else scale
    out = state.moved(state.common * scale, state.residual * wide, state.log_scale)
    if bool((out.log_scale < math.log(FAINT_SUM)).any()):  # a common row that underflowed is no longer known
        was, remains = (
            (state.common * (torch.as_tensor(scale) != 0)).abs().amax(dim=-1),
            out.common.abs().amax(dim=-1),
        )
        out = out.with_lost((was > 0) & (remains == 0) & (out.log_scale < math.log(FAINT_SUM)))
    return out if state.direct is None else carrying(out, state.direct * wide)


@split_part.register(*NORMS)
def _norm(part: Norm, state: Split, context: Context) -> Split:
    before = state.common.unsqueeze(-2)
    row, change = normed_change(part, state, before, state.residual, state.scale, state.direct)
    out = state.moved(row.squeeze(-2), change, state.log_scale)
    grown = row.abs().amax(dim=(-2, -1)) > LIFTED * before.abs().amax(dim=(-2, -1))
    out = out.with_lost(grown & (state.log_scale == -torch.inf) & (before != 0).any(dim=-1).squeeze(-1))
    return _with_direct(part, state, out, context)


@split_part.register
def _mlp(part: Mlp, state: Split, context: Context) -> Split:
    row, scale = state.common.unsqueeze(-2), state.scale
    up, up_change = row_through(state, row, part.up, part.up_bias), state.residual @ part.up
    at, at_change = up, up_change
    state.disturb(
        up
    )  # with a large bias, which no disturbance of the tokens reaches, tails enlarge its rounding
    factors = (up, up)
    if part.gate is None:
        inner = activation_value(part.activation, up)
        change = activation_quotient(part.activation, up, up_change, scale)
    else:
        at, at_change = row_through(state, row, part.gate, part.gate_bias), state.residual @ part.gate
        state.disturb(at)
        opened = activation_value(part.activation, at)
        factors = (opened, up)
        opened_change = activation_quotient(part.activation, at, at_change, scale)
        inner, change = opened * up, opened_change * (up + scale * up_change) + opened * up_change
    for numbers in (inner, change):  # as between the two products of attention
        state.disturb(numbers)
    common = row_through(state, inner, part.down, part.down_bias).squeeze(-2)
    out = state.moved(common, change @ part.down, state.log_scale)
    out = _underflown(part, factors, inner, out)
    return _with_direct(part, state, _in_tail(part, state, out, at, at_change), context)


def _underflown(part: Mlp, factors: tuple[Tensor, Tensor], inner: Tensor, out: Split) -> Split:
    """``out``, lost where units of the common row are zero as products of numbers that are not.

    Only a gate and a square multiply. What is missing counts where neither the row nor the residual is larger.
    """
    if part.gate is None and part.activation.name != "relu2":
        return out
    small = (out.log_scale < math.log(FAINT_SUM)) & (out.common.abs().amax(dim=-1) < FAINT_SUM)
    if not bool(small.any()):
        return out
    one, other = factors if part.gate is not None else (torch.relu(factors[0]),) * 2
    gone = (inner == 0) & (one != 0) & (other != 0)
    return out.with_lost(small & gone.any(dim=(-2, -1)))


def _in_tail(part: Mlp, state: Split, out: Split, at: Tensor, change: Tensor) -> Split:
    """``out``, lost where all units of some token are so far in a tail that they leave the floats.

    With an output bias such a token is that bias, and what is missing is below the rounding of it.
    """
    if part.down_bias is not None or part.activation.name in BENT or part.activation.name == "tanh":
        return out
    least, most = change.aminmax()
    farthest = float(power(state.log_scale).amax() * torch.maximum(-least, most))
    if (
        float(at.amax(dim=-1).amin()) - farthest > -20.0
    ):  # the largest unit of the common row falls no farther
        return out
    value = activation_value(part.activation, at + state.scale * change)
    return out.with_lost(state.kept_true(value.abs().amax(dim=-1) < UNDERFLOWN).any(dim=-1))


@split_part.register
def _attention(part: Attention, state: Split, context: Context) -> Split:
    held = part.values
    change = repeat_groups(split_heads(state.residual @ held.value, held.value_heads), held.heads)
    if not part.mixer.rows_sum_to_one:
        return _with_direct(part, state, _weighed(part, change, state, context), context)
    first, logs, mixed, moved = 0, list[Tensor](), list[Tensor](), list[Tensor]()
    for maps in split_maps(part.mixer, state, context):
        own = change[..., first : first + maps.rest.shape[-3], :, :]
        first += maps.rest.shape[-3]
        logs.append(maps.log_scale)
        for found, one in zip((moved, mixed), maps.apply(own), strict=True):
            found.append(one)
    log_scale, weights = aligned(torch.cat(logs, dim=-1), dim=-1)
    each = weights[..., None, None] * torch.cat(mixed, dim=-3)
    if bool(
        (weights == 0).any()
    ):  # in the scale of the others a head that is nothing may have left the floats
        each = torch.where(weights[..., None, None] > 0, each, 0.0)
    # Between two products too: where the terms of the second cancel, it enlarges the rounding of the first.
    state.disturb(each)
    rest = join_heads(each) @ held.out
    row = row_through(state, state.common.unsqueeze(-2), held.value, held.value_bias)
    state.disturb(row)
    row = join_heads(repeat_groups(split_heads(row, held.value_heads), held.heads))
    row = row_through(state, row, held.out, held.out_bias)
    common = (row + state.scale * (join_heads(torch.cat(moved, dim=-3)) @ held.out)).squeeze(-2)
    out = state.moved(common, rest, state.log_scale + log_scale)
    return _with_direct(part, state, out, context)


def _weighed(part: Attention, change: Tensor, state: Split, context: Context) -> Split:
    """The same for maps ``diag(r) Q`` with rows of Q summing to a number t of their head.

    With V the values, ``1 v + s C``: ``Q V = 1 y + Q' C s`` with ``y = t v + s q C`` and Q' the rest of Q, so that
    ``diag(r) Q V = 1 r_0 y + (r - r_0) y + diag(r) Q' C s``. The two last terms have scales of their own.
    """
    held = part.values
    row = row_through(state, state.common.unsqueeze(-2), held.value, held.value_bias)
    state.disturb(row)
    row = repeat_groups(split_heads(row, held.value_heads), held.heads)
    first, logs, mixed, rows = 0, list[Tensor](), list[Tensor](), list[Tensor]()
    for maps in split_maps(part.mixer, state, context):
        heads = slice(first, first + maps.rest.shape[-3])
        first = heads.stop
        moved, rest = maps.apply(change[..., heads, :, :])
        own = row[..., heads, :, :]
        y = (own if maps.total is None else maps.total * own) + state.scale.unsqueeze(-3) * moved
        log_scale = state.log_scale.unsqueeze(-1) + maps.log_scale
        if maps.gate is not None:
            gate = maps.gate
            log_scale, (ours, theirs) = aligned(torch.stack([log_scale, gate.log_scale]), dim=0)
            rest = ours[..., None, None] * gate.factors() * rest + theirs[..., None, None] * gate.change * y
            y = gate.row * y
        logs.append(log_scale)
        mixed.append(rest)
        rows.append(y)
    log_scale, weights = aligned(torch.cat(logs, dim=-1), dim=-1)
    each = weights[..., None, None] * torch.cat(mixed, dim=-3)
    if bool((weights == 0).any()):
        each = torch.where(weights[..., None, None] > 0, each, 0.0)
    state.disturb(each)
    common = torch.cat(rows, dim=-3)
    state.disturb(common)
    common = row_through(state, join_heads(common), held.out, held.out_bias).squeeze(-2)
    return state.moved(common, join_heads(each) @ held.out, log_scale)


def _with_direct(part: Part, state: Split, out: Split, context: Context) -> Split:
    """What leaves a leaf: ``out``, with its tokens beside it if one of them is short, and its twin disturbed."""
    if out.may_be_short() and bool(out.is_short(out.tokens()).any()):
        out = carrying(out, _directly(part, state.tokens(), context))
    return out.disturbed()


def _directly(part: Part, x: Tensor, context: Context) -> Tensor:
    """``part(x)`` with formulas that keep the digits of small numbers."""
    if isinstance(part, Norm):
        return norm_rows(part, x)
    if not isinstance(part, Mlp):
        return part(x, context)
    up = affine(x, part.up, part.up_bias)
    if part.gate is None:
        inner = activation_value(part.activation, up)
    else:
        inner = activation_value(part.activation, affine(x, part.gate, part.gate_bias)) * up
    return affine(inner, part.down, part.down_bias)
