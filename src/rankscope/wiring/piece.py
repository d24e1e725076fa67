"""One call of a block by itself: its operations in float64, run again with some of its tokens moved.

A block is judged alone, on what it was given, so that a fault in one block is not seen in those after it. Moved are
tokens of the state that enters, by noise, because norms do not see a constant. No layout inside the block is known or
needed: what counts is which elements of an operation's value move.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

from rankscope.errors import RankscopeError, is_out_of_memory
from rankscope.sources.operations import Captured, Graph, Line, Node, Region, captured
from rankscope.sources.operations.captured import left_as_found
from rankscope.sources.operations.influence import differs, draw
from rankscope.sources.operations.watch import leaf_name
from rankscope.sources.safety import first_line
from rankscope.sources.taps import first_tensor
from rankscope.wiring.rest import at_rest

MOST_TOKENS = 8
"""So many tokens are moved one by one; of more, some all over the text."""

SOFTMAX = frozenset({"softmax", "_softmax", "_safe_softmax"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block stands.

    Args:
        number: of its call in its stack, from 1; 0 for a model without blocks.
        line: of the code that calls it.
        inner: the paths of blocks inside, where one module runs several that are never called.
        order: of the call among all calls of blocks, from 0.
    """

    stack: str
    number: int
    path: str
    line: Line | None
    inner: tuple[str, ...] = ()
    order: int = 0

    def block_of(self, node: Node | None) -> int | None:
        """The number of the block that an operation belongs to."""
        if not self.inner:
            return self.number or None
        path = "" if node is None else f"{self.path}.{node.path}" if self.path else node.path
        found = (place for place, one in enumerate(self.inner, 1) if f"{path}.".startswith(f"{one}."))
        return next(found, None)


@dataclass(eq=False)
class Piece:
    """A call of a module with a state among its arguments.

    Args:
        stream: the name of the argument that holds the state, as in ``Graph.inputs``.
        count: called with 1 for every time that the piece is run.
        clearly: relative change that is no rounding where the module itself runs, in its own dtype.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    stream: str
    place: Place
    count: Callable[[float], None]
    clearly: float

    shared: tuple[Captured, Node, Node] | None = None
    """Operations of a larger module, and the states between which this block lies, where no module stands for it."""

    failure: str = ""
    """Why its operations cannot be written down."""

    @cached_property
    def captured(self) -> Captured | None:
        """Its operations in float64; None where they cannot be written down."""
        if self.shared is not None:
            return self.shared[0]
        self.count(1.0)
        try:
            with at_rest(self.module):
                return captured(self.module, self.args, self.kwargs)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.failure = first_line(error)
            return None

    @property
    def graph(self) -> Graph | None:
        """All operations."""
        return None if self.captured is None else self.captured.graph

    @cached_property
    def region(self) -> Region | None:
        """What lies between the state that enters and the state that leaves."""
        graph = self.graph
        if graph is None:
            return None
        if self.shared is not None:
            _, start, end = self.shared
            region = Region(graph, (start,), end)
            return region if region.depends(end) and end is not start else None
        root = graph.inputs.get(self.stream)
        outputs = [one for one in graph.outputs if one.value.is_floating_point() and one.value.ndim >= 2]
        if root is None or not outputs:
            return None
        target = next((one for one in outputs if one.shape == root.shape), outputs[0])
        region = Region(graph, (root,), target)
        return region if region.depends(target) and target is not root else None

    @cached_property
    def state(self) -> Tensor:
        """What enters, in float64 where the operations are known."""
        if self.region is not None:
            return self.region.roots[0].value
        leaves, _ = tree_flatten_with_path((self.args, dict(self.kwargs)))
        found: Tensor = next(leaf for path, leaf in leaves if leaf_name(path) == self.stream)
        return found

    @property
    def root_shape(self) -> torch.Size | None:
        """The shape of what enters, where it has texts, tokens and channels."""
        return self.state.shape if self.state.ndim == 3 else None

    @cached_property
    def _has_guards(self) -> bool:
        """Whether numbers decide what runs, so that the operations hold for this input alone."""
        return self.region is None or bool(self.region.guards())

    def run(self, x: Tensor) -> Tensor | None:
        """What leaves if another state enters; None where it fails."""
        self.count(1.0)
        try:
            with left_as_found():
                torch.manual_seed(0)
                if self.region is not None and not self._has_guards:
                    return self.region.replay(self.region.target, {self.region.roots[0]: x})
                if self.shared is not None:
                    return None  # another branch may be taken on other numbers, and a part cannot be called
                if self.captured is not None and self.region is not None:
                    args, kwargs = self.captured.with_states({self.stream: x})
                    return first_tensor(self.captured.again(args, kwargs))
            return self._live(x)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return None

    def _live(self, x: Tensor) -> Tensor | None:
        leaves, form = tree_flatten_with_path((self.args, dict(self.kwargs)))
        clones = [
            x.to(leaf)
            if leaf_name(path) == self.stream
            else leaf.clone()
            if isinstance(leaf, Tensor)
            else leaf
            for path, leaf in leaves
        ]
        args, kwargs = tree_unflatten(clones, form)
        with at_rest(self.module):
            return first_tensor(self.module(*args, **kwargs))

    @cached_property
    def base(self) -> Tensor | None:
        """What leaves if the state enters as it was."""
        return self.run(self.state)

    @property
    def is_usable(self) -> bool:
        """Whether it can be run again, and returns a state for every token that enters."""
        return (
            self.base is not None
            and self.base.shape[:2] == self.state.shape[:2]
            and bool(self.base.isfinite().all())
        )

    def noise(self, where: Tensor, *, size: float = 1.0, seed: int = 1) -> Tensor:
        """The state with noise of the state's own size where a mask says so."""
        spread = float(self.state.double().std(correction=0)) or 1.0
        drawn = draw(self.state.shape, size * spread, seed).to(self.state)
        where = where.to(self.state.device).expand(self.state.shape)
        return torch.where(where, self.state + drawn, self.state)

    def moved_rows(self, where: Tensor, *, size: float = 1.0) -> Tensor | None:
        """Which rows of what leaves move if those at ``where`` do; None where it cannot be run."""
        after = self.run(self.noise(where, size=size))
        if self.base is None or after is None or after.shape != self.base.shape:
            return None
        if self.region is not None:
            moved = differs(self.base, after)
        else:
            a, b = self.base.double(), after.double()
            moved = (a - b).abs() > self.clearly * torch.maximum(a.abs(), b.abs()).amax(-1, keepdim=True)
        return moved.any(-1).cpu()

    def slice_at(self, axis: int, place: int) -> Tensor:
        """True on one slice of the state."""
        shape = [1] * self.state.ndim
        shape[axis] = self.state.shape[axis]
        found = torch.zeros(self.state.shape[axis], dtype=torch.bool)
        found[place] = True
        return found.reshape(shape)

    @cached_property
    def _mixed(self) -> dict[int, bool]:
        return {}

    def mixes(self, axis: int) -> bool:
        """Whether slices along an axis read each other: the first is moved, and the last, much further."""
        if axis not in self._mixed:
            self._mixed[axis] = self.state.shape[axis] > 1 and any(
                self._reads(axis, place, size) for place, size in ((0, 1.0), (-1, 30.0))
            )
        return self._mixed[axis]

    def _reads(self, axis: int, place: int, size: float) -> bool:
        moved = self.moved_rows(self.slice_at(axis, place), size=size)
        if moved is None:
            return False
        others = ~self.slice_at(axis, place).reshape([-1 if one == axis else 1 for one in range(moved.ndim)])
        return bool((moved & others).any())

    @cached_property
    def _readers(self) -> dict[int, dict[int, Tensor]]:
        return {}

    def readers(self, text_axis: int) -> dict[int, Tensor]:
        """Which tokens move if one does, for tokens all over the text; every text has another token moved."""
        if text_axis not in self._readers:
            self._readers[text_axis] = self._read_by(text_axis)
        return self._readers[text_axis]

    def _read_by(self, text_axis: int) -> dict[int, Tensor]:
        axis = 1 - text_axis
        texts, tokens = self.state.shape[text_axis], self.state.shape[axis]
        chosen = spread_over(tokens, MOST_TOKENS)
        found: dict[int, Tensor] = {}
        for start in range(0, len(chosen), texts):
            group = chosen[start : start + texts]
            where = torch.zeros(self.state.shape[:2], dtype=torch.bool)
            by_text = where if text_axis == 0 else where.mT
            for text, token in enumerate(group):
                by_text[text, token] = True
            moved = self.moved_rows(where.unsqueeze(-1))
            if moved is None:
                continue
            rows = moved if text_axis == 0 else moved.mT
            found |= {token: rows[text] for text, token in enumerate(group)}
        return found

    def values(self, x: Tensor, nodes: Sequence[Node]) -> dict[Node, Tensor]:
        """The values of operations if another state enters."""
        if self.region is None:
            raise RankscopeError("the operations of the block are not known")
        self.count(self.region.share(nodes))
        with left_as_found():
            torch.manual_seed(0)
            return self.region.replays(tuple(nodes), {self.region.roots[0]: x})


def spread_over(many: int, most: int) -> list[int]:
    """Some places out of many, the first two and the last among them.

    >>> spread_over(4, 8), spread_over(20, 5)
    ([0, 1, 2, 3], [0, 1, 7, 13, 19])
    """
    if many <= most:
        return list(range(many))
    rest = torch.linspace(1, many - 1, most - 1).round().int().tolist()
    return [0, *dict.fromkeys(rest)]
