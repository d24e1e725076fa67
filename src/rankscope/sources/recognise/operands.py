"""Queries, keys and values as they enter their products: which state, token and column every element comes from."""

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankscope.network.norms import Norm
from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.region import Linear, Region, Unread
from rankscope.sources.recognise.combinations import EXACT, MOVES, climbed, combination, live_nodes


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the rows of a state belong: ``rows[k] = text * tokens + token``."""

    rows: Tensor
    texts: int
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A node whose elements are columns of a linear map of a state, perhaps after a norm.

    Args:
        places: text and token of every flat element; ``columns`` likewise, counted over all maps that were met.
        norm: the norm between map and node; ``width`` is how many channels it runs over.
    """

    node: Node
    state: Node
    places: Tensor
    columns: Tensor
    norm: Norm | None = None
    width: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """Flat elements of a factor: ``sum_k factors[:, k] * map(state)[places, columns[:, k]] + offset``; -1 is none."""

    node: Node
    state: Node | None
    places: Tensor
    columns: Tensor
    factors: Tensor
    offset: Tensor
    norm: Norm | None
    width: int
    inner: Tensor  # the element of the source that each one is, for norms that run over several heads


@dataclass(eq=False)
class Operands:
    """Reads factors of products in one region; maps that several of them share are counted once."""

    region: Region
    tokens_first: bool
    live: set[Node] = field(init=False)
    maps: list[Linear] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.live = live_nodes(self.region)
        self._places: dict[Node, Places] = {}
        self._sources: dict[Node, Source] = {}
        self._starts: dict[Hashable, int] = {}

    # --- rows of states

    def places(self, state: Node) -> Places:
        """Texts by cause and effect: a row belongs to the text that moves it. Tokens follow in the order they have."""
        if state not in self._places:
            self._places[state] = self._read_places(state)
        return self._places[state]

    def _read_places(self, state: Node) -> Places:
        region = self.region
        root = next((root for root in reversed(region.roots) if self._reads(state, root)), None)
        if root is None:
            raise Unread("does not read the stream", state)
        rows = state.shape[:-1].numel()
        if root.value.ndim < 3:
            return Places(torch.arange(rows), 1, rows)
        axis = 1 if self.tokens_first else 0
        texts = root.shape[axis]
        generator = torch.Generator().manual_seed(17)
        base, other = (torch.randn(root.shape, generator=generator, dtype=torch.float64) for _ in range(2))
        still = region.replay(state, {root: base}).reshape(rows, -1)

        def moved(which: Tensor) -> Tensor:
            shape = [1] * root.value.ndim
            shape[axis] = texts
            now = region.replay(state, {root: torch.where(which.reshape(shape), other, base)})
            return ((now.reshape(rows, -1) - still).abs() > EXACT * still.abs().max()).any(-1)

        number, text = torch.arange(texts), torch.zeros(rows, dtype=torch.long)
        for digit in range(max(1, (texts - 1).bit_length())):
            which = number.bitwise_right_shift(digit) % 2 == 1
            by_ones, by_zeros = moved(which), moved(~which)
            if not bool((by_ones ^ by_zeros).all()):
                raise Unread("a state that attention reads mixes the texts of the batch", state)
            text += by_ones.long() << digit
        tokens = rows // texts
        if not torch.equal(text.bincount(minlength=texts), torch.full((texts,), tokens)):
            raise Unread("a state that attention reads has rows of other texts in its own", state)
        order = torch.argsort(text, stable=True)
        found = torch.empty(rows, dtype=torch.long)
        found[order] = torch.arange(rows)
        return Places(found, texts, tokens)

    def _reads(self, node: Node, root: Node) -> bool:
        seen, waiting = set[Node](), [node]
        while waiting:
            at = waiting.pop()
            if at is root:
                return True
            if at not in seen and at in self.live and at not in self.region.roots:
                seen.add(at)
                waiting += at.inputs()
        return False

    def lifted(self, state: Node) -> Node:
        """Where a state is only some rows of another (one text, some tokens), that other one."""
        found, at = state, state
        while at not in self.region.roots and at not in self.region.known and at not in self.region.linears:
            above = [leaf for leaf in at.inputs() if leaf in self.live]
            if at.kind not in MOVES or len(above) != 1 or above[0].shape[-1:] != state.shape[-1:]:
                break
            at = above[0]
            if at.value.numel() > found.value.numel():
                found = at
        return found

    def rows_of(self, state: Node, node: Node) -> Tensor:
        """For every flat row of ``node``, which row of ``state`` it is a linear map of."""
        rows, width = state.shape[:-1].numel(), state.shape[-1]
        climbed(self.region, self.live, node, [state])  # only linear operations in between
        channel = torch.randn(width, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        label = torch.arange(1, rows + 1, dtype=torch.float64)[:, None]

        def run(values: Tensor) -> Tensor:
            return self.region.replay(node, {state: values.reshape(state.shape)}).reshape(-1, node.shape[-1])

        zero = run(torch.zeros(rows, width, dtype=torch.float64))
        one = run(channel.expand(rows, width)) - zero
        labelled = run(label * channel) - zero
        ratio = (labelled * one).sum(-1, keepdim=True) / one.square().sum(-1, keepdim=True).clamp(min=1e-300)
        found = ratio.round()
        near = 1e-7 * (labelled.abs().amax() + zero.abs().amax())
        if bool(((labelled - found * one).abs() > near).any()) or not bool(
            ((found >= 1) & (found <= rows)).all()
        ):
            raise Unread("a linear map reads more than the token it is for", node)
        return found.squeeze(-1).long() - 1

    # --- sources

    def _stops(self) -> list[Node]:
        return [*self.region.linears, *self.region.known, *self.region.roots]

    def source(self, node: Node) -> Source:
        if node not in self._sources:
            self._sources[node] = self._read_source(node)
        return self._sources[node]

    def _read_source(self, node: Node) -> Source:
        linear = self.region.linears.get(node)
        known = self.region.known.get(node)
        if linear is None and known is not None and isinstance(known.part, Norm):
            inner = self._under_norm(known.input)
            if inner is not None:
                width = node.shape[-1]
                return Source(node, inner.state, inner.places, inner.columns, known.part, width)
        if linear is None:
            width = node.shape[-1]
            linear = Linear(node, node, torch.eye(width, dtype=torch.float64), None)
        state = self.lifted(linear.input)
        rows = torch.arange(node.shape[:-1].numel())
        if state is not node:
            rows = self.rows_of(state, node)
        places = self.places(state).rows[rows]
        width = node.shape[-1]
        columns = self._start(linear) + torch.arange(width)
        size = len(places)
        return Source(
            node,
            state,
            places[:, None].expand(size, width).reshape(-1),
            columns.expand(size, width).reshape(-1),
        )

    def _under_norm(self, node: Node) -> Source | None:
        """What a norm reads, where that is plain columns of a linear map; None where it is the state itself."""
        try:
            bases = climbed(self.region, self.live, node, self._stops())
        except Unread:
            return None
        if not bases or any(base not in self.region.linears for base in bases):
            return None
        found = self.read(node, "what a norm reads")
        plain = found.columns[:, 1] < 0
        if not bool((plain & (found.factors[:, 0] == 1.0) & (found.offset == 0.0)).all()):
            raise Unread("a norm of queries or keys reads no plain columns of a linear map", node)
        if found.state is None:
            return None
        return Source(node, found.state, found.places, found.columns[:, 0])

    def _start(self, linear: Linear) -> int:
        """Number of the first column of a map among the columns of all maps."""
        held = [linear.matrix, *(() if linear.bias is None else (linear.bias,))]
        key = tuple(
            (one.data_ptr(), one.shape, one.stride()) for one in held
        )  # one module called several times
        if key not in self._starts:
            self._starts[key] = sum(one.matrix.shape[-1] for one in self.maps)
            self.maps.append(linear)
        return self._starts[key]

    def read(self, node: Node, what: str) -> Operand:
        """A factor of a product, element by element."""
        try:
            bases = climbed(self.region, self.live, node, self._stops())
        except Unread as error:
            raise Unread(f"{what} pass through {error.what}", error.node) from None
        sources = [self.source(base) for base in bases]
        if len({source.state for source in sources}) > 1:
            raise Unread(f"{what} are made of several states", node)
        if len({source.norm is None for source in sources}) > 1:
            raise Unread(f"some {what} pass a norm and others do not", node)
        widths = {source.width for source in sources}
        if len(widths) > 1:
            raise Unread(f"{what} pass norms of different widths", node)
        found = combination(self.region, bases, node, what)
        norm = sources[0].norm if sources else None
        if norm is not None and any(not is_same_norm(norm, source.norm) for source in sources):
            raise Unread(f"{what} of different heads pass different norms", node)
        end = torch.tensor([-1])
        places = torch.cat([*(source.places for source in sources), end])
        columns = torch.cat([*(source.columns for source in sources), end])
        place = places[found.places]
        has_second = found.places[:, 1] >= 0
        if bool((has_second & (place[:, 0] != place[:, 1])).any()):
            raise Unread(f"{what} of one token are mixed with those of another", node)
        return Operand(
            node,
            sources[0].state if sources else None,
            place[:, 0],
            columns[found.places],
            found.factors,
            found.offset,
            norm,
            next(iter(widths), 0),
            found.places,
        )


def is_same_norm(one: Norm, other: Norm | None) -> bool:
    if one is other:
        return True
    if other is None or type(one) is not type(other) or one.eps != other.eps:
        return False
    pairs = ((one.gain, other.gain), (one.bias, other.bias))
    return all((a is None) == (b is None) and (a is None or b is None or torch.equal(a, b)) for a, b in pairs)
