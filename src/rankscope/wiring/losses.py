"""The loss that was given: its value, over how many classes, and whether it asks for the next token."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rankscope.errors import is_out_of_memory
from rankscope.findings.laws import LawResult
from rankscope.sources.arguments import tensors_in
from rankscope.sources.operations import Line
from rankscope.sources.operations.lines import line_now
from rankscope.sources.safety import first_line
from rankscope.wiring.fresh import is_fresh
from rankscope.wiring.law import law, result
from rankscope.wiring.rest import at_rest
from rankscope.wiring.subject import MOST_BACKWARDS, Subject

START = 1.0
"""A fresh model's loss may be so far from the logarithm of its classes: its logits are not all equal."""

MOSTLY = 0.9
"""A loss asks for the next token where this share of its targets are the next ids."""


@dataclass(frozen=True, slots=True)
class LossRan:
    """One call of the loss: its value, over how many classes, on which line, and what went wrong."""

    value: float | None
    classes: int | None
    line: Line | None
    has_slope: bool
    error: str = ""
    asks_next: bool = False
    """Whether the targets of its cross-entropy are the ids that come next."""

    asks_same: bool = False
    """Whether they are the ids that were just read."""


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
    watch, calls = _Watch(), list[tuple[Tensor, Tensor]]()

    def keep(_: nn.Module, args: Any, kwargs: Any, output: object) -> None:
        ids = [one for one in tensors_in((args, kwargs)) if one.dtype == torch.long and one.ndim == 2]
        scores = [one for one in tensors_in(output) if one.requires_grad and one.ndim == 3]
        calls.extend((one, two) for one in ids for two in scores if one.shape == two.shape[:2])

    value: float | None = None
    has_slope, asks, error = False, (False, False), ""
    handle = subject.model.register_forward_hook(keep, with_kwargs=True)
    try:
        with at_rest(subject.model), torch.enable_grad(), watch:
            found: object = subject.loss(subject.model, subject.given)
            if not isinstance(found, Tensor) or found.numel() != 1:
                error = f"expected one number, got {type(found).__name__}"
            else:
                value, has_slope = float(found.detach()), found.requires_grad
                asks = _asks(subject, found, calls) if has_slope else asks
    except Exception as raised:
        if is_out_of_memory(raised):
            raise
        error = f"{type(raised).__name__}: {first_line(raised)}"
    finally:
        handle.remove()
    kept[_KEPT] = LossRan(value, watch.classes, watch.line, has_slope, error, *asks)
    return loss_of(subject)


def _asks(subject: Subject, loss: Tensor, calls: list[tuple[Tensor, Tensor]]) -> tuple[bool, bool]:
    """Whether scores fall for every class but the next id, or but the same: of a cross-entropy that is the target."""
    if not calls or subject.backwards >= MOST_BACKWARDS:
        return False, False
    subject.backwards += 1
    scores = [one for _, one in calls]
    slopes: tuple[Tensor | None, ...] = torch.autograd.grad(
        loss, scores, allow_unused=True, retain_graph=True
    )
    for (ids, _), slope in zip(calls, slopes, strict=True):
        if slope is None or ids.shape[1] < 3 or not bool(slope.isfinite().all()):
            continue
        asked, wanted = (slope != 0).any(-1), slope.argmin(-1)
        for targets, places in ((ids[:, 1:], slice(0, -1)), (ids, slice(None))):
            hits = (wanted[:, places] == targets) & asked[:, places]
            many = float(asked[:, places].sum())
            if many >= 4 and float(hits.sum()) >= MOSTLY * many:
                return targets is not ids, targets is ids
    return False, False


def _reads_back(subject: Subject) -> bool:
    """Whether tokens mix in some blocks, and none reads a later one."""
    mixed = False
    for piece in subject.pieces:
        if not piece.is_usable or piece.root_shape is None:
            return False
        for token, rows in piece.readers(subject.text_axes[piece.place.stack]).items():
            if bool(rows[:token].any()):
                return False
            mixed = mixed or bool(rows[token + 1 :].any())
    return mixed


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
    if ran.asks_same and _reads_back(subject):
        return result(name, "broken", "own token", line=ran.line, number=ran.value)
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
