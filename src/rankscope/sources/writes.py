"""Whether a model changes what it is given, and on which line of its code.

A batch that is another one after every run cannot be diagnosed: two runs would differ for no other reason. Runs are
given copies, so the caller's own tensors stay as they are.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rankscope.errors import ModelError
from rankscope.sources.batch import POSITIONAL, Batch
from rankscope.sources.live import copied_inputs, run_batch, untouched
from rankscope.sources.operations.graph import Line
from rankscope.sources.operations.lines import line_now


def check_inputs_stay(model: nn.Module, batch: Batch, copies: Mapping[str, Tensor] | None = None) -> None:
    """An error where one run of the model leaves an input with other numbers; the message names the line.

    ``copies`` are those that the caller has run the model on.
    """
    with untouched(model):
        if copies is None:
            copies = copied_inputs(model, batch)
            run_batch(model, batch, dict(copies))
        given = batch.inputs
        name = next(
            (name for name, one in copies.items() if not _is_same(given[name].to(one.device), one)), None
        )
        if name is None:
            return
        line = _writing_line(model, batch, name)
    which = "its input" if name == POSITIONAL else f"its input {name!r}"
    where = "" if line is None else f" ({line.told.file}:{line.told.number}, `{line.told.code}`)"
    raise ModelError(
        f"{type(model).__name__} changes {which} in place{where}, so that every run would read another batch; let it "
        "work on a copy: begin with x = x.clone(), or write x = x + y where it has x += y"
    )


def _writing_line(model: nn.Module, batch: Batch, name: str) -> Line | None:
    """The line after which a second run finds other numbers in an input; None where it is a library's."""
    copies = copied_inputs(model, batch)
    watch = _Watch(copies[name])
    with watch:
        run_batch(model, batch, copies)
    return watch.line


class _Watch(TorchFunctionMode):
    """Looks at a tensor after every operation."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value, self.before = value, value.clone()
        self.line: Line | None = None
        self.is_found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if not self.is_found and not _is_same(self.before, self.value):
            self.is_found, self.line = True, line_now(run_batch.__code__, skip=1)
        return found


def _is_same(before: Tensor, after: Tensor) -> bool:
    """Whether shapes and all numbers are equal; NaN stays NaN."""
    return before.shape == after.shape and bool(((before == after) | (before.isnan() & after.isnan())).all())
