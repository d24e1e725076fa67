"""Softmax logits split into what all queries share and what is left, up to a constant per query.

With ``q`` the query of the first token, ``k`` the key that it reads most, ``a_i`` and ``b_j`` what other queries and
keys have beyond these, the scaled products are ``q.k + a_i.k + q.b_j + a_i.b_j``. A constant per query does not
change attention, so ``u_j = q.b_j`` is shared by all queries and ``v_ij = a_i.b_j`` is the rest. Near consensus a and b
vanish like the residual and the rest like its square. A position rule adds something that does not vanish.

Two choices keep digits. The shared query is that of a token, not the mean: rows of a map that all agree may disagree
with the row of the mean. And the key that is read most is subtracted before any product, not after: logits of keys
that equal it (several equal sinks) are then exactly zero, and a large common row costs nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.network import Context, Norm, Rotary, Softmax
from rankscope.network.heads import repeat_groups, split_heads
from rankscope.network.parts import affine
from rankscope.split.normed import norm_quotient, short_change
from rankscope.split.quotients import damp, expm1_ratio, tanh_difference_ratio
from rankscope.split.state import SHORT, Split, power

ENTRIES = 2**24
"""Heads go through in groups whose maps have at most this many entries: a dozen such tensors are held at a time."""


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
class _Sides:
    """Queries and keys: those of the shared row, and what the others have beyond them, divided by a scale.

    ``query``, ``key`` are ``*batch heads 1 width``; ``queries``, ``keys`` are ``*batch heads tokens width``.
    """

    query: Tensor
    queries: Tensor
    key: Tensor
    keys: Tensor
    log_scale: Tensor  # *batch

    def of(self, heads: slice) -> "_Sides":
        cut = (one[..., heads, :, :] for one in (self.query, self.queries, self.key, self.keys))
        return _Sides(
            **dict(zip(("query", "queries", "key", "keys"), cut, strict=True)), log_scale=self.log_scale
        )


def split_logits(
    mixer: Softmax, state: Split, context: Context, keys: Tensor | None, allowed: Tensor | None
) -> Iterator[SplitLogits]:
    """The logits of ``mixer``, group of heads by group of heads.

    ``keys`` (``*batch 1 1 tokens``) are those that every query may read, ``allowed`` what each may; None for all.
    """
    sides, bias = _sides(mixer, state, context, keys)
    for heads in head_groups(state, mixer.heads):
        own = bias if bias is None or bias.shape[-3] == 1 else bias[..., heads, :, :]
        logits = _logits(sides.of(heads), own, mixer.softcap, state, keys, allowed)
        state.disturb(logits.shared)
        if bias is not None:  # which the disturbance of queries and keys does not reach
            state.disturb(logits.rest)
        yield logits


def head_groups(state: Split, heads: int) -> Iterator[slice]:
    """Slices of the heads whose maps have a bounded number of entries."""
    each = state.residual.shape[:-2].numel() * state.residual.shape[-2] ** 2
    step = max(1, ENTRIES // max(each, 1))
    for first in range(0, heads, step):
        yield slice(first, min(first + step, heads))


def _sides(
    mixer: Softmax, state: Split, context: Context, keys: Tensor | None
) -> tuple[_Sides, Tensor | None]:
    """Queries and keys of all heads, and what the position rule adds to their products."""
    query, queries = _projected(
        mixer.query, mixer.query_bias, mixer.heads, mixer.query_norm, mixer.normed, state
    )
    key, offered = _projected(mixer.key, mixer.key_bias, mixer.key_heads, mixer.key_norm, mixer.normed, state)
    key, offered = (repeat_groups(one, mixer.heads) * mixer.scale for one in (key, offered))
    log_scale, scale = state.log_scale, state.scale.unsqueeze(-3)
    first = first_row(queries, state)
    query, queries = query + scale * first, queries - first
    bias = None
    if isinstance(mixer.position, Rotary):
        log_scale = torch.zeros_like(log_scale)
        turns = _turns(mixer.position, state, context)
        query, queries = _turned(mixer.position, turns, query, queries, scale)
        key, offered = _turned(mixer.position, turns, key, offered, scale)
        scale = torch.ones_like(scale)
    else:
        bias = mixer.position.bias(query + scale * queries, context, mixer.scale)
    # The key that the shared query reads most, among those that all may read.
    products = query @ offered.mT
    peak = (products if keys is None else products.masked_fill(~keys, -torch.inf)).argmax(dim=-1)
    most = row_at(offered, peak)
    key, offered = key + scale * most, offered - most
    # A norm of queries and keys removes the disturbance of the tokens, and large logits enlarge what rounding leaves.
    for numbers in (query, queries, key, offered):
        state.disturb(numbers)
    return _Sides(query=query, queries=queries, key=key, keys=offered, log_scale=log_scale), bias


def row_at(x: Tensor, place: Tensor) -> Tensor:
    """The row of ``x`` (``*batch heads tokens width``) that ``place`` (``*batch heads 1``) names."""
    index = place[..., None]
    batch = torch.broadcast_shapes(index.shape[:-2], x.shape[:-2])
    return x.expand(*batch, *x.shape[-2:]).gather(-2, index.expand(*batch, 1, x.shape[-1]))


def first_row(x: Tensor, state: Split) -> Tensor:
    """The row of the first token in ``*batch heads tokens width``, or of the one for all where there is one."""
    if state.is_token is None:
        return x[..., :1, :]
    return row_at(x, state.is_token.long().argmax(dim=-1)[..., None, None])


def _projected(
    weight: Tensor, bias: Tensor | None, heads: int, norm: Norm | None, normed: str, state: Split
) -> tuple[Tensor, Tensor]:
    """Queries or keys at the common row, ``*batch heads 1 width``, and their change per token divided by the scale."""
    row, change = row_through(state, state.common.unsqueeze(-2), weight, bias), state.residual @ weight
    direct = None if norm is None or state.direct is None else affine(state.direct, weight, bias)
    if norm is not None and normed == "all":
        row, change = normed_change(norm, state, row, change, state.scale, direct)
    row, change = split_heads(row, heads), split_heads(change, heads)
    if norm is not None and normed == "head":
        direct = None if direct is None else split_heads(direct, heads)
        return normed_change(norm, state, row, change, state.scale.unsqueeze(-3), direct, heads=True)
    return row, change


def row_through(state: Split, row: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """``row @ matrix + bias``, disturbed before the bias is added: where the two cancel, few digits are left."""
    product = affine(row, matrix, None)
    if bias is None:
        return product
    state.disturb(product)
    return product + bias.unsqueeze(-2)


def normed_change(
    norm: Norm,
    state: Split,
    row: Tensor,
    change: Tensor,
    scale: Tensor,
    direct: Tensor | None,
    *,
    heads: bool = False,
) -> tuple[Tensor, Tensor]:
    """As ``norm_quotient``, with the bias; tokens that are short beside the row are normed directly, from ``direct``.

    As a sum of row and change they would be a difference of large numbers, and a norm makes its error a direction.
    """
    after, quotient = norm_quotient(norm, row, change, scale, heads=heads)
    if norm.bias is not None:
        state.disturb(after)
        after = after + (norm.bias[..., None, None, :] if heads else norm.bias.unsqueeze(-2))
    if direct is None:
        return after, quotient
    short = direct.abs().amax(dim=-1, keepdim=True) * SHORT < row.abs().amax(dim=-1, keepdim=True)
    apart = short_change(norm, row, direct, heads=heads) / torch.where(scale > 0, scale, 1.0)
    return after, torch.where(short & (scale > 0), apart, quotient)


def _turns(position: Rotary, state: Split, context: Context) -> tuple[Tensor, Tensor]:
    """``cos - 1`` and ``sin`` of every token's angle relative to the first token, ``*batch 1 tokens pairs``.

    Turning all tokens by one more angle changes no product. Relative to the first token slow angles are small numbers
    that keep their digits, where cosines would all be rounded to one.
    """
    tokens, device = state.residual.shape[-2], state.residual.device

    def make() -> tuple[Tensor, Tensor]:
        place = context.token_positions(tokens, device).double()
        if state.is_token is None:
            place = place - place[..., :1]
        else:
            place = place.expand(torch.broadcast_shapes(place.shape, state.is_token.shape))
            first = state.is_token.long().argmax(dim=-1, keepdim=True).expand(*place.shape[:-1], 1)
            place = place - place.gather(-1, first)
        # Angles to twice the digits of a float: ``angle + rest = place * frequency`` exactly (Dekker), since a far
        # token turns by thousands of radians, of which only the remainder counts.
        place, frequency = place.unsqueeze(-1), position.frequencies.to(device)
        large = 134217729.0 * frequency
        high = large - (large - frequency)
        angle = place * frequency
        rest = (place * high - angle) + place * (frequency - high)
        sin = angle.sin() + rest * angle.cos()
        half = (angle / 2).sin() + rest / 2 * (angle / 2).cos()
        less = -2 * half.square()
        return (less, sin) if less.ndim == 2 else (less.unsqueeze(-3), sin.unsqueeze(-3))

    return context.shared(("relative turns", tuple(position.frequencies.tolist()), tokens, device), make)


def _turned(
    position: Rotary, turns: tuple[Tensor, Tensor], row: Tensor, change: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Row and change of turned vectors, the change no longer divided by the scale.

    With ``D_i`` the turn of token i less one: ``turn(x_i) - x = D_i x_i + (x_i - x)``, two small terms.
    """
    width = 2 * len(position.frequencies)
    if position.gain != 1.0:
        row, change = (
            torch.cat([one[..., :width] * position.gain, one[..., width:]], dim=-1) for one in (row, change)
        )
    change = scale * change
    moved = position.turn((row + change)[..., :width], *turns)
    return row, change + moved if width == change.shape[-1] else torch.cat(
        [change[..., :width] + moved, change[..., width:].expand(*moved.shape[:-1], -1)], dim=-1
    )


def _logits(
    sides: _Sides,
    bias: Tensor | None,
    cap: float | None,
    state: Split,
    keys: Tensor | None,
    allowed: Tensor | None,
) -> SplitLogits:
    scale = power(sides.log_scale)[..., None, None, None]
    by_key, both = sides.query @ sides.keys.mT, sides.queries @ sides.keys.mT
    log_scale = (2 * sides.log_scale).unsqueeze(-1).expand(both.shape[:-2])
    logits = SplitLogits(shared=scale * by_key, rest=both, log_scale=log_scale)
    if cap is None:
        return logits if bias is None else _combined(logits, _differences(bias, state, keys, allowed)[0])
    level, by_query = sides.query @ sides.key.mT, sides.queries @ sides.key.mT
    if bias is None:
        return _capped(level, by_query, by_key, both, scale, log_scale, cap, allowed)
    biased, base = _differences(bias, state, keys, allowed)
    logits = _combined(logits, biased)
    of_first = first_row(base, state)
    both = power(logits.log_scale)[..., None, None] * logits.rest
    return _capped(
        level + of_first,
        scale * by_query + (base - of_first),
        logits.shared,
        both,
        torch.ones_like(scale),
        torch.zeros_like(logits.log_scale),
        cap,
        allowed,
    )


def _capped(
    level: Tensor,
    by_query: Tensor,
    by_key: Tensor,
    both: Tensor,
    scale: Tensor,
    log_scale: Tensor,
    cap: float,
    allowed: Tensor | None,
) -> SplitLogits:
    """Shared part and rest of ``cap * tanh(logits / cap)``, each to all its digits however saturated.

    The logits are ``level + s by_query_i + s by_key_j + s^2 both_ij``. Divided by the cap let the four be x, a, b, c.
    Shared is ``tanh(x + b) - tanh(x)``, a constant per query is ``tanh(x + a)``, and what is left is the mixed
    difference ``tanh(x+a+b) - tanh(x+a) - tanh(x+b) + tanh(x)``, which is
    ``- sinh a sinh b sinh(2x + a + b) / (cosh x cosh(x+a) cosh(x+b) cosh(x+a+b))``, plus what c adds,
    ``tanh(x+a+b+c) - tanh(x+a+b) = sinh c / (cosh(x+a+b) cosh(x+a+b+c))``. The exponents of all factors are added
    before anything is raised to them, and the largest sum goes to the scale: a saturated tanh leaves e^-1000 as it
    leaves 0.1.
    """
    x, a_hat, b_hat, c_hat = level / cap, by_query / cap, by_key / cap, both / cap
    a, b, c = scale * a_hat, scale * b_hat, scale.square() * c_hat
    shared = cap * b * tanh_difference_ratio(x, b)
    y, corner = 2 * x + a + b, x + a + b
    by_both = a.abs() + b.abs() + y.abs() - x.abs() - (x + a).abs() - (x + b).abs() - corner.abs()
    by_product = c.abs() - corner.abs() - (corner + c).abs()
    far = c.abs() > 1.0  # there x + a + b is no logit that occurs, and the two terms may cancel
    signs, corners = torch.zeros_like(c), list[tuple[float, Tensor]]()
    if any_far := bool(far.any()):
        corners = [(1.0, corner + c), (-1.0, x + a), (-1.0, x + b), (1.0, x)]
        for sign, at in corners:
            signs = signs + sign * at.sign()
        reach = torch.stack([(-2 * at.abs()).expand_as(c) for _, at in corners]).amax(dim=0)
        reach = torch.where(signs != 0, 0.0, reach)
        by_both, by_product = torch.where(far, reach, by_both), torch.where(far, reach, by_product)
    if allowed is not None:
        by_both, by_product = (one.masked_fill(~allowed, -torch.inf) for one in (by_both, by_product))
    top = torch.maximum(by_both, by_product).amax(dim=(-2, -1), keepdim=True)
    mixed = -8 * a_hat * b_hat * expm1_ratio(-2 * a.abs()) * expm1_ratio(-2 * b.abs())
    mixed = mixed * y.sign() * -torch.expm1(-2 * y.abs()) * (by_both - top).exp()
    mixed = mixed / (damp(x) * damp(x + a) * damp(x + b) * damp(corner))
    product = 4 * c_hat * expm1_ratio(-2 * c.abs()) * (by_product - top).exp()
    rest = mixed + product / (damp(corner) * damp(corner + c))
    if any_far:  # tanh x = sign(x) (1 - 2 e^-2|x| / (1 + e^-2|x|)): ones are counted, tails subtracted
        plain = torch.where(signs != 0, signs * (-top).clamp(max=700.0).exp(), 0.0)
        for sign, at in corners:
            plain = plain - sign * at.sign() * 2 * (-2 * at.abs() - top).clamp(max=700.0).exp() / damp(at)
        plain = plain / torch.where(scale > 0, scale, 1.0).square()
        plain = plain if allowed is None else plain.masked_fill(~allowed, 0.0)
        rest = torch.where(far, plain, rest)
    return SplitLogits(shared=shared, rest=cap * rest, log_scale=log_scale + top[..., 0, 0])


def _differences(
    logits: Tensor, state: Split, keys: Tensor | None, allowed: Tensor | None
) -> tuple[SplitLogits, Tensor]:
    """Logits of order one relative to the first token's row and to a key that all may read, and their value there.

    What does not vary cancels exactly.
    """
    if keys is None:
        base = logits[..., :1]
    else:  # a bias may be the same for all texts
        logits = logits.expand(torch.broadcast_shapes(logits.shape, keys.shape))
        base = logits.gather(-1, keys.long().argmax(dim=-1, keepdim=True).expand(*logits.shape[:-1], 1))
    rows = logits - base
    shared = first_row(rows, state)
    rest = rows - shared
    rest = rest if allowed is None else rest.masked_fill(~allowed, 0.0)
    if state.is_token is not None:
        rest = rest * state.is_token[..., None, :, None]
    largest = rest.abs().amax(dim=(-2, -1))
    rest = rest / torch.where(largest > 0, largest, 1.0)[..., None, None]
    shape = torch.broadcast_shapes(rest.shape[:-2], (*state.log_scale.shape, rest.shape[-3]))
    return SplitLogits(shared=shared, rest=rest, log_scale=largest.log().expand(shape)), base


def _combined(a: SplitLogits, b: SplitLogits) -> SplitLogits:
    """The sum of two, brought to the larger scale."""
    log_scale = torch.maximum(a.log_scale, b.log_scale)
    reference = torch.where(log_scale > -torch.inf, log_scale, 0.0)
    weight_a, weight_b = (a.log_scale - reference).exp(), (b.log_scale - reference).exp()
    rest = weight_a[..., None, None] * a.rest + weight_b[..., None, None] * b.rest
    return SplitLogits(shared=a.shared + b.shared, rest=rest, log_scale=log_scale)
