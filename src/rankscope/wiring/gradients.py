"""Every parameter gets a gradient."""

import ast
import math
import re
from collections.abc import Mapping, Sized
from dataclasses import dataclass

from torch import Tensor, nn

from rankscope.findings.laws import LawResult
from rankscope.sources.operations import Line
from rankscope.sources.operations.lines import is_library
from rankscope.wiring.culprits import declared_line, is_own_code, line_run_alone, source_of
from rankscope.wiring.law import law, result
from rankscope.wiring.losses import loss_of
from rankscope.wiring.piece import SOFTMAX, Piece
from rankscope.wiring.slopes import ChangedInPlaceError, Slopes, slopes_of
from rankscope.wiring.subject import Subject
from rankscope.wiring.texts import EXPERTS
from rankscope.wiring.unused import line_of_loss, line_of_slip

TEACHERS = re.compile(r"teacher|ema|momentum|target", re.IGNORECASE)
"""Parts that are run without gradients on purpose."""


@law("gradient")
def gradient(subject: Subject) -> LawResult:
    """Parameters without a gradient of what the model returns.

    A bias of the keys moves all logits of a row alike, so that its gradient is zero by algebra; rows of a table that
    no token looks up have none, nor have experts that no token is sent to: none of these count.
    """
    if subject.loss is not None:
        ran = loss_of(subject)
        if ran.value is not None and math.isfinite(ran.value) and not ran.has_slope:
            return result(
                "gradient", "broken", "no gradient", what="every parameter, by the loss,", line=ran.line
            )
    try:
        slopes = slopes_of(subject)
    except ChangedInPlaceError as error:
        return result("gradient", "broken", "changed in place", block=error.block, line=error.line)
    if slopes is None or not slopes.parameters:
        return result("gradient", "not checked", "no parameters")
    if all(one is None for one in slopes.parameters.values()):
        return result("gradient", "broken", "no gradient", what="every parameter")
    apart = _idle(subject, slopes) or _hidden(subject)
    if apart is not None:
        return apart
    meant = ""
    for name, slope in slopes.parameters.items():
        if EXPERTS.search(name) or TEACHERS.search(name) or _is_expert(subject.model, name):
            continue
        if slope is None:
            found = _left_out(subject, slopes, name) or _without(subject, slopes, name)
            if found is None and _is_detached(subject, name):
                found = _cut(subject, slopes, name)
            if found is not None:
                is_cut = found.line is not None and (_says_detach(found.line) or bool(slopes.cut))
                return result(
                    "gradient",
                    "broken",
                    "no gradient",
                    block=found.block,
                    site=found.site,
                    line=found.line if is_cut else line_of_slip(subject, slopes, name) or found.line,
                    what=name,
                )
            meant = meant or name
        elif (
            slope.ndim >= 2
            and not bool((slope != 0).any())
            and (_is_alone(subject, slopes.parameters, name) or _is_detached(subject, name))
        ):
            piece = _piece_of(subject, name)
            line = None if piece is None else _line_of_zero(piece, name)
            return result(
                "gradient",
                "broken",
                "zero gradient",
                block=block_of(subject, name),
                site=name.rpartition(".")[0],
                line=line or declared_line(subject.model, name),
                what=name,
                number=0.0,
            )
    for name, slope in slopes.parameters.items():
        rows = None if slope is None else _dead_rows(subject, slopes.parameters, name)
        if rows is not None:
            piece = _piece_of(subject, name)
            line = None if piece is None else _line_of_zero(piece, name, rows)
            return result(
                "gradient",
                "broken",
                "zero gradient",
                block=block_of(subject, name),
                site=name.rpartition(".")[0],
                line=line or declared_line(subject.model, name),
                what=f"rows {rows.start + 1} to {rows.stop} of {name}",
                number=float(len(rows)),
            )
    zero = _all_zero(subject, slopes.parameters)
    if zero is not None:
        return zero
    if meant:
        return result("gradient", "meant", "other calls", what=meant)
    return result("gradient", "holds")


def _all_zero(subject: Subject, slopes: Mapping[str, Tensor | None]) -> LawResult | None:
    """A matrix whose gradient is zero in every block, where others have one and no block holds a part that is zero.

    A part that starts at zero silences its branch until it has moved, which is a design; a branch that is silent
    without one stays so.
    """
    inside = [name for name in slopes if block_of(subject, name) is not None]
    held = [one.detach() for name, one in subject.model.named_parameters() if not name.endswith("bias")]
    starts_at_zero = any(not bool((one != 0).any()) for one in held)
    has_slope = {name: bool((one != 0).any()) for name, one in slopes.items() if one is not None}
    if starts_at_zero or not any(has_slope.values()) or not is_own_code(subject.model):
        return None
    matrices = [name for name in inside if (one := slopes[name]) is not None and one.ndim > 1]
    is_whole = bool(matrices) and not any(has_slope[name] for name in matrices)
    for name in matrices:
        names, piece = _alike_names(subject, slopes, name), _piece_of(subject, name)
        is_meant = EXPERTS.search(name) or TEACHERS.search(name) or _is_expert(subject.model, name)
        if is_meant or any(has_slope.get(one, True) for one in names or [name]):
            continue
        if not is_whole and (len(names) < FEWEST or piece is None or not _has_tokens(piece.state)):
            continue
        if piece is not None and _reads_one_key(piece):
            continue
        return result(
            "gradient",
            "broken",
            "zero gradient",
            block=block_of(subject, name),
            site=name.rpartition(".")[0],
            line=None if piece is None else _line_of_zero(piece, name),
            what="every weight of the blocks" if is_whole else name,
            number=0.0,
        )
    return None


def _reads_one_key(piece: Piece) -> bool:
    """Whether attention of a block has one key to choose from: then no logit moves anything, by algebra."""
    for node in () if piece.region is None else piece.region.order:
        if node.kind in SOFTMAX and node.shape[-1] == 1:
            return True
        keys = [leaf for leaf in node.inputs() if node.kind in WHOLE and leaf.value.ndim > 1]
        if len(keys) > 1 and keys[1].shape[-2] == 1:
            return True
    return False


WHOLE = frozenset({"scaled_dot_product_attention"})
"""Attention in one piece."""

FEWEST = 2
"""In so many blocks a gradient is zero before that is no chance."""

FUSED = 1 / 6
"""So large a part of a map that several are joined in is one of them."""


def _dead_rows(subject: Subject, slopes: Mapping[str, Tensor | None], name: str) -> range | None:
    """One run of rows of a map without any gradient, where all other rows have one, and all rows in other blocks.

    Such is the part of queries, keys, values or gates that is cut out of a joined map and then not used.
    """
    slope = slopes[name]
    if slope is None or slope.ndim != 2 or EXPERTS.search(name) or TEACHERS.search(name):
        return None
    others = _same_elsewhere(subject, slopes, name)
    is_dead = ~(slope != 0).any(1)
    dead = is_dead.nonzero().flatten().tolist()
    if not max(4, FUSED * len(slope)) <= len(dead) < len(slope):
        return None
    unit = min(len(dead), len(slope) - len(dead))
    if dead[-1] - dead[0] + 1 != len(dead) or len(slope) % unit or dead[0] % unit:
        return None
    is_elsewhere = bool(others) and all(bool((one != 0).any(1)[dead].any()) for one in others)
    if is_elsewhere or _is_detached(subject, name) or _is_cut_out(subject, name, dead, others):
        return range(dead[0], dead[-1] + 1)
    return None


def _is_cut_out(subject: Subject, name: str, dead: list[int], others: list[Tensor]) -> bool:
    """Whether the same rows are dead in every block although nothing starts at zero, so that nobody reads them."""
    weight, piece = subject.model.get_parameter(name).detach(), _piece_of(subject, name)
    return (
        bool(others)
        and piece is not None
        and _has_tokens(piece.state)
        and _is_of_own_code(subject.model, name)
        and not _reads_one_key(piece)
        and bool((weight != 0).any(1).all())
        and all(not bool((one != 0)[dead].any()) and bool((one != 0).any()) for one in others)
    )


def _is_detached(subject: Subject, name: str) -> bool:
    """Whether somebody detached what a parameter makes, in its own block."""
    piece = _piece_of(subject, name)
    if piece is None or piece.region is None or piece.graph is None:
        return False
    inner = name[len(piece.place.path) + 1 :] if piece.place.path else name
    cuts = [one for one in piece.region.order if one.kind == "detach" and one.line and _says_detach(one.line)]
    return any(one.name == inner for one in piece.graph.above(cuts))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a parameter loses its gradient."""

    block: int | None
    site: str
    line: Line | None


def _idle(subject: Subject, slopes: Slopes) -> LawResult | None:
    """A block that never runs where others of its list do; the line is that which calls those."""
    if not is_own_code(subject.model):
        return None
    for stack in subject.stacks:
        idle = [path for path in stack.blocks if path and path not in slopes.called]
        if stack.enters or stack.program is not None or len(idle) in (0, len(stack.blocks)):
            continue
        lines = (one.place.line for one in subject.stack_of(stack.name))
        return result(
            "gradient",
            "broken",
            "never runs",
            block=stack.blocks.index(idle[0]) + 1,
            site=idle[0],
            line=next((one for one in lines if one is not None), None),
            what=idle[0],
            number=float(len(idle)),
        )
    return None


def _hidden(subject: Subject) -> LawResult | None:
    """Modules in a plain list or dict of another one, which the model neither trains, saves nor moves."""
    model = subject.model
    known = {id(one) for one in model.parameters()}
    for path, module in model.named_modules():
        if not is_own_code(module) or _is_torchs(module):
            continue
        for name, value in vars(module).items():
            if name.startswith("_") or TEACHERS.search(name) or not isinstance(value, list | tuple | dict):
                continue
            parts = list(value.values()) if isinstance(value, dict) else list(value)
            parts = [one for one in parts if isinstance(one, nn.Module)]
            weights = [one for part in parts for one in part.parameters() if one.requires_grad]
            if not weights or any(id(one) in known for one in weights) or not _run_by(subject, parts):
                continue
            site = f"{path}.{name}" if path else name
            return result(
                "gradient",
                "broken",
                "not registered",
                block=block_of(subject, f"{path}."),
                site=site,
                line=declared_line(model, site),
                what=f"the plain {type(value).__name__} {site}",
                number=float(len(weights)),
            )
    return None


def _run_by(subject: Subject, parts: list[nn.Module]) -> bool:
    """Whether the model calls some of these modules."""
    calls: list[object] = []
    handles = [one.register_forward_pre_hook(lambda *_: calls.append(1)) for one in parts]
    try:
        subject.run(subject.batch)
    finally:
        for handle in handles:
            handle.remove()
    return bool(calls)


def _left_out(subject: Subject, slopes: Slopes, name: str) -> _Place | None:
    """A parameter without a gradient, where the same parameter of most other blocks has one."""
    others = [other for other in _alike_names(subject, slopes.parameters, name) if other != name]
    having = [other for other in others if slopes.parameters[other] is not None]
    model, owner = subject.model, name.rpartition(".")[0]
    if not having or 2 * len(having) < len(others) or not _is_of_own_code(model, name):
        return None
    block, cut = block_of(subject, name), _cut(subject, slopes, name)
    if cut is not None:
        return cut
    piece = _piece_of(subject, name)
    line = None if piece is None else _line_of_use(piece, name, or_call=False)
    if line is None and piece is not None:
        line = _other_way(piece, _piece_of(subject, having[0]))
    for other in having if line is None else ():
        line = line or _line_elsewhere(subject, slopes, name, other)
    return _Place(block, owner, line or declared_line(model, name))


def _other_way(piece: Piece, other: Piece | None) -> Line | None:
    """The line at which a block leaves the way that another one goes, in the same code."""
    if other is None or type(piece.module) is not type(other.module) or piece.module is other.module:
        return None
    if "forward" in vars(piece.module) or piece.region is None or other.region is None:
        return None
    return line_run_alone(piece.region, other.region)


def _line_elsewhere(subject: Subject, slopes: Slopes, name: str, other: str) -> Line | None:
    """The line at which another block calls the part that this one leaves out, or uses its parameter."""
    piece = _piece_of(subject, other)
    graph = None if piece is None else piece.graph
    if piece is None or graph is None:
        return None
    held = piece.place.path.count(".") + 1 if piece.place.path else 0
    own, parts = name.split("."), other.split(".")
    for end in range(held + 1, len(parts)):
        if ".".join(own[:end]) not in slopes.called:
            call = next(graph.calls_of(".".join(parts[held:end])), None)
            if call is not None and call.line is not None:
                return call.line
    return _line_of_use(piece, other, or_call=False)


def _cut(subject: Subject, slopes: Slopes, name: str) -> _Place | None:
    """Where gradients are switched off, or a state is detached, between a parameter and the output."""
    owner = name.rpartition(".")[0]
    switched = [path for path in slopes.cut if path and f"{owner}.".startswith(f"{path}.")]
    if switched:
        path = min(switched, key=len)
        return _Place(block_of(subject, f"{path}."), path, slopes.cut[path])
    own = _piece_of(subject, name)
    is_behind = own is None
    for piece in subject.pieces:
        is_behind = is_behind or piece is own
        if not is_behind or piece.region is None:
            continue
        for node in piece.region.order:
            if node.kind == "detach" and node.line is not None and _says_detach(node.line):
                return _Place(
                    piece.place.block_of(node),
                    ".".join(filter(None, (piece.place.path, node.path))),
                    node.line,
                )
    graph = subject.whole_graph if own is None else None
    for node in () if graph is None else graph.nodes:
        is_cut = node.kind == "detach" and node.line is not None and _says_detach(node.line)
        if graph is not None and is_cut and any(one.name == name for one in graph.above([node])):
            return _Place(None, node.path, node.line)
    return None


def _says_detach(line: Line) -> bool:
    """Whether somebody wrote it: some operations detach inside."""
    return "detach" in line.code or ".data" in line.code


def _without(subject: Subject, slopes: Slopes, name: str) -> _Place | None:
    """Where a parameter without a gradient is a fault; None where it is none."""
    is_broken, line, site = _unused(subject, slopes, name)
    if not is_broken:
        return None
    return _cut(subject, slopes, name) or _Place(block_of(subject, name), site, line)


def _unused(subject: Subject, slopes: Slopes, name: str) -> tuple[bool, Line | None, str]:
    """Whether a parameter without a gradient is a fault; the line to look at, and the module."""
    model, owner = subject.model, name.rpartition(".")[0]
    module = model.get_submodule(owner)
    above = owner.rpartition(".")[0]
    is_inside_attention = owner != "" and isinstance(model.get_submodule(above), nn.MultiheadAttention)
    has_run = owner in slopes.called or (is_inside_attention and above in slopes.called)
    is_raw = not _is_torchs(module)
    if has_run and not is_raw:
        if not _is_of_own_code(model, owner):
            return False, None, owner  # a library computes what this call does not return
        piece = _piece_of(subject, name)
        line = None if piece is None else _line_of_use(piece, name)
        return True, line or declared_line(model, name), owner
    # the outermost part that did not run, or the parameter itself, and the attribute that holds it
    path = name
    if not has_run:
        path = owner
        while "." in path and path.rpartition(".")[0] not in slopes.called:
            holder = path.rpartition(".")[0]
            parts = [one for one in slopes.called if one.startswith(f"{holder}.")]
            if parts and _is_list(model.get_submodule(holder)):
                # others of the same list ran, this one did not
                return is_own_holder(model, holder), declared_line(model, holder), path
            path = holder
    holder, _, attribute = path.rpartition(".")
    parent = model.get_submodule(holder)
    while _is_list(parent) and holder:
        if any(one.startswith(f"{holder}.") for one in slopes.called) and is_own_holder(model, holder):
            return True, declared_line(model, holder), path
        holder, _, attribute = holder.rpartition(".")
        parent = model.get_submodule(holder)
    if not is_own_code(parent) or _is_torchs(parent) or _is_mentioned(type(parent), attribute):
        return False, None, path
    return True, declared_line(model, path), path


def is_own_holder(model: nn.Module, path: str) -> bool:
    """Whether the module that holds a list is of the user's own code."""
    while path:
        path = path.rpartition(".")[0]
        part = model.get_submodule(path)
        if not _is_list(part):
            return is_own_code(part) and not _is_torchs(part)
    return False


def _is_of_own_code(model: nn.Module, path: str) -> bool:
    """Whether the innermost module around a part that is none of torch's is the user's own."""
    while path:
        path = path.rpartition(".")[0]
        part = model.get_submodule(path)
        if not _is_torchs(part):
            return is_own_code(part)
    return True


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)


def _is_torchs(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")


def _is_expert(model: nn.Module, name: str) -> bool:
    parts = name.split(".")[:-1]
    module: nn.Module = model
    for part in parts:
        module = module._modules[part]  # type: ignore[assignment]
        if EXPERTS.search(type(module).__name__):
            return True
    return False


def _is_mentioned(kind: type, attribute: str) -> bool:
    """Whether a class speaks of an attribute anywhere but where it makes it; classes without source do."""
    for base in kind.__mro__:
        if base in (nn.Module, object):
            continue
        source = source_of(base)
        if source is None:
            return True
        if is_library(source.file):
            continue
        for function in ast.walk(source.tree):
            if not isinstance(function, ast.FunctionDef) or function.name == "__init__":
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and node.attr == attribute:
                    return True
                if isinstance(node, ast.Constant) and node.value == attribute:
                    return True
    return False


def _is_alone(subject: Subject, slopes: Mapping[str, Tensor | None], name: str) -> bool:
    """Whether the same parameter of other blocks has a gradient that is not zero."""
    known = _same_elsewhere(subject, slopes, name)
    piece = _piece_of(subject, name)
    if piece is not None and not _has_tokens(piece.state):
        return False  # what enters is the same everywhere, as queries of a decoder that start at zero
    return bool(known) and all(bool((one != 0).any()) for one in known)


def _has_tokens(state: Tensor) -> bool:
    """Whether the rows of a state differ."""
    rows = state.flatten(0, -2) if state.ndim > 1 else state.unsqueeze(0)
    return bool((rows != rows[:1]).any())


def _same_elsewhere(subject: Subject, slopes: Mapping[str, Tensor | None], name: str) -> list[Tensor]:
    """Gradients of the same parameter of the other blocks."""
    names = [other for other in _alike_names(subject, slopes, name) if other != name]
    return [one for one in (slopes[other] for other in names) if one is not None]


def _alike_names(subject: Subject, slopes: Mapping[str, Tensor | None], name: str) -> list[str]:
    """The same parameter of all blocks; where no module stands for a block, of all entries of the list it is in."""
    for stack in subject.stacks:
        own = next((path for path in stack.blocks if path and name.startswith(f"{path}.")), None)
        if own is not None and len(stack.blocks) > 1:
            inner = name[len(own) :]
            return [one for one in (f"{path}{inner}" for path in stack.blocks) if one in slopes]
    parts = name.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            form = re.compile(
                r"\.".join([*map(re.escape, parts[:place]), r"\d+", *map(re.escape, parts[place + 1 :])])
            )
            found = [one for one in slopes if form.fullmatch(one)]
            if len(found) > 1:
                return found
    return []


def block_of(subject: Subject, name: str) -> int | None:
    """The number of the block that a parameter or module belongs to."""
    for stack in subject.stacks:
        many = len(stack.blocks)
        for number, path in enumerate(stack.blocks, 1):
            if many > 1 and path and f"{name}.".startswith(f"{path}."):
                return number
    # weights of blocks without a module stand in lists with one entry per block
    many = max((one.place.number for one in subject.pieces if one.shared is not None), default=0)
    parts = name.split(".")
    for place, part in enumerate(parts):
        if many > 1 and part.isdigit() and len(_part(subject.model, parts[:place])) == many:
            return int(part) + 1
    if any(f"{name}.".startswith(f"{path}.") for stack in subject.stacks for path in stack.blocks if path):
        return 1 if not many else None
    return None


def _part(model: nn.Module, parts: list[str]) -> Sized:
    found: object = model
    for part in parts:
        found = getattr(found, part, None) if isinstance(found, nn.Module) else None
    return found if isinstance(found, Sized) else ()


def _piece_of(subject: Subject, name: str) -> Piece | None:
    number = block_of(subject, name)
    found = [one for one in subject.pieces if not one.place.path or name.startswith(f"{one.place.path}.")]
    return next((one for one in found if one.shared is None or one.place.number == number), None)


def _line_of_zero(piece: Piece, name: str, rows: range | None = None) -> Line | None:
    """The line that cuts a parameter off by hand, or at which what it moves is lost, or that uses it."""
    used = _line_of_use(piece, name)
    return used if used is not None and _says_detach(used) else line_of_loss(piece, name, rows) or used


def _line_of_use(piece: Piece, name: str, *, or_call: bool = True) -> Line | None:
    """The line that cuts a parameter off, or else the one that uses it, or else the one that calls the block."""
    graph = piece.graph
    called = piece.place.line if or_call else None
    if graph is None:
        return called
    inner = name[len(piece.place.path) + 1 :] if piece.place.path else name
    start = next((node for node in graph.nodes if node.name == inner), None)
    if start is None:
        return called
    reached = {start}
    used: Line | None = None
    cuts: list[Line] = []
    for node in graph.nodes:
        if node in reached or not any(leaf in reached for leaf in node.inputs()):
            continue
        reached.add(node)
        used = used or node.line
        if node.kind == "detach" and node.line is not None:
            cuts.append(node.line)
    # some operations detach inside; what somebody wrote says so
    said = [one for one in cuts if _says_detach(one)]
    return next(iter(said or cuts), None) or used or called
