"""Maps whose rows do not sum to one: rows that do, with a factor in front.

Three mixers are of this form.

* Softmax with a sink: ``P_ij = r_i Q_ij`` with Q the softmax over the keys alone, ``L_i = log sum_j exp a_ij`` and
  ``r_i = sigmoid(L_i - sink)``, because ``exp(a_ij) / (exp(sink) + exp(L_i))`` is ``exp(a_ij - L_i)`` times
  ``exp(L_i) / (exp(sink) + exp(L_i))``.
* A gate per head and query: ``r_i = sigmoid(x_i . w + b)`` in front of any map.
* One softmax map less a factor times another: all rows sum to ``1 - factor``, which is no obstacle at all.

Near consensus ``r_i`` differs from query to query at first order in the residual, where rows of Q differ at third: the
sink keeps lengths apart and not directions. Two factors differ by ``(tanh((z + d)/2) - tanh(z/2)) / 2``, which has a
formula that keeps its digits, if d does: and ``L_i - L_1`` does, as
``s alpha_i + log(1 + m_i)`` with ``s alpha_i`` the difference of two queries times one key, and ``m_i`` as in maps.py.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from rankscope.network import Context, Differential, HeadGate, NoPosition, SinkSoftmax
from rankscope.split.logits import Levels, SplitLogits, first_row, row_through, split_levels, split_logits
from rankscope.split.maps import Gate, Readable, SplitMaps, from_logits, readable, split_maps, tilted
from rankscope.split.quotients import log1p_ratio, tanh_difference_ratio
from rankscope.split.state import Split, aligned, power


@split_maps.register
def _sink(mixer: SinkSoftmax, state: Split, context: Context) -> Iterator[SplitMaps]:
    read = readable(mixer, state, context)
    is_plain = isinstance(mixer.position, NoPosition) and mixer.softcap is None and read.others is None
    levels = split_levels(mixer, state, context, read.keys) if is_plain else None
    sums = None if is_plain else _log_sums(mixer, state, context, read)
    first = 0
    for logits in split_logits(mixer, state, context, read.keys, read.allowed):
        maps = from_logits(logits, read)
        heads = slice(first, first + maps.rest.shape[-3])
        first = heads.stop
        sink = mixer.sinks[..., heads, None, None]
        gate = (
            _near(levels, logits, read, sink, heads)
            if levels is not None
            else _apart(sums, sink, heads, state)
        )
        yield replace(maps, gate=_kept(gate, state))


def _near(levels: Levels, logits: SplitLogits, read: Readable, sink: Tensor, heads: slice) -> Gate:
    """The factor of a sink where all queries read the same keys: every difference to all its digits."""
    u = logits.shared if read.keys is None else logits.shared.masked_fill(~read.keys, -torch.inf)
    v_hat = logits.rest if read.keys is None else logits.rest.masked_fill(~read.keys, 0.0)
    total = torch.logsumexp(u, dim=-1, keepdim=True)
    log_q, size = u - total, power(logits.log_scale)[..., None, None]
    m_hat = tilted(log_q.exp(), log_q, v_hat, size * v_hat, size).sum(dim=-1, keepdim=True)
    m = size * m_hat
    summed = m_hat * log1p_ratio(m.clamp(min=-0.5, max=1.0))
    far = (m <= -0.5) | (m >= 1.0)
    if bool(far.any()):
        plain = torch.logsumexp(log_q + size * v_hat, dim=-1, keepdim=True)
        summed = torch.where(far, plain / torch.where(size > 0, size, 1.0), summed)
    by_query = levels.change[..., heads, :, :]
    scales = torch.stack([levels.log_scale.unsqueeze(-1).expand(logits.log_scale.shape), logits.log_scale])
    log_scale, weights = aligned(scales, dim=0)
    change = weights[0][..., None, None] * by_query + weights[1][..., None, None] * summed
    return _sigmoid(levels.level[..., heads, :, :] + total - sink, change, log_scale)


def _log_sums(mixer: SinkSoftmax, state: Split, context: Context, read: Readable) -> Tensor:
    """``log sum_j exp a_ij`` of every query, ``*batch heads tokens 1``; rounded, as the disturbed runs then show."""
    logits = mixer.logits(state.tokens(), context)
    if read.allowed is not None:
        logits = logits.masked_fill(~read.allowed, -torch.inf)
    sums = torch.logsumexp(logits, dim=-1, keepdim=True)
    state.disturb(sums)
    return sums


def _apart(sums: Tensor | None, sink: Tensor, heads: slice, state: Split) -> Gate:
    """The same where queries read different keys, or places enter: sums differ at order one."""
    if sums is None:
        raise TypeError("sums of rows are needed where rows are not alike")
    own = sums[..., heads, :, :]
    first = first_row(own, state)
    change = own - first
    return _sigmoid(first - sink, change, torch.zeros_like(change[..., 0, 0]))


def _sigmoid(at: Tensor, change: Tensor, log_scale: Tensor) -> Gate:
    """``sigmoid(at + exp(log_scale) change)`` as a gate."""
    step = power(log_scale)[..., None, None] * change
    return Gate(
        row=torch.sigmoid(at),
        change=change / 4 * tanh_difference_ratio(at / 2, step / 2),
        log_scale=log_scale,
    )


def _kept(gate: Gate, state: Split) -> Gate:
    """The gate with nothing on padding."""
    if state.is_token is None:
        return gate
    return replace(gate, change=gate.change * state.is_token[..., None, :, None])


@split_maps.register
def _head_gate(mixer: HeadGate, state: Split, context: Context) -> Iterator[SplitMaps]:
    row = row_through(state, state.common.unsqueeze(-2), mixer.gate, mixer.bias)  # *batch 1 heads
    change = state.residual @ mixer.gate  # *batch tokens heads
    state.disturb(row)
    at, steps = row.mT.unsqueeze(-1), change.mT.unsqueeze(-1)
    first = 0
    for maps in split_maps(mixer.inner, state, context):
        heads = slice(first, first + maps.rest.shape[-3])
        first = heads.stop
        log_scale = state.log_scale.unsqueeze(-1).expand(steps[..., heads, 0, 0].shape)
        own = _kept(_sigmoid(at[..., heads, :, :], steps[..., heads, :, :], log_scale), state)
        yield replace(maps, gate=own if maps.gate is None else maps.gate.times(own))


@split_maps.register
def _differential(mixer: Differential, state: Split, context: Context) -> Iterator[SplitMaps]:
    """``1 (q_1 - f q_2) + (rest_1 - f rest_2)``: rests sum to zero row by row, and so does their difference."""
    first = 0
    for one, other in zip(
        split_maps(mixer.first, state, context), split_maps(mixer.second, state, context), strict=True
    ):
        heads = slice(first, first + one.rest.shape[-3])
        first = heads.stop
        factor = mixer.factor[..., heads, None, None]
        log_scale, weights = aligned(torch.stack([one.log_scale, other.log_scale]), dim=0)
        ours, theirs = (weight[..., None, None] for weight in weights)
        yield SplitMaps(
            shared=one.shared - factor * other.shared,
            rest=ours * _filled(one) - factor * theirs * _filled(other),
            log_scale=log_scale,
            peak=one.peak,
            total=1 - factor,
        )


def _filled(maps: SplitMaps) -> Tensor:
    """The rest with the entry at its peak, which follows from the others."""
    place = maps.peak.expand(*maps.rest.shape[:-1], 1)
    others = maps.rest.scatter(-1, place, 0.0)
    return others.scatter(-1, place, -others.sum(dim=-1, keepdim=True))
