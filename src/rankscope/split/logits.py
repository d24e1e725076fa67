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
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.core.numerics import broadcast
from rankscope.network import Alibi, Context, Gaussian, Norm, QueryKey, Rotary
from rankscope.network.heads import repeat_groups, split_heads
from rankscope.network.parts import affine
from rankscope.network.positions.base import distances
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bias:
    """What a position rule adds to the logits: ``factor * table``.

    Of ALiBi the table holds distances, which are integers: their differences are exact, where those of 1e5 slopes
    would be rounded to 1e-11.
    """

    table: Tensor  # *batch heads tokens tokens, or one for all heads
    factor: Tensor | None  # *seeds heads 1 1

    @classmethod
    def of_rule(cls, mixer: QueryKey, query: Tensor, context: Context) -> "_Bias | None":
        if isinstance(mixer.position, Alibi):
            apart = -distances(query, context).abs().to(query.dtype)
            apart = apart if apart.ndim > 2 else apart.unsqueeze(0)
            return cls(table=apart, factor=mixer.position.slopes[..., None, None].to(query.dtype))
        table = mixer.position.bias(query, context, mixer.scale)
        return None if table is None else cls(table=table, factor=None)

    def of(self, heads: slice) -> "_Bias":
        table = self.table if self.table.shape[-3] == 1 else self.table[..., heads, :, :]
        return _Bias(table=table, factor=None if self.factor is None else self.factor[..., heads, :, :])

    def times(self, numbers: Tensor) -> Tensor:
        """Entries of the table, or their differences, times the factor."""
        return numbers if self.factor is None else self.factor * numbers


def split_logits(
    mixer: QueryKey, state: Split, context: Context, keys: Tensor | None, allowed: Tensor | None
) -> Iterator[SplitLogits]:
    """The logits of ``mixer``, group of heads by group of heads.

    ``keys`` (``*batch 1 1 tokens``) are those that every query may read, ``allowed`` what each may; None for all.
    """
    sides, bias = _sides(mixer, state, context, keys)
    for heads in head_groups(state, mixer.heads):
        own = None if bias is None else bias.of(heads)
        logits = _logits(sides.of(heads), own, mixer.softcap, state, keys, allowed)
        if isinstance(mixer, Gaussian):
            nearer = _nearness(sides.key[..., heads, :, :], sides.keys[..., heads, :, :], state, mixer.scale)
            logits = replace(logits, shared=logits.shared + state.scale.unsqueeze(-3) * nearer)
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
    mixer: QueryKey, state: Split, context: Context, keys: Tensor | None
) -> tuple[_Sides, _Bias | None]:
    """Queries and keys of all heads, and what the position rule adds to their products."""
    query, queries = projected(
        mixer.query, mixer.query_bias, mixer.heads, mixer.query_norm, mixer.normed, state
    )
    key, offered = projected(mixer.key, mixer.key_bias, mixer.key_heads, mixer.key_norm, mixer.normed, state)
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
        bias = _Bias.of_rule(mixer, query + scale * queries, context)
    # The key that the shared query reads most, among those that all may read.
    products = query @ offered.mT
    if isinstance(mixer, Gaussian):
        products = products + _nearness(key, offered, state, mixer.scale)
    peak = (products if keys is None else products.masked_fill(~keys, -torch.inf)).argmax(dim=-1)
    most = row_at(offered, peak)
    key, offered = key + scale * most, offered - most
    # A norm of queries and keys removes the disturbance of the tokens, and large logits enlarge what rounding leaves.
    for numbers in (query, queries, key, offered):
        state.disturb(numbers)
    return _Sides(query=query, queries=queries, key=key, keys=offered, log_scale=log_scale), bias


def _nearness(key: Tensor, offered: Tensor, state: Split, scale: float) -> Tensor:
    """What the lengths of keys add to the logits of a Gaussian, over the scale s of the state: ``*batch heads 1 j``.

    With ``k + s b_j`` the keys, ``- c/2 (|k + s b_j|^2 - |k|^2) = - c s (k . b_j + s |b_j|^2 / 2)``, the same for all
    queries. Key and ``offered`` come multiplied by c, the factor on the products.
    """
    own = (key * offered).sum(dim=-1) + state.scale.unsqueeze(-3).squeeze(-1) / 2 * offered.square().sum(
        dim=-1
    )
    return -own.unsqueeze(-2) / scale


@dataclass(frozen=True, kw_only=True, slots=True)
class Levels:
    """The logit that each query gives the key that is read most: ``level + exp(log_scale) change``.

    ``level`` is that of the first query, ``*batch heads 1 1``; ``change`` is ``*batch heads tokens 1``.
    """

    level: Tensor
    change: Tensor
    log_scale: Tensor


def split_levels(mixer: QueryKey, state: Split, context: Context, keys: Tensor | None) -> Levels:
    """What ``split_logits`` leaves out, a number per query, of a mixer without positions and soft-cap."""
    sides, _ = _sides(mixer, state, context, keys)
    level, change = sides.query @ sides.key.mT, sides.queries @ sides.key.mT
    for numbers in (level, change):
        state.disturb(numbers)
    return Levels(level=level, change=change, log_scale=sides.log_scale)


def row_at(x: Tensor, place: Tensor) -> Tensor:
    """The row of ``x`` (``*batch heads tokens width``) that ``place`` (``*batch heads 1``) names."""
    index = place[..., None]
    batch = broadcast(index.shape[:-2], x.shape[:-2])
    return x.expand(*batch, *x.shape[-2:]).gather(-2, index.expand(*batch, 1, x.shape[-1]))


def first_row(x: Tensor, state: Split) -> Tensor:
    """The row of the first token in ``*batch heads tokens width``, or of the one for all where there is one."""
    if state.is_token is None:
        return x[..., :1, :]
    return row_at(x, state.is_token.long().argmax(dim=-1)[..., None, None])


def projected(
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
            place = place.expand(broadcast(place.shape, state.is_token.shape))
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
    bias: _Bias | None,
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
    of_query, of_key = level + scale * by_query, level + scale * by_key
    content = of_query + scale * by_key + scale.square() * both
    if bias is None:
        corners = _Corners(level=level, by_query=of_query, by_key=of_key, whole=content)
        return _capped(corners, by_query, by_key, both, scale, log_scale, cap, allowed)
    biased, base, beyond = _differences(bias, state, keys, allowed)
    logits, added = _combined(logits, biased), bias.times(bias.table)
    corners = _Corners(
        level=level + first_row(base, state),
        by_query=of_query + base,
        by_key=of_key + first_row(added, state),
        whole=content + added,
    )
    return _capped(
        corners,
        scale * by_query + beyond,
        logits.shared,
        power(logits.log_scale)[..., None, None] * logits.rest,
        torch.ones_like(scale),
        torch.zeros_like(logits.log_scale),
        cap,
        allowed,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Corners:
    """Logits over the cap: those of the shared row and key, of one of the two, and of every query and key.

    As sums of a level and of differences from it they would be known to a unit of the largest only. ALiBi of 1e5
    makes differences of 1e5 between tokens that stand side by side, whose logits are of order one.
    """

    level: Tensor  # *batch heads 1 1
    by_query: Tensor  # *batch heads tokens 1
    by_key: Tensor  # *batch heads 1 tokens
    whole: Tensor  # *batch heads tokens tokens


def _capped(
    corners: _Corners,
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
    ``- sinh a sinh b sinh y / (cosh x cosh(x+a) cosh(x+b) cosh(x+a+b))`` with ``y = 2x + a + b``, plus what c adds,
    ``tanh(x+a+b+c) - tanh(x+a+b) = sinh c / (cosh(x+a+b) cosh(x+a+b+c))``. The exponents of all factors are added
    before anything is raised to them, and the largest sum goes to the scale: a saturated tanh leaves e^-1000 as it
    leaves 0.1.

    The sum of the exponents of the mixed difference is ``A + |b| + |y| - |p| - |q| - |r| - |t|`` with ``A = |a|`` and
    p, q, r, t the arguments of the four cosines in their order. Since ``|v| + |w| = max(|v + w|, |v - w|)``, let
    ``U = |p + q|`` and ``V = |r + t|``: then ``|p| + |q| = max(U, A)``, ``|r| + |t| = max(V, A)``, and
    ``|b| + |y| = max(U, V)``, because ``y + b = r + t`` and ``y - b = p + q``. The sum is
    ``A + max(U, V) - max(U, A) - max(V, A)``: zero if A lies between U and V, and otherwise minus its distance from
    the nearer of the two. ``A - U`` is plus or minus ``2 min(|p|, |q|)``, positive if the signs of p and q differ. So
    the sum is zero if an odd number of the four is negative, and otherwise minus twice the smallest of their sizes. No
    large numbers are subtracted. For y the smaller of the two pairs ``p + t = q + r`` is added.
    """
    x, x_a, x_b, whole = (
        one / cap for one in (corners.level, corners.by_query, corners.by_key, corners.whole)
    )
    a_hat, b_hat, c_hat = by_query / cap, by_key / cap, both / cap
    a, b, c = scale * a_hat, scale * b_hat, scale.square() * c_hat
    shared = cap * b * tanh_difference_ratio(x, b, x_b)
    corner = whole - c
    odd = x.sign() * x_a.sign() * x_b.sign() * corner.sign() < 0
    outer = torch.minimum(x.abs(), corner.abs())
    inner = torch.minimum(x_a.abs(), x_b.abs())
    by_both = torch.where(odd, 0.0, -2 * torch.minimum(outer, inner))
    y = torch.where(x.abs() + corner.abs() < x_a.abs() + x_b.abs(), x + corner, x_a + x_b)
    by_product = torch.where(
        corner.sign() == whole.sign(), -2 * torch.minimum(corner.abs(), whole.abs()), 0.0
    )
    far = c.abs() > 1.0  # there x + a + b is no logit that occurs, and the two terms may cancel
    any_far = bool(far.any())
    if any_far:
        steps = _Steps.between(x, x_a, x_b, whole, a, b, c)
        by_both, by_product = (torch.where(far, steps.exponent(), one) for one in (by_both, by_product))
    if allowed is not None:
        by_both, by_product = (one.masked_fill(~allowed, -torch.inf) for one in (by_both, by_product))
    top = torch.maximum(by_both, by_product).amax(dim=(-2, -1), keepdim=True)
    mixed = -8 * a_hat * b_hat * expm1_ratio(-2 * a.abs()) * expm1_ratio(-2 * b.abs())
    mixed = mixed * y.sign() * -torch.expm1(-2 * y.abs()) * (by_both - top).exp()
    mixed = mixed / (damp(x) * damp(x_a) * damp(x_b) * damp(corner))
    product = 4 * c_hat * expm1_ratio(-2 * c.abs()) * (by_product - top).exp()
    rest = mixed + product / (damp(corner) * damp(whole))
    if any_far:
        plain = steps.difference(top) / torch.where(scale > 0, scale, 1.0).square()
        plain = plain if allowed is None else plain.masked_fill(~allowed, 0.0)
        rest = torch.where(far, plain, rest)
    return SplitLogits(shared=shared, rest=cap * rest, log_scale=log_scale + top[..., 0, 0])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Steps:
    """Two steps of tanh, from ``start`` by ``step`` to ``end``, and the one less the other, for steps far apart.

    Of the four logits x, x + a, x + b, x + a + b + c two differ by a and two by a + c; or two by b and two by b + c.
    The smaller of a and b is taken for the step: as a difference of two tails it would have no digits.

    With ``tanh v = sgn(v) (1 - t(v))``, ``t(v) = 2 e^-2|v| / (1 + e^-2|v|)``, a step across zero is plus or minus two
    less both tails. Twos are counted apart from tails, beside which they would hide them. A step on one side of zero is
    a difference of tails, ``sinh d / (cosh v cosh(v + d))``. Either way the larger tail gives the exponent.
    """

    first: tuple[Tensor, Tensor, Tensor]
    second: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def between(
        cls, x: Tensor, x_a: Tensor, x_b: Tensor, whole: Tensor, a: Tensor, b: Tensor, c: Tensor
    ) -> "_Steps":
        by_a = a.abs() <= b.abs()
        step = torch.where(by_a, a, b)
        first = (x, step, torch.where(by_a, x_a, x_b))
        return cls(first=first, second=(torch.where(by_a, x_b, x_a), step + c, whole))

    def exponent(self) -> Tensor:
        """The largest exponent of what is left: zero where a two is."""
        (start, _, end), (other, _, last) = self.first, self.second
        least = torch.minimum(torch.minimum(start.abs(), end.abs()), torch.minimum(other.abs(), last.abs()))
        return torch.where(_twos(other, last) == _twos(start, end), -2 * least, 0.0)

    def difference(self, top: Tensor) -> Tensor:
        """The second step less the first, over ``exp(top)``."""
        (start, _, end), (other, _, last) = self.first, self.second
        twos = _twos(other, last) - _twos(start, end)
        found = torch.where(twos != 0, twos * (-top).clamp(max=700.0).exp(), 0.0)
        return found + _tails(*self.second, top) - _tails(*self.first, top)


def _twos(start: Tensor, end: Tensor) -> Tensor:
    """How far a step goes that is saturated at both ends: 2, 0 or -2."""
    return 2.0 * (end >= 0) - 2.0 * (start >= 0)


def _tails(start: Tensor, step: Tensor, end: Tensor, top: Tensor) -> Tensor:
    """What a step is beyond ``_twos``, over ``exp(top)``."""
    nearer = torch.minimum(start.abs(), end.abs())
    beside = 2 * step.sign() * -torch.expm1(-2 * step.abs()) * (-2 * nearer - top).clamp(max=700.0).exp()
    beside = beside / (damp(start) * damp(end))
    tail, other = (2 * (-2 * at.abs() - top).clamp(max=700.0).exp() / damp(at) for at in (start, end))
    across = torch.where(end >= 0, -1.0, 1.0) * (tail + other)
    return torch.where((start >= 0) == (end >= 0), beside, across)


def _differences(
    bias: _Bias, state: Split, keys: Tensor | None, allowed: Tensor | None
) -> tuple[SplitLogits, Tensor, Tensor]:
    """A bias relative to the first token's row and to a key that all may read; its column there, less the first, too.

    What does not vary cancels exactly. A table may be nearly linear in the distance: then rows agree but for the last
    digits of its entries, and what differences are rounded by is kept and added in the end.
    """
    logits = bias.table
    if keys is None:
        base = logits[..., :1]
    else:  # a bias may be the same for all texts
        logits = logits.expand(broadcast(logits.shape, keys.shape))
        base = logits.gather(-1, keys.long().argmax(dim=-1, keepdim=True).expand(*logits.shape[:-1], 1))
    rows, rounded = _difference(logits, base)
    shared = first_row(rows, state)
    rest, more = _difference(rows, shared)
    rest = rest + (more + (rounded - first_row(rounded, state)))
    rest = rest if allowed is None else rest.masked_fill(~allowed, 0.0)
    if state.is_token is not None:
        rest = rest * state.is_token[..., None, :, None]
    largest = rest.abs().amax(dim=(-2, -1), keepdim=True)
    rest, largest = rest / torch.where(largest > 0, largest, 1.0), bias.times(largest)
    log_scale = largest.abs().log()[..., 0, 0]
    shape = broadcast(log_scale.shape, (*state.log_scale.shape, log_scale.shape[-1]))
    split = SplitLogits(
        shared=bias.times(shared), rest=rest * largest.sign(), log_scale=log_scale.expand(shape)
    )
    return split, bias.times(base), bias.times(base - first_row(base, state))


def _difference(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """``a - b`` rounded, and what it was rounded by: both together are the difference exactly (Knuth)."""
    value = a - b
    of_b = value - a
    return value, (a - (value - of_b)) - (b + of_b)


def _combined(a: SplitLogits, b: SplitLogits) -> SplitLogits:
    """The sum of two, brought to the larger scale."""
    log_scale = torch.maximum(a.log_scale, b.log_scale)
    reference = torch.where(log_scale > -torch.inf, log_scale, 0.0)
    weight_a, weight_b = (a.log_scale - reference).exp(), (b.log_scale - reference).exp()
    rest = weight_a[..., None, None] * a.rest + weight_b[..., None, None] * b.rest
    return SplitLogits(shared=a.shared + b.shared, rest=rest, log_scale=log_scale)
