"""What all paths through a head, and all paths from a source, add to one number of the output.

One sweep backward serves every head and every source at once: with the frozen network linear, a head adds
``<T_h(Y), B* G>``, where ``T_h(Y)`` is what it puts out, ``B`` everything behind it and ``G`` the gradient of the
number. Paths through a head start anywhere before it and go on anyhow behind it.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor
from rankscope.errors import ConfigError, NumericalError, ShapeError
from rankscope.network import Context, Network
from rankscope.pathways.freeze import FrozenNetwork, Mlps, frozen_with
from rankscope.pathways.frozen import Frozen, FrozenAttention, Leaf
from rankscope.pathways.path import Head
from rankscope.pathways.polynomial import Polynomial, Walk, push
from rankscope.pathways.reading import centered, kept_rows, residual_size

Toward = Tensor | Callable[[Tensor], Tensor] | None
"""A number of the output: its gradient, a function of the output, or None for the residual of the output."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where paths start: ``input``, or a kind of bias in a block, counted from 1."""

    name: str
    layer: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Attribution:
    """What heads and sources add to a number, each a tensor ``*batch``, or ``lengths *batch`` by path length.

    Args:
        heads: all paths through each head. They do not add up: a path passes several heads.
        sources: all paths from each source. They add up to ``total``.
        total: ``<G, Y>`` of each text; the number itself if it is linear in the output.
    """

    heads: dict[Head, Tensor]
    sources: dict[Source, Tensor]
    total: Tensor


@torch.no_grad()
def attribute(
    network: Network | FrozenNetwork,
    x: Tensor | None = None,
    context: Context | None = None,
    *,
    toward: Toward = None,
    by_length: bool = False,
    dtype: torch.dtype | None = None,
    mlps: Mlps | None = None,
    final_norm: bool | None = None,
) -> Attribution:
    """What every head and every source adds to a number of the output, by one sweep backward.

    Args:
        network: a tree, or one that ``freeze`` holds at its input already.
        x: ``*batch tokens dim``, what enters the first block.
        context: padding and positions.
        toward: None: the signed share ``<J Z, J Y> / |J Y|^2`` of the residual of the output, NaN where its tokens are
            equal up to rounding. A tensor G in the shape
            of the output: ``<G, Z>``. A function of the output: its gradient is taken there, so that what is added is
            exact for linear functions and of first order for others.
        by_length: keep the lengths of the paths apart.
        dtype, mlps, final_norm: as for ``freeze``.
    """
    frozen = frozen_with(network, x, context, dtype=dtype, mlps=mlps, final_norm=final_norm)
    gradient = gradient_of(frozen, toward)
    sweep = _Sweep(frozen, by_length)
    entering = _entering(frozen, by_length)
    arriving: Polynomial = {(0, 0): gradient}
    for layer in range(frozen.layers, 0, -1):
        arriving = sweep.block(layer, frozen.block(layer), entering(layer), arriving)
    sweep.add_source(Source("input"), {(0, 0): frozen.states[0]}, arriving)
    total = (gradient * kept_rows(frozen.output, frozen.context.is_token)).sum(dim=(-2, -1))
    return Attribution(heads=sweep.heads, sources=dict(sweep.sources), total=total)


def gradient_of(frozen: FrozenNetwork, toward: Toward) -> Tensor:
    """The gradient G of a number of the output, in its shape and dtype, zero on padding."""
    output, is_token = frozen.output, frozen.context.is_token
    if toward is None:
        residual = centered(kept_rows(output, frozen.keep), frozen.keep)
        # Once more: the mean that rounding left, u |Y|, would meet the mean of what heads add at u |Y|^2 / |J Y|^2,
        # where the floor of a share is u |Y| / |J Y|.
        residual = centered(residual, frozen.keep)
        size = residual_size(output, frozen.keep, relative_floor(frozen.layers, frozen.dtype))
        return residual / size.square()[..., None, None]
    if callable(toward):
        toward = _gradient_at(toward, output)
    if toward.shape != output.shape:
        raise ShapeError(
            f"the gradient has shape {tuple(toward.shape)}, but the output has shape {tuple(output.shape)}; "
            "give one number for every entry of the output"
        )
    gradient = kept_rows(toward.to(output.dtype), is_token)
    if not bool(torch.isfinite(gradient).all()):
        raise NumericalError("the gradient to attribute has entries that are no numbers")
    return gradient


def _gradient_at(function: Callable[[Tensor], Tensor], output: Tensor) -> Tensor:
    """The gradient of a function of the output that gives one number, or one per text."""
    with torch.inference_mode(False), torch.enable_grad():
        point = output.detach().clone().requires_grad_()
        value: object = function(point)
        if not isinstance(value, Tensor) or not value.requires_grad:
            raise ConfigError(
                "the function to attribute must return a tensor that depends on the output it is given"
            )
        if value.numel() != 1 and value.shape != output.shape[:-2]:
            raise ShapeError(
                f"the function to attribute returned a tensor of shape {tuple(value.shape)}; it must return one "
                "number, or one per text"
            )
        (gradient,) = torch.autograd.grad(value.sum(), point)
    return gradient


def _entering(frozen: FrozenNetwork, by_length: bool) -> Callable[[int], Polynomial]:
    """What enters each block: its state, or by length the coefficients of its state."""
    if not by_length:
        return lambda layer: {(0, 0): frozen.states[layer - 1]}
    found: list[Polynomial] = [{(0, 0): frozen.states[0]}]
    for _, block in frozen.blocks():
        found.append(push(block, dict(found[-1]), Walk()))
    return lambda layer: dict(found[layer - 1])


class _Sweep:
    """Collects what leaves add while a gradient goes backward through the blocks."""

    def __init__(self, frozen: FrozenNetwork, by_length: bool) -> None:
        self.frozen, self.by_length = frozen, by_length
        self.heads: dict[Head, Tensor] = {}
        self.sources: dict[Source, Tensor] = defaultdict(self._nothing)

    def block(self, layer: int, block: Frozen, entering: Polynomial, arriving: Polynomial) -> Polynomial:
        """The gradient before the block, from the gradient behind it; its heads and sources are noted."""
        read: dict[FrozenAttention, Polynomial] = {}

        def forward(leaf: Leaf, poly: Polynomial) -> None:
            if isinstance(leaf, FrozenAttention):
                read[leaf] = {degree: leaf.mixed(value) for degree, value in poly.items()}

        def backward(leaf: Leaf, poly: Polynomial) -> None:
            for constant in leaf.constants():
                degree = constant.degree if self.by_length else (0, 0)
                self.add_source(Source(constant.source, layer), {degree: constant.value}, poly)
            if isinstance(leaf, FrozenAttention):
                self._add_heads(leaf, read[leaf], poly)

        push(block, entering, Walk(heads=self.by_length, visit=forward))
        return push(block, arriving, Walk(heads=self.by_length, backward=True, visit=backward))

    def add_source(self, source: Source, held: Polynomial, arriving: Polynomial) -> None:
        """Note ``<held, arriving>`` under a source."""
        for (length, _), value in held.items():
            for (further, _), gradient in arriving.items():
                found = (value * gradient).sum(dim=(-2, -1))
                self.sources[source] = self._put(self.sources[source], length + further, found)

    def _add_heads(self, leaf: FrozenAttention, read: Polynomial, arriving: Polynomial) -> None:
        place = self.frozen.sites[leaf.site]
        for head in range(leaf.heads):
            self.heads[Head(place.layer, head, place.name)] = self._nothing()
        for (further, _), gradient in arriving.items():
            pulled = leaf.pulled(gradient)
            if leaf.row_sums is None:
                carried = torch.einsum("...hd,...id->...h", leaf.head_biases(), gradient)
            else:
                terms = (leaf.head_biases(), gradient, leaf.row_sums)
                carried = torch.einsum("...hd,...id,...hi->...h", *terms)
            found = [(length + 1, (value * pulled).sum(dim=(-2, -1))) for (length, _), value in read.items()]
            for length, values in [*found, (1, carried)]:
                for head in range(leaf.heads):
                    key = Head(place.layer, head, place.name)
                    self.heads[key] = self._put(self.heads[key], length + further, values[..., head])

    def _nothing(self) -> Tensor:
        batch = self.frozen.output.shape[:-2]
        lengths = (1 + len(self.frozen.sites),) if self.by_length else ()
        return self.frozen.output.new_zeros((*lengths, *batch))

    def _put(self, held: Tensor, length: int, found: Tensor) -> Tensor:
        if not self.by_length:
            return held + found
        held = held.clone()
        held[length] += found
        return held
