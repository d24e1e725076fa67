"""The operation of a block that is the first to break a law, and the line of the user's own code where it stands."""

import ast
import linecache
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import FunctionType

import torch
from torch import Tensor, nn

from rankscope.sources.operations import Line, Node, Region
from rankscope.sources.operations.influence import differs
from rankscope.sources.operations.lines import is_library
from rankscope.wiring.piece import SOFTMAX, Piece
from rankscope.wiring.statements import changing_line

MASKED = -1e4
"""A logit this small belongs to a key that is not read."""


def first_meeting(piece: Piece, first: Tensor, second: Tensor, texts: int) -> Node | None:
    """The first operation that takes texts out of their places, or else with an element that two of them move.

    Args:
        first, second: true at the first and at the second text, in a shape that expands to that of the state.
    """
    region = piece.region
    if region is None:
        return None
    nodes = _floating(region.order)
    before = piece.values(piece.state, nodes)
    one, two = (
        piece.values(piece.noise(where, seed=seed), nodes) for where, seed in ((first, 3), (second, 4))
    )
    in_place = set(region.roots)
    axes: dict[Node, int] = {}
    for node in nodes:
        moved = [differs(before[node], other[node]) for other in (one, two)]
        if bool((moved[0] & moved[1]).any()):
            return _turned(region, node, axes) or node
        above = [leaf for leaf in node.inputs() if region.depends(leaf) and leaf.value.is_floating_point()]
        axis = _text_axis(moved, texts)
        if axis is not None:
            in_place.add(node)
            axes[node] = axis
        elif texts > 2 and above and all(leaf in in_place for leaf in above):
            return _turned(region, node, axes) or node
    return None


def _turned(region: Region, node: Node, axes: Mapping[Node, int]) -> Node | None:
    """The operation that turned texts into rows of a matrix, of a product of matrices in which they then meet."""
    if node.kind not in ("matmul", "bmm", "baddbmm"):
        return None
    for operand in node.inputs():
        at, found = operand, None
        while at in axes and at not in region.roots and axes[at] >= at.value.ndim - 2 > 0:
            inner = [one for one in at.inputs() if region.depends(one)]
            if len(inner) != 1 or at.kind not in _TURNS:
                break
            at, found = inner[0], at
        if found is not None:
            return found
    return None


_TURNS = frozenset(
    {
        "transpose",
        "permute",
        "view",
        "reshape",
        "clone",
        "contiguous",
        "unbind",
        "select",
        "split",
        "chunk",
        "t",
    }
    | {"_unsafe_view", "unflatten", "expand", "mul", "unsqueeze", "squeeze", "numpy_T", "movedim", "slice"}
)
"""Operations that only move elements, or scale them."""


def _text_axis(moved: list[Tensor], texts: int) -> int | None:
    """The axis along which what the first and the second text move are the first and the second part; None without."""
    for axis, size in enumerate(moved[0].shape):
        if size % texts or not size:
            continue
        by_axis = [_over(one, {axis}) for one in moved]
        for form, rest in (((texts, size // texts), 1), ((size // texts, texts), 0)):
            places = [one.reshape(form).any(rest).nonzero().flatten().tolist() for one in by_axis]
            if all(found in ([], [place]) for place, found in enumerate(places)):
                return axis
    return None


def first_leak(piece: Piece, where: Tensor, forbidden: Tensor) -> Node | None:
    """The first operation after which rows move that must not.

    Logits hold all pairs of tokens, before a mask as after: what counts is what comes out of a softmax, so operations
    whose only way to the output leads through one are left out. Which axis of a value holds the rows is told by its
    size; where several have it, a value is at fault only if it is along each.

    Args:
        where: the tokens that move, in a shape that expands to that of the state.
        forbidden: true at the tokens, ``texts tokens``, that must not move.
    """
    region = piece.region
    if region is None:
        return None
    nodes = [node for node in _floating(region.order) if node in _outside_softmax(region)]
    before = piece.values(piece.state, nodes)
    after = piece.values(piece.noise(where), nodes)
    texts, tokens = forbidden.shape
    for node in nodes:
        moved = differs(before[node], after[node]).cpu()
        rows = list(_row_views(moved, texts, tokens))
        if rows and all(bool((one & forbidden).any()) for one in rows):
            return node
    return None


def _row_views(moved: Tensor, texts: int, tokens: int) -> Iterator[Tensor]:
    """What moved, by text and token, for every way in which rows may lie in a value: ``texts tokens``."""
    shape = moved.shape
    for axis, size in enumerate(shape):
        if size == texts * tokens and texts > 1:
            flat = _over(moved, {axis})  # some operations turn the axes before they join them
            yield flat.reshape(texts, tokens)
            yield flat.reshape(tokens, texts).mT
    for axis, size in enumerate(shape):
        if size != tokens:
            continue
        others = [
            one for one, many in enumerate(shape) if one != axis and many % texts == 0 and many >= texts
        ]
        if texts == 1:
            yield _over(moved, {axis}).reshape(1, tokens)
            continue
        # texts lie along an axis of their own, or before the heads of one
        first = next((one for one in others if shape[one] == texts or one < axis), None)
        if first is None:
            yield _over(moved, {axis}).expand(texts, tokens)
            continue
        pair = moved.movedim((first, axis), (0, 1))
        yield (
            pair.reshape(texts, -1, tokens, *pair.shape[2:]).flatten(3).any(-1).any(1)
            if pair.ndim > 2
            else (pair.reshape(texts, -1, tokens).any(1))
        )


def _over(moved: Tensor, keep: set[int]) -> Tensor:
    rest = [axis for axis in range(moved.ndim) if axis not in keep]
    return moved.any(dim=rest) if rest else moved


def _outside_softmax(region: Region) -> set[Node]:
    found, waiting = set[Node](), [region.target]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if node.kind not in SOFTMAX and node not in region.roots:
            waiting += [leaf for leaf in node.inputs() if region.depends(leaf)]
    return found


def _floating(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if node.value.is_floating_point()]


def mask_of(region: Region, softmax: Node) -> tuple[Node, Node] | None:
    """The operation that masks the logits of a softmax, and the constant that it masks them with; None without one."""
    for node in on_the_logits(region, softmax):
        for leaf in node.inputs():
            if not region.depends(leaf) and _is_mask(node, leaf):
                return node, leaf
    return None


def on_the_logits(region: Region, softmax: Node) -> Iterator[Node]:
    """What is done to the logits of a softmax, from the softmax back to the product of queries and keys."""
    waiting, seen = list(softmax.inputs()), set[Node]()
    while waiting:
        node = waiting.pop(0)
        if node in seen or not region.depends(node) or node in region.roots:
            continue
        seen.add(node)
        yield node
        if node.kind not in ("matmul", "bmm", "mm", "linear", "baddbmm"):
            waiting += node.inputs()


def _is_mask(node: Node, leaf: Node) -> bool:
    value = leaf.value
    if value.ndim < 2 or max(value.shape[-2:]) < 2:
        return False
    if node.kind in ("masked_fill", "where"):
        return value.dtype == torch.bool
    if node.kind in ("add", "sub"):
        return value.is_floating_point() and bool((value.abs() >= -MASKED).any())
    # a table of zeros and ones that multiplies masks nothing, but is meant to
    return node.kind == "mul" and value.shape[-1] == value.shape[-2] and is_triangle(value)


MAKING = frozenset({"tril", "triu", "tril_indices", "triu_indices", "ge", "le", "gt", "lt"})
"""Operations that make masks."""


def mask_line(model: nn.Module, piece: Piece, masks: tuple[Node, Node]) -> Line | None:
    """The line to look at where a mask is wrong: where it is made, if that is known, else where it is used."""
    used, constant = masks
    graph = piece.graph
    if graph is None:
        return used.line
    above = sorted(graph.above((constant,)), key=lambda node: node.id)
    made = [node for node in above if node.kind in MAKING]
    held = [node for node in above if node.op is None and node.name and node.name not in graph.inputs]
    square = constant.value.ndim > 1 and constant.value.shape[-1] == constant.value.shape[-2] > 1
    if (
        made
        and is_triangle(made[0].value)
        and used.line is not None
        and used.kind in ("where", "masked_fill", "mul")
    ):
        return used.line  # the table is right, and what is done with it is not
    for node in held:
        if node.value.ndim >= 2 and not is_lower(node.value, constant.value.shape[-1]):
            line = declared_line(piece.module, node.name)
            if line is not None:
                return line
    line = next((node.line for node in made if node.line is not None), None)
    return line or (_written_mask(model) if square and not held else None) or used.line


_TRIANGLE = re.compile(r"\b(triu|tril)_?\(")


def _written_mask(model: nn.Module) -> Line | None:
    """The one line of the model's own classes that makes a triangle: of a mask that is kept from an earlier call."""
    found: dict[tuple[str, int], Line] = {}
    for one in model.modules():
        kind: type = type(one)
        source = source_of(kind)
        if source is None or is_library(source.file):
            continue
        for number in range(source.tree.lineno, (source.tree.end_lineno or source.tree.lineno) + 1):
            code = source.lines[number - 1].strip()
            if _TRIANGLE.search(code) and not code.startswith("#"):
                found[source.file, number] = Line(source.file, number, code)
    return next(iter(found.values())) if len(found) == 1 else None


def is_triangle(value: Tensor) -> bool:
    """Whether a table says for all its tokens that every one reads itself and those before, or is read by them."""
    return value.ndim > 1 and min(value.shape[-2:]) > 1 and is_lower(value, min(value.shape[-2:]))


def is_lower(value: Tensor, tokens: int) -> bool:
    """Whether a table says that every token reads itself and what is before it, in one of the usual spellings."""
    if min(value.shape[-2:]) < tokens:
        return True
    corner = value.reshape(-1, *value.shape[-2:])[0, :tokens, :tokens].double()
    below = torch.ones(tokens, tokens, dtype=torch.bool, device=corner.device).tril()
    reads = [corner != 0, corner == 0, corner > MASKED]
    return any(torch.equal(one, below) for one in reads)


def line_run_alone(own: Region, other: Region) -> Line | None:
    """The first line that one block runs and another, of the same code, does not: where it takes another way."""
    known = {str(node.line) for node in other.order}
    return next(
        (node.line for node in own.order if node.line is not None and str(node.line) not in known), None
    )


# lines that declare


def declared_line(model: nn.Module, path: str, *, says: str = "") -> Line | None:
    """The line of the user's own code that makes a parameter, buffer or module, found in the source of its owner.

    Of what was put in its place later, the line that does so; of what a library makes, the line of the first owner
    further out that is no library's.

    Args:
        says: of several lines that assign it, the first one with this in its statement, where there is any.
    """
    replaced = changing_line(model, path, ("part",))
    if replaced is not None:
        return replaced
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        owner = _resolved(model, parts[: end - 1])
        if owner is None:
            continue
        line = _assigned(type(owner), parts[end - 1], parts[end:], says)
        if line is not None:
            return line
    return None


def _resolved(model: nn.Module, parts: list[str]) -> nn.Module | None:
    found: object = model
    for part in parts:
        found = getattr(found, "_modules", {}).get(part)
    return found if isinstance(found, nn.Module) else None


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a class: where it stands, as text and as a tree."""

    file: str
    lines: list[str]
    tree: ast.ClassDef


def source_of(kind: type) -> Source | None:
    """The source of a class; None where it has none."""
    return _source_of(kind)


@cache
def _source_of(kind: Hashable) -> Source | None:
    """The source of a class, found by the code of its methods: that knows its file, whoever has loaded it."""
    code = next((held.__code__ for held in vars(kind).values() if isinstance(held, FunctionType)), None)
    if code is None or not isinstance(kind, type):
        return None
    lines = linecache.getlines(code.co_filename)
    tree = _parsed(code.co_filename, "".join(lines))
    for node in () if tree is None else ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or node.name != kind.__name__:
            continue
        if node.lineno <= code.co_firstlineno <= (node.end_lineno or node.lineno):
            return Source(code.co_filename, lines, node)
    return None


def parsed(file: str) -> ast.Module | None:
    """The syntax tree of a file; None where it is no Python."""
    return _parsed(file, "".join(linecache.getlines(file)))


@cache
def _parsed(file: str, text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _assigned(kind: type, name: str, inner: Sequence[str] = (), says: str = "") -> Line | None:
    for base in kind.__mro__:
        source = None if base in (nn.Module, object) else source_of(base)
        if source is None or is_library(source.file):
            continue
        nodes = [node for node in ast.walk(source.tree) if _assigns(node, name)]
        for node in sorted(nodes, key=lambda one: says not in ast.unparse(one)):
            if _assigns(node, name):
                part = _entry(getattr(node, "value", None), inner)
                place = node.lineno if part is None else part.lineno  # type: ignore[attr-defined]  # has one
                return Line(source.file, place, source.lines[place - 1].strip())
    return None


def _entry(made: ast.expr | None, inner: Sequence[str]) -> ast.expr | None:
    """What is written out as an entry of a list of modules, by its number; None where it is not."""
    found: ast.expr | None = None
    for name in inner:
        named = _named_entry(found or made, name)
        if named is not None:
            found = named
            continue
        entries = _entries(found or made)
        if not name.isdecimal() or int(name) >= len(entries):
            break
        found = entries[int(name)]
    return found


def _named_entry(made: ast.expr | None, name: str) -> ast.expr | None:
    """An entry of a dict that is written out: ``ModuleDict({"h": ...})``, ``ModuleDict(dict(h=...))``."""
    if isinstance(made, ast.Dict):
        keys = zip(made.keys, made.values, strict=True)
        return next(
            (value for key, value in keys if isinstance(key, ast.Constant) and key.value == name), None
        )
    if not isinstance(made, ast.Call):
        return None
    keyword = next((one.value for one in made.keywords if one.arg == name), None)
    if keyword is not None and getattr(made.func, "id", "") == "dict":
        return keyword
    return _named_entry(made.args[0], name) if made.args else None


def _entries(made: ast.expr | None) -> list[ast.expr]:
    """The entries of a list of modules that are calls, up to the first that is none."""
    if not isinstance(made, ast.Call):
        return []
    called = made.func.attr if isinstance(made.func, ast.Attribute) else getattr(made.func, "id", "")
    listed = made.args[0] if made.args else None
    entries = made.args if called == "Sequential" else []
    if called == "ModuleList" and isinstance(listed, ast.List | ast.Tuple):
        entries = listed.elts
    return list(takewhile(lambda one: isinstance(one, ast.Call), entries))


def _assigns(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(
            isinstance(part, ast.Attribute) and part.attr == name and isinstance(part.value, ast.Name)
            for target in targets
            for part in ast.walk(target)
        )
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return (
            called in ("register_buffer", "register_parameter", "add_module", "register_module")
            and bool(node.args)
            and isinstance(node.args[0], ast.Constant)
            and node.args[0].value == name
        )
    # parts of a ModuleDict are named by keys
    return isinstance(node, ast.Dict) and any(
        isinstance(key, ast.Constant) and key.value == name for key in node.keys
    )


@cache
def function_of(line: Line) -> tuple[int, int] | None:
    """The first and the last line of the innermost function around a line; None where it is in none."""
    tree = parsed(line.file)
    spans = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in (() if tree is None else ast.walk(tree))
        if isinstance(node, ast.FunctionDef)
    ]
    around = [(start, end) for start, end in spans if start <= line.number <= end]
    return max(around, default=None)


def default_line(kind: type, number: float) -> Line | None:
    """The line of the default of an argument that a class of the user's own code is made with, by its number."""
    source = source_of(kind)
    if source is None or is_library(source.file):
        return None
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for one in (*node.args.defaults, *node.args.kw_defaults):
                if isinstance(one, ast.Constant) and one.value == number:
                    return Line(source.file, one.lineno, source.lines[one.lineno - 1].strip())
    return None


def is_own_code(model: nn.Module) -> bool:
    """Whether the class of a model is the user's own, and not of an installed library."""
    held = [one for one in vars(type(model)).values() if isinstance(one, FunctionType)]
    if not held:
        return not type(model).__module__.startswith(("torch.", "transformers.", "timm."))
    file = held[0].__code__.co_filename
    return not is_library(file) and not {"site-packages", "dist-packages"} & set(Path(file).parts)


def node_line(piece: Piece, node: Node | None) -> Line | None:
    """The line of an operation; where all of it is a library's, the one that calls the block."""
    if node is not None and node.line is not None:
        return node.line
    return piece.place.line
