"""Statements of the user's own code that change a weight, or put another part in its place, after it was made.

A law sees numbers: a mask that is all ones, columns that are zero. The line to look at is then not where the weight is
made, but where somebody wrote over it: ``self.blocks[2].attn.out.weight.data[:, :8] = 0``. Such statements are found by
the names in them, which are a part of the weight's path; the loops and the assignments around them are followed.
"""

import ast
import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from torch import nn

from rankscope.sources.operations import Line
from rankscope.sources.operations.lines import is_library

ANY = "*"
"""One name of a path that a loop runs over."""

_GENERAL = frozenset({"weight", "bias", "data", ANY})
"""Names that every layer has: a statement that says nothing else is about all of them."""

_SILENT = frozenset(
    {"data", "enumerate", "reversed", "zip", "list", "values", "items", "modules", "parameters"}
)
_FLAGS = frozenset({"requires_grad_", "share_memory_", "detach_", "retain_grad_"})
_RUN = frozenset({"forward", "__call__"})


@dataclass(frozen=True, slots=True)
class Change:
    """One statement that changes something.

    Args:
        names: of what it changes, as far as they are written: ``("blocks", "2", "attn", "out", "weight")``.
        kind: ``number``: entries of a tensor; ``state``: all weights of a part; ``part``: another part or tensor.
    """

    line: Line
    names: tuple[str, ...]
    kind: str


def changing_line(
    model: nn.Module, path: str, kinds: tuple[str, ...] = ("number", "state", "part")
) -> Line | None:
    """The statement that says most of a path among those that change what stands there; None where none does."""
    parts = tuple(path.split("."))
    best: tuple[int, Change] | None = None
    for one in changes(model):
        if one.kind not in kinds:
            continue
        score = _score(one, parts)
        if score and (best is None or score > best[0]):
            best = score, one
    return None if best is None else best[1].line


def changes(model: nn.Module) -> Iterator[Change]:
    """What the files of the model's own classes change behind the making of parts."""
    files = dict[str, None]()
    for kind in dict.fromkeys(type(one) for one in model.modules()):
        for base in kind.__mro__:
            names = {one.__code__.co_filename for one in vars(base).values() if hasattr(one, "__code__")}
            own = (name for name in names if not is_library(name) and not _is_installed(name))
            files |= dict.fromkeys(own)
    for file in files:
        yield from _changes_in(file, "".join(linecache.getlines(file)))


def _is_installed(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file


@cache
def _changes_in(file: str, text: str) -> tuple[Change, ...]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    lines = text.splitlines()
    found: list[Change] = []

    def visit(body: list[ast.stmt], known: dict[str, tuple[str, ...]]) -> None:
        for one in body:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                if one.name not in _RUN:
                    visit(one.body, {})
                continue
            if isinstance(one, ast.ClassDef):
                visit(one.body, {})
                continue
            if isinstance(one, ast.For) and isinstance(one.iter, ast.Tuple | ast.List):
                for entry in one.iter.elts:
                    bound = [part.id for part in ast.walk(one.target) if isinstance(part, ast.Name)]
                    visit(one.body, known | dict.fromkeys(bound, _chain(entry, known)))
                continue
            if isinstance(one, ast.For):
                _bind(one.target, one.iter, known)
            for names, kind in _changed(one, known):
                code = lines[one.lineno - 1].strip()
                found.append(Change(Line(file, one.lineno, code), names, kind))
            if isinstance(one, ast.Assign) and len(one.targets) == 1 and isinstance(one.targets[0], ast.Name):
                chain = _chain(one.value, known)
                if chain:
                    known[one.targets[0].id] = chain
            for inner in ("body", "orelse", "finalbody"):
                part = getattr(one, inner, None)
                if isinstance(part, list):
                    visit(part, known)

    visit(tree.body, {})
    return tuple(found)


def _bind(target: ast.expr, iterated: ast.expr, known: dict[str, tuple[str, ...]]) -> None:
    """The variables of a loop stand for one entry of what it runs over."""
    chain = _chain(iterated, known)
    for name in ast.walk(target):
        if isinstance(name, ast.Name):
            known[name.id] = (*chain, ANY)


def _changed(
    statement: ast.stmt, known: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], str]]:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign):
        targets = [statement.target]
    for target in targets:
        chain = _chain(target, known)
        is_name = isinstance(target, ast.Name)
        if len(chain) > 1 and not is_name:
            is_entry = _ends_in_entries(target) or isinstance(statement, ast.AugAssign)
            yield chain, "number" if is_entry or _ends_in_data(target) else "part"
            if isinstance(target, ast.Subscript) and not is_entry:
                yield _chain(target.value, known), "number"  # one row of a tensor, perhaps
        elif chain and isinstance(target, ast.Subscript):
            yield chain, "number" if _ends_in_entries(target) else "part"
    value = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(value, ast.Call):
        return
    if isinstance(value.func, ast.Attribute):
        name = value.func.attr
        if name == "load_state_dict":
            yield _chain(value.func.value, known), "state"
        elif name.endswith("_") and not name.endswith("__") and name not in _FLAGS:
            own = _chain(value.func.value, known)
            first = _chain(value.args[0], known) if value.args else ()
            is_init = own[-1:] == ("init",) or (len(own) < 2 and len(first) > 1)
            yield (first if is_init else own), "number"
    elif isinstance(value.func, ast.Name) and value.func.id.endswith("_") and value.args:
        yield _chain(value.args[0], known), "number"


def _ends_in_entries(target: ast.expr) -> bool:
    """Whether entries of a tensor are assigned: a slice, or several indices."""
    return isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice | ast.Tuple)


def _ends_in_data(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "data"


def _chain(node: ast.expr, known: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The names of an expression behind its first one: ``self.blocks[2].attn`` is ``blocks``, ``2``, ``attn``."""
    if isinstance(node, ast.Name):
        return known.get(node.id, ())
    if isinstance(node, ast.Attribute):
        return (*_chain(node.value, known), *(() if node.attr in _SILENT else (node.attr,)))
    if isinstance(node, ast.Subscript):
        inner = _chain(node.value, known)
        if isinstance(node.slice, ast.Slice | ast.Tuple):
            return inner
        if isinstance(node.slice, ast.Constant):
            return (*inner, str(node.slice.value))
        return (*inner, ANY)
    if isinstance(node, ast.Call):  # enumerate(self.blocks), self.blocks.children()
        if isinstance(node.func, ast.Name) and node.func.id in _SILENT and node.args:
            return _chain(node.args[0], known)
        if isinstance(node.func, ast.Attribute) and node.func.attr in (
            "children",
            "values",
            "items",
            "get_submodule",
        ):
            return _chain(node.func.value, known)
    return ()


def _score(change: Change, path: tuple[str, ...]) -> int:
    """How many names of a path a statement says; 0 where it is about another one.

    The names stand in the path one after the other. Those of a number end where the path ends; a part may hold more.
    """
    names, best = change.names, 0
    telling = [one for one in names if one not in _GENERAL]
    if not telling or (change.kind == "part" and len(names) < 2):
        return 0
    for start in range(len(path) - len(names) + 1):
        if change.kind == "number" and start + len(names) != len(path):
            continue
        piece = path[start : start + len(names)]
        if all(_fits(one, other) for one, other in zip(names, piece, strict=True)):
            best = max(best, len(telling) * 2 + sum(one != ANY for one in names))
    return best


def _fits(written: str, name: str) -> bool:
    if written.startswith("-"):  # counted from the end
        return name.isdecimal()
    return written in (ANY, name)
