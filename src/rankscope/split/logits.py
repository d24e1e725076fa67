"""Softmax logits split into what all queries share and what is left, up to a constant per query.

Queries and keys are ``q + e q_i`` and ``k + e k_j`` with ``e`` the scale of the residual. Up to a constant per query
the scaled products are ``e q.k_j + e^2 q_i.k_j``: the first is shared, the second is the rest, and it vanishes at
consensus like the square of the residual. A position rule adds something that does not vanish.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.network import Context, NoPosition, Norm, Position, Softmax
from rankscope.network.heads import repeat_groups, split_heads
from rankscope.split.quotients import norm_quotient, tanh_ratio
from rankscope.split.state import Split


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitLogits:
    """``shared_j + exp(log_scale) rest_ij`` up to a constant per query.

    Args:
        shared: ``*batch heads 1 tokens``.
        rest: ``*batch heads tokens tokens``.
        log_scale: ``*batch heads``; minus infinity where the rest is zero.
    """

    shared: Tensor
    rest: Tensor
    log_scale: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class _Products:
    """Logits of queries ``q + e q_i`` and keys ``k + e k_j``, term by term and without their powers of ``e``."""

    level: Tensor  # *batch heads 1 1: q.k
    by_query: Tensor  # *batch heads tokens 1: q_i.k, times e
    by_key: Tensor  # *batch heads 1 tokens: q.k_j, times e
    both: Tensor  # *batch heads tokens tokens: q_i.k_j, times e^2


def split_logits(mixer: Softmax, state: Split, context: Context, keys: Tensor) -> SplitLogits:
    """The logits of ``mixer``; ``keys`` are those every query may read."""
    bias = None
    if turns(mixer.position):
        return _differences(mixer.logits(state.tokens(), context), state, keys)
    if not isinstance(mixer.position, NoPosition):
        query, _ = mixer.queries_and_keys(state.tokens(), context)
        bias = mixer.position.bias(query, context, mixer.scale)
    if bias is not None:
        added = _differences(bias, state, keys)
        if bool((added.log_scale > -torch.inf).any()) and mixer.softcap is not None:
            return _differences(mixer.logits(state.tokens(), context), state, keys)
    products, scale = _products(mixer, state), state.scale.unsqueeze(-3)
    log_scale = (2 * state.log_scale).unsqueeze(-1).expand(products.both.shape[:-2])
    if mixer.softcap is None:
        content = SplitLogits(shared=scale * products.by_key, rest=products.both, log_scale=log_scale)
        return content if bias is None else _combined(content, added)
    shared, rest = _capped(products, scale, mixer.softcap)
    content = SplitLogits(shared=shared, rest=rest, log_scale=log_scale)
    far = _far_apart(products, scale) > mixer.softcap
    if not bool(far.any()):
        return content
    apart = _differences(mixer.logits(state.tokens(), context), state, keys)
    return SplitLogits(
        shared=torch.where(far[..., None, None], apart.shared, content.shared),
        rest=torch.where(far[..., None, None], apart.rest, content.rest),
        log_scale=torch.where(far, apart.log_scale, content.log_scale),
    )


def _far_apart(products: _Products, scale: Tensor) -> Tensor:
    """How far the logits of a head lie from their common level: beyond the cap tangents saturate."""
    parts = (scale * products.by_query, scale * products.by_key, scale.square() * products.both)
    return torch.stack([part.abs().amax(dim=(-2, -1)) for part in parts]).amax(dim=0)


def turns(position: Position) -> bool:
    """Whether the rule acts on queries and keys, so that products at consensus depend on the positions."""
    return type(position).rotate is not Position.rotate


def _products(mixer: Softmax, state: Split) -> _Products:
    query, query_change = _projected(
        mixer.query, mixer.query_bias, mixer.heads, mixer.query_norm, mixer, state
    )
    key, key_change = _projected(mixer.key, mixer.key_bias, mixer.key_heads, mixer.key_norm, mixer, state)
    query, query_change = query * mixer.scale, query_change * mixer.scale
    key, key_change = repeat_groups(key, mixer.heads), repeat_groups(key_change, mixer.heads)
    return _Products(
        level=query @ key.mT,
        by_query=query_change @ key.mT,
        by_key=query @ key_change.mT,
        both=query_change @ key_change.mT,
    )


def _projected(
    weight: Tensor, bias: Tensor | None, heads: int, norm: Norm | None, mixer: Softmax, state: Split
) -> tuple[Tensor, Tensor]:
    """Queries or keys at the common row, ``*batch heads 1 width``, and their change per token divided by the scale."""
    row, change = state.common.unsqueeze(-2) @ weight, state.residual @ weight
    row = row if bias is None else row + bias.unsqueeze(-2)
    if norm is not None and mixer.normed == "all":
        row, change = norm_quotient(norm, row, change, state.scale)
    row, change = split_heads(row, heads), split_heads(change, heads)
    if norm is not None and mixer.normed == "head":
        return norm_quotient(norm, row, change, state.scale.unsqueeze(-3), heads=True)
    return row, change


def _capped(products: _Products, scale: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Shared part and rest (divided by ``scale^2``) of ``cap * tanh(logits / cap)``.

    With ``t``, ``T0``, ``T1`` the hyperbolic tangents of the key's part, of the level, and of the level with the
    query's part, the mixed difference of tanh is ``-t D [(T0 + T1) + t (1 + T0 T1)] / ((1 + T1 t) (1 + T0 t))``,
    ``D = T1 - T0``; the product term adds ``te (1 - S^2) / (1 + S te)``, ``S`` the tangent of all other parts.
    """
    level, by_query, by_key = products.level / cap, products.by_query / cap, products.by_key / cap
    both = products.both / cap
    t_hat = by_key * tanh_ratio(scale * by_key)
    tw_hat = by_query * tanh_ratio(scale * by_query)
    te_hat = both * tanh_ratio(scale.square() * both)
    t, tw, te = scale * t_hat, scale * tw_hat, scale.square() * te_hat
    t0, t1 = torch.tanh(level), torch.tanh(level + scale * by_query)
    d_hat = tw_hat * _sech2(level) / (1 + t0 * tw)
    mixed = -t_hat * d_hat * ((t0 + t1) + t * (1 + t0 * t1)) / ((1 + t1 * t) * (1 + t0 * t))
    rest_of = level + scale * by_query + scale * by_key
    product = te_hat * _sech2(rest_of) / (1 + torch.tanh(rest_of) * te)
    return cap * t * _sech2(level) / (1 + t0 * t), cap * (mixed + product)


def _sech2(x: Tensor) -> Tensor:
    return torch.cosh(x.clamp(-350.0, 350.0)) ** -2


def _differences(logits: Tensor, state: Split, keys: Tensor) -> SplitLogits:
    """Logits of order one, relative to the first token's row and the first key: exact for what does not vary."""
    logits = logits.expand(
        torch.broadcast_shapes(logits.shape, keys.shape)
    )  # a bias may be the same for all texts
    first_row = _first_row(logits, state)
    first_key = keys.long().argmax(dim=-1, keepdim=True).expand(*logits.shape[:-1], 1)
    rows = logits - logits.gather(-1, first_key)
    shared = first_row - first_row.gather(-1, first_key[..., :1, :])
    rest = (rows - shared).masked_fill(~keys, 0.0)
    if state.is_token is not None:
        rest = rest * state.is_token[..., None, :, None]
    largest = rest.abs().amax(dim=(-2, -1))
    safe = torch.where(largest > 0, largest, 1.0)
    shape = torch.broadcast_shapes(rest.shape[:-2], (*state.log_scale.shape, rest.shape[-3]))
    return SplitLogits(
        shared=shared.masked_fill(~keys, 0.0),
        rest=rest / safe[..., None, None],
        log_scale=largest.log().expand(shape),
    )


def _first_row(logits: Tensor, state: Split) -> Tensor:
    if state.is_token is None:
        return logits[..., :1, :]
    place = state.is_token.long().argmax(dim=-1)[..., None, None, None]
    logits = logits.expand(torch.broadcast_shapes(logits.shape, (*place.shape[:-3], 1, 1, 1)))
    return logits.gather(-2, place.expand(*logits.shape[:-2], 1, logits.shape[-1]))


def _combined(a: SplitLogits, b: SplitLogits) -> SplitLogits:
    """The sum of two, brought to the larger scale."""
    log_scale = torch.maximum(a.log_scale, b.log_scale)
    reference = torch.where(log_scale > -torch.inf, log_scale, 0.0)
    weight_a, weight_b = (a.log_scale - reference).exp(), (b.log_scale - reference).exp()
    rest = weight_a[..., None, None] * a.rest + weight_b[..., None, None] * b.rest
    return SplitLogits(shared=a.shared + b.shared, rest=rest, log_scale=log_scale)
