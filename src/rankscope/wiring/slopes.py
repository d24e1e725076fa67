"""Gradients of a fixed random direction of everything that a model returns: what has none does not reach the output."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rankscope.errors import ModelError, is_out_of_memory
from rankscope.sources.arguments import tensors_in
from rankscope.sources.live import run_batch
from rankscope.sources.operations import Line
from rankscope.sources.operations.lines import line_now
from rankscope.sources.roles import block_width
from rankscope.sources.safety import first_line
from rankscope.sources.taps import entering, first_tensor
from rankscope.wiring.rest import at_rest
from rankscope.wiring.subject import MOST_BACKWARDS, Subject

WORDS = "a random direction of all that the model returns"


@dataclass(frozen=True, slots=True, eq=False)
class Slopes:
    """Gradients of one run.

    Args:
        parameters: by name; None where there is none.
        roots: of what enters each stack, ``last`` of what leaves it.
        called: paths of the modules that ran.
        states: of what left every call of a block, with its path, in order; None where there is none.
        cut: modules that ran with gradients switched off, and the line that calls them.
    """

    parameters: Mapping[str, Tensor | None]
    roots: Mapping[str, Tensor]
    last: Mapping[str, Tensor]
    called: frozenset[str]
    states: tuple[tuple[str, Tensor | None], ...] = ()
    cut: Mapping[str, Line | None] = field(default_factory=dict)


_KEPT = "_slopes"

IN_PLACE = "modified by an inplace operation"
"""What torch says where a tensor that was kept for the backward pass was written over."""


class ChangedInPlaceError(ModelError):
    """The backward pass fails, because the model writes over what it needs: in which block, on which line."""

    def __init__(self, message: str, *, block: int | None, line: Line | None) -> None:
        super().__init__(message)
        self.block, self.line = block, line


def slopes_of(subject: Subject) -> Slopes | None:
    """The gradients, computed once; None where the model has no gradients to give."""
    kept: dict[str, Any] = subject.__dict__
    if _KEPT not in kept:
        kept[_KEPT] = _slopes(subject)
    found: Slopes | None = kept[_KEPT]
    return found


def _slopes(subject: Subject) -> Slopes | None:
    model = subject.model
    weights = {name: one for name, one in model.named_parameters() if one.requires_grad}
    if not weights or subject.backwards >= MOST_BACKWARDS:
        return None
    roots: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    called: set[str] = set()
    made: list[tuple[str, Tensor]] = []
    cut: dict[str, Line | None] = {}

    def enter(stack: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            state = entering(args, kwargs, block_width(module))
            if state is not None and state.requires_grad:
                roots.setdefault(stack, state)

        return hook

    def leave(stack: str, path: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: object, output: object) -> None:
            state = first_tensor(output)
            if state is not None:
                made.append((path, state))
            if state is not None and state.requires_grad:
                last[stack] = state

        return hook

    def seen(path: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            called.add(path)
            if not torch.is_grad_enabled() and path not in cut:
                cut[path] = line_now(run_batch.__code__, skip=1)

        return hook

    with ExitStack() as undo:
        for stack in subject.stacks:
            for path in dict.fromkeys(stack.called):
                module = model.get_submodule(path)
                undo.callback(module.register_forward_pre_hook(enter(stack.name), with_kwargs=True).remove)
                undo.callback(module.register_forward_hook(leave(stack.name, path)).remove)
        for path, module in model.named_modules(remove_duplicate=False):
            undo.callback(module.register_forward_pre_hook(seen(path)).remove)
        undo.enter_context(at_rest(model))
        undo.enter_context(torch.enable_grad())
        try:
            output = run_batch(model, subject.batch)
            wanted = [one for one in tensors_in(output) if one.is_floating_point() and one.requires_grad]
            if not wanted:
                return Slopes(dict.fromkeys(weights), {}, {}, frozenset(called), cut=cut)
            loss = sum((direction(one, place) for place, one in enumerate(wanted)), torch.zeros(()))
            subject.backwards += 1
            known = [(path, state) for path, state in made if state.requires_grad]
            asked = [*weights.values(), *roots.values(), *last.values(), *(state for _, state in known)]
            found: tuple[Tensor | None, ...] = torch.autograd.grad(loss, asked, allow_unused=True)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            if IN_PLACE in str(error):
                block, line = _written_over(subject)
                raise ChangedInPlaceError(
                    "no gradients: a tensor that the backward pass needs is changed in place",
                    block=block,
                    line=line,
                ) from error
            raise ModelError(f"no gradients: {type(error).__name__}: {first_line(error)}") from error
    names = len(weights)
    slopes = dict(zip(weights, found[:names], strict=True))
    states = found[names:]
    entered = {name: one for name, one in zip(roots, states, strict=False) if one is not None}
    left = {name: one for name, one in zip(last, states[len(roots) :], strict=False) if one is not None}
    of_state = {
        id(one): slope for (_, one), slope in zip(known, states[len(roots) + len(last) :], strict=True)
    }
    between = tuple((path, of_state.get(id(state))) for path, state in made)
    return Slopes(slopes, entered, left, frozenset(called), between, cut)


def direction(value: Tensor, seed: int) -> Tensor:
    """``<G, X> / sqrt(entries)`` with G standard normal; a quadratic form would be constant behind a norm."""
    drawn = torch.randn(value.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    projected: Tensor = (drawn.to(value.device) * value.double()).sum().cpu() / value.numel() ** 0.5
    return projected


def _written_over(subject: Subject) -> tuple[int | None, Line | None]:
    """The block and the line of the first operation that writes into what an earlier one keeps for its gradient."""
    blocks: list[int] = []
    places = {path: number for stack in subject.stacks for number, path in enumerate(stack.blocks, 1) if path}
    watch = _Writes(blocks)

    def keep(value: Tensor) -> Tensor:
        watch.kept.setdefault(value.untyped_storage().data_ptr(), value)
        return value

    with ExitStack() as undo:
        for path, number in places.items():
            module = subject.model.get_submodule(path)
            undo.callback(
                module.register_forward_pre_hook(lambda *_, number=number: blocks.append(number)).remove
            )
            undo.callback(module.register_forward_hook(lambda *_: blocks.clear()).remove)
        undo.enter_context(at_rest(subject.model))
        undo.enter_context(torch.enable_grad())
        undo.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value))
        undo.enter_context(watch)
        run_batch(subject.model, subject.batch)
    return watch.block, watch.line


class _Writes(TorchFunctionMode):
    """Looks for the first operation that writes into memory that is kept."""

    def __init__(self, blocks: list[int]) -> None:
        super().__init__()
        self.blocks = blocks
        self.kept: dict[int, Tensor] = {}
        self.block: int | None = None
        self.line: Line | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written = args[0] if args and isinstance(args[0], Tensor) else None
        before = None if written is None else written._version
        found = func(*args, **(kwargs or {}))
        is_written = self.line is None and written is not None and written._version != before
        if is_written and written is not None and written.untyped_storage().data_ptr() in self.kept:
            self.line = line_now(run_batch.__code__, skip=1)
            self.block = self.blocks[-1] if self.blocks else None
        return found
