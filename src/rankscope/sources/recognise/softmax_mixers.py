"""From what was read of queries and keys to a softmax mixer: columns, factors, norms and the turn by position.

Axis letters: t token, h head, c channel as the product sees it, a channel as the linear map gives it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rankscope.masks import MaskRule
from rankscope.network import HeadFactors, NoPosition, Position, SeenOffsets, Several, SinkSoftmax, Softmax
from rankscope.network.mixers.query_key import Asked
from rankscope.network.norms import Norm
from rankscope.sources.operations.region import Linear, Unread
from rankscope.sources.recognise.combinations import EXACT
from rankscope.sources.recognise.head_weights import HeadWeights, Own
from rankscope.sources.recognise.position_rules import fit_turn


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """Queries or keys of one text, ``norm(columns) * factors + offset``.

    Args:
        columns: t h c 2, -1 where there is none; ``factors`` likewise.
        offset: t h c.
        slots: t h c 2; which channel of the norm each column is.
        norm: between columns and factors; it runs over ``width`` channels.
    """

    columns: Tensor
    factors: Tensor
    offset: Tensor
    slots: Tensor
    norm: Norm | None
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class _Plain:
    """A side that is the same for every token but for the rule of positions: h a."""

    columns: Tensor
    factors: Tensor
    constants: Tensor


def softmax_mixer(
    query: Side,
    key: Side,
    *,
    factor: Tensor,
    position: Position,
    rule: MaskRule,
    softcap: float | None,
    sinks: Tensor | None,
    order: Tensor,
    maps: Sequence[Linear],
    own: Own,
) -> tuple[Softmax | SinkSoftmax, bool]:
    """The mixer, and whether its angles come from a table in float32; ``factor`` (h) multiplies the products.

    ``sinks`` (h) are the logits of what is beside the keys of each head; None where nothing is.
    """
    is_single = False
    rules = list[Position]()
    offsets: tuple[Tensor, Tensor] | None = None
    asking, offering = _turn(query), _turn(key)
    if asking is None and offering is None:
        asked, offered, offsets = _plain(query, key)
        scale = 1.0
    elif asking is None or offering is None:
        raise Unread("queries turn with the position and keys do not, or the other way round")
    else:
        found = fit_turn(asking[1], offering[1])
        rules, scale, is_single = [found.rotary], found.factor, found.is_single
        asked, offered = (
            _Plain(
                columns[:, way],
                sizes[:, None].expand(columns.shape),
                torch.zeros(columns.shape, dtype=torch.float64),
            )
            for (columns, _, sizes), way in ((asking, found.query_order), (offering, found.key_order))
        )
    asked = _Plain(asked.columns, asked.factors * factor[:, None], asked.constants * factor[:, None])
    normed = _normed(query, key, asked.columns.shape[1])
    sides, norms, sizes = [], [], []
    for side, plain in ((query, asked), (key, offered)):
        size, factors, constants = _common_factor(plain)
        scale = scale * size
        sizes.append(size)
        columns = plain.columns[order]
        factors = None if factors is None else factors[order]
        constants = None if constants is None else constants[order]
        if side is key:
            weights = HeadWeights(tuple(maps), columns, factors, constants).grouped()
            columns, factors, constants = weights.columns, weights.factors, weights.constants
        norm = None
        if side.norm is not None:
            if constants is not None:
                raise Unread("something is added to queries or keys behind their norm")
            if side is query and normed == "head" and factors is not None:
                by_head, factors = _by_head(factors)
                rules[:0] = [] if by_head is None else [HeadFactors(own(by_head))]
            norm, factors = _norm(side, side.norm, columns, factors, normed, own), None
        sides.append(HeadWeights(tuple(maps), columns, factors, constants))
        norms.append(norm)
    if offsets is not None:
        tables = (offsets[0] * factor[:, None] / sizes[0], offsets[1] / sizes[1])
        rules.append(SeenOffsets(*(own(one[:, order].transpose(0, 1).contiguous()) for one in tables)))
    rules += [] if isinstance(position, NoPosition) else [position]
    query_map, query_bias, key_map, key_bias, per_head = _held(sides[0], sides[1], own)
    settings = Asked(
        heads=len(sides[0].columns),
        key_heads=len(sides[1].columns),
        query_bias=query_bias,
        key_bias=key_bias,
        rule=rule,
        position=rules[0] if len(rules) == 1 else Several(rules) if rules else NoPosition(),
        query_norm=norms[0],
        key_norm=norms[1],
        normed=normed,
        scale=scale,
        softcap=softcap,
        per_head=per_head,
    )
    in_order = torch.equal(order, torch.arange(len(order)))
    if sinks is None:
        return Softmax(query_map, key_map, **settings), is_single
    return SinkSoftmax(
        query_map, key_map, **settings, sinks=own(sinks if in_order else sinks[order])
    ), is_single


def _held(
    query: HeadWeights, key: HeadWeights, own: Own
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None, bool]:
    """Maps and biases of both, with heads apart where only so they are views of the model's weights."""
    asked, offered = query.joined(own), key.joined(own)
    if not asked[2] or not offered[2]:
        first, second = query.apart(own), key.apart(own)
        if first is not None and second is not None:
            return *first, *second, True
    return *asked[:2], *offered[:2], False


def _turn(side: Side) -> tuple[Tensor, Tensor, Tensor] | None:
    """Columns (h a), what the product sees of them (t c a) and a factor per head (h); None where no token turns."""
    first = side.columns[..., 0]
    is_single = not bool((side.columns[..., 1] >= 0).any())
    still = side.factors[:1]
    if (
        is_single
        and not bool((first != first[:1]).any())
        and not bool(((side.factors - still).abs() > EXACT * still.abs()).any())
    ):
        return None
    if bool((side.offset != 0.0).any()):
        raise Unread("something is added to queries or keys that change with the position")
    tokens, heads, channels, _ = side.columns.shape
    columns = [held[held >= 0] for held in (side.columns[:, head].unique() for head in range(heads))]
    if len({len(one) for one in columns}) != 1:
        raise Unread("heads differ in how many channels turn")
    table = torch.stack(columns)
    width = table.shape[1]
    turns = torch.zeros(heads, tokens, channels, width + 1, dtype=torch.float64)
    for head in range(heads):
        held = side.columns[:, head].contiguous()
        index = torch.searchsorted(table[head], held.clamp(min=0))
        turns[head].scatter_add_(2, torch.where(held >= 0, index, width), side.factors[:, head])
    turns = turns[..., :width]
    # All heads turn alike, each perhaps with a factor of its own: a temperature.
    sizes = (turns * turns[:1]).sum((1, 2, 3)) / turns[0].square().sum()
    if float((turns - sizes[:, None, None, None] * turns[:1]).abs().max()) > EXACT * float(turns.abs().max()):
        raise Unread("heads turn differently with the position")
    return table, turns[0], sizes


def _plain(query: Side, key: Side) -> tuple[_Plain, _Plain, tuple[Tensor, Tensor] | None]:
    """Both sides without a turn; channels that are zero on either side are left out.

    The third are the tables t h c that are added to queries and keys, where these differ from token to token.
    """
    sides = [(side, side.columns[0, :, :, 0]) for side in (query, key)]
    used = torch.stack([columns >= 0 for _, columns in sides]).all(0)
    if bool((used != used[:1]).any()):
        raise Unread("heads differ in width")
    used = used[0]
    differ = any(
        bool(((side.offset - side.offset[:1]).abs() > EXACT * side.offset[:1].abs()).any())
        for side, _ in sides
    )
    left_out = (query.offset != 0)[:, :, ~used].any() | (key.offset != 0)[:, :, ~used].any()
    if bool(left_out):
        raise Unread("queries or keys have channels that are constants")
    found = [
        _Plain(
            columns[:, used],
            side.factors[0, :, used, 0],
            torch.zeros_like(side.offset[0][:, used]) if differ else side.offset[0][:, used],
        )
        for side, columns in sides
    ]
    tables = (query.offset[:, :, used], key.offset[:, :, used]) if differ else None
    return found[0], found[1], tables


def _by_head(factors: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Factors h c as one number per head times what all heads share; None where that is ones."""
    first = factors[:, :1]
    shared = factors[0] / factors[0, 0]
    if bool((first == 0).any()) or bool(((factors / first - shared).abs() > EXACT * shared.abs()).any()):
        return None, factors  # the norm has its own words for them
    by_head = first.squeeze(1)
    is_even = bool(((shared - 1).abs() <= EXACT).all())
    if bool(((by_head - by_head[0]).abs() <= EXACT * by_head[0].abs()).all()):
        return None, factors
    return by_head, None if is_even else shared


def _common_factor(plain: _Plain) -> tuple[float, Tensor | None, Tensor | None]:
    """A factor that all channels share, those that are left, and constants divided by it."""
    first = plain.factors[0, 0]
    constants = plain.constants if bool(plain.constants.any()) else None
    if bool(((plain.factors - first).abs() <= EXACT * first.abs()).all()):
        return float(first), None, None if constants is None else constants / first
    return 1.0, plain.factors, constants


def _normed(query: Side, key: Side, width: int) -> Literal["head", "all"]:
    widths = {side.width for side in (query, key) if side.norm is not None}
    return "head" if not widths or widths == {width} else "all"


def _norm(
    side: Side,
    norm: Norm,
    columns: Tensor,
    factors: Tensor | None,
    normed: Literal["head", "all"],
    own: Own,
) -> Norm:
    """The norm of queries or keys, its channels in the order that the columns now have, factors in its gain."""
    slot_of = torch.full((int(side.columns.max()) + 1,), -1)
    held = side.columns.flatten()
    slot_of[held[held >= 0]] = side.slots.flatten()[held >= 0]
    slots = slot_of[columns]
    if normed == "head":
        if bool((slots != slots[:1]).any()):
            raise Unread("heads have their channels in different orders under a norm")
        if factors is not None and bool((factors != factors[:1]).any()):
            raise Unread("heads have factors of their own behind a norm of queries or keys")
        slots, factors = slots[0], None if factors is None else factors[0]
    else:
        slots, factors = slots.flatten(), None if factors is None else factors.flatten()
    if not torch.equal(slots.sort().values, torch.arange(side.width)):
        raise Unread(
            "a norm of queries or keys runs over other channels than those of a head, or of all heads"
        )
    in_order = torch.equal(slots, torch.arange(side.width))
    if in_order and factors is None:
        return owned(norm, own)
    gain = torch.ones(side.width, dtype=torch.float64) if norm.gain is None else norm.gain
    gain = gain[slots] * (1.0 if factors is None else factors)
    bias = None if norm.bias is None else norm.bias[slots] * (1.0 if factors is None else factors)
    return type(norm)(own(gain), None if bias is None else own(bias), eps=norm.eps)


def owned(norm: Norm, own: Own) -> Norm:
    """The same norm with the model's own weights."""
    weight = None if norm.weight is None else own(norm.weight.data)
    bias = None if norm.bias is None else own(norm.bias.data)
    return type(norm)(weight, bias, eps=norm.eps, offset=norm.offset)
