"""A-priori statements about a whole network, layer by layer: for all inputs, and for inputs of a given spread."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.bounds.apriori import Effect, Region, effect, product_down, product_up
from rankscope.bounds.apriori_norms import Norms
from rankscope.bounds.assumption import Assumption
from rankscope.errors import ConfigError
from rankscope.network import Attention, Mlp, Network, Part
from rankscope.network.parts import leaves

WIDEST = 700.0
"""Logarithms of spreads are searched between minus and plus this, the range of floats."""

_POINTS, _ROUNDS = 64, 9
"""Spreads looked at together, and how often the gap between two of them is searched again: 1e-13 is left."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayerStatement:
    """What is proven of one block before any input is seen; numbers are natural logarithms ``*seeds``.

    The statement: for every input of the region asked about, whatever its number of tokens, the spread after the block
    is between ``exp(gain_lower)`` and ``exp(gain_upper)`` times the spread before it, and between ``exp(lower)`` and
    ``exp(upper)`` in itself, computed with real numbers from the stored weights.

    Args:
        layer: the block, from 1.
        gain_lower: of this block, for all inputs; minus infinity where nothing is proven.
        gain_upper: the same from above; infinity where nothing is proven.
        total_lower: of all blocks up to this one.
        total_upper: the same from above.
        lower: of the spread after the block, for the given spread of the input; minus infinity without one.
        upper: the same from above.
        critical: inputs of this block with a smaller spread leave it with a smaller one; infinity if all do, minus
            infinity if that is not proven for any.
        no_lower: why nothing is proven from below.
        no_upper: why nothing, or no contraction, is proven from above.
    """

    layer: int
    gain_lower: Tensor
    gain_upper: Tensor
    total_lower: Tensor
    total_upper: Tensor
    lower: Tensor
    upper: Tensor
    critical: Tensor
    no_lower: tuple[Assumption, ...]
    no_upper: tuple[Assumption, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MlpStatement:
    """What one MLP could do against collapse, and what that would cost; natural logarithms ``*seeds``.

    Args:
        layer: the block, from 1.
        site: name of the part.
        lipschitz: ``L |U|_2 |D|_2``: it enlarges no spread by more. Infinity with a gate.
        needed: by what it would have to enlarge spreads so that attention before it, without a skip, does not shrink
            that of the tokens it reads, if that is the given one: ``1 / sum_h w_h tanh(s_h D^2 / 4)``. Minus infinity
            where nothing is known to shrink.
        sensitivity: product of ``max(needed, 1)`` up to this block: so much a small change of the input may be
            magnified by a network whose MLPs stop collapse.
    """

    layer: int
    site: str
    lipschitz: Tensor
    needed: Tensor
    sensitivity: Tensor

    @property
    def is_enough(self) -> Tensor:
        """Whether it could make up for attention that reads tokens of that spread; False is proof that it cannot."""
        return self.lipschitz >= self.needed


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Apriori:
    """Statements about every block of a network.

    Args:
        layers: one for each block.
        mlps: one for each MLP, where a spread was given.
        spread: logarithm of the spread of the input; None if all inputs were meant.
        size: logarithm of the longest token of the input; None if it is not bounded.
        critical: inputs with a smaller spread shrink in every block.
    """

    layers: tuple[LayerStatement, ...]
    mlps: tuple[MlpStatement, ...]
    spread: Tensor | None
    size: Tensor | None
    critical: Tensor

    def layers_until(self, target: float) -> int | None:
        """The first layer after which the spread is proven to be at most ``target``, in every seed; None if none is."""
        if not target > 0:
            raise ConfigError(f"target={target}: a spread to be reached must be above zero")
        reached = (one.layer for one in self.layers if bool((one.upper <= math.log(target)).all()))
        return next(reached, None)


def apriori(network: Network, *, spread: float | None = None, size: float | None = None) -> Apriori:
    """What the weights of a network prove about all inputs, or about those of a given spread or size.

    Args:
        network: any tree without a TokenMap.
        spread: largest distance between two tokens of the input.
        size: length of the longest token of the input; a gated MLP has no bound without it.
    """
    for name, value in (("spread", spread), ("size", size)):
        if value is not None and not (0 < value < math.inf):
            raise ConfigError(f"{name}={value}: give a number above zero, or leave it out for all inputs")
    if spread is not None and size is not None and spread > 2 * size:
        raise ConfigError(f"two tokens no longer than size={size:g} cannot be spread={spread:g} apart")
    norms = Norms.of(network)
    with torch.no_grad():
        everywhere, given = Region.of(size=size), Region.of(spread, size)
        every = _walk(network, everywhere, norms)
        told = every if spread is None else _walk(network, given, norms)
        layers, zero = list[LayerStatement](), torch.zeros((), dtype=torch.float64)
        totals = zero, zero
        for layer, (block, all_inputs, own) in enumerate(
            zip(network.blocks, every, told, strict=True), start=1
        ):
            totals = product_down(totals[0], all_inputs.lower), product_up(totals[1], all_inputs.upper)
            layers.append(_statement(layer, block, (all_inputs, own), totals, norms))
        return Apriori(
            layers=tuple(layers),
            mlps=() if spread is None else _mlps(network, given, norms),
            spread=None if spread is None else given.high,
            size=None if size is None else given.size,
            critical=_critical(lambda log: _worst(network, log, norms)),
        )


def _walk(network: Network, region: Region, norms: Norms) -> list[Effect]:
    found = []
    for block in network.blocks:
        found.append(effect(block, region, norms))
        region = found[-1].after
    return found


def _statement(
    layer: int, block: Part, found: tuple[Effect, Effect], totals: tuple[Tensor, Tensor], norms: Norms
) -> LayerStatement:
    every, given = found
    return LayerStatement(
        layer=layer,
        gain_lower=every.lower,
        gain_upper=every.upper,
        total_lower=totals[0],
        total_upper=totals[1],
        lower=given.after.low,
        upper=given.after.high,
        critical=_critical(lambda log: effect(block, _within(log), norms).upper),
        no_lower=every.no_lower,
        no_upper=every.no_upper,
    )


def _within(log_spread: Tensor) -> Region:
    """All inputs of at most that spread."""
    return Region(
        low=torch.full_like(log_spread, -torch.inf),
        high=log_spread,
        size=torch.full_like(log_spread, torch.inf),
    )


def _worst(network: Network, log_spread: Tensor, norms: Norms) -> Tensor:
    """The largest gain of a block met by inputs of at most that spread."""
    return torch.stack([one.upper for one in _walk(network, _within(log_spread), norms)]).amax(dim=0)


def _critical(gain: Callable[[Tensor], Tensor]) -> Tensor:
    """Logarithm of a spread below which ``gain``, which grows with the spread, is below zero: never too large."""
    low = torch.full_like(gain(torch.zeros((), dtype=torch.float64)), -WIDEST)
    high = -low
    none, every = gain(low) >= 0, gain(torch.full_like(low, torch.inf)) < 0
    steps = torch.linspace(0, 1, _POINTS, dtype=torch.float64).reshape(-1, *[1] * low.ndim)
    for _ in range(0 if bool((none | every).all()) else _ROUNDS):
        logs = low + (high - low) * steps
        shrinking = (gain(logs) < 0).long().cumprod(dim=0).sum(dim=0, keepdim=True)
        low, high = (logs.gather(0, (shrinking - back).clamp(0, _POINTS - 1)).squeeze(0) for back in (1, 0))
    return torch.where(every, torch.inf, torch.where(none, -torch.inf, low))


def _mlps(network: Network, given: Region, norms: Norms) -> tuple[MlpStatement, ...]:
    found, cost = list[MlpStatement](), torch.zeros((), dtype=torch.float64)
    for layer, block in enumerate(network.blocks, start=1):
        parts = list(leaves(block))
        shrinks = [-effect(part, given, norms).upper for part in parts if isinstance(part, Attention)]
        needed = shrinks[0] if shrinks else torch.full_like(cost, -torch.inf)
        cost = cost + needed.clamp(min=0.0)
        found += [
            MlpStatement(
                layer=layer,
                site=part.site,
                lipschitz=norms.mlp(part).lipschitz,
                needed=needed,
                sensitivity=cost,
            )
            for part in parts
            if isinstance(part, Mlp)
        ]
    return tuple(found)
