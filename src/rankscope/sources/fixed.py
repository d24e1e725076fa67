"""Numbers that enter a block beside its tokens: arguments and attributes that change with the inputs of the model.

A tree knows tokens, padding, positions and a memory. What else a block is given (a time, a class, a style that scales
and shifts its states) stands in the tree as the constants of one call, and the tree holds for calls with the same
values alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rankscope.errors import NotTranslated, RankscopeError
from rankscope.sources.arguments import positional_names
from rankscope.sources.batch import Batch
from rankscope.sources.block_calls import BlockCall, entered_by_others
from rankscope.sources.family import Stack
from rankscope.sources.operations import held_tensors
from rankscope.sources.paths import join
from rankscope.sources.plain_run import plain_run

_CLOSE = 1e-5
"""The same values computed for another number of texts differ by rounding; what follows from them is compared."""


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """An argument of the blocks that a tree holds one value of.

    Args:
        name: as in ``Graph.inputs``; ``word`` is what the block calls it.
        values: what each call of a block was given; None where one was called without it.
    """

    name: str
    word: str
    values: tuple[Tensor | None, ...]

    def check(self, calls: Sequence[BlockCall]) -> None:
        """Raise if calls of the blocks have another value of the argument."""
        given = [call.tensors().get(self.name) for call in calls]
        if len(given) != len(self.values) or not all(map(_is_same, self.values, given)):
            raise NotTranslated(
                f"the tree was read with another value of the argument {self.word!r} of the blocks, which its numbers "
                "come from; translate the model on a batch like this one"
            )


def varying(calls: Sequence[BlockCall], others: Sequence[BlockCall], *, memory: str | None) -> list[str]:
    """The arguments besides tokens and memory that have other values in the calls of another run."""
    found = dict[str, None]()
    for call, other in zip(calls, others, strict=False):
        given = other.tensors()
        for name, value in call.tensors().items():
            if name not in (call.stream, memory) and not _is_same(value, given.get(name)):
                found[name] = None
    return list(found)


def handed_on(
    model: nn.Module, stack: Stack, batch: Batch, calls: Sequence[BlockCall], *, memory: str | None
) -> list[str]:
    """The arguments besides tokens and memory that a block is given from what an earlier one computed, in its words.

    Found by cause and effect: other tokens enter the first block, and the arguments that change are made of them.
    """
    if stack.program is not None or stack.enters:  # one call runs all of them
        return []

    def other(state: Tensor) -> Tensor:
        return state + 0.5 * state.roll(1, dims=-1) + 0.1 * state.detach().abs().mean()

    try:
        with entered_by_others(model, stack, other):
            others = plain_run(model, stack, batch, with_arguments=True, with_ending=False).arguments
    except RankscopeError:
        return []
    # The first block itself may be given its tokens twice.
    return [_word(calls[0].block, name) for name in varying(calls[1:], others[1:], memory=memory)]


def fixed_values(names: Iterable[str], calls: Sequence[BlockCall]) -> tuple[Fixed, ...]:
    """Arguments of some names with the values that they have in these calls."""
    return tuple(
        Fixed(name, _word(calls[0].block, name), tuple(call.tensors().get(name) for call in calls))
        for name in names
    )


def _word(block: nn.Module, name: str) -> str:
    """The name of an argument in the block's own code; as it is where that cannot be told."""
    place, _, rest = name.partition(".")
    names = positional_names(block)
    if not place.isdigit() or int(place) >= len(names):
        return name
    return f"{names[int(place)]}.{rest}" if rest else names[int(place)]


def loose_tensors(model: nn.Module, paths: Iterable[str]) -> dict[str, Tensor]:
    """Copies of the tensors that modules hold as buffers or plain attributes, by path."""
    return {
        join(path, name): value.detach().clone()
        for path in paths
        for name, value in held_tensors(model.get_submodule(path)).items()
    }


def changed_tensors(before: dict[str, Tensor], after: dict[str, Tensor]) -> list[str]:
    """The names whose values are others now."""
    return [name for name, value in after.items() if name in before and not _is_same(before[name], value)]


def _is_same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors say the same; an axis along which nothing changes may have any length."""
    if one is None or other is None:
        return one is other
    one, other = _without_repeats(one), _without_repeats(other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other.to(one.device), rtol=_CLOSE, atol=_CLOSE, equal_nan=True)


def _without_repeats(value: Tensor) -> Tensor:
    for axis in range(value.ndim):
        first = value.narrow(axis, 0, min(1, value.shape[axis]))
        if value.shape[axis] > 1 and bool((value == first).all()):
            value = first
    return value
