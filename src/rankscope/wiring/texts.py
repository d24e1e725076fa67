"""Texts of a batch do not read each other."""

import linecache
import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten_with_path

from rankscope.errors import is_out_of_memory
from rankscope.findings.laws import LawResult
from rankscope.sources.operations import Line, Node, Region, captured
from rankscope.sources.operations.captured import left_as_found
from rankscope.sources.operations.influence import differs as differs_exactly
from rankscope.sources.operations.watch import leaf_name
from rankscope.wiring.culprits import declared_line, first_meeting, is_own_code, node_line
from rankscope.wiring.law import law, result
from rankscope.wiring.piece import Piece
from rankscope.wiring.rest import at_rest
from rankscope.wiring.subject import Ran, Subject, differs, other_slice

EXPERTS = re.compile(r"moe|expert|router|switch|sparse.?mlp", re.IGNORECASE)


@law("batch")
def batch(subject: Subject) -> LawResult:
    """Two texts are moved, one after the other: nothing may depend on both."""
    if not subject.base.is_finite:
        return result("batch", "not checked", "output not finite")
    if subject.texts < 2:
        return result("batch", "not checked", "one text")
    for stack in subject.stacks:
        axis = subject.text_axes[stack.name]
        for piece in subject.stack_of(stack.name):
            if piece.is_usable and piece.mixes(axis):
                return _broken(subject, piece, axis)
    return _outside(subject)


def _broken(subject: Subject, piece: Piece, axis: int) -> LawResult:
    first, second = (piece.slice_at(axis, place) for place in (0, 1))
    moved, number = first, effect(piece, first, axis, 1)
    if _has_experts(piece.module):
        return result(
            "batch", "meant", "expert capacity", block=piece.place.block_of(None), site=piece.place.path
        )
    node = first_meeting(piece, moved, second, piece.state.shape[axis])
    return result(
        "batch",
        "broken",
        "texts meet",
        block=piece.place.block_of(node),
        site=site_of(piece, None if node is None else node.path),
        line=_line_of_option(subject, piece, node) or node_line(piece, node),
        number=number,
        floor=0.0,
    )


def _line_of_option(subject: Subject, piece: Piece, node: Node | None) -> Line | None:
    """The line that makes a part of a library which takes tokens first, although texts come first."""
    path, kinds = site_of(piece, None if node is None else node.path), list[str]()
    while path and getattr(subject.model.get_submodule(path), "batch_first", None) is not False:
        path = path.rpartition(".")[0]
    made = declared_line(subject.model, path) if path else None
    while path and not isinstance(part := subject.model.get_submodule(path), nn.ModuleList | nn.Sequential):
        kinds.append(f"{type(part).__name__}(")
        path = path.rpartition(".")[0]
    if made is None:
        return None
    for number in range(
        made.number, made.number + STATEMENT
    ):  # of a statement of several lines, that of its class
        code = linecache.getline(made.file, number)
        if any(kind in code for kind in kinds):
            return Line(made.file, number, code.strip())
    return made


STATEMENT = 6
"""So many lines a statement that makes layers may have until it names their class."""


def effect(piece: Piece, where: Tensor, axis: int, place: int) -> float | None:
    """How far a slice of what leaves moves, relative to its rows, if another part of what enters does."""
    after = piece.run(piece.noise(where))
    if piece.base is None or after is None or after.shape != piece.base.shape:
        return None
    before, after = (one.double().select(axis, place) for one in (piece.base, after))
    size = before.norm(dim=-1).amax()
    return float((before - after).norm(dim=-1).amax() / size) if size else None


def site_of(piece: Piece, inner: str | None) -> str:
    """The path of a module in the model, from its path in the block."""
    return ".".join(part for part in (piece.place.path, inner or "") if part)


def _has_experts(module: nn.Module) -> bool:
    return any(
        EXPERTS.search(type(one).__name__) or EXPERTS.search(name) for name, one in module.named_modules()
    )


def _outside(subject: Subject) -> LawResult:
    """What happens before the first block and after the last: elements that two texts move."""
    axis = subject.input_axis if subject.token_inputs else 0
    one, two = (subject.with_moved_slice(axis, place) for place in (0, 1))
    if one is None or two is None:
        return _holds(subject)
    base, clearly = subject.base, subject.clearly
    pairs = [(base.roots[name], one.roots.get(name), two.roots.get(name)) for name in base.roots]
    pairs += list(zip(base.outputs, one.outputs, two.outputs, strict=False))
    for before, first, second in pairs:
        if first is None or second is None or not before.shape == first.shape == second.shape:
            continue
        both = differs(before, first, clearly) & differs(before, second, clearly)
        if bool(both.any()) and before.ndim > 0 and before.shape[0] > 1:
            if _has_experts(subject.model):
                return result("batch", "meant", "expert capacity")
            number = float(((before - first).abs() * both).amax() / before.abs().amax())
            node = first_outside(subject, axis)
            return result(
                "batch",
                "broken",
                "texts meet",
                block=None if node is None else block_of_node(subject, node),
                site=None if node is None else node.path,
                line=None if node is None else node.line,
                number=number,
                floor=clearly,
            )
    return _exchanged(subject, axis, one, two) or _holds(subject)


def _exchanged(subject: Subject, axis: int, one: Ran, two: Ran) -> LawResult | None:
    """Texts that are answered in the places of others: what moves with a text is returned for another one alone."""
    many = subject.texts
    if many < 2 or not is_own_code(subject.model):
        return None

    def strays(states: Sequence[Tensor | None], along: int) -> bool:
        before, *moved = states
        if before is None or before.ndim <= along or before.shape[along] != many:
            return False
        rows = [
            differs(before, other, subject.clearly).movedim(along, 0).reshape(many, -1).any(1)
            for other in moved
            if other is not None and other.shape == before.shape
        ]
        return len(rows) == 2 and all(bool(row.any()) and not bool(row[at]) for at, row in enumerate(rows))

    returned = list(zip(subject.base.outputs, one.outputs, two.outputs, strict=False))
    # one answer in its place, and another one turned, is a comparison with other texts
    if not returned or not all(strays(states, axis) for states in returned):
        return None
    for piece in subject.pieces:
        states = [subject.state_of(ran, piece) for ran in (subject.base, one, two)]
        if strays(states, subject.text_axes[piece.place.stack]):
            return result(
                "batch",
                "broken",
                "texts exchanged",
                block=piece.place.block_of(None),
                site=piece.place.path or None,
                line=piece.place.line,
            )
    return result("batch", "broken", "texts exchanged")


def _holds(subject: Subject) -> LawResult:
    if subject.was_training and any(isinstance(one, _BatchNorm) for one in subject.model.modules()):
        return result("batch", "meant", "batch norm")
    return result("batch", "holds", number=0.0, floor=subject.clearly)


def first_outside(subject: Subject, axis: int) -> Node | None:
    """The first operation of the whole model that two texts move."""
    for node, before, one, two in _moved_by_texts(subject, axis):
        both = differs_exactly(before, one) & differs_exactly(before, two)
        if before.is_floating_point() and bool(both.any()):
            return node
    return None


def last_moved(subject: Subject, axis: int, place: int) -> Node | None:
    """The operation that is the first to leave out what a text, of the first two, has moved so far."""
    known = [
        (node, bool(differs_exactly(before, moved[place]).any()))
        for node, before, *moved in _moved_by_texts(subject, axis)
    ]
    last = max((number for number, (_, is_moved) in enumerate(known) if is_moved), default=None)
    if last is None:
        return None
    kept = known[last][0]
    return next((node for node, _ in known[last + 1 :] if kept in node.inputs()), kept)


def _moved_by_texts(subject: Subject, axis: int) -> list[tuple[Node, Tensor, Tensor, Tensor]]:
    """The operations of the whole model with their values: as it is, and with the first and the second text moved."""
    inputs = subject.batch.inputs
    args, kwargs = subject.batch.arguments()
    leaves, _ = tree_flatten_with_path((args, kwargs))
    names = {
        name: leaf_name(path) for path, leaf in leaves for name in subject.movable if leaf is inputs[name]
    }
    subject.count_part(4.0)
    try:
        with at_rest(subject.model):
            graph = captured(subject.model, args, kwargs).graph
        roots = {name: graph.inputs[leaf] for name, leaf in names.items() if leaf in graph.inputs}
        outputs = [one for one in graph.outputs if one.value.is_floating_point()]
        if not roots or not outputs:
            return []
        region = Region(graph, tuple(roots.values()), outputs[0])
        values = []
        for place in (None, 0, 1):
            given = {
                node: node.value if place is None else other_slice(node.value, axis, place)
                for node in roots.values()
            }
            with left_as_found():
                torch.manual_seed(0)
                values.append(region.replays(tuple(region.order), given))
        return [(node, values[0][node], values[1][node], values[2][node]) for node in region.order]
    except Exception as error:
        if is_out_of_memory(error):
            raise
    return []


def block_of_node(subject: Subject, node: Node) -> int | None:
    """The block that an operation of the whole model belongs to, by its module, or by its place between states."""
    for piece in subject.pieces:
        if piece.shared is not None:
            _, start, end = piece.shared
            if start.id < node.id <= end.id:
                return piece.place.number
        elif piece.place.path and f"{node.path}.".startswith(f"{piece.place.path}."):
            return piece.place.block_of(None)
    return None
