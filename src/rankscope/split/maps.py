"""Attention maps split into a row that all queries share and what is left, the latter with its scale as a logarithm.

Where all queries may read the same keys, the logits are, up to a constant per query, ``u_j + v_ij`` with ``u``
shared by all queries. With ``q = softmax(u)`` and ``c_i = log sum_j q_j exp(v_ij)`` the map is
``P_ij = q_j + q_j expm1(v_ij - c_i)``. In position-free attention ``v`` is of second order in the residual, and so
is the rest of the map: that is the whole reason why the residual is cubed.
Where queries may read different keys, their rows differ at order zero and nothing is shared.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.network import Context, Fixed, Mixer, Softmax, Uniform
from rankscope.network.known import interpreter
from rankscope.network.masking import allowed_keys
from rankscope.split.logits import SplitLogits, split_logits
from rankscope.split.quotients import expm1_ratio, log1p_ratio
from rankscope.split.state import Split


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitMaps:
    """``P = 1 shared + exp(log_scale) rest`` for every head.

    Args:
        shared: ``*batch heads 1 tokens``.
        rest: ``*batch heads tokens tokens``, of order one.
        log_scale: ``*batch heads``.
    """

    shared: Tensor
    rest: Tensor
    log_scale: Tensor


SPLIT = interpreter("split")


@SPLIT.rules
def split_maps(mixer: Mixer, state: Split, context: Context) -> SplitMaps:  # type: ignore[empty-body]
    """The maps of ``mixer`` on a split token matrix."""


@split_maps.register
def _fixed(mixer: Fixed, state: Split, context: Context) -> SplitMaps:
    maps = mixer(state.tokens(), context).to(state.residual.dtype)
    shared = maps[..., :1, :]
    return _with_scale(shared, maps - shared)


@split_maps.register
def _uniform(mixer: Uniform, state: Split, context: Context) -> SplitMaps:
    maps = mixer(state.tokens(), context).to(state.residual.dtype)
    keys, same = shared_keys(mixer, state, context)
    uniform = keys.to(maps.dtype) / keys.sum(dim=-1, keepdim=True)
    shared = torch.where(same, uniform, 0.0)
    return _with_scale(shared.expand(*maps.shape[:-2], 1, maps.shape[-1]), torch.where(same, 0.0, maps))


@split_maps.register
def _softmax(mixer: Softmax, state: Split, context: Context) -> SplitMaps:
    keys, same = shared_keys(mixer, state, context)
    if not bool(same.any()):
        return _apart(mixer, state, context)
    together = _together(split_logits(mixer, state, context, keys), keys)
    if bool(same.all()):
        return together
    apart = _apart(mixer, state, context)
    return SplitMaps(
        shared=torch.where(same, together.shared, apart.shared),
        rest=torch.where(same, together.rest, apart.rest),
        log_scale=torch.where(same[..., 0, 0], together.log_scale, apart.log_scale),
    )


def shared_keys(mixer: Mixer, state: Split, context: Context) -> tuple[Tensor, Tensor]:
    """Keys that the first query may read (``*batch 1 1 tokens``), and whether every query may read just those."""
    tokens, device = state.residual.shape[-2], state.residual.device
    allowed = allowed_keys(mixer.rule, tokens, context, device)
    if allowed is None:
        return torch.ones(1, 1, tokens, dtype=torch.bool, device=device), torch.ones(
            1, 1, 1, dtype=torch.bool, device=device
        )
    if state.is_token is None:
        first = allowed[..., :1, :]
        return first.unsqueeze(0), (allowed == first).all(dim=(-2, -1), keepdim=True).unsqueeze(0)
    is_token = state.is_token[..., None, :, None]
    place = state.is_token.long().argmax(dim=-1)[..., None, None, None]
    allowed = allowed.expand(*state.is_token.shape[:-1], 1, tokens, tokens)
    first = allowed.gather(-2, place.expand(*place.shape[:-1], tokens))
    return first, ((allowed == first) | ~is_token).all(dim=-2, keepdim=True).all(dim=-1, keepdim=True)


def _apart(mixer: Mixer, state: Split, context: Context) -> SplitMaps:
    """Maps of queries that may read different keys: nothing is shared, unless all attend to one and the same key.

    Rows near that key's unit vector e differ only in what they give to the others; ``P - 1 e`` holds just that.
    """
    maps = mixer(state.tokens(), context)
    least = maps if state.is_token is None else maps.masked_fill(~state.is_token[..., None, :, None], 1.0)
    least = least.amin(dim=-2, keepdim=True)
    weight, peak = least.max(dim=-1, keepdim=True)
    shared = torch.zeros_like(least).scatter(-1, peak, (weight > 0.5).to(maps.dtype))
    rest = torch.where(weight > 0.5, balanced(maps - shared, peak), maps)
    return SplitMaps(shared=shared, rest=rest, log_scale=torch.zeros_like(maps[..., 0, 0]))


def balanced(difference: Tensor, peak: Tensor) -> Tensor:
    """Rows that sum to zero, with the entry at ``peak`` following from the others.

    Where all queries attend to one key, that entry is a difference of two numbers near one; the others are small
    numbers that are known to all their digits.
    """
    peak = peak.expand(*difference.shape[:-1], 1)
    others = difference.scatter(-1, peak, 0.0)
    return others.scatter(-1, peak, -others.sum(dim=-1, keepdim=True))


LARGE = 100.0
"""A rest beyond this is not split: it would cancel against shared logits as large, and cost digits."""


def _together(logits: SplitLogits, keys: Tensor) -> SplitMaps:
    """The formula of this file's head, each term divided by ``exp(logits.log_scale)``."""
    shared = logits.shared.masked_fill(~keys, -torch.inf)
    log_q = torch.log_softmax(shared, dim=-1)
    q, size = log_q.exp(), logits.log_scale.exp()[..., None, None]
    v_hat = logits.rest.masked_fill(~keys, 0.0)
    v = size * v_hat
    large = v.abs().amax(dim=(-2, -1), keepdim=True) > LARGE
    rest = _rest(q, log_q, v_hat, v, size, keys)
    if bool(large.any()):
        direct = torch.softmax(shared + v, dim=-1) - q
        rest = torch.where(large, direct / _positive(size), rest)
    rest = balanced(rest, q.argmax(dim=-1, keepdim=True))
    return SplitMaps(shared=q, rest=rest, log_scale=logits.log_scale)


def _rest(q: Tensor, log_q: Tensor, v_hat: Tensor, v: Tensor, size: Tensor, keys: Tensor) -> Tensor:
    m_hat = _tilted(q, log_q, v_hat, v, size).sum(dim=-1, keepdim=True)
    m = size * m_hat
    c_hat = m_hat * log1p_ratio(m.clamp(min=-0.5, max=1.0))
    far = (m <= -0.5) | (m >= 1.0)
    if bool(far.any()):
        c_hat = torch.where(far, torch.logsumexp(log_q + v, dim=-1, keepdim=True) / _positive(size), c_hat)
    w_hat = (v_hat - c_hat).masked_fill(~keys, 0.0)
    return _tilted(q, log_q, w_hat, size * w_hat, size)


def _tilted(q: Tensor, log_q: Tensor, v_hat: Tensor, v: Tensor, size: Tensor) -> Tensor:
    """``q expm1(v) / size``; where v exceeds one the two terms are far apart, and apart they cannot overflow."""
    near = q * v_hat * expm1_ratio(v.clamp(max=1.0))
    if not bool((v > 1.0).any()):
        return near
    return torch.where(v > 1.0, ((log_q + v).exp() - q) / _positive(size), near)


def _positive(size: Tensor) -> Tensor:
    return torch.where(size > 0, size, 1.0)


def _with_scale(shared: Tensor, rest: Tensor) -> SplitMaps:
    """``rest`` divided by its largest entry; minus infinity where nothing is left."""
    largest = rest.abs().amax(dim=(-2, -1))
    return SplitMaps(shared=shared, rest=rest / _positive(largest)[..., None, None], log_scale=largest.log())
