"""The operations of one call, as nodes with their values and the user's own source lines."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rankscope.errors import RankscopeError
from rankscope.findings import tree as told


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the user's own code.

    >>> str(Line(file="/home/me/zoo.py", number=31, code="a = a.clamp(max=50)"))
    'zoo.py:31, `a = a.clamp(max=50)`'
    """

    file: str
    number: int
    code: str = ""

    @property
    def told(self) -> told.SourceLine:
        """What a finding keeps of it: the name of the file without its folder."""
        name = self.file.replace(chr(92), "/").rpartition("/")[2]
        return told.SourceLine(file=name, number=self.number, code=self.code)

    def __str__(self) -> str:
        return str(self.told)


class NotCaptured(RankscopeError):  # noqa: N818 - reads as a sentence
    """A call whose operations cannot be written down: what stands in the way, in which module, on whose line."""

    def __init__(self, what: str, *, operation: str = "", path: str = "", line: Line | None = None) -> None:
        place = f" ({path})" if path else ""
        super().__init__(f"{line}{place}: {what}" if line else f"{what}{place}")
        self.what, self.operation, self.path, self.line = what, operation, path, line


@dataclass(eq=False, slots=True, repr=False)
class Node:
    """One operation and its value; without an operation it is something that entered from outside.

    Args:
        args: arguments of the operation, nodes in place of tensors; ``kwargs`` likewise.
        item: which output of an operation with several; after them come the arguments that it writes into.
        line: the first line outside of libraries that led here; ``path`` is the module it ran in.
        name: of a parameter or buffer (``attn.q.weight``), or of an argument (``x``); empty for other constants.
        call: the same for all outputs of one operation.
    """

    id: int
    op: torch._ops.OpOverload | None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    value: Tensor = field(default_factory=lambda: torch.empty(0))
    item: int | None = None
    line: Line | None = None
    path: str = ""
    name: str = ""
    call: int = -1
    _inputs: tuple[Any, Any, list["Node"]] | None = None  # with the arguments that they are of

    @property
    def is_random(self) -> bool:
        """Whether the operation draws random numbers; a dropout that drops nothing does not."""
        if self.op is None or torch.Tag.nondeterministic_seeded not in self.op.tags:
            return False
        return self.kind != "dropout" or bool(self.args[1] and self.args[2])

    @property
    def kind(self) -> str:
        """``linear``, ``add``, ...: the name of the operation without its overload; ``outside`` where there is none."""
        return "outside" if self.op is None else self.op._schema.name.removeprefix("aten::")

    @property
    def shape(self) -> torch.Size:
        return self.value.shape

    def inputs(self) -> list["Node"]:
        """The nodes among the arguments, in order, as often as they stand there."""
        known = self._inputs
        if known is None or known[0] is not self.args or known[1] is not self.kwargs:
            known = self._inputs = (self.args, self.kwargs, [])
            with_nodes(known[2].append, (self.args, self.kwargs))
        return known[2]

    def __repr__(self) -> str:
        return f"%{self.id} {self.kind}{tuple(self.shape)} {self.name or self.line or ''}"


def with_nodes(change: Any, args: Any) -> Any:
    """Arguments of an operation with every node changed by a function: nodes stand alone or in lists."""
    return changed_leaves(Node, change, args)


def with_tensors(change: Any, args: Any) -> Any:
    """Arguments of an operation with every tensor changed by a function."""
    return changed_leaves(Tensor, change, args)


def changed_leaves(kind: type, change: Any, args: Any) -> Any:
    """Arguments of an operation, which know no other containers than these, with all of one kind changed."""
    if isinstance(args, kind):
        return change(args)
    form = type(args)
    if form is tuple or form is list:
        # Most leaves are plain numbers, and are passed over here: a call for each would take longer than the rest.
        return form(
            [
                change(leaf)
                if isinstance(leaf, kind)
                else changed_leaves(kind, change, leaf)
                if type(leaf) in _NESTS and leaf
                else leaf
                for leaf in args
            ]
        )
    if form is dict:
        return {name: changed_leaves(kind, change, leaf) for name, leaf in args.items()}
    return args


_NESTS = frozenset({tuple, list, dict})


@dataclass(frozen=True, slots=True)
class Guard:
    """A number that left the tensors for Python (``.item()``, ``bool()``): the run holds for this branch alone.

    Args:
        what: the operation: ``item``, ``is_nonzero`` (``bool()``), ``nonzero`` and others whose shape depends on
            numbers, ``numpy`` and ``tolist``.
        result: the number, or the shape; None where it is not known.
    """

    node: Node | None
    what: str
    result: object
    line: Line | None


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module: the nodes of the tensors that entered and left it, as they were at that moment, and the
    line that calls it."""

    path: str
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    line: Line | None = None


@dataclass(slots=True)
class Graph:
    """All operations of one call, in order.

    Args:
        inputs: nodes of the tensors among the arguments of the call, by name (``x``, ``mask``, ``0.hidden``).
        outputs: nodes of the tensors that it returned, in order.
        calls: the modules that were called inside, in order of their returns.
    """

    nodes: list[Node]
    inputs: dict[str, Node]
    outputs: tuple[Node, ...]
    calls: list[ModuleCall]
    guards: list[Guard]

    def calls_of(self, path: str) -> Iterator[ModuleCall]:
        return (call for call in self.calls if call.path == path)

    def above(self, ends: Iterable[Node]) -> set[Node]:
        """All nodes that some are computed from, they themselves included."""
        found, waiting = set[Node](), list(ends)
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += node.inputs()
        return found

    def random(self) -> list[Node]:
        """The operations behind the outputs that draw random numbers; a run with any of them cannot be repeated."""
        behind = self.above(self.outputs)
        return [node for node in self.nodes if node.is_random and node in behind]

    def release(self, keep: Iterable[Node] = ()) -> None:
        """Let go of all values but some; shapes and dtypes stay."""
        kept = set(keep)
        for node in self.nodes:
            if node not in kept:
                node.value = torch.empty_strided(
                    node.value.shape, node.value.stride(), dtype=node.value.dtype, device="meta"
                )


def merged(graph: Graph) -> Graph:
    """Equal operations on equal operands become one node: a norm written twice, a table made in every branch."""
    first: dict[Any, Node] = {}
    same: dict[Node, Node] = {}

    def one(node: Node) -> Node:
        return same.get(node, node)

    kept = []
    for node in graph.nodes:
        node.args, node.kwargs = with_nodes(one, (node.args, node.kwargs))
        key = _key(node)
        if key is not None and key in first:
            same[node] = first[key]
            continue
        if key is not None:
            first[key] = node
        kept.append(node)
    return Graph(
        nodes=kept,
        inputs={name: one(node) for name, node in graph.inputs.items()},
        outputs=tuple(map(one, graph.outputs)),
        calls=[
            ModuleCall(call.path, tuple(map(one, call.inputs)), tuple(map(one, call.outputs)), call.line)
            for call in graph.calls
        ],
        guards=[
            Guard(guard.node and one(guard.node), guard.what, guard.result, guard.line)
            for guard in graph.guards
        ],
    )


def _key(node: Node) -> tuple[Any, ...] | None:
    """Equal for nodes that must have equal values; None for what enters from outside and for random numbers."""
    if node.op is None or torch.Tag.nondeterministic_seeded in node.op.tags or node.op._schema.is_mutable:
        return None
    return (node.op, repr(with_nodes(lambda leaf: f"%{leaf.id}", (node.args, node.kwargs))), node.item)
