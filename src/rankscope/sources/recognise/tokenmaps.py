"""Modules that send tokens to different weights, kept whole if each token is mapped by itself."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from rankscope.network import TokenMap
from rankscope.sources.operations import influence
from rankscope.sources.operations.captured import Captured
from rankscope.sources.operations.graph import ModuleCall, Node
from rankscope.sources.operations.raised import Copies
from rankscope.sources.operations.region import Known, Region
from rankscope.sources.recognise.layout import Layout, called
from rankscope.sources.recognise.linear import is_close

_ROUTING = frozenset(
    {
        "topk",
        "nonzero",
        "sort",
        "argsort",
        "index_add",
        "index_put",
        "_index_put_impl",
        "_grouped_mm",
        "scatter",
    }
    | {"scatter_add", "scatter_reduce", "argmax", "bincount", "histc", "masked_select", "masked_scatter"}
)


class Called(nn.Module):
    """A foreign module as a map of ``texts tokens dim``, called with the shape that it was called with before."""

    def __init__(self, module: nn.Module, *, is_flat: bool = False, is_turned: bool = False) -> None:
        super().__init__()
        self.module, self.is_flat, self.is_turned = module, is_flat, is_turned

    def forward(self, x: Tensor) -> Tensor:
        given = x.transpose(0, 1) if self.is_turned else x
        shape = given.shape
        result: Any = self.module(given.reshape(-1, shape[-1]) if self.is_flat else given)
        found = next(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        found = found.reshape(*shape[:-1], found.shape[-1])
        return found.transpose(0, 1) if self.is_turned else found


@torch.no_grad()
def find_token_maps(region: Region, layout: Layout, captured: Captured) -> None:
    """Add the smallest modules around an operation that routes tokens to ``region.known``, if they are tokenwise."""
    for node in region.order:
        if node.kind not in _ROUTING or node in region.roots:
            continue
        if any(node.path == path or node.path.startswith(f"{path}.") for path in _taken(region)):
            continue
        for call in _around(region, node):
            source, output = call.inputs[0], call.outputs[0]
            run = as_module(region, layout, captured, source, output)
            if run is not None and is_tokenwise(run, layout, source.shape[-1]):
                region.known[output] = Known(source, output, TokenMap(run))
                inside = (call.path, f"{call.path}.")
                region.notes[:] = [
                    one
                    for one in region.notes
                    if one.path != inside[0] and not one.path.startswith(inside[1])
                ]
                break


def _taken(region: Region) -> list[str]:
    return [
        call.path
        for call in region.graph.calls
        if call.outputs
        and call.path
        and isinstance(getattr(region.known.get(call.outputs[0]), "part", None), TokenMap)
    ]


def _around(region: Region, node: Node) -> Iterator[ModuleCall]:
    """The calls of modules that a node was made in, from the inside out, of one state to one of its shape."""
    path = node.path
    while path:
        for call in region.graph.calls_of(path):
            inputs = [one for one in call.inputs if region.depends(one)]
            if (
                call.outputs
                and len(inputs) == 1
                and call.inputs[0] is inputs[0]
                and region.depends(call.outputs[0])
                and call.outputs[0].shape == inputs[0].shape
            ):
                yield call
        path = path.rpartition(".")[0]


def as_module(region: Region, layout: Layout, captured: Captured, start: Node, end: Node) -> Called | None:
    """The way from one state to another as a call of one of the model's own modules, which runs at any shape.

    It is given where that module, called with nothing but other states, gives what the graph gives.
    """
    if not layout.is_state(start):
        return None
    for call in region.graph.calls:
        if not call.path or not call.outputs or len(call.inputs) != 1:
            continue
        source, output = call.inputs[0], call.outputs[0]
        if not region.depends(source) or not region.depends(output):
            continue
        if region.stripped(output) is not region.stripped(end) or output.shape != source.shape:
            continue
        if region.stripped(source) is not region.stripped(start) or not layout.is_state(source):
            continue
        is_flat = source.value.ndim == 2
        is_turned = not torch.equal(
            layout.laid(source, _numbers(layout)).flatten(), _numbers(layout).flatten()
        )
        run = Called(
            Copies(captured.module.get_submodule(call.path), shared=True).module,
            is_flat=is_flat,
            is_turned=is_turned,
        )
        if _gives(run, layout, captured, source, output):
            return run
    return None


def _numbers(layout: Layout) -> Tensor:
    return torch.arange(layout.texts * layout.tokens).reshape(layout.texts, layout.tokens, 1)


def _gives(run: Called, layout: Layout, captured: Captured, source: Node, output: Node) -> bool:
    """Whether a module gives what it gave in the run, and what the graph gives where that can be run again."""
    x = layout.state(source, source.value)
    turned = run.is_turned
    held = output.value.reshape(source.shape)
    expected = layout.state(source, held)
    try:
        return is_close(called(run, x), expected, 1e-9) and turned == run.is_turned
    except Exception:  # a foreign module that wants more than a state
        return False


def is_tokenwise(run: Callable[[Tensor], Tensor], layout: Layout, dim: int) -> bool:
    """Whether no token moves another, in any text."""
    return influence.is_tokenwise(lambda x: called(run, x), (layout.texts, layout.tokens, dim))


def is_alike_everywhere(run: Callable[[Tensor], Tensor], layout: Layout, dim: int) -> bool:
    """Whether a map of tokens is the same for every place."""
    return influence.is_alike_everywhere(lambda x: called(run, x), (layout.texts, layout.tokens, dim))


class RowByRow(nn.Module):
    """A map of each token by itself that runs for one shape only, for any: tokens are given to it in such pieces.

    It computes in float64. Its weights are the model's own: copies share them.
    """

    def __init__(self, run: Callable[[Tensor], Tensor], texts: int, tokens: int) -> None:
        super().__init__()
        self.run, self.texts, self.tokens = run, texts, tokens

    def __deepcopy__(self, memo: dict[int, Any]) -> "RowByRow":
        return RowByRow(self.run, self.texts, self.tokens)

    def forward(self, x: Tensor) -> Tensor:
        rows, size = x.double().reshape(-1, x.shape[-1]), self.texts * self.tokens
        missing = -len(rows) % size
        padded = torch.cat([rows, rows[-1:].expand(missing, -1)]) if missing else rows
        pieces = [
            self.run(piece.reshape(self.texts, self.tokens, -1)).reshape(size, -1)
            for piece in padded.split(size)
        ]
        return torch.cat(pieces)[: len(rows)].reshape(x.shape).to(x.dtype)
