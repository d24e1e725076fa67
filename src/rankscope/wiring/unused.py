"""Where a part that no gradient reaches should have been used: the line that uses another one, or drops its result.

The line that makes such a part is right; what is wrong is a line that calls its neighbor in its place
(``v = self.key(x)``), or one after which its result is nowhere to be found.
"""

import ast
import linecache
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from rankscope.errors import is_out_of_memory
from rankscope.sources.operations import Graph, Line, ModuleCall, Node, Region
from rankscope.sources.operations.captured import left_as_found
from rankscope.sources.operations.influence import differs, draw
from rankscope.wiring.culprits import is_own_code, parsed
from rankscope.wiring.piece import Piece
from rankscope.wiring.slopes import Slopes
from rankscope.wiring.subject import Subject


def line_of_slip(subject: Subject, slopes: Slopes, name: str) -> Line | None:
    """The line at which a parameter without a gradient is passed over; None where none is known."""
    path = _outermost(subject.model, slopes, name)
    if not path:
        return None
    holder = path.rpartition(".")[0]
    graph, inner = _graph_of(subject, path)
    if graph is None or not _is_own(subject.model, holder):
        return None
    if any(one == path or one.startswith(f"{path}.") for one in slopes.called):
        return _dropping(graph, inner)
    return _in_its_place(subject.model, graph, path, inner)


def _outermost(model: nn.Module, slopes: Slopes, name: str) -> str:
    """The largest part around a parameter of which nothing gets a gradient; empty where that is no part."""
    path = name.rpartition(".")[0]

    def is_dead(part: str) -> bool:
        return all(one is None for key, one in slopes.parameters.items() if key.startswith(f"{part}."))

    if not path or not is_dead(path):
        return ""
    while path.rpartition(".")[0] and is_dead(path.rpartition(".")[0]):
        path = path.rpartition(".")[0]
    return path


def _is_own(model: nn.Module, path: str) -> bool:
    while path and isinstance(model.get_submodule(path), nn.ModuleList | nn.ModuleDict | nn.Sequential):
        path = path.rpartition(".")[0]
    return is_own_code(model.get_submodule(path) if path else model)


def _graph_of(subject: Subject, path: str) -> tuple[Graph | None, str]:
    """The operations in which a part is called, and its path there: of its block, or of the whole model."""
    for piece in subject.pieces:
        if piece.shared is None and piece.place.path and path.startswith(f"{piece.place.path}."):
            return piece.graph, path[len(piece.place.path) + 1 :]
    return subject.whole_graph, path


def _in_its_place(model: nn.Module, graph: Graph, path: str, inner: str) -> Line | None:
    """The line that calls a part of the same kind once more, where this one is never called."""
    holder, _, name = path.rpartition(".")
    own, parts = model.get_submodule(path), model.get_submodule(holder) if holder else model
    prefix = inner[: len(inner) - len(name)]
    best: tuple[int, str, list[ModuleCall]] = (1, "", [])
    for other, part in parts._modules.items():
        if part is None or part is own or not _is_alike(part, own):
            continue
        calls = [one for one in graph.calls_of(f"{prefix}{other}") if one.line is not None]
        if len(calls) > best[0]:
            best = len(calls), other, calls
    if not best[2]:
        return None
    lines = [one.line for one in best[2] if one.line is not None]
    # of ``q = self.key(x)`` and ``k = self.key(x)`` the one that makes what is named like the part that is left out
    return max(reversed(lines), key=lambda one: _likeness(one, name) - _likeness(one, best[1]))


def _is_alike(one: nn.Module, other: nn.Module) -> bool:
    shapes = [[value.shape for value in part.parameters()] for part in (one, other)]
    return type(one) is type(other) and shapes[0] == shapes[1]


def _likeness(line: Line, name: str) -> int:
    """How many letters at its beginning a name shares with what a line assigns to."""
    statement = _statement(line)
    targets = [] if statement is None else [one.id for one in _stored(statement)]
    return max((_shared(one, name) for one in targets), default=0)


def _shared(one: str, other: str) -> int:
    names = [one.lower().lstrip("_w"), other.lower().lstrip("_w")]
    return next(
        (place for place, pair in enumerate(zip(*names, strict=False)) if pair[0] != pair[1]),
        min(map(len, names)),
    )


def _dropping(graph: Graph, inner: str) -> Line | None:
    """The line after which the result of a call is lost: itself, one that writes over it, or one that leaves it out."""
    line = next((one.line for one in graph.calls_of(inner) if one.line is not None), None)
    statement = None if line is None else _statement(line)
    if line is None or statement is None:
        return None
    if isinstance(statement, ast.Expr):
        return line
    stored = {one.id for one in _stored(statement)}
    later = [] if not stored else list(_later(line, statement))
    for one in later:
        if stored & {
            part.id for part in ast.walk(one) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
        }:
            return None  # it is used, and lost elsewhere
        if stored & {part.id for part in _stored(one)}:
            return _line_at(line, one)
    taking = (one for one in later if isinstance(one, ast.Return) or _adds(one) or _renames(one))
    found = next(taking, None)
    return None if found is None else _line_at(line, found)


def _adds(statement: ast.stmt) -> bool:
    return any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Add) for one in ast.walk(statement))


def _renames(statement: ast.stmt) -> bool:
    """``x = y``: what was a sum, perhaps."""
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name)


def _line_at(line: Line, statement: ast.stmt) -> Line:
    return Line(line.file, statement.lineno, linecache.getline(line.file, statement.lineno).strip())


def _function(line: Line) -> ast.FunctionDef | None:
    tree = parsed(line.file)
    around = [
        node
        for node in ([] if tree is None else ast.walk(tree))
        if isinstance(node, ast.FunctionDef)
        and node.lineno <= line.number <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda one: one.lineno, default=None)


def _statements(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """The simple statements of a function, in order."""
    kinds = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)
    found = [one for one in ast.walk(function) if isinstance(one, kinds)]
    yield from sorted(found, key=lambda one: one.lineno)


def _statement(line: Line) -> ast.stmt | None:
    function = _function(line)
    for one in [] if function is None else list(_statements(function)):
        if one.lineno <= line.number <= (one.end_lineno or one.lineno):
            return one
    return None


def _later(line: Line, statement: ast.stmt) -> Iterator[ast.stmt]:
    function = _function(line)
    if function is not None:
        yield from (one for one in _statements(function) if one.lineno > statement.lineno)


def _stored(statement: ast.stmt) -> list[ast.Name]:
    return [
        one for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    ]


def line_of_loss(piece: Piece, name: str, rows: range | None = None) -> Line | None:
    """The last operation that reads what rows of a parameter move, and is not moved by it."""
    graph, target = piece.graph, None if piece.region is None else piece.region.target
    inner = name[len(piece.place.path) + 1 :] if piece.place.path else name
    start = None if graph is None else next((node for node in graph.nodes if node.name == inner), None)
    if graph is None or target is None or start is None or piece.shared is not None:
        return None
    region = Region(graph, (start,), target)
    if not region.depends(target):
        return None
    nodes = [node for node in region.order if node.value.is_floating_point()]
    moved = _moved(piece, region, start, nodes, rows)
    lost = [
        node
        for node in nodes
        if node is not start
        and not moved.get(node, True)
        and any(moved.get(leaf, False) for leaf in node.inputs())
    ]
    return max(lost, key=lambda one: one.id).line if lost else None


def _moved(
    piece: Piece, region: Region, start: Node, nodes: list[Node], rows: range | None
) -> dict[Node, bool]:
    other = start.value.clone()
    part: Tensor = other if rows is None else other[rows.start : rows.stop]
    part += draw(part.shape, float(start.value.std(correction=0)) or 1.0, 11).to(part)
    piece.count(2 * region.share(nodes))
    try:
        with left_as_found():
            values = []
            for one in (start.value, other):
                torch.manual_seed(0)
                values.append(region.replays(tuple(nodes), {start: one}))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return {}
    return {node: bool(differs(values[0][node], values[1][node]).any()) for node in nodes}
