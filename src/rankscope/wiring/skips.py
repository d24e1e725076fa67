"""The line at which a skip is missing: where other blocks add the same sublayer, or where this one calls it."""

from torch import nn

from rankscope.errors import RankscopeError
from rankscope.sources import Batch, Layout
from rankscope.sources.operations import Graph, Line
from rankscope.wiring.piece import SOFTMAX
from rankscope.wiring.subject import Subject
from rankscope.wiring.unused import line_that_takes

MAPS = frozenset({"linear", "addmm", "mm", "matmul", "bmm"})
"""Products with a weight."""


def line_of_skip(model: nn.Module, batch: Batch, layout: Layout, block: int, site: str) -> Line | None:
    """Where a skip around a sublayer (``attention`` or ``mlp``) of a block, from 1, would be written.

    None where no module stands for the block or for the sublayer, or where it cannot be run by itself.
    """
    subject = Subject(model=model, batch=batch, given=batch)
    stack = layout.stacks[0]
    if stack.program is not None or stack.enters:
        return _behind(subject, block, site)
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
    return None if call is None or call.line is None else line_that_takes(call.line)


def line_of_factor(model: nn.Module, batch: Batch, block: int) -> Line | None:
    """The line at which a block multiplies the state that it adds to by a number."""
    subject = Subject(model=model, batch=batch, given=batch)
    try:
        piece = next((one for one in subject.pieces if one.place.number == block), None)
    except RankscopeError:
        return None
    region = None if piece is None else piece.region
    if region is None:
        return None
    for node in region.order:
        is_state = node.shape == region.roots[0].shape and any(
            leaf.shape == node.shape for leaf in node.inputs()
        )
        numbers = [one for one in node.args[:2] if isinstance(one, float)]
        if node.kind in ("mul", "div") and is_state and numbers and 1.0 not in numbers:
            return node.line
        if node.kind == "add" and is_state and node.kwargs.get("alpha", 1) != 1:
            return node.line
    return None


def _behind(subject: Subject, block: int, site: str) -> Line | None:
    """The line of the last map of a sublayer, where no module stands for its block: of attention the first behind a
    softmax, of an MLP the last of the block. Where the model calls a part for it, the line of that call."""
    try:
        piece = next((one for one in subject.pieces if one.place.number == block), None)
    except RankscopeError:
        return None
    region = None if piece is None else piece.region
    if piece is None or region is None:
        return None
    mixes = [place for place, node in enumerate(region.order) if node.kind in SOFTMAX]
    maps = [
        node
        for node in region.order[max(mixes, default=-1) + 1 if site == "attention" else 0 :]
        if node.kind in MAPS and not all(region.depends(leaf) for leaf in node.inputs())
    ]
    if not maps:
        return None
    node = maps[0 if site == "attention" else -1]
    parts = node.path.split(".") if node.path else []
    for end in range(1, len(parts) + 1):
        call = next(piece.graph.calls_of(".".join(parts[:end])), None) if piece.graph is not None else None
        if call is not None and call.line is not None:
            return call.line
    return node.line


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
