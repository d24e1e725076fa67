"""What a live model computes on one batch: every state of one stack, kept, the blocks in order of their calls, and what
the model makes of the tokens after them."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rankscope.errors import ModelError, RankscopeError
from rankscope.sources.axes import oriented
from rankscope.sources.batch import Batch
from rankscope.sources.block_calls import BlockCall, kept_call
from rankscope.sources.ending import Ending
from rankscope.sources.family import Layout, Stack
from rankscope.sources.inside import Inside
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.operations.watch import Exact
from rankscope.sources.taps import Ambiguous, tapped, unwrapped

Kept = bool | Literal["first"]
"""Of which calls of blocks the arguments are kept."""


class _Seen(Exception):  # noqa: N818 - a signal, not an error
    """Raised inside a model once all that is wanted has passed by, so that the rest of it need not run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainRun:
    """One pass of a live model.

    Args:
        states: layers 0 .. L.
        sites: what the sublayers put out, by layer and site.
        final: the state after the final norm, where the layout names one.
        calls: the blocks in order of their calls.
        last: the last state of the model itself, whatever it does after its blocks; None where there is none of the
            width of the blocks, or it could not be seen.
        after_blocks: the modules on the way from the last block to ``last``, each with its class.
        after_norm: those of them after the final norm.
        arguments: what every call of a block was given, in order, or the first of them alone; empty unless it was
            asked for.
    """

    states: tuple[Tensor, ...]
    sites: dict[tuple[int, str], Tensor]
    final: Tensor | None
    calls: tuple[nn.Module, ...]
    last: Tensor | None = None
    after_blocks: tuple[str, ...] = ()
    after_norm: tuple[str, ...] = ()
    arguments: tuple[BlockCall, ...] = ()


@dataclass(slots=True)
class _Tape:
    states: list[Tensor] = field(default_factory=list)
    sites: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    final: Tensor | None = None
    calls: list[nn.Module] = field(default_factory=list)
    arguments: list[BlockCall] = field(default_factory=list)

    def is_whole(self, stack: Stack) -> bool:
        """Whether all that belongs to the stack has been seen."""
        return len(self.states) > stack.calls and (stack.final_norm is None or self.final is not None)


def first_state(model: nn.Module, stack: Stack, batch: Batch) -> Tensor:
    """What enters the first block; the blocks themselves do not run."""
    return _taped(unwrapped(model), stack, batch, None, first=True).states[0]


def first_call(model: nn.Module, stack: Stack, batch: Batch) -> tuple[Tensor, BlockCall]:
    """What enters the first block, and all else that it is called with; the blocks themselves do not run."""
    tape = _taped(unwrapped(model), stack, batch, None, first=True, with_arguments=True)
    return tape.states[0], tape.arguments[0]


def plain_run(
    model: nn.Module,
    stack: Stack,
    batch: Batch,
    *,
    with_arguments: Kept = False,
    with_ending: bool = True,
) -> PlainRun:
    """Every state of the stack on one batch, and the last state of the model; if asked, copies of what the blocks got.

    Copies of all calls take long where the blocks are handed a cache that grows from one to the next. Without the
    ending what the model does after its blocks is not followed: ``last`` is None.

    What goes wrong after the stack (a decoder that misses its inputs) is no matter of the stack: then ``last`` is what
    was seen until there.
    """
    model = unwrapped(model)
    ending = Ending(model, stack)
    follows = with_ending and stack.program is None  # without modules for blocks nothing marks their end
    tape = _taped(model, stack, batch, ending if follows else None, with_arguments=with_arguments)
    norm = ending.passed.index(stack.final_norm) + 1 if stack.final_norm in ending.passed else 0
    return PlainRun(
        states=tuple(tape.states),
        sites=tape.sites,
        final=tape.final,
        calls=tuple(tape.calls),
        last=ending.last,
        after_blocks=ending.named(ending.passed),
        after_norm=ending.named(ending.passed[norm:]),
        arguments=tuple(tape.arguments),
    )


def exact_calls(model: nn.Module, stack: Stack, batch: Batch) -> tuple[BlockCall, ...] | None:
    """What the blocks are called with if everything is computed in float64, whatever the dtype of weights and casts.

    Tables of angles that a model makes in its own dtype have too few digits to be read; made so they have all. None
    where the model cannot be run so.
    """
    try:
        with Exact():
            return plain_run(model, stack, batch, with_arguments=True, with_ending=False).arguments
    except RankscopeError:
        return None


def _taped(
    model: nn.Module,
    stack: Stack,
    batch: Batch,
    ending: Ending | None,
    *,
    first: bool = False,
    with_arguments: Kept = False,
) -> _Tape:
    tape = _Tape()
    try:
        _run(model, stack, batch, tape, ending, first=first, with_arguments=with_arguments)
        if first and not tape.states:
            raise ModelError(
                f"the call does not run the blocks of {stack.name!r} ({stack.blocks[0]} ... {stack.blocks[-1]}); "
                "generate() of a model with an encoder and a decoder, say, runs the encoder by itself before: record a "
                "call that runs both, or the part alone, rs.record(model.get_submodule(...))"
            )
    except Ambiguous:  # raised where the first block is entered: neither tape nor ending has seen anything
        with as_model_errors():
            (stack,) = oriented(model, Layout(family="", stacks=(stack,)), batch).stacks
        tape = _Tape()
        _run(model, stack, batch, tape, ending, first=first, with_arguments=with_arguments)
    return tape


@contextmanager
def as_model_errors() -> Iterator[None]:
    """What the model's own code raises becomes a ``ModelError``; our errors and a full memory stay what they are."""
    try:
        yield
    except (RankscopeError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        words = next(iter(str(error).splitlines()), "")
        raise ModelError(
            f"the model failed on its inputs: {type(error).__name__}: {words}; "
            "check that the inputs fit the model"
        ) from error


def _run(
    model: nn.Module,
    stack: Stack,
    batch: Batch,
    tape: _Tape,
    ending: Ending | None,
    *,
    first: bool,
    with_arguments: Kept,
) -> None:
    """One pass; it is broken off at the first state if that is all that is wanted."""
    blocks = [model.get_submodule(path) for path in stack.called]

    def receive(_: str, layer: int, site: str, state: Tensor) -> None:
        state = state.clone()  # some models add to a state in place
        if site == "block":
            if inside is not None and not tape.states:
                called(inside, (state, *given[0][0]), given[0][1])
            tape.states.append(state)
            if first:
                raise _Seen
            if layer == stack.calls and ending is not None:
                ending.begin(state)
        elif site == "final":
            tape.final = state
        else:
            tape.sites[layer, site] = state

    def called(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tape.calls.append(block)
        if with_arguments is True or (with_arguments == "first" and not tape.arguments):
            texts = None if block is inside else len(batch)
            tape.arguments.append(kept_call(block, args, kwargs, stack, texts=texts))

    inside = None if stack.program is None else Inside(model, stack)
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def called_whole(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given.append((args, kwargs))

    handles = [
        block.register_forward_pre_hook(called if inside is None else called_whole, with_kwargs=True)
        for block in blocks
    ]
    try:
        with (
            as_model_errors(),
            torch.random.fork_rng(devices=()),  # some models draw a number even at rest
            quiet(model),
            tapped(model, Layout(family="", stacks=(stack,)), receive, texts=len(batch)) as finished,
        ):
            if first:
                with suppress(_Seen):
                    run_batch(model, batch)
                return
            try:
                with nullcontext() if ending is None else ending.following():
                    run_batch(model, batch)
            except Exception:
                if not tape.is_whole(stack):
                    raise
            finished()
    finally:
        for handle in handles:
            handle.remove()
