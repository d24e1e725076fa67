"""Blocks that compute the same as one before them with other weights: its tree again, with weights of the same names.

Two blocks are twins if their graphs are the same node by node: operations, arguments, shapes, and the values of all
that is neither a parameter nor a state. Whatever was found by a list of operations or by the value of a constant then
holds for both. What was found by numbers is compared with the block itself by whoever takes the tree.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.network import Part, TokenMap
from rankscope.network.foreign import Foreign
from rankscope.sources.operations.captured import Captured
from rankscope.sources.operations.graph import with_nodes


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """All that a block computes, whatever its parameters and the state of its stream.

    Args:
        rows: one per node of the graph, and what enters and leaves.
        constants: the values that entered the graph otherwise than as a parameter, by node.
        names: nodes of the arguments.
    """

    rows: tuple[Any, ...]
    constants: dict[int, Tensor]
    names: dict[str, int]

    def is_same(self, other: "Signature", states: frozenset[str]) -> bool:
        """Whether two blocks are twins; arguments that are states may have other values."""
        if (
            self.rows != other.rows
            or self.names != other.names
            or self.constants.keys() != other.constants.keys()
        ):
            return False
        free = {self.names[name] for name in states}
        return all(
            torch.equal(value, other.constants[node])
            for node, value in self.constants.items()
            if node not in free
        )


def signature(captured: Captured, stream: str) -> Signature | None:
    """What to tell twins by; None where more has to be asked of a block than of its graph.

    That is so where a run holds for one branch alone, or leaves something behind. It has to be taken before the
    graph is respelt.
    """
    graph = captured.graph
    if graph.guards or captured.hooked or captured.changed:
        return None
    weights = {id(one) for one in captured.module.parameters()}
    rows = [
        (
            node.id,
            node.op,
            repr(with_nodes(lambda leaf: f"%{leaf.id}", (node.args, node.kwargs))),
            node.item,
            node.value.shape,
            node.value.dtype,
            node.name,
            node.path,
            node.value.stride() if id(node.value) in weights else None,
        )
        for node in graph.nodes
    ]
    ends = tuple(node.id for node in graph.outputs)
    root = graph.inputs.get(stream)
    constants = {
        node.id: node.value
        for node in graph.nodes
        if node.op is None and node is not root and id(node.value) not in weights
    }
    names = {name: node.id for name, node in graph.inputs.items()}
    return Signature((*rows, ends), constants, names)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor of a tree lies in the memory of a parameter of the block."""

    name: str
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


def places_of(part: Part, captured: Captured) -> tuple[Place | Tensor, ...] | None:
    """Where every tensor of a tree lies, tables as they are; None where the tree cannot be made again with others.

    That is so if it runs foreign code, or holds a weight that is computed from parameters.
    """
    if any(isinstance(one, Foreign | TokenMap) for one in part.modules()):
        return None
    homes = {
        one.untyped_storage().data_ptr(): (name, one)
        for name, one in captured.module.named_parameters(remove_duplicate=False)
    }
    found = list[Place | Tensor]()
    for tensor in _tensors(part):
        name, home = homes.get(tensor.untyped_storage().data_ptr(), ("", None))
        if home is not None and tensor.dtype == home.dtype and not (tensor.is_conj() or tensor.is_neg()):
            offset = int(tensor.storage_offset() - home.storage_offset())
            found.append(Place(name, tensor.shape, tensor.stride(), offset))
        elif isinstance(tensor, nn.Parameter):
            return None
        else:
            found.append(tensor.detach())
    return tuple(found)


def with_weights(part: Part, places: tuple[Place | Tensor, ...], captured: Captured) -> Part | None:
    """The tree of a twin, with the weights of this block's copy; None where they lie otherwise in memory."""
    held = dict(captured.module.named_parameters(remove_duplicate=False))
    memo: dict[int, Any] = {}
    for tensor, place in zip(_tensors(part), places, strict=True):
        if id(tensor) in memo:
            continue
        if isinstance(place, Tensor):
            memo[id(tensor)] = place
            continue
        home = held[place.name].detach()
        start = int(home.storage_offset()) + place.offset
        last = start + sum((size - 1) * step for size, step in zip(place.shape, place.stride, strict=True))
        if start < 0 or last >= home.untyped_storage().nbytes() // home.element_size():
            return None
        found = home.as_strided(place.shape, place.stride, start)
        memo[id(tensor)] = (
            nn.Parameter(found, requires_grad=False) if isinstance(tensor, nn.Parameter) else found
        )
    return copy.deepcopy(part, memo)


def _tensors(part: Part) -> Iterator[Tensor]:
    """All tensors of a tree in order, those that stand in several places as often."""
    for module in part.modules():
        for held in (module._parameters, module._buffers, vars(module)):
            for value in held.values():
                if isinstance(value, Tensor):
                    yield value
