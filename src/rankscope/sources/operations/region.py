"""A piece of a graph between the states that enter and the state that leaves: what depends on what, and run again.

What does not depend on a root is a constant of the region: weights, masks, tables of angles. What has been recognised
so far stands in ``linears`` and ``known``, and the search for structure steps over it as over one operation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rankscope.findings import tree as told
from rankscope.masks import MaskRule
from rankscope.network import Part
from rankscope.sources.operations.forms import outcomes
from rankscope.sources.operations.graph import Graph, Guard, Line, Node, with_nodes

SAME_CHANNELS = frozenset(
    {
        "view",
        "_unsafe_view",
        "reshape",
        "clone",
        "contiguous",
        "unsqueeze",
        "squeeze",
        "alias",
        "detach",
        "expand",
    }
    | {"lift_fresh", "transpose", "permute", "t", "_reshape_alias"}
)
"""Operations that move elements about and compute nothing; whether tokens keep their places has to be asked."""


class Unread(Exception):  # noqa: N818 - reads as a sentence
    """Something in a graph that no rule of the recogniser covers, and where it stands."""

    def __init__(self, what: str, node: Node | None = None) -> None:
        super().__init__(what)
        self.what, self.node = what, node


@dataclass(frozen=True, slots=True)
class Note:
    """Why a piece was not recognised: what stands there, in which module, on which line of the user."""

    what: str
    path: str
    line: Line | None

    @classmethod
    def of(cls, error: Unread) -> "Note":
        node = error.node
        return cls(error.what, "" if node is None else node.path, None if node is None else node.line)

    @property
    def told(self) -> told.UnreadPiece:
        """What a finding keeps of it."""
        return told.UnreadPiece(
            what=self.what, path=self.path, line=None if self.line is None else self.line.told
        )


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """``output = input @ matrix + bias`` for every token."""

    input: Node
    output: Node
    matrix: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A recognised part: ``output = part(input)``; cross-attention reads ``memory`` as well.

    Args:
        rules: mask rules that give the same pattern at the length that was seen, that of the part first; on longer
            texts at most one of them is right.
    """

    input: Node
    output: Node
    part: Part
    memory: Node | None = None
    rules: tuple[MaskRule, ...] = ()


@dataclass(eq=False)
class Region:
    """What lies between ``roots`` (the stream first, then memories) and ``target`` in a graph."""

    graph: Graph
    roots: tuple[Node, ...]
    target: Node
    linears: dict[Node, Linear] = field(default_factory=dict)
    known: dict[Node, Known] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def __post_init__(self) -> None:
        reached = set(self.roots)
        for node in self.graph.nodes:
            if node not in reached and any(leaf in reached for leaf in node.inputs()):
                reached.add(node)
        needed = self._above(self.target, reached)
        self.order = [node for node in self.graph.nodes if node in needed or node in self.roots]
        self.inside = set(self.order)
        self._ends = frozenset(self.roots)
        self._plans: dict[Any, list[tuple[Node, tuple[Node, ...]]]] = {}
        self.users: dict[Node, list[Node]] = {node: [] for node in self.order}
        for node in self.order:
            for leaf in () if node in self.roots else dict.fromkeys(node.inputs()):
                if leaf in self.users:
                    self.users[leaf].append(node)

    def depends(self, node: object) -> bool:
        """Whether a node depends on a root; all else is constant here."""
        return node in self.inside

    def _above(self, target: Node, within: set[Node]) -> set[Node]:
        """What a node is computed from, itself included, up to the roots."""
        found, waiting = set[Node](), [target]
        while waiting:
            node = waiting.pop()
            if node not in found and node in within:
                found.add(node)
                waiting += () if node in self.roots else node.inputs()
        return found

    def replay(self, target: Node, given: Mapping[Node, Tensor]) -> Tensor:
        """The value of ``target`` if the nodes of ``given`` had these values; shapes are those of the run."""
        return self.replays((target,), given)[target]

    def replays(self, targets: Sequence[Node], given: Mapping[Node, Tensor]) -> dict[Node, Tensor]:
        """The values of several nodes in one go; captured values are read, never changed."""
        key = (tuple(targets), frozenset(given))
        if key not in self._plans:
            self._plans[key] = self._plan(*key)
        values, calls = dict(given), dict[int, Any]()
        for node, done in self._plans[key]:
            values[node] = run_again(node, values, calls)
            for one in done:
                del values[one]
        return {node: values.get(node, node.value) for node in targets}

    def share(self, targets: Sequence[Node]) -> float:
        """The part of the operations of this region that runs for some nodes if a root changes."""
        key = (tuple(targets), frozenset(self.roots[:1]))
        if key not in self._plans:
            self._plans[key] = self._plan(*key)
        return len(self._plans[key]) / max(len(self.order) - 1, 1)

    def _plan(self, targets: tuple[Node, ...], given: frozenset[Node]) -> list[tuple[Node, tuple[Node, ...]]]:
        """The nodes that have to run, in order, each with those whose values nobody needs after it."""
        reached = set(given)
        for node in self.order:
            if node not in self._ends and any(leaf in reached for leaf in node.inputs()):
                reached.add(node)
        needed, waiting = set[Node](), list(targets)
        while waiting:
            node = waiting.pop()
            if node not in needed and node not in given and node in reached:
                needed.add(node)
                waiting += node.inputs()
        steps = [node for node in self.order if node in needed]
        last = {leaf: node for node in steps for leaf in node.inputs() if leaf in needed}
        done: dict[Node, list[Node]] = {}
        for leaf, node in last.items():
            if leaf not in targets:
                done.setdefault(node, []).append(leaf)
        return [(node, tuple(done.get(node, ()))) for node in steps]

    def constants(self) -> list[Node]:
        """What the region reads and no root reaches: weights, masks, tables."""
        read = (leaf for node in self.order if node not in self._ends for leaf in node.inputs())
        return [leaf for leaf in dict.fromkeys(read) if leaf not in self.inside]

    def release(self) -> None:
        """Let go of all values of the graph but the constants of this region: it can still be run again."""
        self.graph.release(self.constants())

    def guards(self) -> list[Guard]:
        """The numbers that left for Python and depend on a root: on other numbers another branch may be right."""
        reached = set(self.roots)
        for node in self.graph.nodes:
            if any(leaf in reached for leaf in node.inputs()):
                reached.add(node)
        return [guard for guard in self.graph.guards if guard.node in reached]

    def random(self) -> list[Node]:
        """What draws random numbers on the way to the target, whether it depends on a root or not."""
        behind = self.graph.above((self.target,))
        return [node for node in self.graph.nodes if node.is_random and node in behind]

    def before(self, node: Node) -> list[Node]:
        """The nodes a node is made from, of those that depend on a root; what is recognised is one step."""
        if node in self.roots:
            return []
        if node in self.known:
            known = self.known[node]
            return [known.input] if known.memory is None else [known.input, known.memory]
        if node in self.linears:
            return [self.linears[node].input]
        return [leaf for leaf in dict.fromkeys(node.inputs()) if leaf in self.inside]

    def waist(self, start: Node, end: Node) -> list[Node]:
        """The nodes that every way from ``start`` to ``end`` passes, both included, in order: dominators of the end.

        Ways that do not begin at ``start`` do not count; an error if none begins there.
        """
        place = {node: number for number, node in enumerate(self.order)}
        between, waiting = set[Node](), [end]
        while waiting:
            node = waiting.pop()
            if node in between or place[node] < place[start]:
                continue
            between.add(node)
            waiting += () if node is start else self.before(node)
        if start not in between:
            raise Unread("does not read the stream", end)
        dominators: dict[Node, set[Node]] = {start: {start}}
        for node in sorted(between - {start}, key=place.__getitem__):
            above = [dominators[leaf] for leaf in self.before(node) if leaf in dominators]
            if above:
                dominators[node] = {node} | set.intersection(*above)
        return sorted(dominators[end], key=place.__getitem__)

    def stripped(self, node: Node) -> Node:
        """Up through operations that only move rows about and leave the channels of each row together, in order.

        Whether they do is seen on numbered channels: where tokens and channels are equally many, shapes tell nothing.
        """
        found, at, moves = node, node, list[Node]()
        while (
            at.kind in SAME_CHANNELS
            and at not in self.roots
            and at not in self.known
            and (source := at.args[0]) in self.inside
            and source.value.numel() == at.value.numel()
        ):
            moves.append(at)
            at = source
            if at.shape[-1:] == node.shape[-1:] and _keeps_channels(at, moves):
                found = at
        return found


def _keeps_channels(source: Node, moves: list[Node]) -> bool:
    """Whether moves, the last one first, leave every channel of ``source`` in its place of the last axis."""
    label = torch.arange(source.shape[-1])
    found = label.expand(source.shape)
    for node in reversed(moves):
        found = run_again(node, {node.args[0]: found})
    return torch.equal(found, label.expand(found.shape))


def run_again(node: Node, values: Mapping[Node, Tensor], calls: dict[int, Any] | None = None) -> Tensor:
    """One operation on other values; views of the run become reshapes, because layouts in memory may differ.

    Args:
        calls: what operations with several outputs have returned so far, so that each runs once.
    """
    if node.op is None:
        return values.get(node, node.value)
    if node.item is not None and calls is not None and node.call in calls:
        return calls[node.call][node.item]  # type: ignore[no-any-return]  # operations are untyped

    def value(leaf: Node) -> Tensor:
        found = values.get(leaf, leaf.value)
        return found.clone() if found.is_inference() and not torch.is_inference_mode_enabled() else found

    args, kwargs = with_nodes(value, (node.args, node.kwargs))
    if node.op in _RESHAPES:
        return args[0].reshape(args[1])  # type: ignore[no-any-return]
    found: Any
    if node.op._schema.is_mutable:
        found = outcomes(node.op, args, kwargs)
    elif node.kind == "view_as_complex":
        found = node.op(args[0].contiguous())
    else:
        found = node.op(*args, **kwargs)
    if node.item is None:
        return found  # type: ignore[no-any-return]
    if calls is not None:
        calls[node.call] = found
    return found[node.item]  # type: ignore[no-any-return]


_RESHAPES = (
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten._reshape_alias.default,
)


def values_of(region: Region, given: Mapping[Node, Tensor], wanted: Iterable[Node]) -> dict[Node, Tensor]:
    """Several values of one replay."""
    return region.replays(tuple(wanted), given)
