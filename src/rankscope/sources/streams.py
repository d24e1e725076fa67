"""Stacks that hand their state on to each other are one: a fall that goes through all of them is one fall."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from rankscope.sources.batch import Batch
from rankscope.sources.family import Layout, Stack
from rankscope.sources.live import run_batch, untouched
from rankscope.sources.structure import BY_STRUCTURE, BY_USER
from rankscope.sources.taps import tapped


def in_one_stream(model: nn.Module, layout: Layout, batch: Batch) -> Layout:
    """The layout with stacks joined where what leaves one is, number for number, what enters the next.

    Seen on the first text of a batch. Stages with a step between them that changes the state stay apart, as do an
    encoder and a decoder; so does what a family knows to be apart.
    """
    if len(layout.stacks) == 1 or layout.family not in (BY_USER, BY_STRUCTURE):
        return layout
    left: dict[str, Tensor] = {}
    before: dict[str, str] = {}

    def receive(stack: str, layer: int, site: str, state: Tensor) -> None:
        if layer == 0:
            given = [
                name for name, last in left.items() if last.dtype == state.dtype and torch.equal(last, state)
            ]
            if given:
                before[stack] = given[-1]
        elif site == "block":
            left[stack] = state

    with untouched(model), tapped(model, layout, receive, texts=None):
        run_batch(model, batch.first(1))
    return replace(layout, stacks=tuple(_joined(layout.stacks, before)))


def _joined(stacks: Iterable[Stack], before: dict[str, str]) -> Iterable[Stack]:
    """Each chain of stacks as one, under the name of its first; the only one that is left is just the blocks."""
    by_name = {stack.name: stack for stack in stacks}
    after = {first: second for second, first in before.items()}
    before = {
        second: first for first, second in after.items()
    }  # a state that enters two stacks goes on in one
    chains = []
    for name in by_name:
        if name not in before:
            chain = [by_name[name]]
            while chain[-1].name in after:
                chain.append(by_name[after[chain[-1].name]])
            chains.append(chain)
    for chain in chains:
        yield Stack(
            name=chain[0].name if len(chains) > 1 else "blocks",
            blocks=tuple(path for stack in chain for path in stack.blocks),
            calls=sum(stack.calls for stack in chain),
            attention=tuple(path for stack in chain for path in stack.attention),
            mlp=tuple(path for stack in chain for path in stack.mlp),
            final_norm=chain[-1].final_norm,
        )
