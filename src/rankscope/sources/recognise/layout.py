"""Which token and which channel every element of a node belongs to, whatever the axes of the node.

Shapes do not tell: texts, tokens and channels may be equally many, and reshapes may put tokens in other places. So
numbers are given to the elements of the stream and carried through the operations that move elements; an operation
that computes each element from elements of the same token keeps them, any other loses them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.network import Context, Norm, Part, TokenMap
from rankscope.sources.operations.captured import left_as_found
from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.region import Known, Region, run_again
from rankscope.sources.operations.watch import Exact
from rankscope.sources.recognise.linear import SIZES

MOVES = frozenset(
    {"view", "_unsafe_view", "reshape", "_reshape_alias", "transpose", "permute", "t", "unsqueeze", "squeeze"}
    | {"clone", "contiguous", "alias", "detach", "expand", "lift_fresh", "slice", "select", "narrow", "flip"}
    | {"split", "split_with_sizes", "chunk", "unbind", "cat", "stack", "index_select", "roll", "movedim"}
)
"""Operations that move elements about and compute nothing."""

_ALONE = frozenset(
    {
        "relu",
        "gelu",
        "silu",
        "tanh",
        "sigmoid",
        "erf",
        "erfc",
        "exp",
        "neg",
        "square",
        "abs",
        "softplus",
        "mish",
    }
    | {
        "elu",
        "leaky_relu",
        "celu",
        "selu",
        "hardswish",
        "hardsigmoid",
        "log_sigmoid",
        "log1p",
        "expm1",
        "sqrt",
    }
    | {"rsqrt", "reciprocal", "sin", "cos", "sign"}
)
_PAIRS = frozenset({"add", "sub", "rsub", "mul", "div", "pow", "where"})
_COMPARISONS = frozenset({"maximum", "minimum", "gt", "ge", "lt", "le"})
_HALF_LINES = frozenset({"clamp_min", "clamp", "threshold"})
"""Like comparisons, operations that bend at zero where the bound is zero, and where no grid may reach otherwise."""


_NINE_DIGITS = 1e-9
"""Largest error of a part: code writes the constants of activations with nine digits or more."""

_COARSE = 1e-5
"""Largest error of attention whose positions come from a table of seven digits."""


def is_pointwise(node: Node) -> bool:
    """Whether an operation is one of a list that compute each element from the same element of its operands."""
    if node.kind in _HALF_LINES:
        named = {"clamp_min": ("min",), "clamp": ("min", "max"), "threshold": ("threshold", "value")}[
            node.kind
        ]
        held = {**dict(zip(named, node.args[1:], strict=False)), **node.kwargs}
        least = held.get("min", held.get("threshold"))
        return least == 0 and held.get("max") is None and held.get("value", 0) == 0
    if node.kind == "div" and node.kwargs.get("rounding_mode") is not None:
        return False
    if node.kind in _COMPARISONS:
        return any(_is_zero(one) for one in node.args[:2])
    return node.kind in _ALONE or node.kind in _PAIRS


def _is_zero(value: object) -> bool:
    if isinstance(value, Node):
        node = value
        while node.kind in ("detach", "alias", "_to_copy", "lift_fresh"):
            node = node.args[0]
        made = node.kind in ("zeros", "zeros_like", "new_zeros") or (node.op is None and not node.name)
        return made and not bool(node.value.any())
    return isinstance(value, int | float) and value == 0


@dataclass(frozen=True, slots=True)
class Places:
    """For every element of a node, the row of the stream (text times tokens plus token) and the channel."""

    rows: Tensor
    channels: Tensor

    @property
    def axis(self) -> int | None:
        """The only axis along which the row stays the same: that of the channels."""
        same = [
            axis
            for axis, size in enumerate(self.rows.shape)
            if size > 1 and bool((self.rows == self.rows.narrow(axis, 0, 1)).all())
        ]
        return same[0] if len(same) == 1 else None


@dataclass(frozen=True, slots=True)
class Padding:
    """Which tokens of the captured call are none, ``texts tokens``; None where all are."""

    stream: Tensor | None = None
    memory: Tensor | None = None


class Layout:
    """The places of the nodes of one region, and states in the order texts, tokens, dim."""

    def __init__(self, region: Region, *, tokens_first: bool, padding: "Padding | None" = None) -> None:
        self.region = region
        self.padding = padding or Padding()
        self.slack = 0.0
        """How far recognised attention is off: positions by a table of the model that has seven digits."""

        root = region.roots[0]
        first, second, self.dim = root.shape
        self.tokens_first = tokens_first
        self.texts, self.tokens = (second, first) if tokens_first else (first, second)
        rows = torch.arange(self.texts * self.tokens).reshape(self.texts, self.tokens, 1)
        rows = (rows.transpose(0, 1) if tokens_first else rows).expand(root.shape)
        self._places: dict[Node, Places | None] = {
            root: Places(rows, torch.arange(self.dim).expand(root.shape)),
            **dict.fromkeys(region.roots[1:], None),
        }

    def of(self, node: Node) -> Places | None:
        """The places of a node's elements; None where they are not known."""
        waiting = [node]
        while waiting:  # depth first, without the limit of a recursion
            at = waiting[-1]
            if at in self._places:
                waiting.pop()
                continue
            open_ = [one for one in self._reads(at) if one not in self._places]
            if open_:
                waiting += open_
            else:
                self._places[at] = self._found(at)
                waiting.pop()
        return self._places[node]

    def declare(self, node: Node, like: Node) -> None:
        """Say that a node has the places of another one of its shape, where operations do not tell.

        What is not recognised is a map of states to states by definition: where its tokens stand is ours to say, as
        long as everything that reads them takes them from there, which is compared for every part.
        """
        places = self.of(like)
        if places is not None and self.of(node) is None and node.shape == like.shape:
            roots = self.region.roots[1:]
            known = {one: held for one, held in self._places.items() if held is not None or one in roots}
            self._places = known | {node: places}  # what reads it may now be known too

    def is_same(self, node: Node, other: Node) -> bool:
        """Whether the elements of two nodes stand in the same places."""
        one, two = self.of(node), self.of(other)
        return one is not None and two is not None and torch.equal(one.rows, two.rows)

    def _reads(self, node: Node) -> list[Node]:
        known = self.region.known.get(node)
        if known is not None:
            return [known.input]
        return [leaf for leaf in dict.fromkeys(node.inputs()) if self.region.depends(leaf)]

    def _found(self, node: Node) -> Places | None:
        known = self.region.known.get(node)
        if known is not None:
            return self._of_known(known)
        held = {leaf: self._places[leaf] for leaf in self._reads(node)}
        places = {leaf: one for leaf, one in held.items() if one is not None}
        if len(places) != len(held) or not places:
            return None
        if node.kind in MOVES:
            return self._moved(node, places)
        if is_pointwise(node):
            return self._joined(node, list(places.values()))
        if node in self.region.linears:
            return self._mapped(node, places)
        return None

    def _moved(self, node: Node, places: Mapping[Node, Places]) -> Places | None:
        constants = {
            leaf: torch.full(leaf.shape, -1) for leaf in node.inputs() if not self.region.depends(leaf)
        }
        rows = run_again(node, {leaf: one.rows for leaf, one in places.items()} | constants)
        channels = run_again(node, {leaf: one.channels for leaf, one in places.items()} | constants)
        return Places(rows, channels) if rows.shape == node.shape else None

    def _joined(self, node: Node, places: list[Places]) -> Places | None:
        """Element by element: operands must be of one token. Different channels together make new ones."""
        try:
            rows = [one.rows.expand(node.shape) for one in places]
            channels = [one.channels.expand(node.shape) for one in places]
        except RuntimeError:
            return None
        if not all(torch.equal(rows[0], one) for one in rows[1:]):
            return None
        if all(torch.equal(channels[0], one) for one in channels[1:]):
            return Places(rows[0], channels[0])
        return self._fresh(rows[0])

    def _fresh(self, rows: Tensor) -> Places | None:
        axis = Places(rows, rows).axis
        if axis is None:
            return None
        shape = [-1 if at == axis else 1 for at in range(rows.ndim)]
        return Places(rows, torch.arange(rows.shape[axis]).reshape(shape).expand(rows.shape))

    def _mapped(self, node: Node, places: Mapping[Node, Places]) -> Places | None:
        """A product: all channels of a token become other channels of the same token."""
        (source,) = places.values() if len(places) == 1 else (None,)
        if source is None or not _has_channels_last(source):
            return None
        rows = source.rows[..., :1].expand(*source.rows.shape[:-1], node.shape[-1])
        if rows.shape != node.shape:
            return None
        return Places(rows, torch.arange(node.shape[-1]).expand(node.shape))

    def _of_known(self, known: Known) -> Places | None:
        source = self._places[known.input]
        if source is None or not _has_channels_last(source):
            return None
        channels = torch.arange(known.output.shape[-1]).expand(known.output.shape)
        if isinstance(known.part, Norm | TokenMap):  # the same shape, whatever the rows are (heads, too)
            return Places(source.rows, channels) if known.input.shape == known.output.shape else None
        if not self.is_state(known.input):
            return None
        for rows in self._candidates(known.output):
            self._places[known.output] = Places(rows.unsqueeze(-1).expand(known.output.shape), channels)
            # Its finder has compared it strictly; here it shows where the tokens stand.
            off = self.off(known, 1.0)
            if off <= _COARSE:
                self.slack = max(self.slack, off)
                return self._places[known.output]
        return None

    def _candidates(self, node: Node) -> list[Tensor]:
        """The orders of tokens that a state of this shape may have."""
        plain = torch.arange(self.texts * self.tokens).reshape(self.texts, self.tokens)
        if node.shape[:-1].numel() != plain.numel():
            return []
        orders = [plain.T, plain] if self.tokens_first else [plain, plain.T]
        shaped = [order.reshape(node.shape[:-1]) for order in orders]
        return [one for order, one in zip(orders, shaped, strict=True) if _fits(order, node)]

    def agrees(self, known: Known) -> bool:
        """Whether a part gives what the graph gives, on random states of several sizes."""
        return all(self.off(known, size) <= _NINE_DIGITS for size in SIZES)

    @property
    def room(self) -> float:
        """How far a tree with recognised attention may be off, relative to the largest entry."""
        return _NINE_DIGITS + 10 * self.slack

    @property
    def sizes(self) -> tuple[float, ...]:
        """Sizes of states to compare on; errors of a coarse table grow with the size of the logits."""
        return SIZES if self.slack <= _NINE_DIGITS else SIZES[:2]

    def off(self, known: Known, size: float) -> float:
        """The largest difference between a part and the graph on states of this size, relative to what it gives."""
        generator = torch.Generator().manual_seed(17)
        x = size * torch.randn(
            self.texts, self.tokens, known.input.shape[-1], generator=generator, dtype=torch.float64
        )
        given, memory = {known.input: self.laid(known.input, x)}, None
        if known.memory is not None:
            memory = size * torch.randn(known.memory.shape, generator=generator, dtype=torch.float64)
            given[known.memory] = memory
            memory = memory.transpose(0, 1) if self.tokens_first else memory
        theirs = self.state(known.output, self.replay(known.output, given))
        return self.difference(self.ran(known.part, x, memory), theirs)

    def replay(self, target: Node, given: Mapping[Node, Tensor]) -> Tensor:
        """The value of a node for other states; what routes tokens is called, because a replay keeps their old ways."""
        values = dict(given)
        for known in self.region.known.values():
            if isinstance(known.part, TokenMap) and known.output not in given:
                state = self.state(known.input, self.region.replay(known.input, values))
                values[known.output] = self.laid(known.output, self.ran(known.part, state))
        return self.region.replay(target, values)

    def ran(self, part: Part, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """What a part gives for a state, with what is known of the captured call besides."""
        context = Context(
            is_token=self.padding.stream,
            memory=memory,
            memory_is_token=None if memory is None else self.padding.memory,
        )
        return called(lambda state: part(state, context), x)

    def difference(self, ours: Tensor, theirs: Tensor) -> float:
        """The largest difference on real tokens, relative to the largest entry; infinite for what is not finite."""
        if ours.shape != theirs.shape:
            return torch.inf
        if self.padding.stream is not None:
            ours, theirs = ours[self.padding.stream], theirs[self.padding.stream]
        off = float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-300))
        return off if off < torch.inf else torch.inf

    def is_state(self, node: Node) -> bool:
        """Whether a node holds every token of the stream once, its channels in order on the last axis."""
        places = self.of(node)
        if places is None or not _has_channels_last(places):
            return False
        rows = places.rows[..., 0].flatten()
        return torch.equal(rows.sort().values, torch.arange(self.texts * self.tokens))

    def state(self, node: Node, value: Tensor) -> Tensor:
        """A value of a state node as ``texts tokens dim``."""
        order = self._order(node)
        rows = value.reshape(-1, value.shape[-1])
        return rows[order.argsort()].reshape(self.texts, self.tokens, value.shape[-1])

    def laid(self, node: Node, state: Tensor) -> Tensor:
        """``texts tokens dim`` as a value of a state node."""
        rows = state.reshape(-1, state.shape[-1])[self._order(node)]
        return rows.reshape(*node.shape[:-1], state.shape[-1])

    def _order(self, node: Node) -> Tensor:
        places = self.of(node)
        if places is None:
            raise ValueError(f"{node} is no state of the stream")
        return places.rows[..., 0].flatten()


def called(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What foreign code gives in float64, with random states and switches left as they were."""
    with left_as_found(), Exact():
        return run(x.clone())


def _fits(order: Tensor, node: Node) -> bool:
    """Whether the leading axes of a node are those of an order of tokens, or all of them in one."""
    lead = [size for size in node.shape[:-1] if size > 1]
    return lead in ([size for size in order.shape if size > 1], [order.numel()], [])


def _has_channels_last(places: Places) -> bool:
    width = places.channels.shape[-1]
    return bool((places.rows == places.rows[..., :1]).all()) and torch.equal(
        places.channels, torch.arange(width).expand(places.channels.shape)
    )
