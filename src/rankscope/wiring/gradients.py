"""Every parameter gets a gradient; and the loss of a fresh model is that of a guess among its classes."""

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rankscope.errors import is_out_of_memory
from rankscope.findings.laws import LawResult
from rankscope.sources.operations import Line
from rankscope.sources.operations.lines import is_library, line_now
from rankscope.sources.safety import first_line
from rankscope.wiring.culprits import declared_line, is_own_code, source_of
from rankscope.wiring.fresh import is_fresh
from rankscope.wiring.law import law, result
from rankscope.wiring.piece import Piece
from rankscope.wiring.rest import at_rest
from rankscope.wiring.slopes import Slopes, slopes_of
from rankscope.wiring.subject import Subject
from rankscope.wiring.texts import EXPERTS

TEACHERS = re.compile(r"teacher|ema|momentum|target", re.IGNORECASE)
"""Parts that are run without gradients on purpose."""

START = 1.0
"""A fresh model's loss may be so far from the logarithm of its classes: its logits are not all equal."""


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
    slopes = slopes_of(subject)
    if slopes is None or not slopes.parameters:
        return result("gradient", "not checked", "no parameters")
    if all(one is None for one in slopes.parameters.values()):
        return result("gradient", "broken", "no gradient", what="every parameter")
    meant = ""
    for name, slope in slopes.parameters.items():
        if EXPERTS.search(name) or TEACHERS.search(name) or _is_expert(subject.model, name):
            continue
        if slope is None:
            is_broken, line, site = _without(subject, slopes, name)
            if is_broken:
                block = block_of(subject, name)
                return result(
                    "gradient", "broken", "no gradient", block=block, site=site, line=line, what=name
                )
            meant = meant or name
        elif slope.ndim >= 2 and not bool((slope != 0).any()) and _is_alone(subject, slopes.parameters, name):
            piece = _piece_of(subject, name)
            line = None if piece is None else _line_of_use(piece, name)
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
    if meant:
        return result("gradient", "meant", "other calls", what=meant)
    return result("gradient", "holds")


def _without(subject: Subject, slopes: Slopes, name: str) -> tuple[bool, Line | None, str]:
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
    for stack in subject.stacks:
        own = next((path for path in stack.blocks if name.startswith(f"{path}.")), None)
        if own is None:
            continue
        inner = name[len(own) :]
        others = [slopes.get(f"{path}{inner}") for path in stack.blocks if path != own]
        known = [one for one in others if one is not None]
        return bool(known) and all(bool((one != 0).any()) for one in known)
    return False


def block_of(subject: Subject, name: str) -> int | None:
    """The number of the block that a parameter or module belongs to."""
    for stack in subject.stacks:
        for number, path in enumerate(stack.blocks, 1):
            if path and f"{name}.".startswith(f"{path}."):
                return number
    return None


def _piece_of(subject: Subject, name: str) -> Piece | None:
    return next((one for one in subject.pieces if name.startswith(f"{one.place.path}.")), None)


def _line_of_use(piece: Piece, name: str) -> Line | None:
    """The line that cuts a parameter off, or else the one that uses it."""
    graph = piece.graph
    if graph is None:
        return piece.place.line
    inner = name[len(piece.place.path) + 1 :]
    start = next((node for node in graph.nodes if node.name == inner), None)
    if start is None:
        return piece.place.line
    reached = {start}
    used: Line | None = None
    for node in graph.nodes:
        if node in reached or not any(leaf in reached for leaf in node.inputs()):
            continue
        reached.add(node)
        used = used or node.line
        if node.kind == "detach":
            return node.line or used
    return used or piece.place.line


# the loss that was given


@dataclass(frozen=True, slots=True)
class LossRan:
    """One call of the loss: its value, over how many classes, on which line, and what went wrong."""

    value: float | None
    classes: int | None
    line: Line | None
    has_slope: bool
    error: str = ""


class _Watch(TorchDispatchMode):
    """Sees the logarithms of a softmax, and over how many classes they run."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what would be skipped is the compiler, which takes seconds to import

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.classes: int | None = None
        self.line: Line | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::") if hasattr(func, "_schema") else ""
        if name in ("_log_softmax", "log_softmax", "logsumexp") and args[0].ndim:
            axis = args[1][0] if isinstance(args[1], list | tuple) else args[1]
            self.classes = args[0].shape[axis]
            self.line = line_now(loss_of.__code__, skip=1)
        elif name.startswith("binary_cross_entropy"):
            self.classes, self.line = 2, line_now(loss_of.__code__, skip=1)
        return func(*args, **(kwargs or {}))


_KEPT = "_loss_ran"


def loss_of(subject: Subject) -> LossRan:
    """The loss that was given, called once with the model and the batch as the caller gave it."""
    kept: dict[str, Any] = subject.__dict__
    if _KEPT in kept:
        known: LossRan = kept[_KEPT]
        return known
    assert subject.loss is not None  # noqa: S101 - asked for only where there is one
    watch = _Watch()
    value: float | None = None
    has_slope, error = False, ""
    try:
        with at_rest(subject.model), torch.enable_grad(), watch:
            found: object = subject.loss(subject.model, subject.given)
        if not isinstance(found, Tensor) or found.numel() != 1:
            error = f"expected one number, got {type(found).__name__}"
        else:
            value, has_slope = float(found.detach()), found.requires_grad
    except Exception as raised:
        if is_out_of_memory(raised):
            raise
        error = f"{type(raised).__name__}: {first_line(raised)}"
    kept[_KEPT] = LossRan(value, watch.classes, watch.line, has_slope, error)
    return loss_of(subject)


@law("start-loss")
def start_loss(subject: Subject) -> LawResult:
    """Cross-entropy of a model that knows nothing: the logarithm of the number of classes."""
    name = "start-loss"
    if subject.loss is None:
        return result(name, "not checked", "no loss")
    ran = loss_of(subject)
    if ran.error or ran.value is None:
        return result(name, "not checked", "loss failed", what=ran.error)
    if not math.isfinite(ran.value):
        return result(name, "not checked", "loss not finite", line=ran.line)
    if not is_fresh(subject.model):
        return result(name, "not checked", "not fresh")
    if ran.classes is None:
        return result(name, "not checked", "not cross-entropy")
    if ran.classes < 2:
        return result(name, "not checked", "no classes", what=f"{ran.classes}")
    expected = math.log(ran.classes)
    off = abs(ran.value - expected)
    state = "broken" if off > START else "holds"
    return result(
        name,
        state,  # type: ignore[arg-type]  # one of two states
        "start loss" if off > START else None,
        line=ran.line if off > START else None,
        number=ran.value,
        floor=expected + START,
        what=f"{ran.value:.4g} against ln {ran.classes} = {expected:.4g}",
    )
