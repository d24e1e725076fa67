"""Which tokens are padding, by cause and effect: no other token reads them, and the mask is why.

A mask with one entry per token may mean tokens or padding where it is true, and may be called anything. So tokens on
one side of it are given other values: if the states of the others stay as they were, and move once the mask lets all
tokens be read, the former are padding. A mask that changes no state (of a loss, or of padding that a causal model never
reads) tells nothing here.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rankscope.sources.axes import CLEARLY, distance
from rankscope.sources.batch import Batch
from rankscope.sources.block_calls import entered_by_others
from rankscope.sources.block_masks import BlockMask, block_masks
from rankscope.sources.family import Layout
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.loaded import dtype_of
from rankscope.sources.named_axes import holds_tokens
from rankscope.sources.plain_run import first_call
from rankscope.sources.taps import tapped

TEXTS = 4
"""So many texts with padding take part in the trial."""


@dataclass(frozen=True, slots=True)
class Padding:
    """The input that says which tokens are padding, and whether its zeros are the tokens."""

    name: str
    is_zero: bool

    def is_token(self, batch: Batch) -> Tensor | None:
        """Boolean ``(texts, tokens)``; None where the batch has no such mask."""
        mask = _mask(batch, self.name)
        return None if mask is None else (mask == 0) == self.is_zero

    @property
    def words(self) -> str:
        """How that is known."""
        side = "zero" if self.is_zero else "not zero"
        return f"tokens are where the input {self.name!r} is {side} (found by moving the others)"


def masks_of_tokens(batch: Batch) -> list[str]:
    """The inputs that have one of two values for every token of every text, both of them somewhere."""
    return [name for name in batch.inputs if _mask(batch, name) is not None]


def find_padding(model: nn.Module, layout: Layout, batch: Batch) -> Padding | None:
    """What the masks of a batch leave out, found on a few of its texts; None if nothing was seen to be left out."""
    for name in masks_of_tokens(batch):
        mask = _mask(batch, name)
        if mask is None:
            continue
        mixed = ((mask == 0).any(1) & (mask != 0).any(1)).nonzero().flatten()[:TEXTS]
        if not len(mixed):
            continue
        part = batch.taken(mixed.cpu())
        with suppress(Exception):  # its own words come when it runs in earnest
            before = _states(model, layout, part)
            for is_zero in (False, True):
                if _leaves_out(model, layout, part, Padding(name, is_zero), before):
                    return Padding(name, is_zero)
    return None


def find_told_padding(model: nn.Module, layout: Layout, batch: Batch) -> BlockMask | None:
    """The argument of the blocks that leaves tokens out; None where none was seen to.

    Inputs of any kind may be behind it: lengths, masks between tokens, ids. It cannot be taken away here. What shows it
    is that other values of the tokens it leaves out do not move those it keeps, while the other way round they do.
    """
    stack = layout.stacks[0]
    with suppress(Exception):  # its own words come when it runs in earnest
        _, call = first_call(model, stack, batch)
        before: list[Tensor] = []
        for mask in block_masks(call):
            kept = mask.is_token(call)
            if kept is None:
                continue
            before = before or _states(model, layout, batch)
            moves = []
            for keep in (kept, ~kept):
                with entered_by_others(model, stack, _others_but(keep.mT if call.tokens_first else keep)):
                    moves.append(_moved(before, _states(model, layout, batch), keep))
            if moves[0] <= CLEARLY.get(dtype_of(model), 0.1) < moves[1]:
                return mask
    return None


def _others_but(keep: Tensor) -> Callable[[Tensor], Tensor]:
    """Other tokens of the same size in all places but some."""

    def change(x: Tensor) -> Tensor:
        drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        return torch.where(keep.unsqueeze(-1).to(x.device), x, (drawn * float(x.detach().std())).to(x))

    return change


def _leaves_out(
    model: nn.Module, layout: Layout, batch: Batch, padding: Padding, before: list[Tensor]
) -> bool:
    kept = padding.is_token(batch)
    main = next(name for name, value in batch.inputs.items() if holds_tokens(name, value))
    if kept is None or not before:
        return False
    clear = CLEARLY.get(dtype_of(model), 0.1)
    other = replace(batch, inputs=batch.inputs | {main: _others(batch, main, kept)})
    if _moved(before, _states(model, layout, other), kept) > clear:
        return False
    mask = batch.inputs[padding.name]
    tokens = mask[mask == 0] if padding.is_zero else mask[mask != 0]
    every = replace(batch, inputs=batch.inputs | {padding.name: torch.full_like(mask, tokens[0].item())})
    return _moved(before, _states(model, layout, every), kept) > clear


def _states(model: nn.Module, layout: Layout, batch: Batch) -> list[Tensor]:
    """What the blocks put out, where they see one row per token of the masks."""
    found: list[Tensor] = []

    def receive(_: str, layer: int, site: str, state: Tensor) -> None:
        if layer and site == "block":
            found.append(state.clone())

    with (
        torch.random.fork_rng(devices=()),
        quiet(model),
        tapped(model, layout, receive, texts=len(batch)),
    ):
        run_batch(model, replace(batch, autocast=None))
    return found


def _moved(before: list[Tensor], after: list[Tensor], kept: Tensor) -> float:
    """How far kept tokens move at most in the states that have a row for each."""
    moves = (
        distance(one[kept.to(one.device)], other[kept.to(one.device)])
        for one, other in zip(before, after, strict=True)
        if one.shape[:2] == kept.shape
    )
    return max(moves, default=0.0)


def _others(batch: Batch, name: str, kept: Tensor) -> Tensor:
    """The input with other values where tokens are not kept: from among its own."""
    value = batch.inputs[name]
    axis = (batch.text_axes or {}).get(name) or 0
    keep = kept.movedim(0, axis).to(value.device)
    drawn = torch.randperm(value.shape[:2].numel(), generator=torch.Generator().manual_seed(0)).to(
        value.device
    )
    other = value.flatten(0, 1)[drawn].view(value.shape)
    if value.is_floating_point():
        other = other + value.std() * torch.randn(value.shape, generator=torch.Generator().manual_seed(1)).to(
            value
        )
    return torch.where(keep if value.ndim == 2 else keep[..., None], value, other)


def _mask(batch: Batch, name: str) -> Tensor | None:
    """An input as ``(texts, tokens)``, if it has one of two values for each, and both of them."""
    axes = batch.text_axes or {}
    main = next((key for key, value in batch.inputs.items() if holds_tokens(key, value)), None)
    if main is None or name == main or axes.get(name) is None or axes.get(main) is None:
        return None
    sizes = batch.inputs[main].movedim(axes[main] or 0, 0).shape[:2]
    mask = batch.inputs[name].movedim(axes[name] or 0, 0)
    mask = mask.reshape(len(mask), *(size for size in mask.shape[1:] if size != 1))
    if mask.shape != sizes or mask.is_complex() or len(mask.unique()) != 2 or not bool((mask == 0).any()):
        return None
    return mask
