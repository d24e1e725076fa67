"""What a live model computes on one batch: every state of one stack, kept, and the blocks in order of their calls."""

from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rankscope.errors import ModelError, RankscopeError
from rankscope.sources.batch import Batch
from rankscope.sources.family import Layout, Stack
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.taps import tapped, unwrapped


class _Seen(Exception):  # noqa: N818 - a signal, not an error
    """Raised inside a model once all that is wanted has passed by, so that the rest of it need not run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """States of one pass: layers 0 .. L, what the sites put out, the state after the final norm."""

    states: tuple[Tensor, ...]
    sites: dict[tuple[int, str], Tensor]
    final: Tensor | None
    calls: tuple[nn.Module, ...]


@dataclass(slots=True)
class _Tape:
    states: list[Tensor] = field(default_factory=list)
    sites: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    final: Tensor | None = None
    calls: list[nn.Module] = field(default_factory=list)


def first_state(model: nn.Module, stack: Stack, batch: Batch) -> Tensor:
    """What enters the first block; the blocks themselves do not run."""
    tape = _Tape()
    _run(model, stack, batch, tape, only_first=True)
    return tape.states[0]


def recorded(model: nn.Module, stack: Stack, batch: Batch) -> Recording:
    """Every state of the stack on one batch; what comes after the stack does not run."""
    tape = _Tape()
    _run(model, stack, batch, tape, only_first=False)
    return Recording(states=tuple(tape.states), sites=tape.sites, final=tape.final, calls=tuple(tape.calls))


def _run(model: nn.Module, stack: Stack, batch: Batch, tape: _Tape, *, only_first: bool) -> None:
    model = unwrapped(model)
    blocks = [model.get_submodule(path) for path in stack.blocks]

    def receive(_: str, layer: int, site: str, state: Tensor) -> None:
        state = state.clone()  # some models add to a state in place
        if site == "block":
            tape.states.append(state)
        elif site == "final":
            tape.final = state
        else:
            tape.sites[layer, site] = state
        last = site == ("block" if stack.final_norm is None else "final") and layer == stack.calls
        if only_first or last:
            raise _Seen

    def called(block: nn.Module, _: object) -> None:
        tape.calls.append(block)

    handles = [block.register_forward_pre_hook(called) for block in blocks]
    try:
        with (
            torch.random.fork_rng(devices=()),  # some models draw a number even at rest
            quiet(model),
            tapped(model, Layout(family="", stacks=(stack,)), receive) as finished,
        ):
            with suppress(_Seen):
                run_batch(model, batch)
            if not only_first:
                finished()
    except (RankscopeError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise ModelError(
            f"the model failed on its inputs: {type(error).__name__}: {first}; "
            "check that the inputs fit the model"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
