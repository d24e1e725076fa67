"""Where a part that no gradient reaches should have been used: the line that uses another one, or drops its result.

The line that makes such a part is right; what is wrong is a line that calls its neighbor in its place
(``v = self.key(x)``), or one after which its result is nowhere to be found.
"""

import ast
import linecache
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from rankscope.errors import is_out_of_memory
from rankscope.sources.operations import Graph, Line, ModuleCall, Node, Region
from rankscope.sources.operations.captured import left_as_found
from rankscope.sources.operations.influence import differs, draw
from rankscope.sources.operations.lines import is_library
from rankscope.wiring.culprits import is_own_code, parsed, source_of
from rankscope.wiring.piece import SOFTMAX, Piece
from rankscope.wiring.slopes import Slopes
from rankscope.wiring.subject import Subject

USUAL = re.compile(
    r"^(w?[qkvo]|w\d|n\d|query|key|value|out|output|dense|up|down|gate|mlp|wpe|gamma|scale|ls\d)$|proj|to_|fc|lin|ff|"
    r"norm|ln|att|emb|pos",
    re.IGNORECASE,
)
"""Names of parts that every block has: one that is never used was forgotten, where another one is left over."""


ENDS = re.compile(r"^w?o$|out|proj|merge|final|dense", re.IGNORECASE)
"""Names of the map behind attention."""


def line_of_slip(subject: Subject, slopes: Slopes, name: str) -> Line | None:
    """The line at which a parameter without a gradient is passed over; None where none is known."""
    path = _outermost(subject.model, slopes, name) or name
    holder = path.rpartition(".")[0]
    if not _is_own(subject.model, holder):
        return None
    if path == name:
        return _written_twice(subject.model, path)
    graph, inner = _graph_of(subject, path)
    if graph is None:
        return None
    if any(one == path or one.startswith(f"{path}.") for one in slopes.called):
        return _dropping(graph, _last_dead(subject.model, slopes, graph, path, inner))
    return (
        _in_its_place(subject.model, graph, path, inner)
        or _written_twice(subject.model, path)
        or _behind(subject.model, graph, path, inner)
    )


def _last_dead(model: nn.Module, slopes: Slopes, graph: Graph, path: str, inner: str) -> str:
    """Of the parts beside one that are called and get no gradient, the one that is called last: there all is lost."""
    holder, _, name = path.rpartition(".")
    prefix, above = inner[: len(inner) - len(name)], f"{holder}." if holder else ""
    parts = model.get_submodule(holder)._modules if holder else model._modules
    dead = {
        f"{prefix}{other}"
        for other in parts
        if any(key.startswith(f"{above}{other}.") for key in slopes.parameters)
        and all(one is None for key, one in slopes.parameters.items() if key.startswith(f"{above}{other}."))
    }
    called = [one.path for one in graph.calls if one.path in dead]
    return called[-1] if called else inner


def _written_twice(model: nn.Module, path: str) -> Line | None:
    """The line of a class that uses an attribute of the same kind where this one, never used, is due."""
    holder, _, name = path.rpartition(".")
    owner = model.get_submodule(holder) if holder else model
    source = source_of(type(owner))
    if source is None or is_library(source.file):
        return None
    own = getattr(owner, name, None)
    uses: dict[str, list[Line]] = {}
    for function in source.tree.body:
        if not isinstance(function, ast.FunctionDef) or function.name == "__init__":
            continue
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            ):
                code = source.lines[node.lineno - 1].strip()
                uses.setdefault(node.attr, []).append(Line(source.file, node.lineno, code))
    if name in uses:
        return None
    alike = {
        other: lines
        for other, lines in uses.items()
        if len(lines) > 1 and _is_like(getattr(owner, other, None), own)
    }
    pairs = [(line, other) for other, lines in alike.items() for line in lines]
    best = max(reversed(pairs), key=lambda pair: _likeness(pair[0], name) - _likeness(*pair), default=None)
    return None if best is None else best[0]


def _is_like(one: object, other: object) -> bool:
    if isinstance(one, nn.Module) and isinstance(other, nn.Module):
        return _is_alike(one, other)
    return isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape


def _behind(model: nn.Module, graph: Graph, path: str, inner: str) -> Line | None:
    """Where a part that is never called is due, by the order in which parts are made: at the next one, or the end."""
    holder, _, name = path.rpartition(".")
    own = model.get_submodule(path)
    if not (USUAL.search(name) or isinstance(own, nn.Embedding)):
        return None
    if ENDS.search(name):
        line = _end_of_attention(graph, inner[: len(inner) - len(name)].rstrip("."))
        if line is not None:
            return line
    parts = list((model.get_submodule(holder) if holder else model)._modules)
    prefix = inner[: len(inner) - len(name)]
    if isinstance(
        model.get_submodule(holder) if holder else model, nn.ModuleList | nn.ModuleDict | nn.Sequential
    ):
        return None
    for other in parts[parts.index(name) + 1 :]:
        call = next(graph.calls_of(f"{prefix}{other}"), None)
        if call is not None:
            return call.line
    outer = prefix.rstrip(".")
    holding = next(graph.calls_of(outer), None) if outer else None
    ends = graph.outputs if holding is None else holding.outputs
    return ends[0].line if ends else None


def _end_of_attention(graph: Graph, path: str) -> Line | None:
    """The return of the function that makes an attention map in a part, where its last map is due."""
    nodes = (one for one in graph.nodes if one.kind in SOFTMAX and one.path == path and one.line is not None)
    line = next((one.line for one in nodes), None)
    function = None if line is None else _function(line)
    if line is None or function is None:
        return None
    ends = [one for one in _statements(function) if isinstance(one, ast.Return)]
    return _line_at(line, ends[-1]) if ends else None


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
    if (lost := _lost_name(line)) is not None:
        return lost
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


def line_that_takes(line: Line) -> Line:
    """Where what a line calls goes on: itself, or the later line that reads the name which it is given.

    ``a = self.attn(y)``, ``a = self.drop(a)``, ``x = self.norm(a)``: the third, where ``x + a`` would stand.
    """
    statement = _statement(line)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return line
    target, found = statement.targets[0], line
    if not isinstance(target, ast.Name) or _reads(statement, target.id):
        return line
    for one in _later(line, statement):
        if _reads(one, target.id):
            found = _line_at(line, one)
            if [part.id for part in _stored(one)] != [target.id]:
                return found
        elif target.id in {part.id for part in _stored(one)}:
            break
    return line


def _reads(statement: ast.stmt, name: str) -> bool:
    parts = (one for one in ast.walk(statement) if isinstance(one, ast.Name) and one.id == name)
    return any(isinstance(one.ctx, ast.Load) for one in parts)


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
    if graph is None or target is None or start is None:
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
    line = max(lost, key=lambda one: one.id).line if lost else None
    return None if line is None else _lost_name(line) or line


def _lost_name(line: Line) -> Line | None:
    """Of a line that takes something apart, ``q, k, v = ...``, the one that writes over a name before it is read.

    Of a name that is never read, the line that reads one of the others twice, as ``q @ q.mT``.
    """
    statement = _statement(line)
    names = [] if statement is None else [one.id for one in _stored(statement)]
    if statement is None or len(names) < 2:
        return None
    for name in names:
        for one in _later(line, statement):
            used = [part for part in ast.walk(one) if isinstance(part, ast.Name) and part.id == name]
            if any(isinstance(part.ctx, ast.Load) for part in used):
                break
            if used:
                return _line_at(line, one)
        else:  # it is never read: another one of them stands where it is due
            return _last_reading(line, statement, {one for one in names if one != name})
    return None


def _last_reading(line: Line, statement: ast.stmt, names: set[str]) -> Line | None:
    """The line that reads one of the names twice, or else the last that reads any."""
    found = None
    for one in _later(line, statement):
        parts = [part.id for part in ast.walk(one) if isinstance(part, ast.Name) and part.id in names]
        read = [name for name in parts if _reads(one, name)]
        own = [part.id for part in _stored(one)]
        if any(read.count(name) - own.count(name) > 1 for name in read):
            return _line_at(line, one)
        if read:
            found = _line_at(line, one)
    return found


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
