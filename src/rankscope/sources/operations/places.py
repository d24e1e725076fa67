"""Which node holds the numbers of which tensor while a call runs, also after something was written into its memory.

A write never changes a node. It is kept as a list per piece of memory, and a tensor that shares the memory gets its new
node when it is next read: the written node itself, a reshape or a permutation of it where the tensor covers the same
elements, otherwise ``take`` and ``put`` by positions in row-major order, which mean the same whatever the strides are.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from rankscope.sources.operations.graph import Node, NotCaptured

Add = Callable[[Any, tuple[Any, ...], Tensor], Node]
"""Writes down one operation: what it is, its arguments, its value."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where the elements of a tensor lie in its memory."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "_Shape":
        return cls(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype)

    @property
    def end(self) -> int:
        return 1 + self.offset + sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))

    def places(self) -> Tensor:
        """The element of memory behind every element, in row-major order."""
        return torch.arange(self.end).as_strided(self.size, self.stride, self.offset).reshape(-1)


@dataclass(slots=True, eq=False)
class _Held:
    """A tensor, how it lay in memory, and its node after so many writes into that memory."""

    tensor: Tensor
    shape: _Shape
    memory: int
    node: Node
    writes: int


@dataclass(slots=True)
class _Memory:
    held: list[_Held] = field(default_factory=list)
    writes: list[tuple[_Shape, Node]] = field(default_factory=list)
    sharing: list[Node] = field(default_factory=list)  # nodes whose value would change with the memory


class Places:
    """Tensors of a run and their nodes. Tensors are kept, so that none takes the place of another in memory."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._held: dict[int, _Held] = {}
        self._memories: dict[int, _Memory] = {}
        self._kept: list[Tensor] = []

    def enter(self, tensor: Tensor, node: Node) -> None:
        """A tensor whose numbers are those of a node now."""
        address = tensor.untyped_storage().data_ptr() if tensor.numel() else -1 - id(tensor)
        memory = self._memories.setdefault(address, _Memory())
        held = _Held(tensor, _Shape.of(tensor), address, node, len(memory.writes))
        self._held[id(tensor)] = held
        memory.held.append(held)
        self._shares(node)

    def _shares(self, node: Node) -> Node:
        """The node, its value marked as one that a write would change."""
        memory = self._memories.get(node.value.untyped_storage().data_ptr() if node.value.numel() else -1)
        if memory is not None:
            memory.sharing.append(node)
        return node

    def find(self, tensor: Tensor) -> Node | None:
        """The node of a tensor as it is now; None for one whose memory no tensor so far has shared."""
        held = self._held.get(id(tensor))
        if held is None or (tensor.numel() and not self._is_where_it_was(held)):
            return self._alias(tensor)
        memory = self._memories[held.memory]
        for shape, written in memory.writes[held.writes :]:
            held.node = self._after(held.shape, held.node, shape, written)
        held.writes = len(memory.writes)
        return held.node

    def __contains__(self, tensor: object) -> bool:
        return (tensor if isinstance(tensor, int) else id(tensor)) in self._held

    def forget(self, tensor: Tensor) -> None:
        """A tensor that has moved to other memory, or lies in it in another way."""
        held = self._held.pop(id(tensor), None)
        if held is not None:
            self._memories[held.memory].held.remove(held)
            self._kept.append(tensor)

    def write(self, tensor: Tensor, node: Node) -> None:
        """From now on the memory of a tensor, which is in here, holds the numbers of a node."""
        held = self._held[id(tensor)]
        memory = self._memories[held.memory]
        memory.writes.append((held.shape, node))
        held.node, held.writes = node, len(memory.writes)

    def before_write(self, tensor: Tensor) -> None:
        """Nodes keep the numbers they had: called before the memory of a tensor changes."""
        memory = self._memories.get(self._held[id(tensor)].memory)
        if memory is not None:
            for node in memory.sharing:
                node.value = node.value.clone()
            memory.sharing.clear()

    def _is_where_it_was(self, held: _Held) -> bool:
        """False after ``tensor.data = other``, which no operation tells."""
        return (
            held.tensor.untyped_storage().data_ptr() == held.memory and _Shape.of(held.tensor) == held.shape
        )

    def _alias(self, tensor: Tensor) -> Node | None:
        """The node of a tensor made behind the operations, in memory that is known."""
        if not tensor.numel():
            return None
        memory = self._memories.get(tensor.untyped_storage().data_ptr())
        if memory is None or not memory.held:
            self._refuse_foreign_views(tensor)
            return None
        node = self.read(tensor)
        self.enter(tensor, node)
        return node

    def _refuse_foreign_views(self, tensor: Tensor) -> None:
        start = tensor.data_ptr()
        for memory in self._memories.values():
            for held in memory.held[:1]:
                first = held.memory
                if first > 0 and first <= start < first + held.tensor.untyped_storage().nbytes():
                    raise NotCaptured(
                        "a tensor comes back by way of memory that numpy or another library shares"
                    )

    def read(self, tensor: Tensor) -> Node:
        """The node of a view, made by no operation or by ``as_strided``, in terms of a tensor that covers it."""
        shape = _Shape.of(tensor)
        memory = self._memories[tensor.untyped_storage().data_ptr()]
        for held in sorted(memory.held, key=lambda one: one.tensor.numel() != tensor.numel()):
            if held.shape.dtype == shape.dtype:
                node = self.find(held.tensor)
                found = None if node is None else self._inside(shape, held.shape, node)
                if found is not None:
                    return found
        raise NotCaptured("a tensor reads memory that no tensor so far covers, or as another dtype")

    def _after(self, shape: _Shape, node: Node, target: _Shape, written: Node) -> Node:
        """The numbers of a tensor after a write into ``target``, which shares its memory."""
        if shape.offset >= target.end or target.offset >= shape.end:
            return node
        if shape.dtype != target.dtype:
            raise NotCaptured("memory is written as one dtype and read as another")
        whole = self._inside(shape, target, written)
        if whole is not None:
            return whole
        place = _places_in(shape, target)
        hit = place >= 0
        if not bool(hit.any()):
            return node
        aten = torch.ops.aten
        there = self._constant(hit.nonzero().flatten(), node)
        source = self._constant(place[hit], node)
        taken = self._add(aten.take.default, (written, source), written.value.take(source.value))
        return self._add(aten.put.default, (node, there, taken), node.value.put(there.value, taken.value))

    def _inside(self, shape: _Shape, cover: _Shape, node: Node) -> Node | None:
        """The numbers of a tensor out of those of one that covers all its elements; None if it does not."""
        aten = torch.ops.aten
        if shape == cover:
            return node
        for order in permutations(range(len(cover.size))) if shape.offset == cover.offset else ():
            size, stride = ([one[axis] for axis in order] for one in (cover.size, cover.stride))
            if tuple(size) == shape.size and tuple(stride) == shape.stride:
                return self._shares(
                    self._add(aten.permute.default, (node, list(order)), node.value.permute(order))
                )
        place = _places_in(shape, cover)
        if bool((place < 0).any()):
            return None
        if len(place) == node.value.numel() and torch.equal(place, torch.arange(len(place))):
            return self._shares(
                self._add(aten.reshape.default, (node, list(shape.size)), node.value.reshape(shape.size))
            )
        source = self._constant(place.reshape(shape.size), node)
        return self._add(aten.take.default, (node, source), node.value.take(source.value))

    def _constant(self, value: Tensor, beside: Node) -> Node:
        return self._add(None, (), value.to(beside.value.device))


def _places_in(shape: _Shape, cover: _Shape) -> Tensor:
    """For every element of a tensor which element of ``cover`` it is, in row-major order; -1 where it is none."""
    mine, theirs = shape.places(), cover.places()
    table = torch.full((int(max(shape.end, cover.end)),), -1)
    table[theirs] = torch.arange(len(theirs))
    return table[mine]
