"""A pass in which every block reads what it read in an earlier one, so that only the weights have moved."""

from typing import Any

from torch import Tensor, nn

from rankscope.sources.batch import Batch
from rankscope.sources.family import Stack
from rankscope.sources.plain_run import PlainRun, plain_run
from rankscope.sources.roles import block_width
from rankscope.sources.taps import entering


def run_again(model: nn.Module, stack: Stack, batch: Batch, entered: list[Tensor | None]) -> PlainRun | None:
    """One pass, each call of a block with the state in ``entered``; the first pass fills that list.

    None where no modules stand for the blocks: there is no call to hand a state to.
    """
    if stack.program is not None or stack.enters:
        return None
    blocks = [model.get_submodule(path) for path in stack.blocks]
    width, is_first, calls = block_width(blocks[0]), not entered, iter(entered)

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        state = entering(args, kwargs, width)
        if is_first:
            entered.append(None if state is None else state.detach().clone())
            return None
        old = next(calls, None)
        if old is None or state is None:
            return None
        changed = {name: old if one is state else one for name, one in kwargs.items()}
        return tuple(old if one is state else one for one in args), changed

    handles = [block.register_forward_pre_hook(enter, with_kwargs=True) for block in blocks]
    try:
        return plain_run(model, stack, batch, with_ending=False)
    finally:
        for handle in handles:
            handle.remove()
