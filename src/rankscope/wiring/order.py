"""The order of tokens matters in a model that has something which tells positions.

Such a thing is a table by its name, or what the code of the model speaks of. A model may lose it: positions are counted
over texts, all tokens read one row, or rotations are by no angle. It then gives equal results for tokens in another
order, and a block cannot tell two tokens that trade their places.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rankscope.errors import ModelError
from rankscope.findings.laws import LawResult
from rankscope.sources.operations import Line, Node
from rankscope.sources.operations.lines import is_library
from rankscope.wiring.culprits import declared_line, is_own_code, source_of
from rankscope.wiring.law import law, result
from rankscope.wiring.slopes import slopes_of
from rankscope.wiring.subject import Subject, differs

_POSITIONS = re.compile(
    r"(^|[._])(pos|places?|wpe|pe|rope|rotary|alibi)([._\d]|$)|pos_?emb|position|relative", re.IGNORECASE
)

FINE = 1e-3
"""Where numbers are coarser than this, what positions change may lie below their rounding."""

FAINT = 300.0
"""Differences of tokens that are less than so many times what counts as rounding do not tell their order."""

_SAYS = re.compile(
    r"(^|_)(pos|position|positions|positional|wpe|rope|rotary|pe)(_|$)|pos_?emb|position", re.IGNORECASE
)
"""Names in code that speak of positions."""


@law("order")
def order(subject: Subject) -> LawResult:
    """Tokens in the opposite order, or equal tokens, where the model has something that tells positions."""
    if not subject.base.is_finite:
        return result("order", "not checked", "output not finite")
    if not subject.stacks:
        return result("order", "not checked", "no blocks")
    stack = subject.stacks[0]
    root = subject.root_of(stack.name)
    tables, said = _positions(subject.model), _said(subject.model)
    positions = tables or ([said.name] if said is not None else [])
    if not subject.token_inputs:
        return _order_of_pictures(subject, root, positions)
    if root is None or root.ndim != 3 or root.shape[1 - subject.text_axes[stack.name]] < 3:
        return result("order", "not checked", "one token")
    axis = subject.text_axes[stack.name]
    counts_texts = subject.token_axis_by_positions(stack.name) == axis
    # without other inputs, which may belong to texts, equal tokens are all that the model was given
    if counts_texts and set(subject.batch.inputs) == set(subject.token_inputs):
        line = said.line if said is not None else _line_of_sum(subject)
        return result("order", "broken", "texts counted", line=line)
    if any(one for one in subject.batch.inputs if "position" in one):
        return result("order", "holds")
    if positions and _is_blind(subject, subject.equal_root(stack.name)) and _is_first_blind(subject):
        return _order_lost(subject, positions)
    one_row = _one_row(subject, tables, root.shape[1 - axis])
    if one_row is not None:
        return _order_lost(subject, [one_row])
    flipped = dict(subject.batch.inputs)
    for name in subject.token_inputs:
        flipped[name] = flipped[name].flip(1 - subject.input_axis)
    try:
        ran = subject.run(replace(subject.batch, inputs=flipped))
    except ModelError as error:
        return result("order", "not checked", "failed", what=str(error))
    last = [(one, two) for one, two in zip(subject.base.states, ran.states, strict=False)]
    before, after = last[-1] if last else (None, None)
    if before is None or after is None or before.shape != after.shape or before.ndim != 3:
        return result("order", "not checked", "one token")
    # a function of a set takes its results along, so that sums over tokens, and of their squares, stay
    sums = [
        torch.cat([one.double().sum(1 - axis), one.double().square().sum(1 - axis)])
        for one in (before, after)
    ]
    gap = float((sums[0] - sums[1]).abs().amax() / sums[0].abs().amax().clamp_min(1e-30))
    tokens = float(before.double().std(dim=1 - axis).amax())
    if gap > 10 * subject.clearly or tokens == 0.0:
        return result("order", "holds", number=gap, floor=10 * subject.clearly)
    if not positions:
        return result("order", "meant", "set function")
    # what differs between tokens is so little of what they share that its order could not be seen
    if subject.clearly > FINE or tokens < FAINT * subject.clearly * float(before.abs().amax()):
        return result("order", "not checked", "too coarse")
    return _order_lost(subject, positions)


def _one_row(subject: Subject, positions: list[str], tokens: int) -> str | None:
    """A table of positions of which all tokens read the same row: other rows get no gradient."""
    slopes = slopes_of(subject)
    for name in positions if slopes is not None and subject.texts < tokens else ():
        slope = None if slopes is None else slopes.parameters.get(name)
        if slope is None:
            continue
        rows = slope.flatten(0, -2) if slope.ndim >= 2 else slope.unsqueeze(-1)
        if len(rows) >= tokens and int((rows != 0).any(-1).sum()) == 1:
            return name
    return None


def _order_of_pictures(subject: Subject, root: Tensor | None, positions: list[str]) -> LawResult:
    """Of inputs that hold no tokens, such as pictures: everywhere the same numbers are put in."""
    if not positions or root is None or root.ndim != 3:
        return result("order", "not checked", "no positions")
    inputs = dict(subject.batch.inputs)
    for name in subject.movable:
        inputs[name] = inputs[name].double().mean().to(inputs[name]).expand_as(inputs[name]).clone()
    try:
        ran = subject.run(replace(subject.batch, inputs=inputs))
    except ModelError as error:
        return result("order", "not checked", "failed", what=str(error))
    first = subject.stacks[0]
    entered = ran.roots.get(first.name) if first.program is None else None
    is_blind = _is_blind(subject, entered)
    if is_blind is None:
        return result("order", "not checked", "no positions")
    return _order_lost(subject, positions) if is_blind else result("order", "holds")


def _is_first_blind(subject: Subject) -> bool:
    """Whether what enters the blocks turns as the tokens do: equal tokens do not show an order told before them."""
    stack = subject.stacks[0].name
    flipped = dict(subject.batch.inputs)
    for name in subject.token_inputs:
        flipped[name] = flipped[name].flip(1 - subject.input_axis)
    before = subject.base.roots.get(stack)
    try:
        after = subject.run(replace(subject.batch, inputs=flipped)).roots.get(stack)
    except ModelError:
        return False
    if before is None or after is None:
        return all(one.program is not None for one in subject.stacks)
    turned = after.flip(1 - subject.text_axes[stack])
    return turned.shape == before.shape and not bool(differs(before, turned, subject.clearly).any())


def _is_blind(subject: Subject, root: Tensor | None) -> bool | None:
    """Whether equal tokens enter the blocks as equal rows, and no block tells apart tokens that trade their places.

    The last token stays where it is, and reads the two before it, in a causal model too. The first row of all may be a
    class token. A block that does not tell, because its last token reads nothing near, says nothing. None where that
    cannot be seen.

    Args:
        root: what enters the blocks where all tokens are equal.
    """
    stack, steps = subject.stacks[0], 0
    axis = 1 - subject.text_axes[stack.name]
    if root is None or root.ndim != 3 or root.shape[axis] < 5 or len(subject.stacks) > 1:
        return None
    rows = root.narrow(axis, 1, root.shape[axis] - 1).double()
    size = float(rows.abs().amax()) or 1.0
    if bool((rows - rows.narrow(axis, 0, 1)).abs().amax() > 1e-3 * size):
        return False
    for piece in subject.stack_of(stack.name):
        if not piece.is_usable or piece.region is None or piece.root_shape is None or piece.base is None:
            return None
        many = piece.state.shape[axis]
        read = piece.moved_rows(piece.slice_at(axis, many - 2))
        if read is None or not bool(read.select(axis, many - 1).any()):
            continue
        traded = list(range(many))
        traded[many - 3], traded[many - 2] = many - 2, many - 3
        after = piece.run(piece.state.index_select(axis, torch.tensor(traded, device=piece.state.device)))
        if after is None:
            return None
        one, two = (part.select(axis, many - 1) for part in (piece.base, after))
        if bool(differs(one, two, 1e-9).any()):
            return False
        steps += 1
    return True if steps else None


def _order_lost(subject: Subject, positions: list[str]) -> LawResult:
    said = _said(subject.model)
    line = None if said is None else said.line
    if line is None:
        line = _line_of_positions(subject, positions[0]) or declared_line(subject.model, positions[0])
    return result(
        "order",
        "broken",
        "order lost",
        site=positions[0] if "." in positions[0] else None,
        line=line,
        what=positions[0],
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """A name in the code of a model that speaks of positions, and the first line on which it stands."""

    name: str
    line: Line


def _said(model: nn.Module) -> _Said | None:
    """The first statement of the model's own forward pass that speaks of positions, of a model that counts them.

    What runs only on a condition may be meant not to. None where a name of positions is an argument, as of points in
    space, or where a table starts at zero, and positions are learned from there on.
    """
    source = source_of(type(model)) if is_own_code(model) else None
    if source is None or is_library(source.file) or any(_is_zero(one) for one in model.parameters()):
        return None
    functions = [
        one for one in source.tree.body if isinstance(one, ast.FunctionDef) and one.name == "forward"
    ]
    for function in functions:
        taken = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
        found = [
            (node.lineno, name)
            for node in _always(function)
            if isinstance(node, ast.Call | ast.Attribute)
            for name in [_own_name(node, model)]
            if name and _SAYS.search(name) and name not in taken
        ]
        if found and not any(_SAYS.search(one) for one in taken) and _counts(model):
            number, name = min(found)
            return _Said(name, Line(source.file, number, source.lines[number - 1].strip()))
    return None


def _always(node: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function and under no condition: an option that is off is no fault."""
    for one in ast.iter_child_nodes(node):
        if not isinstance(one, ast.If | ast.IfExp | ast.BoolOp | ast.Try):
            yield one
            yield from _always(one)


def _own_name(node: ast.Call | ast.Attribute, model: nn.Module) -> str:
    """A part of the model that exists, or a function that is called. A variable may be what a mask is made from."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        part = getattr(model, node.attr, None)
        return (
            "" if part is None or isinstance(part, nn.Linear) else node.attr
        )  # a map of points in space is one
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id
    return ""


def _is_zero(value: Tensor) -> bool:
    return value.ndim > 1 and not value.is_meta and not bool((value != 0).any())


def _counts(model: nn.Module) -> bool:
    """Whether a model holds a table of positions, or its classes count: ``torch.arange`` stands in one of them."""
    sources = (source_of(type(one)) for one in model.modules() if is_own_code(one))
    lines = (line for one in sources if one is not None for line in one.lines)
    return bool(_positions(model)) or any("arange" in line for line in lines)


def _line_of_positions(subject: Subject, name: str) -> Line | None:
    """The line that reads a table of positions; where none does, the one that looks tokens up, to which it belongs."""
    graph = subject.whole_graph if is_own_code(subject.model) else None
    if graph is None:
        return None
    table = next((node for node in graph.nodes if node.name == name), None)
    tokens = {node for key, node in graph.inputs.items() if _is_tokens(subject, node)}
    for wanted in ({table} if table is not None else set(), tokens):
        for node in graph.nodes:
            reads = any(leaf in wanted for leaf in node.inputs())
            if reads and node.line is not None and (table in wanted or node.value.is_floating_point()):
                return node.line
    return None


def _line_of_sum(subject: Subject) -> Line | None:
    """The first line that adds something of the model's own to what it makes of its tokens."""
    graph = subject.whole_graph if is_own_code(subject.model) else None
    if graph is None:
        return None
    of_tokens = {node for node in graph.inputs.values() if _is_tokens(subject, node)}
    for node in graph.nodes:
        given = [leaf in of_tokens for leaf in node.inputs()]
        if any(given) and not all(given) and node.kind == "add" and node.line is not None:
            return node.line
        if any(given):
            of_tokens.add(node)
    return None


def _is_tokens(subject: Subject, node: Node) -> bool:
    given = (subject.batch.inputs[name] for name in subject.token_inputs)
    return any(one.shape == node.shape and torch.equal(one.to(node.value), node.value) for one in given)


def _positions(model: nn.Module) -> list[str]:
    """Tables of positions that hold something, by name."""
    held = [*model.named_parameters(), *model.named_buffers()]
    return [
        name
        for name, value in held
        if _POSITIONS.search(name)
        and not isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Linear)  # of points in space
        and value.is_floating_point()
        and value.numel() > 1
        and bool((value != 0).any())
    ]
