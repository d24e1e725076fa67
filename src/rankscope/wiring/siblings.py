"""What one block has that its siblings have not: where it goes wrong alone, that is the most likely line of the fault.

A law that one block breaks says what is wrong, and by which operation it shows. If the other blocks, made of the same
parts, keep the law, then the fault lies in something that differs: what the block is called with, what it computes, or
the numbers in its weights. These are looked at in that order, and name a line; without a difference the law's own line
stands.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from re import sub
from typing import Any

import torch
from torch import Tensor

from rankscope.errors import RankscopeError
from rankscope.findings.laws import LawResult
from rankscope.sources.operations import Line, ModuleCall, Node
from rankscope.wiring.culprits import function_of, is_own_code
from rankscope.wiring.piece import Piece
from rankscope.wiring.statements import changing_line
from rankscope.wiring.subject import Subject

LOCAL = frozenset(
    {
        "batch",
        "causality",
        "padding",
        "reach",
        "gradient",
        "deterministic",
        "rows",
        "epsilon",
        "logits",
        "precision",
    }
)
"""Laws that one block can break alone."""

KNOWS = ("epsilon", "gradient")
"""Laws that find the line of what is computed by themselves: where a number is written, where a part is passed over."""

TRIED_AGAIN = ("batch", "causality", "rows", "logits")
"""Laws that look at one block after the other, so that they can be tried on the others alone."""

FAR = 4.0
"""A weight whose spread is so many times as large or as small as in all other blocks was not drawn as they were."""


@dataclass(frozen=True, eq=False)
class Form:
    """What a block does, as a list of operations, each as one word."""

    piece: Piece

    @cached_property
    def nodes(self) -> list[Node]:
        """All operations that what leaves the block is made from, tables that it makes for itself among them.

        Blocks that are parts of one run share their tables, which stand in the first of them.
        """
        region, graph = self.piece.region, self.piece.graph
        if region is None or graph is None:
            return []
        if self.piece.shared is not None:
            return [one for one in region.order if one not in region.roots]
        found = (one for one in graph.above((region.target,)) if one.op is not None)
        return sorted((one for one in found if one not in region.roots), key=lambda one: one.id)

    @cached_property
    def words(self) -> list[str]:
        """One word per operation: its kind, the plain numbers among its arguments, and the weights that it reads."""
        return words_of(self.nodes, self.piece)

    @cached_property
    def wiring(self) -> list[str]:
        """Which of the operations each one reads, by their places."""
        return wiring_of(self.nodes, self.piece)


def words_of(nodes: list[Node], piece: Piece) -> list[str]:
    """One word per operation; what the block is called with is no part of it."""
    given = set() if piece.graph is None else set(piece.graph.inputs.values())
    return [_word(node, given) for node in nodes]


def _word(node: Node, given: set[Node]) -> str:
    leaves = [leaf for leaf in node.inputs() if leaf.op is None and leaf.name and leaf not in given]
    names = [sub(r"\b\d+\b", "#", leaf.name) for leaf in leaves]
    return f"{node.kind}{_numbers((node.args, node.kwargs))}{names}"


def wiring_of(nodes: list[Node], piece: Piece) -> list[str]:
    """For every operation the places of those that it reads; ``x`` is the state that enters."""
    places = {node: str(place) for place, node in enumerate(nodes)}
    roots = dict.fromkeys(() if piece.region is None else piece.region.roots, "x")
    return [" ".join((places | roots).get(leaf, "-") for leaf in node.inputs()) for node in nodes]


def _numbers(value: Any) -> str:
    if isinstance(value, Node | Tensor):
        return "."
    if isinstance(value, dict):
        return str({name: _numbers(one) for name, one in value.items()})
    if isinstance(value, list | tuple):
        return f"({','.join(_numbers(one) for one in value)})"
    return f"{value:g}" if isinstance(value, float) else str(value)


def siblings_of(subject: Subject, piece: Piece) -> list[Piece]:
    """The other blocks of a stack with the same weights by name and shape."""
    key = _key(piece)
    return [
        one
        for one in subject.stack_of(piece.place.stack)
        if one is not piece and one.module is not piece.module and one.region is not None and _key(one) == key
    ] + [
        one
        for one in subject.stack_of(piece.place.stack)
        if piece.shared is not None and one is not piece and one.region is not None
    ]


def _key(piece: Piece) -> object:
    return tuple((name, one.shape) for name, one in piece.module.named_parameters())


def with_own_line(subject: Subject, found: LawResult, check: Callable[[Subject], LawResult]) -> LawResult:
    """The same with the line at which the block differs from its siblings, where it does and they keep the law."""
    if found.state != "broken" or found.name not in LOCAL or found.block is None:
        return found
    piece = _piece_of(subject, found)
    if piece is None or piece.place.inner or not is_own_code(subject.model):
        return found
    siblings = siblings_of(subject, piece)
    if not siblings or _is_shared(subject, piece, found, check):
        return found
    line = _other_call(piece, siblings)
    if found.name not in KNOWS:
        line = line or _other_way(piece, siblings, found)
    line = line or _other_numbers(subject, piece, siblings)
    if line is None or _told(line) == found.line:
        return found
    return found.model_copy(update={"line": _told(line), "code": line.told.code})


def _is_shared(
    subject: Subject, piece: Piece, found: LawResult, check: Callable[[Subject], LawResult]
) -> bool:
    """Whether the other blocks of the stack break the law too, so that what is special in the first is no reason."""
    if found.name not in TRIED_AGAIN:
        return False
    others, before = copy.copy(subject), subject._parts
    others.__dict__["pieces"] = tuple(one for one in subject.pieces if one.place != piece.place)
    try:
        again = check(others)
    except RankscopeError:
        return False
    finally:
        subject._parts += others._parts - before
    return again.state == "broken" and again.reason == found.reason and again.block not in (None, found.block)


def _piece_of(subject: Subject, found: LawResult) -> Piece | None:
    site = f"{found.site or ''}."
    same = [one for one in subject.pieces if one.place.number == found.block]
    inside = [one for one in same if one.place.path and site.startswith(f"{one.place.path}.")]
    return next(iter(inside or (same if len(same) == 1 else [])), None)


def _other_call(piece: Piece, siblings: list[Piece]) -> Line | None:
    """The line that calls the block, where it is given something else than most others, which are given the same."""
    if piece.shared is not None or piece.graph is None or len(siblings) < 2:
        return None
    own = {name: one.value for name, one in piece.graph.inputs.items() if name != piece.stream}
    others = [
        {name: two.value for name, two in one.graph.inputs.items() if name != one.stream}
        for one in siblings
        if one.graph is not None and one.shared is None
    ]
    names = {name for one in others for name in one}
    for name in sorted(names):
        values = [one[name] for one in others if name in one]
        alike = [one for one in values if _are_equal(one, values[0])]
        if len(alike) < 2 or 2 * len(alike) <= len(others):
            continue
        if name not in own or not _are_equal(own[name], values[0]):
            return piece.place.line
    return None


def _are_equal(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and one.dtype == two.dtype and torch.equal(one, two)


def _other_way(piece: Piece, siblings: list[Piece], found: LawResult) -> Line | None:
    """The first line at which its operations are not those of most siblings, or of one before it."""
    own = Form(piece)
    usual = _usual(own, [Form(one) for one in siblings])
    if usual is None:
        return None
    lines = differing_lines(own, usual)
    usual_lines = {_told(node.line) for node in usual.nodes}
    alone = [_told(node.line) for node in own.nodes if _told(node.line) not in usual_lines]
    return None if found.line in (*map(_told, lines), *alone) else next(iter(lines), None)


def _told(line: Line | None) -> str | None:
    return None if line is None else f"{line.told.file}:{line.told.number}"


def _usual(own: Form, others: list[Form]) -> Form | None:
    """A sibling that stands for most of all blocks, if the block itself does not; of two blocks the other one."""
    texts = [_text(one) for one in others]
    most = max(set(texts), key=texts.count)
    if most == _text(own) or (len(others) > 1 and 2 * texts.count(most) <= len(others)):
        return None
    if _text(own) in texts:
        return None
    return others[texts.index(most)]


def _text(form: Form) -> str:
    return "\n".join((*form.words, *form.wiring))


def differing_lines(own: Form, usual: Form) -> list[Line]:
    """The lines at which one block does something else, in order: its own lines, or those that it leaves out."""
    found: list[Line] = _other_inputs(own, usual)
    steps = SequenceMatcher(a=own.words, b=usual.words, autojunk=False).get_opcodes()
    for tag, start, end, begin, stop in steps:
        if tag in ("replace", "delete"):
            found += [node.line for node in own.nodes[start:end] if node.line is not None]
        elif tag == "insert":
            left_out = next((node for node in usual.nodes[begin:stop] if node.line is not None), None)
            found += [one for one in (_missing(own, left_out, start),) if one is not None]
    if own.words == usual.words:
        found += [
            node.line
            for node, one, two in zip(own.nodes, own.wiring, usual.wiring, strict=True)
            if one != two and node.line is not None
        ]
    return list(dict.fromkeys(found))


def _other_inputs(own: Form, usual: Form) -> list[Line]:
    """The line that calls the first part of the block which is given something else than that of another block."""
    graphs = own.piece.graph, usual.piece.graph
    if graphs[0] is None or graphs[1] is None or own.piece.shared is not None:
        return []
    numbered = [_numbered(one.calls) for one in graphs if one is not None]
    sources = [_sources(form) for form in (own, usual)]
    for key, call in sorted(numbered[0].items(), key=lambda one: one[0][0].count(".")):
        other = numbered[1].get(key)
        if other is None or not call.path or call.line is None or len(call.inputs) != len(other.inputs):
            continue
        for one, two in zip(call.inputs, other.inputs, strict=True):
            froms = sources[0].get(one), sources[1].get(two)
            if None not in froms and (one.shape != two.shape or froms[0] != froms[1]):
                return [call.line]
    return []


def _numbered(calls: Iterable[ModuleCall]) -> dict[tuple[str, int], ModuleCall]:
    """The calls of parts by path, and by which call of this part each one is."""
    many: Counter[str] = Counter()
    found = {}
    for call in calls:
        many[call.path] += 1
        found[call.path, many[call.path]] = call
    return found


def _sources(form: Form) -> dict[Node, str]:
    """Where a value is from: an argument of the block by its name, or a part of it by its path."""
    graph = form.piece.graph
    found: dict[Node, str] = {}
    if graph is not None:
        for call in graph.calls:
            found |= {node: f"out of {call.path}" for node in call.outputs if node not in found}
        found |= {node: f"given {name}" for name, node in graph.inputs.items()}
    return found


def _missing(own: Form, left_out: Node | None, place: int) -> Line | None:
    """The line of an operation that is left out, if the block runs the same function; else its own line before it, of
    the same part: where an inner part ends, the line that calls it."""
    line = None if left_out is None else left_out.line
    if line is not None:
        function = function_of(line)
        if function is not None and any(
            node.line is not None and function_of(node.line) == function for node in own.nodes
        ):
            return line
    before = [node for node in own.nodes[:place] if node.line is not None]
    if not before or left_out is None or own.piece.graph is None:
        return before[-1].line if before else line
    outer, inner = (one.path.split(".") if one.path else [] for one in (left_out, before[-1]))
    if len(inner) > len(outer) and inner[: len(outer)] == outer:
        call = next(own.piece.graph.calls_of(".".join(inner[: len(outer) + 1])), None)
        if call is not None and call.line is not None:
            return call.line
    return before[-1].line


def _other_numbers(subject: Subject, piece: Piece, siblings: list[Piece]) -> Line | None:
    """The statement that changes a weight or table of this block which is unlike that of all others."""
    if piece.shared is not None:
        return None
    held = [dict(one.module.named_parameters()) | dict(one.module.named_buffers()) for one in siblings]
    own = dict(piece.module.named_parameters()) | dict(piece.module.named_buffers())
    for name, value in own.items():
        others = [one[name].detach() for one in held if name in one]
        if others and _is_unlike(value.detach(), others):
            line = changing_line(subject.model, f"{piece.place.path}.{name}" if piece.place.path else name)
            if line is not None:
                return line
    return None


def _is_unlike(value: Tensor, others: list[Tensor]) -> bool:
    if any(one.shape != value.shape for one in others) or value.is_meta or not value.numel():
        return False
    if all(torch.equal(one, others[0]) for one in others):
        return not torch.equal(value, others[0])
    if not value.is_floating_point():
        return False
    own, known = _facts(value), [_facts(one) for one in others]
    spreads = [spread for spread, _, _ in known]
    return (
        own[0] > FAR * max(spreads)
        or own[0] * FAR < min(spreads)
        or own[1] > max(zeros for _, zeros, _ in known) + 0.05
        or own[2] > FAR * max(middle + spread for spread, _, middle in known)
    )


def _facts(value: Tensor) -> tuple[float, float, float]:
    """Spread, share of zeros and size of the mean of a tensor."""
    numbers = value.double()
    return (
        float(numbers.std(correction=0)),
        float((numbers == 0).double().mean()),
        float(numbers.mean().abs()),
    )
