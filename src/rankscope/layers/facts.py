"""``rs.layer_facts``: what a layer makes of equal and of nearly equal tokens, from passes of the layer alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankscope.findings.atlas import Around, Consensus, LayerFacts
from rankscope.layers.depth import over_depth
from rankscope.layers.derivatives import DENSE, Derivative, derivative
from rankscope.layers.layer import Layer, Mixer, check_still_the_same, checked_layer
from rankscope.layers.orders import (
    LARGEST,
    Draw,
    Size,
    Sizes,
    check_equal_tokens,
    draws,
    gap_of,
    kink_of,
    read_order,
    residual_ratio,
    state_starts_at_zero,
    unit_residual_ratio,
)
from rankscope.layers.rates import (
    Linear,
    Rate,
    rate_at_consensus,
    rate_of_directions,
    rate_of_tail,
    rate_with_norm,
)
from rankscope.layers.spectra import slem_of_map
from rankscope.measures.maps import dobrushin_of, entropy_of

IS_ONE = 0.05
"""An order within this of one is one."""

READ_OFF = 1e-10
"""How far entries of a map that was read off a derivative may be off, relative to the largest singular value."""

Maps = Callable[[Tensor], Tensor]
"""The maps of a layer that is linear in its values, ``tokens tokens`` or ``heads tokens tokens``, for given tokens."""


def layer_facts(
    mixer: Mixer,
    *,
    tokens: int,
    dim: int,
    seed: int = 0,
    around: Around = "bare",
    x: Tensor | None = None,
    maps: Maps | None = None,
    depth: bool = True,
    name: str = "",
) -> LayerFacts:
    """The facts of a layer: whether it keeps equal tokens equal, its two orders of collapse, its rate.

    The layer is any function of a tensor ``tokens dim`` (or ``1 tokens dim``) that gives one of the same shape: it is
    only called, never read. It must be deterministic and keep no state. A module is copied to float64.

    Args:
        mixer: the layer.
        tokens: rows of the token matrices that it is tried on.
        dim: their columns.
        seed: of the three draws of a common row and of a residual.
        around: what stands around the layer, see ``Around``.
        x: the row that equal tokens are given first, and at which the rate is taken where the layer maps no row that
            iteration finds to a multiple of itself; left out, it is drawn.
        maps: its maps, where it is linear in its values; left out, they are read off the derivative where it has one.
        depth: whether to follow 400 copies of the layer for ``fall`` and ``collapses``.
        name: what errors call it.
    """
    layer = checked_layer(mixer, tokens=tokens, dim=dim, around=around, name=name)
    drawn = draws(layer, seed, x)
    before = layer.at(drawn[0].near(LARGEST))
    gaps = [gap_of(layer, draw) for draw in drawn]
    consensus = _worst([gap.consensus for gap in gaps])
    if consensus != "kept":
        check_equal_tokens(layer, drawn)
    is_recurrent = consensus == "none" and all(
        state_starts_at_zero(layer, draw, gap) for draw, gap in zip(drawn, gaps, strict=True)
    )
    from_token = tokens // 2 if is_recurrent else 0
    kinks = [kink_of(layer, draw) for draw in drawn]
    residual = direction = Orders()
    if consensus == "kept" or is_recurrent:
        residual = _orders(layer, drawn, kinks, residual_ratio, from_token, is_recurrent)
    if consensus != "none" or is_recurrent:
        direction = _orders(layer, drawn, kinks, unit_residual_ratio, from_token, is_recurrent)
    rate = normed = Rate(None, None)
    known: Linear | None = None
    if consensus == "kept" and residual.is_one:
        rate, known = rate_at_consensus(layer, drawn)
    elif consensus == "directions" and direction.is_one:
        rate = rate_of_directions(layer, drawn)
    elif is_recurrent and residual.is_one:
        rate = rate_of_tail(layer, drawn, from_token)
    if consensus != "none" and direction.is_one:
        normed = rate_with_norm(layer, drawn, known)
    found = None if known is None else known.derivative
    if found is None and maps is None and consensus == "kept" and around == "bare" and tokens * dim <= DENSE:
        found = derivative(layer, drawn[0].equal, float(drawn[0].noise.norm()))
    of_map = _map_facts(layer, drawn, maps, found)
    end = over_depth(layer, drawn[0], consensus, from_token, rate=rate.value, seed=seed) if depth else None
    check_still_the_same(layer, drawn[0].near(LARGEST), before)
    has_fall = (residual.is_one or direction.is_one) and rate.why != "tokens vanish"
    shown = residual if residual.window is not None else direction
    met = [kink for kink in kinks if kink is not None] + [
        one for one in (residual.edge, direction.edge) if one
    ]
    units = [gap.unit for gap in gaps]
    return LayerFacts(
        around=around,
        tokens=tokens,
        dim=dim,
        precision=str(layer.dtype).removeprefix("torch."),
        consensus=consensus,
        consensus_gap=max(gap.raw.known for gap in gaps),
        consensus_gap_unit=None if None in units else max(unit.known for unit in units if unit is not None),
        residual_order=residual.order,
        residual_order_low=residual.low,
        residual_order_high=residual.high,
        direction_order=direction.order,
        direction_order_low=direction.low,
        direction_order_high=direction.high,
        scales=shown.window,
        kink=min(met, default=None),
        rate=rate.value,
        rate_normed=normed.value,
        rate_normed_uncertainty=normed.error,
        rate_at=rate.at,
        rate_uncertainty=rate.error,
        rate_low=rate.low,
        rate_high=rate.high,
        rate_missing=rate.why,
        fall=end.fall if end is not None and has_fall else None,
        collapses=end.collapses if end is not None else None,
        from_token=from_token,
        **of_map,
    )


@dataclass(frozen=True, slots=True)
class Orders:
    """The order over all draws with its interval, the scales it was read at, and a kink below which all is equal."""

    order: float | None = None
    low: float | None = None
    high: float | None = None
    window: tuple[float, float] | None = None
    edge: float | None = None

    @property
    def is_one(self) -> bool:
        return self.order is not None and abs(self.order - 1) <= IS_ONE


def _worst(found: Sequence[Consensus]) -> Consensus:
    kinds: tuple[Consensus, ...] = ("none", "directions", "kept")
    return next(one for one in kinds if one in found)


def _orders(
    layer: Layer,
    drawn: Sequence[Draw],
    kinks: Sequence[float | None],
    measure: Callable[[Tensor, Tensor], Size | None],
    from_token: int,
    is_recurrent: bool,
) -> Orders:
    """The median of the draws; None where fewer than two have an order."""
    readings = [
        read_order(_sizes(layer, draw, measure, from_token, is_recurrent), kink)
        for draw, kink in zip(drawn, kinks, strict=True)
    ]
    found = sorted(one.order for one in readings if one.order is not None)
    if 2 * len(found) <= len(drawn):
        return Orders()
    read = [one for one in readings if one.order is not None and math.isfinite(one.order)]
    edges = [one.high for one in readings if one.order == math.inf and math.isfinite(one.high)]
    return Orders(
        order=found[len(found) // 2],
        low=found[0],
        high=found[-1],
        window=(min(one.low for one in read), max(one.high for one in read)) if read else None,
        edge=min(edges, default=None),
    )


def _sizes(
    layer: Layer,
    draw: Draw,
    measure: Callable[[Tensor, Tensor], Size | None],
    from_token: int,
    is_recurrent: bool,
) -> Sizes:
    """The residual ratio at a scale; of a recurrent layer that of the later tokens, without what equal tokens leave."""
    if not is_recurrent:
        return lambda scale: measure(draw.output(layer, scale), draw.noise)
    base, off = layer.at(draw.equal)[from_token:], draw.noise[from_token:]

    def of_later(scale: float) -> Size | None:
        y = draw.output(layer, scale)[from_token:]
        lengths = y.norm(dim=-1, keepdim=True)
        if measure is unit_residual_ratio:
            if bool((lengths[:, 0] <= 100 * off).any()):
                return None
            moved, size, floor = (
                y / lengths - base / base.norm(dim=-1, keepdim=True),
                len(y) ** 0.5,
                off / lengths[:, 0],
            )
        else:
            moved, size, floor = y - base, float(y.norm()), off
        return Size(float((moved - moved.mean(dim=0)).norm()) / size, float(floor.norm()) / size)

    return of_later


def _map_facts(
    layer: Layer, drawn: Sequence[Draw], maps: Maps | None, found: Derivative | None
) -> dict[str, Any]:
    """Facts of the map at equal tokens, where the layer is linear in its values."""
    if maps is not None:
        held = maps(drawn[0].equal).detach().double()
        held = held if held.ndim == 3 else held[None]
    else:
        read = _map_of(layer, drawn, found)
        if read is None:
            return {}
        held = read[None]
    # A map that was read off a derivative is as coarse as that is: changes of weights meet equal values, and what is
    # left of their sum is rounding that grows with logits and tokens.
    off = 0.0 if maps is not None or found is None else max(10 * found.error, READ_OFF)
    ranks = [_rank(one, off) for one in held]
    known: dict[str, Any] = {
        "slem": max(slem_of_map(one.numpy(), off) for one in held),
        "rank_cap": min(sum(ranks), layer.tokens),
    }
    if float(held.min()) >= -1e-12 and float((held.sum(dim=-1) - 1).abs().max()) <= 1e-9:
        entropy = float(entropy_of(held).mean())
        # A row that reads one token has none: what is left of it is the rounding of its entries.
        floor = 4 * layer.tokens * torch.finfo(held.dtype).eps
        known |= {
            "entropy": entropy if entropy > floor else 0.0,
            "dobrushin": float(dobrushin_of(held).max()),
        }
    return known


def _rank(held: Tensor, off: float) -> int:
    sizes = torch.linalg.svdvals(held)
    return int((sizes > max(len(held) * torch.finfo(held.dtype).eps, off) * sizes[0]).sum())


def _map_of(layer: Layer, drawn: Sequence[Draw], found: Derivative | None) -> Tensor | None:
    """The map P of a layer whose derivative at equal tokens is R -> P R W, with rows that sum to one.

    A layer f(X) = P(X) X W whose rows sum to one has this derivative, since the change of P meets equal values; and it
    is linear on equal tokens, f(1 x) = 1 x W, as the function of a token alone that bends (an MLP) is not.
    """
    if found is None or layer.around != "bare":
        return None
    if (held := _only_map(found)) is None:
        return None
    a, b = drawn[0].equal, drawn[1].equal
    bend = layer.at(a + 2 * b) - layer.at(a) - 2 * layer.at(b)
    return held if float(bend.norm()) <= 1e4 * float(drawn[0].noise.norm()) else None


def _only_map(found: Derivative) -> Tensor | None:
    """The map P of a derivative R -> P R W, scaled so that its rows sum to one in the mean."""
    if found.terms is not None:
        held = found.terms.maps[0]
        total = float(held.sum(dim=1).mean())
        return held / total if len(found.terms.maps) == 1 and abs(total) > 1e-9 * float(held.norm()) else None
    if found.whole is None:
        return None
    values = found.whole.sum(dim=2).mean(dim=0)
    size = float(values.square().sum())
    if math.sqrt(size) <= 1e-9 * float(found.whole.norm()):
        return None
    held = torch.einsum("idje,de->ij", found.whole, values) / size
    left = found.whole - torch.einsum("ij,de->idje", held, values)
    return held if float(left.norm()) <= max(1e-9, 1e3 * found.error) * float(found.whole.norm()) else None
