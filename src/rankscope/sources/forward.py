"""What the source of a forward method says: in which order a module calls its parts, and whether it adds its input.

Parts are registered in any order (OPT registers its final norm before its blocks, DeBERTa a norm of its position table
after them); the text of ``forward`` tells. Classes without source, such as those typed into a prompt, give None.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from torch import nn

_SKIP_WORDS = {"residual", "shortcut", "input_tensor", "identity"}


@dataclass(frozen=True, slots=True)
class Mention:
    """One use of an attribute of ``self``, with the names of the variables it is called on."""

    name: str
    arguments: frozenset[str]


def mentions(kind: type[nn.Module]) -> tuple[Mention, ...] | None:
    """Attributes of ``self`` in the order in which ``forward`` comes to them, methods of the class followed."""
    body = _definition(kind.forward)
    if body is None:
        return None
    reader = _Reader(kind)
    reader.read(body)
    return tuple(reader.found)


def adds_input(kind: type[nn.Module]) -> bool:
    """Whether ``forward`` takes a state to be added, or adds its first argument before giving that name a new value."""
    return _adds_input(kind.forward)


@lru_cache(maxsize=1024)
def _adds_input(method: Callable[..., object]) -> bool:
    body = _definition(method)
    if body is None:
        return False
    names = [argument.arg for argument in body.args.args if argument.arg != "self"]
    if _SKIP_WORDS.intersection(names):
        return True
    known = set(names[:1])
    return any(_adds(statement, known) for statement in _statements(body.body))


class _Reader(ast.NodeVisitor):
    """Collects mentions in order of evaluation: arguments before the call, iterables before the loop."""

    def __init__(self, kind: type[nn.Module]) -> None:
        self.kind = kind
        self.found: list[Mention] = []
        self.open: list[str] = ["forward"]

    def read(self, body: ast.FunctionDef) -> None:
        for statement in body.body:
            self.visit(statement)

    def visit_Call(self, node: ast.Call) -> None:
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(argument)
        name = _attribute_of_self(node.func)
        if name is None:
            self.visit(node.func)
        else:
            self._meet(name, _variables((*node.args, *(keyword.value for keyword in node.keywords))))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = _attribute_of_self(node)
        if name is None:
            self.generic_visit(node)
        else:
            self._meet(name, frozenset())

    def visit_ListComp(self, node: ast.ListComp) -> None:
        for generator in node.generators:
            self.visit(generator)
        self.visit(node.elt)

    def _meet(self, name: str, arguments: frozenset[str]) -> None:
        method = getattr(self.kind, name, None)
        body = _definition(method) if inspect.isfunction(method) and name not in self.open else None
        if body is None:
            self.found.append(Mention(name, arguments))
            return
        self.open.append(name)
        self.read(body)
        self.open.pop()


@lru_cache(maxsize=4096)
def _definition(method: Callable[..., object]) -> ast.FunctionDef | None:
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(method)))
        body = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return None
    return body if isinstance(body, ast.FunctionDef) else None


def _attribute_of_self(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return None


def _variables(nodes: Iterable[ast.expr]) -> frozenset[str]:
    return frozenset(part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name))


def _statements(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """Simple statements in order, those inside conditions and loops included."""
    for statement in body:
        inner = [part for field in ("body", "orelse", "finalbody") for part in getattr(statement, field, [])]
        if inner:
            yield from _statements(inner)
        else:
            yield statement


def _adds(statement: ast.stmt, known: set[str]) -> bool:
    """Whether a statement adds a name of ``known``; then ``known`` follows what the statement assigns."""
    if (
        isinstance(statement, ast.AugAssign)
        and isinstance(statement.op, ast.Add)
        and _is_any(statement.target, known)
    ):
        return True
    for part in ast.walk(statement):
        if not isinstance(part, ast.BinOp) or not isinstance(part.op, ast.Add):
            continue
        if _is_any(part.left, known) or _is_any(part.right, known):
            return True
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                known.add(target.id) if _is_any(statement.value, known) else known.discard(target.id)
    return False


def _is_any(node: ast.expr, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names
