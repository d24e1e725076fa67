"""The rate of a layer near equal tokens: how much slower than its common row its residual grows, per layer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from rankscope.findings.atlas import NoRate
from rankscope.layers.derivatives import Derivative, derivative
from rankscope.layers.layer import Layer
from rankscope.layers.orders import Draw
from rankscope.layers.spectra import Radius, ratio_of_radii

STEPS = 500
"""Applications of a layer after which no fixed point is hoped for."""

VANISHED = 1e-6
"""A token this short beside the longest has no direction."""

FIXED = 1e-10
"""A row, or a profile, that moves by no more than this is fixed; times the round-off where that is coarser."""

NEARER = 0.999
"""A fixed row is gone on to as long as every step is that much smaller than the last: the rate changes with the row."""

SETTLED = 1e-7
"""Where the first, the middle and the last of the later tokens pass on the same up to this, all between them do."""

SAME = 1e-9
"""Rates at two rows that differ by no more than this, relative to them, are one."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate, where it was taken, and how far it may be off; None where there is none.

    Where it depends on the common row, it is that of the given row, and ``low`` and ``high`` are the ends of all draws.
    """

    value: float | None
    at: Literal["fixed point", "given"] | None
    error: float | None = None
    why: NoRate | None = None
    low: float | None = None
    high: float | None = None


def none(why: NoRate) -> Rate:
    """No rate, and why there is none."""
    return Rate(None, None, None, why)


@dataclass(frozen=True, slots=True, eq=False)
class Resting:
    """Tokens c x of one direction; ``is_fixed`` if the layer maps them to a multiple of themselves."""

    profile: Tensor
    row: Tensor
    is_fixed: bool

    @property
    def tokens(self) -> Tensor:
        return torch.outer(self.profile, self.row)


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """The derivative of a layer at equal tokens, and its output there."""

    derivative: Derivative
    output: Tensor
    elsewhere: "tuple[Linear, ...]" = ()
    """The same at the rows of the other draws, where the derivative depends on the row."""

    def with_norm(self) -> Derivative:
        """The derivative with every token brought to length one afterwards: that of y / |y| is (I - u u) / |y|."""
        lengths = self.output.norm(dim=-1)
        u = self.output / lengths[:, None]

        def products(given: Tensor) -> Tensor:
            moved = self.derivative.products(given)
            across: Tensor = (moved - u * (u * moved).sum(dim=-1, keepdim=True)) / lengths[:, None]
            return across

        terms = self.derivative.terms
        if terms is not None:  # tokens of the output are equal, and so is what the norm does to each
            one = u.mean(dim=0)
            across = terms.entries - (terms.entries @ one)[..., None] * one
            terms = replace(terms, entries=across / lengths.mean())
        return replace(self.derivative, products=products, terms=terms)


def rate_at_consensus(layer: Layer, drawn: Sequence[Draw]) -> tuple[Rate, Linear | None]:
    """Spectral radius of the derivative at 1 x modulo common rows over that on common rows, and the derivative.

    J maps common rows to common rows where the layer keeps consensus, so both operators are well defined. After many
    layers the residual has changed by the first per layer and the common row by the second.
    """
    draw = drawn[0]
    resting = resting_row(layer, draw)
    off = float(draw.noise.norm())
    found = derivative(layer, resting.tokens, off)
    if found is None and resting.is_fixed:  # what ends in a ReLU has its fixed points on the kinks
        resting = Resting(resting.profile, draw.x, False)
        found = derivative(layer, resting.tokens, off)
    if found is None:
        return none("no derivative"), None
    others = _elsewhere(layer, found, resting, drawn)
    known = Linear(found, layer.at(resting.tokens), tuple(one for one in others if one is not None))
    return _rate(found, resting, others), known


def rate_of_directions(layer: Layer, drawn: Sequence[Draw]) -> Rate:
    """The same at tokens c x of different lengths, whose profile c the layer reproduces: second over first.

    There is none where that profile leaves tokens without a length. Unnormalised retention is of degree three in its
    tokens, c_i becomes c_i sum_j g^(i-j) c_j^2 up to a factor, and of two tokens the longer one wins.
    """
    resting = resting_profile(layer, drawn[0])
    if not _reaches_all(resting.profile):
        return none("tokens vanish")
    found = derivative(layer, resting.tokens, float(drawn[0].noise.norm()))
    if found is None:
        return none("no derivative")
    return _rate(found, resting, _elsewhere(layer, found, resting, drawn))


def rate_with_norm(layer: Layer, drawn: Sequence[Draw], known: Linear | None) -> Rate:
    """The rate with every token brought to one length after the layer; ``known`` is its derivative at equal tokens."""
    if known is not None:
        ones = torch.ones(layer.tokens, dtype=torch.float64)
        first = ratio_of_radii(known.with_norm(), ones)
        if first is None:
            return none("nothing common")
        there = [ratio_of_radii(one.with_norm(), ones, error=first.error) for one in known.elsewhere]
        return _over_rows(first, there)
    normed = replace(layer, then=unit_tokens)
    return rate_at_consensus(normed, [replace_noise(normed, draw) for draw in drawn])[0]


def replace_noise(normed: Layer, draw: Draw) -> Draw:
    """The same draw with the rounding of unit tokens."""
    lengths = replace(normed, then=None).at(draw.equal).norm(dim=-1)
    return Draw(draw.x, draw.r, draw.noise / lengths * normed.dim**0.5)


def unit_tokens(y: Tensor) -> Tensor:
    """Every token at length sqrt(dim)."""
    unit: Tensor = y / y.norm(dim=-1, keepdim=True) * y.shape[-1] ** 0.5
    return unit


def rate_of_tail(layer: Layer, drawn: Sequence[Draw], from_token: int) -> Rate:
    """The rate of later tokens of a recurrent layer: what a token passes to itself over what equal tokens pass to it.

    The layer reads earlier tokens alone, so the eigenvalues of its derivative are those of its diagonal blocks.
    """
    first, *others = (derivative(layer, draw.equal, float(draw.noise.norm()), terms=False) for draw in drawn)
    if first is None:
        return none("no derivative")
    found = _of_tail(first, from_token)
    if found is None:
        return none("nothing common")
    return _over_rows(found, [None if one is None else _of_tail(one, from_token) for one in others])


def _of_tail(found: Derivative, from_token: int) -> Radius | None:
    common = _passed_on(found, from_token)
    if common <= 0:
        return None
    tokens, _ = found.shape
    some = [
        _modulus(one)
        for one in found.own_blocks(sorted({from_token, (from_token + tokens) // 2, tokens - 1}))
    ]
    apart = max(some) - min(some)
    if apart > SETTLED * max(some):
        some, apart = [_modulus(one) for one in found.own_blocks(range(from_token, tokens))], 0.0
    return Radius(max(some) / common, found.error + apart / common)


def _passed_on(found: Derivative, from_token: int) -> float:
    """What equal tokens pass to later ones."""
    tokens, dim = found.shape
    units = torch.eye(dim, dtype=torch.float64)
    passed = found.products(units[:, None].expand(-1, tokens, -1))  # entry that was moved, token, entry
    return _modulus(passed[:, from_token:].mean(dim=1))


def _modulus(matrix: Tensor) -> float:
    return float(torch.linalg.eigvals(matrix).abs().max())


def _rate(found: Derivative, resting: Resting, others: Sequence[Linear | None]) -> Rate:
    first = ratio_of_radii(found, resting.profile)
    if first is None:
        return none("nothing common")
    if resting.is_fixed:
        return Rate(first.value, "fixed point", first.error)
    there = [
        None if one is None else ratio_of_radii(one.derivative, resting.profile, error=first.error)
        for one in others
    ]
    return _over_rows(first, there)


def _over_rows(first: Radius, others: Sequence[Radius | None]) -> Rate:
    """The rate at the given row, with the ends of what the draws of a common row give where it depends on the row.

    A row at which there is no rate leaves it open altogether.
    """
    known = [one for one in others if one is not None]
    values = [first.value, *(one.value for one in known)]
    low, high = min(values), max(values)
    apart, error = max(high - first.value, first.value - low), max(one.error for one in (first, *known))
    if len(known) < len(others):
        return Rate(first.value, "given", error + max(apart, first.value))
    if apart <= max(SAME * first.value, error):
        return Rate(first.value, "given", error + apart)
    return Rate(first.value, "given", error + apart, None, low, high)


def _elsewhere(
    layer: Layer, found: Derivative, resting: Resting, drawn: Sequence[Draw]
) -> list[Linear | None]:
    """The derivative at the rows of the other draws, with the same profile; none where the row does not matter.

    It does not where the layer maps its row to a multiple of itself, since there it is for ever, nor where the
    derivative is the same at another row.
    """
    if resting.is_fixed:
        return []
    length, off = resting.row.norm(), float(drawn[0].noise.norm())
    places = [torch.outer(resting.profile, one.x / one.x.norm() * length) for one in drawn[1:]]
    before, after = found.times(drawn[0].r), _times(layer, places[0], drawn[0].r)
    if float((before - after).norm()) <= 1e-6 * float(before.norm()):
        return []
    there = [derivative(layer, place, off) for place in places]
    return [
        None if one is None else Linear(one, layer.at(place))
        for one, place in zip(there, places, strict=True)
    ]


def _times(layer: Layer, at: Tensor, direction: Tensor) -> Tensor:
    step = layer.roundoff ** (1 / 3)
    slope: Tensor = (layer.at(at + step * direction) - layer.at(at - step * direction)) / (2 * step)
    return slope


def resting_row(layer: Layer, draw: Draw) -> Resting:
    """Equal tokens that the layer maps to a multiple of themselves, by iteration from the draw; else the draw.

    Lengths are kept at that of the draw: a layer need not treat long and short tokens alike. Where iteration comes near
    but not there, Newton's method on the row finishes it.
    """
    ones = torch.ones(layer.tokens, dtype=draw.x.dtype)
    length = draw.x.norm()
    allowed = max(FIXED, 100 * layer.roundoff)

    def mapped(row: Tensor) -> Tensor | None:
        with torch.no_grad():
            out = layer(row.expand(layer.tokens, -1).clone()).mean(dim=0)
        size = out.norm()
        return out / size * length if bool(out.isfinite().all()) and float(size) > 1e-300 else None

    row, moved = draw.x, math.inf
    for _ in range(STEPS):
        after = mapped(row)
        if after is None:
            return Resting(ones, draw.x, False)
        before, moved, row = moved, _moved(row, after), after
        if moved <= allowed and (moved >= NEARER * before or moved <= layer.roundoff):
            break
    if moved <= allowed:
        # Where steps hardly become smaller, the row is farther from rest than by one of them.
        slow = moved > 100 * layer.roundoff
        nearer = _newton(mapped, row, 4 * layer.roundoff) if slow else None
        is_near = nearer is not None and _moved(row, nearer) < 1e-3
        return Resting(ones, nearer if nearer is not None and is_near else row, True)
    found = _newton(mapped, row, allowed) if moved < 1e-3 else None
    if found is not None and _attracts(mapped, found, row):
        return Resting(ones, found, True)
    return Resting(ones, draw.x, False)


def _attracts(mapped: Callable[[Tensor], Tensor | None], fixed: Tensor, towards: Tensor) -> bool:
    """Whether iteration near a fixed row does not leave it: Newton's method also finds rows that repel."""
    length = fixed.norm()
    away = towards - fixed * float(towards @ fixed) / float(length) ** 2
    row = fixed + 1e-4 * float(length) * away / max(float(away.norm()), 1e-300)
    start = _moved(fixed, row)
    for _ in range(STEPS):
        after = mapped(row)
        if after is None:
            return False
        row = after
    return _moved(fixed, row) <= start


def _moved(before: Tensor, after: Tensor) -> float:
    """How far a vector is from a multiple of itself, up to its sign."""
    return min(float((after - before).norm()), float((after + before).norm())) / float(before.norm())


def _newton(mapped: Callable[[Tensor], Tensor | None], row: Tensor, allowed: float) -> Tensor | None:
    """A fixed point of the map, up to sign, near the row: Newton's method with differences for the derivative."""
    length = row.norm()
    for _ in range(8):
        after = mapped(row)
        if after is None:
            return None
        sign = 1.0 if float((after - row).norm()) < float((after + row).norm()) else -1.0
        if _moved(row, after) <= allowed:
            return row
        step = 1e-5 * float(length)
        columns = list[Tensor]()
        for unit in torch.eye(len(row), dtype=row.dtype):
            above, below = mapped(row + step * unit), mapped(row - step * unit)
            if above is None or below is None:
                return None
            columns.append(sign * (above - below) / (2 * step))
        change = torch.linalg.lstsq(
            torch.stack(columns, dim=1) - torch.eye(len(row), dtype=row.dtype), row - sign * after
        )
        row = row + change.solution
        row = row / row.norm() * length
    return None


def resting_profile(layer: Layer, draw: Draw) -> Resting:
    """Tokens c x whose profile c the layer reproduces, by iteration from equal tokens.

    Of a linear layer c is the Perron vector of its map, which plain iteration finds slowly where the second eigenvalue
    is close. So between steps c is taken as the leading eigenvector of the map of lengths, whose entry i j is what a
    longer token j adds to the length of output i.
    """
    size = float(draw.equal.norm())
    x = draw.equal
    profile, row = _apart(x)
    for _ in range(20):
        for _ in range(STEPS // 20):
            after = layer.at(x)
            after = after / after.norm() * size
            new_profile, new_row = _apart(after)
            steady, fixed = _moved(profile, new_profile), _moved(x, after)
            x, profile, row = after, new_profile, new_row
            if steady <= max(FIXED, 100 * layer.roundoff):
                return Resting(profile, row, fixed <= max(FIXED, 100 * layer.roundoff))
        lengths = _map_of_lengths(layer, x, row)
        values, vectors = torch.linalg.eig(lengths)
        leading = vectors[:, values.abs().argmax()]
        ahead = leading.real * leading.real.sum().sign()
        if float(leading.imag.norm()) > 1e-6 * float(leading.real.norm()) or not _reaches_all(ahead):
            continue
        profile = ahead
        x = torch.outer(profile, row)
        x = x / x.norm() * size
    return Resting(profile, row, False)


def _reaches_all(profile: Tensor) -> bool:
    """Whether no token has lost its length, and all have the same sign."""
    return float(profile.min()) > VANISHED * float(profile.max())


def _apart(x: Tensor) -> tuple[Tensor, Tensor]:
    """The profile and the row of tokens c x; the row has the mean length."""
    left, values, right = torch.linalg.svd(x, full_matrices=False)
    sign = left[:, 0].sum().sign() or 1.0
    scale = (values[0] / len(x) ** 0.5).clamp(min=1e-300)
    return left[:, 0] * sign * len(x) ** 0.5, right[0] * sign * scale


def _map_of_lengths(layer: Layer, x: Tensor, row: Tensor) -> Tensor:
    out = layer.at(x)
    towards = _apart(out)[1]
    towards = towards / towards.norm()
    step = layer.roundoff ** (1 / 3)
    columns = list[Tensor]()
    for token in range(layer.tokens):
        change = torch.zeros_like(x)
        change[token] = row
        columns.append((layer.at(x + step * change) - layer.at(x - step * change)) @ towards / (2 * step))
    return torch.stack(columns, dim=1)
