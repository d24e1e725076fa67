"""Logits of a softmax: the rows of queries and keys behind each, what multiplies their product, what is added.

Axis letters: n text, h head, i query token, j key token, c channel of a head, g softmax row, s entry of that row.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rankscope.network.norms import Norm
from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.region import Unread, run_again
from rankscope.sources.recognise.combinations import EXACT, MOVES, linear_inputs
from rankscope.sources.recognise.operands import Operand, Operands, is_same_norm
from rankscope.sources.recognise.products import Contraction, Map, contraction

LOW = -9999.0
"""Added to a logit, this or less is a mask: the number that bounds what models use (-1e4) from above."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of queries or keys: place (rows), columns, factors and offset (rows c ...), set of columns as one number."""

    operand: Operand
    places: Tensor
    columns: Tensor
    factors: Tensor
    offset: Tensor
    inner: Tensor
    kind: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Logits:
    """Softmax rows of one map: query and key rows of every entry, what is added, what the product is multiplied with.

    Args:
        query_row: g; ``key_row`` is g s, with -1 for entries that no key stands behind.
        entry: the row g * s of every flat element of the map.
        sink: g, the logit of the one entry that is a constant and no key; minus infinity where there is none.
    """

    queries: Rows
    keys: Rows
    query_row: Tensor
    key_row: Tensor
    added: Tensor
    capped: Tensor
    factor: Tensor
    softcap: float | None
    entry: Tensor
    sink: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """All numbers of one side by text, token and head: n t h c 2."""

    columns: Tensor
    factors: Tensor
    offset: Tensor
    inner: Tensor
    norm: Norm | None
    width: int


def read_logits(operands: Operands, one: Map) -> Logits:
    chain, product, cap = _chain(operands, one)
    region = operands.region
    count = product.node.value.numel()
    number = torch.arange(1, count + 1, dtype=torch.float64).reshape(product.node.shape)
    for node in reversed(chain):
        number = _carried(node, operands.live, number)
    zero = torch.zeros(product.node.shape, dtype=torch.float64)
    shift = zero if product.shift is None else product.shift
    added, capped, softcap = _added(operands, one, product, cap, zero, shift)
    generator = torch.Generator().manual_seed(23)
    probe = torch.rand(product.node.shape, generator=generator, dtype=torch.float64) + 0.5
    target = one.logits if cap is None else cap.args[0]
    base = added if cap is None else capped
    one_more = region.replay(target, {product.node: zero + product.factor + shift}) - base
    seen = region.replay(target, {product.node: probe * product.factor + shift}) - base
    place = _through(operands, chain, product, cap, number)
    valid = (place >= 1) & (place <= count) & (place == place.round())
    index = torch.where(valid, place, 1.0).long() - 1
    free = (base > LOW) & valid
    expected = one_more * probe.reshape(-1)[index]
    near = EXACT * (expected.abs() + base.abs())
    if bool((free & ~((seen - expected).abs() <= near)).any()):
        raise Unread("logits are no product of queries and keys, times a number, plus a constant", one.logits)
    factor = one_more if softcap is None else one_more * softcap
    return _rows_of_map(operands, one, product, number, added, capped, factor, softcap)


def _through(
    operands: Operands, chain: list[Node], product: Contraction, cap: Node | None, number: Tensor
) -> Tensor:
    """The numbers of products at the soft-cap, where there is one, and at the logits otherwise."""
    if cap is None:
        return number
    held = torch.arange(1, product.node.value.numel() + 1, dtype=torch.float64).reshape(product.node.shape)
    for node in reversed(chain[chain.index(cap) + 1 :]):
        held = _carried(node, operands.live, held)
    return held


def _chain(operands: Operands, one: Map) -> tuple[list[Node], Contraction, Node | None]:
    """The operations from the logits up to the product, and the soft-cap among them."""
    live, chain, node, cap = operands.live, list[Node](), one.logits, None
    while (product := contraction(live, node)) is None:
        if node in operands.region.roots or node in operands.region.linears or node in operands.region.known:
            raise Unread("a softmax of logits that are no product of queries and keys", node)
        chain.append(node)
        if node.kind == "tanh" and cap is None:
            cap, above = node, [node.args[0]]
        else:
            try:
                above = linear_inputs(live, node)
            except Unread as error:
                raise Unread(
                    f"{error.what}, between the product of queries and keys and softmax", node
                ) from None
        if len(above) != 1:
            raise Unread("logits take more from the states than one product of queries and keys", node)
        if node.kind in ("matmul", "mm", "bmm", "linear", "sum", "tril", "triu"):
            raise Unread(f"`{node.kind}` between the product of queries and keys and softmax", node)
        node = above[0]
    return chain, product, cap


def _added(
    operands: Operands, one: Map, product: Contraction, cap: Node | None, zero: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, float | None]:
    """What is added to the products: behind the soft-cap and inside of it; and the soft-cap."""
    region = operands.region
    if cap is None:
        return region.replay(one.logits, {product.node: zero + shift}), torch.zeros(()), None
    inside = region.replay(cap.args[0], {product.node: zero + shift})
    if not bool(inside.isfinite().all()):
        raise Unread("a mask stands before the soft-cap of the logits", cap)
    flat = torch.zeros(cap.shape, dtype=torch.float64)
    if one.logits is cap:
        return torch.zeros(cap.shape, dtype=torch.float64), inside, 1.0
    behind = region.replay(one.logits, {cap: flat})
    lifted = region.replay(one.logits, {cap: flat + 1.0}) - behind
    kept = lifted[behind > LOW]
    softcap = float(kept.median())
    if not bool(((kept - softcap).abs() <= EXACT * abs(softcap)).all()) or softcap <= 0:
        raise Unread("the soft-cap of the logits differs from entry to entry", cap)
    return behind, inside, softcap


def _rows_of_map(
    operands: Operands,
    one: Map,
    product: Contraction,
    number: Tensor,
    added: Tensor,
    capped: Tensor,
    factor: Tensor,
    softcap: float | None,
) -> Logits:
    left = _rows(operands, operands.read(product.left, "queries or keys"), product.left_places)
    right = _rows(operands, operands.read(product.right, "queries or keys"), product.right_places)
    lead, first, second = product.out_places.shape
    count = product.node.value.numel()
    row, column = torch.empty(count, dtype=torch.long), torch.empty(count, dtype=torch.long)
    flat = product.out_places.reshape(-1)
    row[flat] = torch.arange(lead * first)[:, None].expand(-1, second).reshape(-1)
    column[flat] = (
        (torch.arange(lead)[:, None, None] * second + torch.arange(second))
        .expand(lead, first, second)
        .reshape(-1)
    )

    def laid(value: Tensor) -> Tensor:
        return value.expand(one.node.shape).movedim(one.axis, -1).reshape(-1, one.node.shape[one.axis])

    place, over = laid(number), laid(added)
    valid = (place >= 1) & (place <= count) & (place == place.round())
    constant = ~valid & (over > LOW)
    if bool((constant.sum(-1) > 1).any()):
        raise Unread("softmax also runs over keys that are constants, not tokens", one.node)
    sink = torch.where(constant, over, -torch.inf).amax(-1)
    over = over.masked_fill(constant, -torch.inf)
    index = torch.where(valid, place, 1.0).long() - 1
    sides = [torch.where(valid, of[index], -1) for of in (row, column)]
    for side, rows in ((left, sides[0]), (right, sides[1])):
        if bool((at_places(side.places, rows) < 0)[valid].any()):
            raise Unread("softmax also runs over queries or keys that are constants, not tokens", one.node)
    entry = torch.arange(one.node.value.numel()).reshape(one.node.shape)
    groups = laid(entry)
    back = torch.empty(one.node.value.numel(), dtype=torch.long)
    back[groups.reshape(-1)] = torch.arange(groups.numel())
    inner = laid(capped) if capped.ndim else capped
    turned = (left, right, sides[0], sides[1]), (right, left, sides[1], sides[0])
    for queries, keys, query_row, key_row in turned:
        held = _one_query(queries, query_row)
        if held is not None and _all_keys(keys, key_row):
            return Logits(queries, keys, held, key_row, over, inner, laid(factor), softcap, back, sink)
    raise Unread(f"softmax over axis {one.axis}, which is not that of the keys", one.node)


def _rows(operands: Operands, operand: Operand, places: Tensor) -> Rows:
    """Rows of a factor: one token each, and the columns that its channels are made of."""
    width = places.shape[-1]
    flat = places.reshape(-1, width)
    held = operand.columns[flat]
    token = operand.places[flat]
    used = held[..., 0] >= 0
    place = token.amax(-1)
    if bool((used & (token != place[:, None])).any()):
        raise Unread("one query or key is made of several tokens", operand.node)
    count = sum(one.matrix.shape[-1] for one in operands.maps)
    mask = torch.zeros(len(flat), count + 1, dtype=torch.bool)
    mask.scatter_(1, held.reshape(len(flat), -1) % (count + 1), True)
    salt = torch.randint(2**60, (count,), generator=torch.Generator().manual_seed(1))
    kind = torch.where(mask[:, :count], salt, 0).sum(-1)
    return Rows(operand, place, held, operand.factors[flat], operand.offset[flat], operand.inner[flat], kind)


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Softmax rows of all maps of one attention, one after the other.

    Args:
        query_place: g; ``key_place`` is g s, with -1 where there is no key; ``key_row`` counts over all maps.
        sink: g, minus infinity where there is none.
    """

    query_place: Tensor
    query_row: Tensor
    sink: Tensor
    key_place: Tensor
    key_row: Tensor
    added: Tensor
    capped: Tensor
    factor: Tensor
    queries: tuple[Rows, ...]
    keys: tuple[Rows, ...]

    @classmethod
    def of(cls, every: list[Logits]) -> "Groups":
        most = max(one.key_row.shape[1] for one in every)
        query_start = key_start = 0
        columns: dict[str, list[Tensor]] = {name: [] for name in cls.__slots__[:8]}
        for one in every:

            def wide(value: Tensor, empty: float, like: Tensor = one.key_row) -> Tensor:
                value = value.expand(like.shape)
                rest = torch.full((len(like), most - like.shape[1]), empty, dtype=value.dtype)
                return torch.cat([value, rest], 1)

            has_key = one.key_row >= 0
            columns["query_place"].append(one.queries.places[one.query_row])
            columns["query_row"].append(one.query_row + query_start)
            columns["sink"].append(one.sink)
            columns["key_place"].append(wide(at_places(one.keys.places, one.key_row), -1))
            columns["key_row"].append(wide(torch.where(has_key, one.key_row + key_start, -1), -1))
            columns["added"].append(wide(one.added, -torch.inf))
            columns["capped"].append(wide(one.capped, 0.0))
            columns["factor"].append(wide(one.factor, torch.nan))
            query_start += len(one.queries.places)
            key_start += len(one.keys.places)
        held = {name: torch.cat(values) for name, values in columns.items()}
        return cls(**held, queries=tuple(one.queries for one in every), keys=tuple(one.keys for one in every))

    def side(self, rows: Tensor, which: Literal["query", "key"], where: Node) -> "Heads":
        """Queries or keys at rows of theirs, n t h."""
        every = self.queries if which == "query" else self.keys
        widths = {one.columns.shape[1] for one in every}
        norms = [one.operand.norm for one in every]
        if len(widths) != 1:
            raise Unread("heads have queries or keys of different widths", where)
        first = norms[0]
        if any((first is None) != (one is None) for one in norms) or (
            first is not None and not all(is_same_norm(first, one) for one in norms)
        ):
            raise Unread("heads have different norms of queries or keys", where)
        columns, factors, offset, inner = (
            torch.cat([getattr(one, name) for one in every])[rows]
            for name in ("columns", "factors", "offset", "inner")
        )
        return Heads(columns, factors, offset, inner, first, every[0].operand.width)


def at_places(values: Tensor, index: Tensor) -> Tensor:
    """Values at places, -1 at the place -1."""
    return torch.where(index >= 0, values[index.clamp(min=0)], -1)


def _one_query(queries: Rows, rows: Tensor) -> Tensor | None:
    """The row of the one query of every softmax row; None where there are several."""
    held = rows.amax(1, keepdim=True)
    is_one = all(
        bool(((rows < 0) | (value[rows.clamp(min=0)] == value[held.clamp(min=0)])).all())
        for value in (queries.places, queries.kind)
    )
    return held.squeeze(1) if is_one and bool((held >= 0).all()) else None


def _all_keys(keys: Rows, rows: Tensor) -> bool:
    """Whether the entries of every softmax row are keys of one head and of different tokens."""
    held = rows.amax(1, keepdim=True)
    if bool(((rows >= 0) & (keys.kind[rows.clamp(min=0)] != keys.kind[held.clamp(min=0)])).any()):
        return False
    place = at_places(keys.places, rows).sort(1).values
    return not bool(((place[:, 1:] == place[:, :-1]) & (place[:, 1:] >= 0)).any())


def _carried(node: Node, live: set[Node], number: Tensor) -> Tensor:
    """Numbers of elements through one operation: moved as it moves them, kept where it multiplies or adds."""
    (source,) = (leaf for leaf in dict.fromkeys(node.inputs()) if leaf in live)
    if node.kind in MOVES:
        others = {
            leaf: torch.zeros_like(leaf.value)
            for leaf in node.inputs()
            if leaf is not source and leaf.value.is_floating_point()
        }
        return run_again(node, {source: number, **others})
    return number.expand(node.shape)
