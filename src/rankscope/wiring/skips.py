"""The line at which a skip is missing: where other blocks add the same sublayer, or where this one calls it."""

from torch import nn

from rankscope.errors import RankscopeError
from rankscope.sources import Batch, Layout
from rankscope.sources.operations import Graph, Line
from rankscope.wiring.subject import Subject


def line_of_skip(model: nn.Module, batch: Batch, layout: Layout, block: int, site: str) -> Line | None:
    """Where a skip around a sublayer (``attention`` or ``mlp``) of a block, from 1, would be written.

    None where no module stands for the block or for the sublayer, or where it cannot be run by itself.
    """
    subject = Subject(model=model, batch=batch, given=batch)
    stack = layout.stacks[0]
    paths = stack.attention if site == "attention" else stack.mlp
    if not 0 < block <= len(stack.blocks) or not paths[block - 1]:
        return None
    try:
        graphs = {one.place.path: one.graph for one in subject.pieces if one.shared is None}
    except RankscopeError:
        return None
    for path, part in zip(stack.blocks, paths, strict=True):
        graph = graphs.get(path)
        if path != stack.blocks[block - 1] and graph is not None and part.startswith(f"{path}."):
            line = _added(graph, part[len(path) + 1 :])
            if line is not None:
                return line
    own, path = graphs.get(stack.blocks[block - 1]), stack.blocks[block - 1]
    if own is None or not paths[block - 1].startswith(f"{path}."):
        return None
    call = next(own.calls_of(paths[block - 1][len(path) + 1 :]), None)
    return None if call is None else call.line


def _added(graph: Graph, path: str) -> Line | None:
    """The line that adds what a part returned to something that does not come from it."""
    call = next(graph.calls_of(path), None)
    if call is None or not call.outputs:
        return None
    reached = {call.outputs[0]}
    for node in graph.nodes:
        leaves = node.inputs()
        if node in reached or not any(leaf in reached for leaf in leaves):
            continue
        if node.kind == "add" and node.shape == call.outputs[0].shape:
            return node.line if any(leaf not in reached for leaf in leaves) else None
        reached.add(node)
    return None
