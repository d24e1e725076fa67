"""From softmax maps to the output: which values a map mixes, and where in the output map the result goes.

Axis letters: g softmax row, s entry of that row, l r d rows and columns of a product, h head.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.network import Values
from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.region import SAME_CHANNELS, Linear, Region, Unread
from rankscope.sources.recognise.combinations import EXACT, MOVES, combination, linear_inputs
from rankscope.sources.recognise.head_weights import HeadWeights, Own, rows_of_matrix
from rankscope.sources.recognise.linear import chained
from rankscope.sources.recognise.operands import Operand, Operands
from rankscope.sources.recognise.products import Contraction, Map, contraction


@dataclass(frozen=True, slots=True, eq=False)
class Mix:
    """The product of a map with values; ``is_left`` says on which side the map stands."""

    map: Map
    product: Contraction
    is_left: bool


def mixes_of(operands: Operands, one: Map) -> list[Mix]:
    """The products with values that a map enters, unchanged."""
    found, seen, waiting = list[Mix](), set[Node](), [one.node]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        for user in operands.region.users[at]:
            product = contraction(operands.live, user)
            if product is not None and (product.left in seen) != (product.right in seen):
                found.append(Mix(one, product, product.left in seen))
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


def ends_of(operands: Operands, start: Node) -> list[Node]:
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
        ends[source] = _behind_more_maps(region, end, place)
    return list(ends.values())


def _behind_more_maps(region: Region, end: Node, place: dict[Node, int]) -> Node:
    """The last of the maps that stand behind an output map, one after the other: together they are one output map.

    A map that an activation follows is the first one of an MLP, and stays that.
    """
    for later in region.order[place[end] + 1 :]:
        held = region.linears.get(later)
        if (
            held is not None
            and held.input is end
            and held.matrix.shape[1] == region.roots[0].shape[-1]
            and _is_only_way(region, end, later, place)
            and all(user.kind in ("add", "sub") or user in region.known for user in region.users[later])
        ):
            region.linears[later] = chained(region, held, through_states=True)
            return _behind_more_maps(region, later, place)
    return end


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
class Entries:
    """Softmax rows of a map: ``of_element[flat element] = row * size + entry``."""

    of_element: Tensor
    count: int
    size: int


def entries_of(one: Map) -> Entries:
    number = torch.arange(one.node.value.numel()).reshape(one.node.shape)
    rows = number.movedim(one.axis, -1).reshape(-1, one.node.shape[one.axis])
    found = torch.empty(rows.numel(), dtype=torch.long)
    found[rows.reshape(-1)] = torch.arange(rows.numel())
    return Entries(found, *rows.shape)


@dataclass(frozen=True, slots=True, eq=False)
class _Mixed:
    """Flat elements of mixed values: softmax row, column of the value map, factor on it, constant added."""

    group: Tensor
    column: Tensor
    factor: Tensor
    constant: Tensor
    operand: Operand


class Mixing:
    """Everything from the maps of one attention to the end of its output map.

    Attributes:
        starts: number of the first softmax row of every map among those of all.
        value_place: per map g s; text and token of the value that an entry weighs, -1 where it weighs none.
        group_of: rows of the output map's input, h; the softmax row that each head takes there.
        state: what the values are made of.
        loses_keys: whether a map has one entry more than it weighs values: a sink, or a key that is dropped.
    """

    def __init__(self, operands: Operands, end: Node, mixes: list[Mix]) -> None:
        self.operands, self.end, self.mixes = operands, end, mixes
        self.where = mixes[0].map.node
        self.maps = list(dict.fromkeys(mix.map for mix in mixes))
        self.entries = {one: entries_of(one) for one in self.maps}
        self.loses_keys = False
        self.starts, start = dict[Map, int](), 0
        for one in self.maps:
            self.starts[one] = start
            start += self.entries[one].count
        self.value_place = {
            one: torch.full((self.entries[one].count, self.entries[one].size), -1) for one in self.maps
        }
        mixed = [self._mixed(mix) for mix in mixes]
        states = {one.operand.state for one in mixed}
        if len(states) != 1 or None in states:
            raise Unread("values are made of several states, or of none", self.where)
        self.state: Node = mixed[0].operand.state  # type: ignore[assignment]  # seen to be one
        self._read_output(mixed)
        self.heads = self.group_of.shape[1]

    def _mixed(self, mix: Mix) -> _Mixed:
        product, entries = mix.product, self.entries[mix.map]
        if product.factor != 1.0 or product.shift is not None:
            raise Unread("something is added to the mixed values", product.node)
        weights, values = product.left, product.right
        weight_places, value_places = product.left_places, product.right_places
        if not mix.is_left:
            weights, values, weight_places, value_places = values, weights, value_places, weight_places
        carried = combination(self.operands.region, [mix.map.node], weights, "the maps")
        if not carried.is_single or not bool(
            ((carried.factors[:, 0] == 1.0) & (carried.offset == 0.0)).all()
        ):
            raise Unread("the maps are changed after softmax", weights)
        size = entries.size
        entry = entries.of_element[carried.places[:, 0]][weight_places]  # l r s
        group, item = entry // size, entry % size
        if bool((group != group[..., :1]).any()):
            raise Unread(
                f"softmax over axis {mix.map.axis}, but the next product sums over another axis", mix.map.node
            )
        order = item.sort(-1).values
        lost = size - item.shape[-1]
        if lost not in (0, 1) or bool((order[..., 1:] == order[..., :-1]).any()):
            raise Unread("the maps lose or repeat keys before they mix the values", product.node)
        self.loses_keys |= lost > 0
        operand = self.operands.read(values, "values")
        place, column = operand.places[value_places], operand.columns[value_places]  # l d s
        factor, constant = operand.factors[value_places], operand.offset[value_places]
        used = column[..., 0] >= 0
        if bool((used != used[..., :1]).any()):
            raise Unread("values of some keys are constants, not tokens", values)
        if bool((column[..., 1] >= 0).any()) or not equal_along(factor[..., 0]):
            raise Unread("values turn or change with their position", values)
        if operand.norm is not None:
            raise Unread("a norm stands between the value map and the values", values)
        if not equal_along(constant) or bool((column[..., 0] != column[..., :1, 0]).any()):
            raise Unread("values of different tokens are different columns of a linear map", values)
        token = torch.where(used, place, -1).amax(1, keepdim=True)  # l 1 s
        if bool((used & (place != token)).any()):
            raise Unread("values of different tokens stand in one row", values)
        held = self.value_place[mix.map]
        before = held[group[..., :1], item]
        if bool(((before >= 0) & (token >= 0) & (before != token)).any()):
            raise Unread("a map mixes values of different tokens under one key", product.node)
        held[group[..., :1].expand_as(item), item] = torch.maximum(before, token.expand_as(item))
        count = product.node.value.numel()
        out_places = product.out_places if mix.is_left else product.out_places.mT
        lead, rows, width = out_places.shape
        flat = out_places.reshape(-1)

        def spread(value: Tensor) -> Tensor:
            out = torch.empty(count, dtype=value.dtype)
            out[flat] = value.expand(lead, rows, width).reshape(-1)
            return out

        return _Mixed(
            spread(group[..., :1] + self.starts[mix.map]),
            spread(column[:, None, :, 0, 0]),
            spread(factor[:, None, :, 0, 0]),
            spread(constant[:, None, :, 0]),
            operand,
        )

    def _read_output(self, mixed: list[_Mixed]) -> None:
        """Which softmax row and value column stands at every row and column of what the output map reads."""
        region, end = self.operands.region, self.end
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
        group = torch.cat([*(one.group for one in mixed), end_tag])
        column = torch.cat([*(one.column for one in mixed), end_tag])
        factor = torch.cat([*(one.factor for one in mixed), none])
        constant = torch.cat([*(one.constant for one in mixed), none])
        index = found.places[:, 0].reshape(-1, width)
        outer = found.factors[:, 0].reshape(-1, width)
        group, column, constant = group[index], column[index], constant[index] * outer
        factor = factor[index] * outer
        used = index[0] >= 0
        if bool(((index >= 0) != used).any()):
            raise Unread("rows of the output map's input are filled differently", source)
        self.used = used.nonzero().squeeze(1)
        group, column, factor, constant = (one[:, self.used] for one in (group, column, factor, constant))
        if bool((column != column[:1]).any()) or not all(equal_along(one.T) for one in (factor, constant)):
            raise Unread("tokens use different columns of the value map", source)
        self.value_columns, self.value_factor, self.value_constant = column[0], factor[0], constant[0]
        first = torch.unique(group[0], sorted=True)
        leader = torch.stack([(group[0] == one).nonzero()[0, 0] for one in first]).sort().values
        head = torch.stack([(group[0] == group[0, k]) for k in leader]).long().argmax(0)
        if bool((group != group[:, leader][:, head]).any()):
            raise Unread("heads stand at other columns in other rows of the output map's input", source)
        self.head_of_column, self.group_of = head, group[:, leader]  # rows h

    def values(self, order: Tensor, own: Own) -> Values:
        """Value and output map, heads in this order."""
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

    def output_node(self, state: Node, row_place: Tensor) -> Node:
        """The output in the layout of the state: tokens of both stand in the same places."""
        wanted = self.operands.places(state).rows
        for node, rows in self.outputs(state):
            if torch.equal(row_place[rows], wanted):
                return node
        raise Unread("attention leaves its tokens in other places than it found them", self.end)

    def outputs(self, state: Node) -> list[tuple[Node, Tensor]]:
        """The end and what only moves its rows, in the shape of the state; and which row of the map's input each is."""
        node, found = self.end, list[tuple[Node, Tensor]]()
        while True:
            if node.shape[:-1] == state.shape[:-1]:
                rows = torch.arange(state.shape[:-1].numel())
                if node is not self.out.input:
                    rows = self.operands.rows_of(self.out.input, node)
                found.append((node, rows))
            users = self.operands.region.users[node]
            if len(users) != 1 or users[0].kind not in SAME_CHANNELS:
                return found
            node = users[0]


def equal_along(values: Tensor) -> bool:
    """Whether numbers are the same along the last axis, up to rounding."""
    first = values[..., :1]
    return bool(((values - first).abs() <= EXACT * first.abs()).all())
