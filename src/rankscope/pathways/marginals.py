"""All paths through each head, and from each source, as matrices: carried to the output side by side.

A head's marginal is what the output would lose, everything else held, without all paths through that head. Many
matrices go through each block together, so the cost is that of as many frozen passes as there are heads, over half
of the depth on average. For a single number of the output, ``attribute`` does the same in one sweep backward.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor
from rankscope.network import Context, Network
from rankscope.pathways.attribution import Source, Toward, gradient_of
from rankscope.pathways.freeze import FrozenNetwork, Mlps, frozen_with
from rankscope.pathways.frozen import Frozen, FrozenChain, FrozenSkip, FrozenSum, Leaf
from rankscope.pathways.path import Head
from rankscope.pathways.polynomial import Polynomial, Walk, linear, push
from rankscope.pathways.reading import Reading, read

AT_ONCE = 16
"""So many matrices go through a block together: more would not be faster, and the inside of an MLP is wide."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Marginals:
    """What all paths through each head add to the output, and all paths from each source.

    Args:
        heads: the heads, in order of execution.
        through: ``heads *batch tokens dim``; paths pass several heads, so these do not add up.
        sources: where paths start.
        started: ``sources *batch tokens dim``; these add up to the output.
        output: what the network puts out.
        is_token: the tokens that are read, or None for all.
        layers: how many blocks the numbers went through, which their floor depends on.
    """

    heads: tuple[Head, ...]
    through: Tensor
    sources: tuple[Source, ...]
    started: Tensor
    output: Tensor
    is_token: Tensor | None
    layers: int

    def read_heads(self) -> Reading:
        """Norm, residual, share and so on of what passes each head."""
        return self._read(self.through)

    def read_sources(self) -> Reading:
        """The same of what starts at each source."""
        return self._read(self.started)

    def _read(self, terms: Tensor) -> Reading:
        floor = relative_floor(self.layers, self.output.dtype)
        return read(terms, self.output, is_token=self.is_token, floor=floor)


@torch.no_grad()
def marginals(
    network: Network | FrozenNetwork,
    x: Tensor | None = None,
    context: Context | None = None,
    *,
    progress: Progress | None = None,
    dtype: torch.dtype | None = None,
    mlps: Mlps | None = None,
    final_norm: bool | None = None,
) -> Marginals:
    """The marginal of every head and every source of a network on ``x``; arguments as for ``spectrum``."""
    frozen = frozen_with(network, x, context, dtype=dtype, mlps=mlps, final_norm=final_norm)
    carried = _Carried(frozen, [Source("input")], frozen.states[0].unsqueeze(0))
    for layer, block in frozen.blocks():
        carried.through_block(layer, block)
        if progress is not None:
            progress(layer, frozen.layers)
    return carried.marginals()


@torch.no_grad()
def pair_shares(
    network: Network | FrozenNetwork,
    x: Tensor | None = None,
    context: Context | None = None,
    *,
    toward: Toward = None,
    progress: Progress | None = None,
    dtype: torch.dtype | None = None,
    mlps: Mlps | None = None,
    final_norm: bool | None = None,
) -> dict[tuple[Head, Head], Tensor]:
    """What all paths through two heads add to a number of the output, for every two heads one after the other.

    ``<T_g B T_h Y, B* G>``: what passes the first head is carried forward to the block of the second, where it meets
    what the number asks of that head, carried backward. Arguments as for ``attribute``; each entry is ``*batch``.
    """
    frozen = frozen_with(network, x, context, dtype=dtype, mlps=mlps, final_norm=final_norm)
    gradients = _gradients(frozen, toward)
    carried = _Carried(frozen, [], frozen.output.new_zeros(0, *frozen.output.shape))
    found: dict[tuple[Head, Head], Tensor] = {}
    for layer, block in frozen.blocks():
        for second, site in _heads_of(frozen, layer):
            walk = Walk(heads=False, through={site: second.head}, backward=True)
            asked = _sole(push(block, {(0, 0): gradients[layer]}, walk), like=gradients[layer])
            met = (carried.stack * asked).sum(dim=(-2, -1))
            for first, value in zip(carried.labels, met, strict=True):
                if isinstance(first, Head):
                    found[first, second] = value
        found |= _pairs_inside(frozen, layer, block, gradients[layer])
        carried.through_block(layer, block, sources=False)
        if progress is not None:
            progress(layer, frozen.layers)
    return found


def _pairs_inside(
    frozen: FrozenNetwork, layer: int, block: Frozen, gradient: Tensor
) -> dict[tuple[Head, Head], Tensor]:
    """Pairs of heads of two attention parts of one block."""
    heads = _heads_of(frozen, layer)
    found: dict[tuple[Head, Head], Tensor] = {}
    for first, site in heads:
        for second, later in heads:
            if site < later:
                walk = Walk(heads=False, through={site: first.head, later: second.head})
                passed = _sole(push(block, {(0, 0): frozen.states[layer - 1]}, walk), like=gradient)
                found[first, second] = (passed * gradient).sum(dim=(-2, -1))
    return found


def _gradients(frozen: FrozenNetwork, toward: Toward) -> list[Tensor]:
    """The gradient of a number of the output with respect to what leaves each block; entry 0 to the input."""
    poly: Polynomial = {(0, 0): gradient_of(frozen, toward)}
    found = [poly[0, 0]]
    for layer in range(frozen.layers, 0, -1):
        poly = push(frozen.block(layer), dict(poly), Walk(heads=False, backward=True))
        found.append(_sole(poly, like=frozen.output))
    return found[::-1]


def _heads_of(frozen: FrozenNetwork, layer: int) -> list[tuple[Head, int]]:
    """The heads of a block with the numbers of their sites."""
    return [
        (Head(layer, head, place.name), site)
        for site, place in enumerate(frozen.sites)
        if place.layer == layer
        for head in range(place.heads)
    ]


class _Carried:
    """Labelled matrices on their way to the output."""

    def __init__(self, frozen: FrozenNetwork, labels: list[Head | Source], stack: Tensor) -> None:
        self.frozen, self.labels, self.stack = frozen, labels, stack

    def through_block(self, layer: int, block: Frozen, *, sources: bool = True) -> None:
        """Carry everything through a block, and add what its heads, and its sources, put out."""
        walk = linear(Walk(heads=False))
        pieces = self.stack.split(AT_ONCE) if self.labels else ()
        moved = [_sole(push(block, {(0, 0): piece}, walk), like=piece) for piece in pieces]
        state = self.frozen.states[layer - 1]
        for head, site in _heads_of(self.frozen, layer):
            through = Walk(heads=False, through={site: head.head})
            moved.append(_sole(push(block, {(0, 0): state}, through), like=state).unsqueeze(0))
            self.labels.append(head)
        for name in sorted(set(_source_names(block))) if sources else ():
            started = Walk(heads=False, sources=name.__eq__)
            moved.append(_sole(push(block, {}, started), like=state).unsqueeze(0))
            self.labels.append(Source(name, layer))
        # Nothing is on its way yet before the first block with heads, where only heads are carried.
        self.stack = torch.cat(moved) if moved else self.stack

    def marginals(self) -> Marginals:
        """What has arrived at the output."""
        is_head = torch.tensor([isinstance(label, Head) for label in self.labels])
        return Marginals(
            heads=tuple(label for label in self.labels if isinstance(label, Head)),
            through=self.stack[is_head],
            sources=tuple(label for label in self.labels if isinstance(label, Source)),
            started=self.stack[~is_head],
            output=self.frozen.output,
            is_token=self.frozen.keep,
            layers=self.frozen.layers,
        )


def _sole(poly: Polynomial, *, like: Tensor) -> Tensor:
    """The one coefficient where lengths are not told apart; zero if nothing got through."""
    return poly[0, 0].expand_as(like) if poly else torch.zeros_like(like)


def _source_names(part: Frozen) -> Iterator[str]:
    """Names of all sources of a block."""
    if isinstance(part, Leaf):
        yield from (constant.source for constant in part.constants())
    elif isinstance(part, FrozenSkip):
        yield from _source_names(part.inner)
    elif isinstance(part, FrozenChain | FrozenSum):
        for inner in part.parts:
            yield from _source_names(inner)
