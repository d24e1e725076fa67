"""Attention in whatever spelling: found at its softmax, read by where each number comes from, checked on the graph.

A softmax row is a group of logits. Every logit is a product of a row of queries with a row of keys; labels sent through
the operations tell of which text, token and columns these rows are, so that nothing hangs on how axes are laid out,
split, fused, repeated or looped over. The same labels say which values a row mixes and where in the output map the
result goes. Several softmaxes that end in one output map (a module per head, chunks of queries) are one attention.

Axis letters: n text, h head, i query token, j key token, c channel of a head, g softmax row, s entry of that row.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rankscope.errors import RankscopeError
from rankscope.masks import Full
from rankscope.network import Attention, Context, CrossAttention, NoPosition, Part, Softmax, Values
from rankscope.network.norms import Norm
from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.region import (
    SAME_CHANNELS,
    Known,
    Linear,
    Note,
    Region,
    Unread,
    run_again,
)
from rankscope.sources.recognise.combinations import EXACT, MOVES, combination, linear_inputs
from rankscope.sources.recognise.head_weights import HeadWeights, Own, rows_of_matrix
from rankscope.sources.recognise.mask_rules import ReadMask, read_mask
from rankscope.sources.recognise.operands import Operand, Operands, is_same_norm
from rankscope.sources.recognise.position_rules import fit_bias
from rankscope.sources.recognise.products import Contraction, Map, contraction, maps
from rankscope.sources.recognise.softmax_mixers import Side, softmax_mixer

LOW = -9999.0
"""Added to a logit, this or less is a mask: the number that bounds what models use (-1e4) from above."""
SIZES = (0.01, 1.0, 30.0)
"""Sizes of the random states that a part is checked on."""
SINGLE_OFF = 1e-5
"""How far off attention may be whose angles come from a table in float32: its seven digits, a few products later."""


@torch.no_grad()
def find_attention(region: Region, *, tokens_first: bool, own: Own) -> None:
    """Fill ``region.known`` with every attention that is read, and ``region.notes`` with why others are not."""
    operands = Operands(region, tokens_first)
    ends: dict[Node, list[_Mix]] = {}
    for one in maps(region, operands.live):
        try:
            if one.node.shape[one.axis] < 2:
                raise Unread("one token alone: nothing can be read of attention", one.node)
            for mix in _mixes(operands, one):
                for end in _ends(operands, mix.product.node):
                    ends.setdefault(end, []).append(mix)
        except Unread as error:
            region.notes.append(Note.of(error))
    for end, mixes in ends.items():
        try:
            known = _Reading(operands, end, mixes).known(own)
            region.known[known.output] = known
        except Unread as error:
            node = mixes[0].map.node if error.node is None else error.node
            region.notes.append(Note.of(Unread(error.what, node)))
        except (RuntimeError, ValueError, IndexError, RankscopeError) as error:
            what = f"attention could not be read: {str(error).splitlines()[0]}"
            region.notes.append(Note.of(Unread(what, mixes[0].map.node)))


@dataclass(frozen=True, slots=True, eq=False)
class _Mix:
    """The product of a map with values; ``is_left`` says on which side the map stands."""

    map: Map
    product: Contraction
    is_left: bool


def _mixes(operands: Operands, one: Map) -> list[_Mix]:
    """The products with values that a map enters, unchanged."""
    found, seen, waiting = list[_Mix](), set[Node](), [one.node]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        for user in operands.region.users[at]:
            product = contraction(operands.live, user)
            if product is not None and (product.left in seen) != (product.right in seen):
                found.append(_Mix(one, product, product.left in seen))
            elif user.kind == "mul" and _is_summed(operands, user):
                waiting.append(user)
            elif user.kind in MOVES or user.kind in ("dropout", "native_dropout", "_to_copy", "nan_to_num"):
                if user.kind != "nan_to_num":
                    linear_inputs(operands.live, user)
                waiting.append(user)
            else:
                raise Unread(f"the maps are changed by `{user.kind}` after softmax", user)
    if not found:
        raise Unread("a softmax whose result mixes no values", one.node)
    return found


def _is_summed(operands: Operands, node: Node) -> bool:
    """Whether a product of two states is there to be summed, so that both together are one contraction."""
    users = operands.region.users[node]
    return bool(users) and all(contraction(operands.live, user) is not None for user in users)


def _ends(operands: Operands, start: Node) -> list[Node]:
    """Where attention ends that mixes its values at ``start``: its output maps, or the last node before the stream."""
    region, seen, waiting, linears = operands.region, set[Node](), [start], list[Node]()
    last = start
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        users = region.users[at]
        if not users:
            last = at
        for user in users:
            if user in region.linears:
                linears.append(user)
                continue
            if user in region.known:
                raise Unread("a norm stands between attention and its output map", user)
            others = [leaf for leaf in user.inputs() if leaf in operands.live and leaf not in seen]
            if user.kind in ("add", "sub") and others and not all(_mixed(operands, leaf) for leaf in others):
                last = at
                continue
            try:
                linear_inputs(operands.live, user)
            except Unread as error:
                raise Unread(f"what attention puts out passes {error.what}", user) from None
            waiting.append(user)
    if not linears:
        return [last]
    place = {node: number for number, node in enumerate(region.order)}
    ends: dict[Node, Node] = {}  # by what the maps read
    for node in sorted(set(linears), key=place.__getitem__):
        source = region.linears[node].input
        end = ends.get(source, node)
        for later in region.order[place[end] + 1 :]:  # a bias that is added later, a low-rank update
            held = region.linears.get(later)
            if held is not None and held.input is source and _is_only_way(region, end, later, place):
                end = later
        ends[source] = end
    return list(ends.values())


def _is_only_way(region: Region, end: Node, node: Node, place: dict[Node, int]) -> bool:
    """Whether everything that is made of ``end`` passes ``node``."""
    seen, waiting = set[Node](), [end]
    while waiting:
        at = waiting.pop()
        if at is node or at in seen:
            continue
        seen.add(at)
        users = region.users[at]
        if not users or place[at] > place[node]:
            return False
        waiting += users
    return True


def _mixed(operands: Operands, node: Node) -> bool:
    """Whether a node comes from a product of two states by linear operations, before any map or norm."""
    seen, waiting = set[Node](), [node]
    while waiting:
        at = waiting.pop()
        if at in seen or at not in operands.live:
            continue
        seen.add(at)
        if contraction(operands.live, at) is not None:
            return True
        if at in operands.region.linears or at in operands.region.known or at in operands.region.roots:
            continue
        try:
            waiting += linear_inputs(operands.live, at)
        except Unread:
            continue
    return False


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows of queries or keys: place (rows), columns, factors and offset (rows c ...), set of columns as one number."""

    operand: Operand
    places: Tensor
    columns: Tensor
    factors: Tensor
    offset: Tensor
    inner: Tensor
    kind: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Logits:
    """Softmax rows of one map: query and key rows of every entry, what is added, what the product is multiplied with.

    Args:
        query_row: g; ``key_row`` is g s, with -1 for entries that no key stands behind.
        entry: the row g * s of every flat element of the map.
    """

    queries: _Rows
    keys: _Rows
    query_row: Tensor
    key_row: Tensor
    added: Tensor
    capped: Tensor
    factor: Tensor
    softcap: float | None
    entry: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Mixed:
    """Flat elements of mixed values: softmax row, column of the value map, factor on it, constant added."""

    group: Tensor
    column: Tensor
    factor: Tensor
    constant: Tensor
    operand: Operand


@dataclass(frozen=True, slots=True, eq=False)
class _Heads:
    """All numbers of one side by text, token and head: n t h c 2."""

    columns: Tensor
    factors: Tensor
    offset: Tensor
    inner: Tensor
    norm: Norm | None
    width: int


class _Reading:
    """One attention: everything between the states that it reads and the end of its output map."""

    def __init__(self, operands: Operands, end: Node, mixes: list[_Mix]) -> None:
        self.operands, self.region, self.end, self.mixes = operands, operands.region, end, mixes
        self.where = mixes[0].map.node

    def known(self, own: Own) -> Known:
        """The part, seen to give what the graph gives."""
        self._read_logits()
        self._read_values()
        self._read_output()
        self._read_heads()
        mask = self._read_mask()
        output = self._output_node(self.state)
        self._check(self._part(mask, lambda tensor: tensor), mask, output)
        return Known(self.state, output, self._part(mask, own), self.memory, mask.rules)

    # --- logits

    def _read_logits(self) -> None:
        self.logits = {one: self._logits(one) for one in dict.fromkeys(mix.map for mix in self.mixes)}

    def _logits(self, one: Map) -> _Logits:
        chain, product, cap = self._chain(one)
        region = self.region
        count = product.node.value.numel()
        number = torch.arange(1, count + 1, dtype=torch.float64).reshape(product.node.shape)
        for node in reversed(chain):
            number = _carried(node, self.operands.live, number)
        zero = torch.zeros(product.node.shape, dtype=torch.float64)
        shift = zero if product.shift is None else product.shift
        added, capped, softcap = self._added(one, product, cap, zero, shift)
        generator = torch.Generator().manual_seed(23)
        probe = torch.rand(product.node.shape, generator=generator, dtype=torch.float64) + 0.5
        target = one.logits if cap is None else cap.args[0]
        base = added if cap is None else capped
        one_more = region.replay(target, {product.node: zero + product.factor + shift}) - base
        seen = region.replay(target, {product.node: probe * product.factor + shift}) - base
        place = self._through(chain, product, cap, number)
        valid = (place >= 1) & (place <= count) & (place == place.round())
        index = torch.where(valid, place, 1.0).long() - 1
        free = (base > LOW) & valid
        expected = one_more * probe.reshape(-1)[index]
        near = EXACT * (expected.abs() + base.abs())
        if bool((free & ~((seen - expected).abs() <= near)).any()):
            raise Unread(
                "logits are no product of queries and keys, times a number, plus a constant", one.logits
            )
        factor = one_more if softcap is None else one_more * softcap
        return self._rows_of_map(one, product, number, added, capped, factor, softcap)

    def _through(self, chain: list[Node], product: Contraction, cap: Node | None, number: Tensor) -> Tensor:
        """The numbers of products at the soft-cap, where there is one, and at the logits otherwise."""
        if cap is None:
            return number
        held = torch.arange(1, product.node.value.numel() + 1, dtype=torch.float64).reshape(
            product.node.shape
        )
        for node in reversed(chain[chain.index(cap) + 1 :]):
            held = _carried(node, self.operands.live, held)
        return held

    def _chain(self, one: Map) -> tuple[list[Node], Contraction, Node | None]:
        """The operations from the logits up to the product, and the soft-cap among them."""
        live, chain, node, cap = self.operands.live, list[Node](), one.logits, None
        while (product := contraction(live, node)) is None:
            if node in self.region.roots or node in self.region.linears or node in self.region.known:
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
        self, one: Map, product: Contraction, cap: Node | None, zero: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor, float | None]:
        """What is added to the products: behind the soft-cap and inside of it; and the soft-cap."""
        region = self.region
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
        self,
        one: Map,
        product: Contraction,
        number: Tensor,
        added: Tensor,
        capped: Tensor,
        factor: Tensor,
        softcap: float | None,
    ) -> _Logits:
        left = self._rows(self.operands.read(product.left, "queries or keys"), product.left_places)
        right = self._rows(self.operands.read(product.right, "queries or keys"), product.right_places)
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
        if bool((~valid & (over > LOW)).any()):
            raise Unread("softmax also runs over keys that are constants, not tokens", one.node)
        index = torch.where(valid, place, 1.0).long() - 1
        sides = [torch.where(valid, of[index], -1) for of in (row, column)]
        for side, rows in ((left, sides[0]), (right, sides[1])):
            if bool((_at(side.places, rows) < 0)[valid].any()):
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
                return _Logits(queries, keys, held, key_row, over, inner, laid(factor), softcap, back)
        raise Unread(f"softmax over axis {one.axis}, which is not that of the keys", one.node)

    def _rows(self, operand: Operand, places: Tensor) -> _Rows:
        """Rows of a factor: one token each, and the columns that its channels are made of."""
        width = places.shape[-1]
        flat = places.reshape(-1, width)
        held = operand.columns[flat]
        token = operand.places[flat]
        used = held[..., 0] >= 0
        place = token.amax(-1)
        if bool((used & (token != place[:, None])).any()):
            raise Unread("one query or key is made of several tokens", operand.node)
        count = sum(one.matrix.shape[-1] for one in self.operands.maps)
        mask = torch.zeros(len(flat), count + 1, dtype=torch.bool)
        mask.scatter_(1, held.reshape(len(flat), -1) % (count + 1), True)
        salt = torch.randint(2**60, (count,), generator=torch.Generator().manual_seed(1))
        kind = torch.where(mask[:, :count], salt, 0).sum(-1)
        return _Rows(
            operand, place, held, operand.factors[flat], operand.offset[flat], operand.inner[flat], kind
        )

    # --- values

    def _read_values(self) -> None:
        """For every element of every mix: the softmax row that it comes from, value column, factor, constant."""
        starts, self.groups = dict[Map, int](), 0
        for one, logits in self.logits.items():
            starts[one] = self.groups
            self.groups += len(logits.query_row)
        self.mixed = [self._mixed_values(mix, starts[mix.map]) for mix in self.mixes]
        states = {one.operand.state for one in self.mixed}
        if len(states) != 1:
            raise Unread("values are made of several states", self.where)

    def _mixed_values(self, mix: _Mix, start: int) -> "_Mixed":
        product, logits = mix.product, self.logits[mix.map]
        if product.factor != 1.0 or product.shift is not None:
            raise Unread("something is added to the mixed values", product.node)
        weights, values = product.left, product.right
        weight_places, value_places = product.left_places, product.right_places
        if not mix.is_left:
            weights, values, weight_places, value_places = values, weights, value_places, weight_places
        carried = combination(self.region, [mix.map.node], weights, "the maps")
        if not carried.is_single or not bool(
            ((carried.factors[:, 0] == 1.0) & (carried.offset == 0.0)).all()
        ):
            raise Unread("the maps are changed after softmax", weights)
        size = logits.key_row.shape[1]
        entry = logits.entry[carried.places[:, 0]][weight_places]  # l r s
        group, item = entry // size, entry % size
        if bool((group != group[..., :1]).any()):
            raise Unread(
                f"softmax over axis {mix.map.axis}, but the next product sums over another axis", mix.map.node
            )
        if not torch.equal(item.sort(-1).values, torch.arange(size).expand_as(item)):
            raise Unread("the maps lose or repeat keys before they mix the values", product.node)
        operand = self.operands.read(values, "values")
        place, column = operand.places[value_places], operand.columns[value_places]  # l d s
        factor, constant = operand.factors[value_places], operand.offset[value_places]
        if bool((column[..., 1] >= 0).any()) or not _equal_along(factor[..., 0]):
            raise Unread("values turn or change with their position", values)
        if operand.norm is not None:
            raise Unread("a norm stands between the value map and the values", values)
        if not _equal_along(constant) or bool((column[..., 0] != column[..., :1, 0]).any()):
            raise Unread("values of different tokens are different columns of a linear map", values)
        used = column[..., 0] >= 0
        key_place = _at(logits.keys.places, logits.key_row)[group[..., :1], item]  # l r s, -1: no key
        token = torch.where(used, place, -1).amax(1, keepdim=True)
        is_used, real = used.any(1, keepdim=True), key_place >= 0
        if bool((is_used & (used & (place != token)).any(1, keepdim=True)).any()) or bool(
            (is_used & real & (key_place != token)).any()
        ):
            raise Unread("a map mixes values of other tokens than its keys", product.node)
        count = product.node.value.numel()
        out_places = product.out_places if mix.is_left else product.out_places.mT
        lead, rows, width = out_places.shape
        flat = out_places.reshape(-1)

        def spread(value: Tensor) -> Tensor:
            out = torch.empty(count, dtype=value.dtype)
            out[flat] = value.expand(lead, rows, width).reshape(-1)
            return out

        return _Mixed(
            spread(group[..., :1] + start),
            spread(column[:, None, :, 0, 0]),
            spread(factor[:, None, :, 0, 0]),
            spread(constant[:, None, :, 0]),
            operand,
        )

    # --- output

    def _read_output(self) -> None:
        """Which softmax row and value column stands at every row and column of what the output map reads."""
        region, end = self.region, self.end
        linear = region.linears.get(end)
        nodes = [mix.product.node for mix in self.mixes]
        if linear is None:
            width = end.shape[-1]
            linear = Linear(end, end, torch.eye(width, dtype=torch.float64), None)
        self.out = linear
        source = linear.input
        found = combination(region, nodes, source, "mixed values")
        if not found.is_single or bool((found.offset != 0).any()):
            raise Unread("mixed values are added up before the output map", source)
        width = source.shape[-1]
        end_tag = torch.tensor([-1])
        none = torch.zeros(1, dtype=torch.float64)
        group = torch.cat([*(one.group for one in self.mixed), end_tag])
        column = torch.cat([*(one.column for one in self.mixed), end_tag])
        factor = torch.cat([*(one.factor for one in self.mixed), none])
        constant = torch.cat([*(one.constant for one in self.mixed), none])
        index = found.places[:, 0].reshape(-1, width)
        outer = found.factors[:, 0].reshape(-1, width)
        group, column, constant = group[index], column[index], constant[index] * outer
        factor = factor[index] * outer
        used = index[0] >= 0
        if bool(((index >= 0) != used).any()):
            raise Unread("rows of the output map's input are filled differently", source)
        self.used = used.nonzero().squeeze(1)
        group, column, factor, constant = (one[:, self.used] for one in (group, column, factor, constant))
        if bool((column != column[:1]).any()) or not all(_equal_along(one.T) for one in (factor, constant)):
            raise Unread("tokens use different columns of the value map", source)
        self.value_columns, self.value_factor, self.value_constant = column[0], factor[0], constant[0]
        first = torch.unique(group[0], sorted=True)
        leader = torch.stack([(group[0] == one).nonzero()[0, 0] for one in first]).sort().values
        head = torch.stack([(group[0] == group[0, k]) for k in leader]).long().argmax(0)
        if bool((group != group[:, leader][:, head]).any()):
            raise Unread("heads stand at other columns in other rows of the output map's input", source)
        self.head_of_column, self.group_of = head, group[:, leader]  # rows h

    # --- heads

    def _read_heads(self) -> None:
        """Queries and keys of every text, token and head, and what is added to their logits."""
        groups = _Groups.of(list(self.logits.values()))
        states = {
            (logits.queries.operand.state, logits.keys.operand.state) for logits in self.logits.values()
        }
        if len(states) != 1:
            raise Unread("queries or keys of different heads are made of different states", self.where)
        (query_state, key_state), value_state = next(iter(states)), self.mixed[0].operand.state
        if query_state is None or key_state is None or value_state is None:
            raise Unread("queries, keys or values do not depend on the states", self.where)
        if key_state is not value_state:
            raise Unread("keys and values are made of different states", self.where)
        self.state, self.memory = query_state, None if key_state is query_state else key_state
        if self.memory is not None and not self._is_memory(query_state, key_state):
            raise Unread("queries are made of another state than keys and values", self.where)
        read, held = self.operands.places(query_state), self.operands.places(key_state)
        if read.texts != held.texts:
            raise Unread("the states of queries and keys have different numbers of texts", self.where)
        self.texts, self.tokens, self.keys = read.texts, read.tokens, held.tokens
        place = groups.query_place[self.group_of]  # rows h
        if bool((place != place[:, :1]).any()):
            raise Unread("heads of different tokens stand in one row of the output map's input", self.where)
        self.row_place = place[:, 0]
        if not torch.equal(self.row_place.sort().values, torch.arange(self.texts * self.tokens)):
            raise Unread("tokens are lost or repeated by attention", self.where)
        by_place = torch.empty_like(self.group_of)
        by_place[self.row_place] = self.group_of
        heads = by_place.shape[1]
        self.heads = heads
        group = by_place.reshape(self.texts, self.tokens, heads)
        key_place = groups.key_place[group]  # n i h s
        text = torch.arange(self.texts)[:, None, None, None]
        if bool(((key_place >= 0) & (key_place // self.keys != text)).any()):
            raise Unread("queries of one text read keys of another", self.where)
        shape = (self.texts, self.tokens, heads, self.keys)
        place_in_text = torch.where(key_place >= 0, key_place % self.keys, self.keys)

        def by_key(value: Tensor, empty: float) -> Tensor:
            out = torch.full((*shape[:3], self.keys + 1), empty, dtype=value.dtype)
            return out.scatter_(3, place_in_text, value[group])[..., : self.keys].transpose(1, 2)

        self.added = by_key(groups.added, -torch.inf)  # n h i j
        self.capped, self.factor = by_key(groups.capped, 0.0), by_key(groups.factor, torch.nan)
        softcaps = {logits.softcap for logits in self.logits.values()}
        if len(softcaps) != 1:
            raise Unread("heads have different soft-caps", self.where)
        self.softcap = next(iter(softcaps))
        self.query = groups.side(groups.query_row[group], "query", self.where)
        key_row = torch.full((*shape[:1], heads, self.keys + 1), -1)
        index = place_in_text.permute(0, 2, 1, 3).reshape(self.texts, heads, -1)
        rows = groups.key_row[group].permute(0, 2, 1, 3).reshape(self.texts, heads, -1)
        key_row.scatter_(2, index, rows)
        key_row = key_row[..., : self.keys].transpose(1, 2)
        if bool((key_row < 0).any()):
            raise Unread("some tokens are keys of no query", self.where)
        self.key = groups.side(key_row, "key", self.where)

    def _is_memory(self, query: Node, key: Node) -> bool:
        first, others = self.region.roots[0], self.region.roots[1:]
        reads = self.operands._reads
        return reads(query, first) and not reads(key, first) and any(reads(key, root) for root in others)

    # --- mask and positions

    def _read_mask(self) -> ReadMask:
        allowed = self.added > LOW
        if bool((allowed != allowed[:, :1]).any()):
            raise Unread("heads have different masks", self.where)
        allowed = allowed[:, 0]
        if self.memory is not None:
            if bool((allowed != allowed[:, :1]).any()):
                raise Unread("tokens read different parts of the memory", self.where)
            return ReadMask((Full(),), allowed[:, 0])
        found = read_mask(allowed)
        if found is None:
            raise Unread(
                "which keys a query reads follows no rule, and differs from text to text", self.where
            )
        return found

    # --- the part

    def _part(self, mask: ReadMask, own: Own) -> Part:
        text = int(mask.is_token.sum(1).argmax())
        keys = mask.is_token[text]
        rows = keys if self.memory is None else torch.ones(self.tokens, dtype=torch.bool)
        behind = self.added[text][:, rows][:, :, keys]
        allowed = behind[0] > LOW
        factor = self.factor[text][:, rows][:, :, keys][:, allowed]
        if not _equal_along(factor):
            raise Unread("logits are multiplied with numbers that differ from token to token", self.where)
        behind = torch.where(allowed, behind, 0.0)
        if self.softcap is not None:
            if not isinstance(fit_bias(behind, allowed), NoPosition):
                raise Unread("something is added to the logits behind their soft-cap", self.where)
            inside = self.capped[text][:, rows][:, :, keys]
            behind = torch.where(allowed, inside, 0.0) * self.softcap
        order = self._order(text)
        mixer, self.is_single = softmax_mixer(
            _of_text(self.query, text, rows),
            _of_text(self.key, text, keys),
            factor=factor[:, 0],
            position=fit_bias(behind[order], allowed),
            rule=mask.rules[0],
            softcap=self.softcap,
            order=order,
            maps=self.operands.maps,
            own=own,
        )
        values = self._values(order, own)
        return Attention(mixer, values) if self.memory is None else CrossAttention(mixer, values)

    def _order(self, text: int) -> Tensor:
        """Heads in the order of the output map, those that share keys side by side."""
        first: dict[tuple[int, ...], int] = {}
        columns = self.key.columns[text, 0].flatten(1).tolist()
        group = [first.setdefault(tuple(sorted(one)), head) for head, one in enumerate(columns)]
        return torch.tensor(sorted(range(self.heads), key=lambda head: (group[head], head)))

    def _values(self, order: Tensor, own: Own) -> Values:
        rows = [(self.head_of_column == head).nonzero().squeeze(1) for head in order.tolist()]
        if len({len(one) for one in rows}) != 1:
            raise Unread("heads have values of different widths", self.where)
        index = torch.stack(rows)
        factors, constants = self.value_factor[index], self.value_constant[index]
        weights = HeadWeights(
            tuple(self.operands.maps),
            self.value_columns[index],
            None if bool((factors == 1.0).all()) else factors,
            None if not bool(constants.any()) else constants,
        ).grouped()
        out = rows_of_matrix(self.out.matrix, self.used[index.flatten()], own)
        bias = None if self.out.bias is None else own(self.out.bias)
        value, value_bias, is_view = weights.joined(own)
        apart = None if is_view else weights.apart(own)
        if apart is not None:
            value, value_bias = apart
        return Values(
            value,
            out,
            heads=self.heads,
            value_heads=len(weights.columns),
            value_bias=value_bias,
            out_bias=bias,
            per_head=apart is not None,
        )

    # --- where it ends, and whether it is so

    def _output_node(self, state: Node) -> Node:
        """The output in the layout of the state: tokens of both stand in the same places."""
        wanted, node = self.operands.places(state).rows, self.end
        while True:
            if node.shape[:-1] == state.shape[:-1]:
                rows = torch.arange(len(wanted))
                if node is not self.out.input:
                    rows = self.operands.rows_of(self.out.input, node)
                if torch.equal(self.row_place[rows], wanted):
                    return node
            users = self.region.users[node]
            if len(users) != 1 or users[0].kind not in SAME_CHANNELS:
                raise Unread("attention leaves its tokens in other places than it found them", self.end)
            node = users[0]

    def _check(self, part: Part, mask: ReadMask, output: Node) -> None:
        """The part against the graph, on other numbers than those it was read from."""
        generator = torch.Generator().manual_seed(29)
        places = self.operands.places(self.state)
        is_padded = not bool(mask.is_token.all())
        for size in SIZES[:2] if self.is_single else SIZES:

            def drawn(node: Node, size: float = size) -> tuple[Tensor, Tensor]:
                held = self.operands.places(node)
                x = size * torch.randn(
                    held.texts * held.tokens, node.shape[-1], generator=generator, dtype=torch.float64
                )
                return x.reshape(held.texts, held.tokens, -1), x[held.rows].reshape(node.shape)

            x, laid = drawn(self.state)
            given, context = {self.state: laid}, Context(is_token=mask.is_token if is_padded else None)
            if self.memory is not None:
                memory, given[self.memory] = drawn(self.memory)
                held = mask.is_token if is_padded else None
                context = Context(memory=memory, memory_is_token=held)
            if self._leaks(part, x, context):
                continue
            ours = part(x, context).reshape(-1, output.shape[-1])[places.rows]
            theirs = self.region.replay(output, given).reshape(ours.shape)
            if self.memory is None:
                real = mask.is_token.reshape(-1)[places.rows]
                ours, theirs = ours[real], theirs[real]
            if size > 1 and not bool(theirs.isfinite().all()):
                continue  # exponentials without their largest taken out: the model itself ends there
            off = float((ours - theirs).abs().max() / theirs.abs().max())
            if not off <= (SINGLE_OFF if self.is_single else EXACT):
                raise Unread(f"attention as it was read is off by {off:.0e}", self.where)

    def _leaks(self, part: Part, x: Tensor, context: Context) -> bool:
        """Whether logits are so large that a mask of a moderate number lets something through."""
        masked = self.added[(self.added <= LOW) & self.added.isfinite()]
        if not masked.numel() or float(masked.max()) < -1e6 or not isinstance(part, Attention):
            return False
        mixer = part.mixer
        return (
            isinstance(mixer, Softmax)
            and float(mixer.logits(x, context).abs().max()) > -float(masked.max()) / 4
        )


def _of_text(heads: "_Heads", text: int, tokens: Tensor) -> Side:
    """One text without its padding: t h c."""
    slots = heads.inner[text][tokens] % max(heads.width, 1)
    return Side(
        heads.columns[text][tokens],
        heads.factors[text][tokens],
        heads.offset[text][tokens],
        slots,
        heads.norm,
        heads.width,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Softmax rows of all maps of one attention, one after the other.

    Args:
        query_place: g; ``key_place`` is g s, with -1 where there is no key; ``key_row`` counts over all maps.
    """

    query_place: Tensor
    query_row: Tensor
    key_place: Tensor
    key_row: Tensor
    added: Tensor
    capped: Tensor
    factor: Tensor
    queries: tuple[_Rows, ...]
    keys: tuple[_Rows, ...]

    @classmethod
    def of(cls, every: list[_Logits]) -> "_Groups":
        most = max(one.key_row.shape[1] for one in every)
        query_start = key_start = 0
        columns: dict[str, list[Tensor]] = {name: [] for name in cls.__slots__[:7]}
        for one in every:

            def wide(value: Tensor, empty: float, like: Tensor = one.key_row) -> Tensor:
                value = value.expand(like.shape)
                rest = torch.full((len(like), most - like.shape[1]), empty, dtype=value.dtype)
                return torch.cat([value, rest], 1)

            has_key = one.key_row >= 0
            columns["query_place"].append(one.queries.places[one.query_row])
            columns["query_row"].append(one.query_row + query_start)
            columns["key_place"].append(wide(_at(one.keys.places, one.key_row), -1))
            columns["key_row"].append(wide(torch.where(has_key, one.key_row + key_start, -1), -1))
            columns["added"].append(wide(one.added, -torch.inf))
            columns["capped"].append(wide(one.capped, 0.0))
            columns["factor"].append(wide(one.factor, torch.nan))
            query_start += len(one.queries.places)
            key_start += len(one.keys.places)
        held = {name: torch.cat(values) for name, values in columns.items()}
        return cls(**held, queries=tuple(one.queries for one in every), keys=tuple(one.keys for one in every))

    def side(self, rows: Tensor, which: Literal["query", "key"], where: Node) -> "_Heads":
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
        return _Heads(columns, factors, offset, inner, first, every[0].operand.width)


def _at(values: Tensor, index: Tensor) -> Tensor:
    """Values at places, -1 at the place -1."""
    return torch.where(index >= 0, values[index.clamp(min=0)], -1)


def _equal_along(values: Tensor) -> bool:
    """Whether numbers are the same along the last axis, up to rounding."""
    first = values[..., :1]
    return bool(((values - first).abs() <= EXACT * first.abs()).all())


def _one_query(queries: _Rows, rows: Tensor) -> Tensor | None:
    """The row of the one query of every softmax row; None where there are several."""
    held = rows.amax(1, keepdim=True)
    is_one = all(
        bool(((rows < 0) | (value[rows.clamp(min=0)] == value[held.clamp(min=0)])).all())
        for value in (queries.places, queries.kind)
    )
    return held.squeeze(1) if is_one and bool((held >= 0).all()) else None


def _all_keys(keys: _Rows, rows: Tensor) -> bool:
    """Whether the entries of every softmax row are keys of one head and of different tokens."""
    held = rows.amax(1, keepdim=True)
    if bool(((rows >= 0) & (keys.kind[rows.clamp(min=0)] != keys.kind[held.clamp(min=0)])).any()):
        return False
    place = _at(keys.places, rows).sort(1).values
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
