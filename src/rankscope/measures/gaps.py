"""The second largest eigenvalue modulus of attention maps as a bracket, by squaring, without eigenvalues.

Write A for a map whose rows sum to one, 1 for the column of ones and w for a row that sums to one. Since A 1 = 1, the
matrix B = A - 1 w has the eigenvalues of A with one 1 replaced by 0: its spectral radius is the modulus sought, rho,
also where 1 is a multiple eigenvalue. So has W = D B / D for a positive diagonal D. The bracket is made of powers of W:

    (|tr W^k| / (n - 1))^(1/k)  <=  rho  <=  |W^k|_F^(1/k)

The upper end holds for every norm, the lower one since a trace is the sum of n - 1 powers of eigenvalues besides the 0.
By Schur, sum |lambda|^2j <= |W^j|_F^2, so the n - 1 may be replaced: |tr W^k| <= rho^(k - 2j) |W^j|_F^2, which is
better where one eigenvalue leads. k grows by squaring: seven products reach k = 128. Longer maps, whose squares cost
too much, go to ``gap_subspaces`` first.

Weights. D is the root of the stationary row, to which w is close: of a reversible map W is then symmetric, and its
powers have no hump. Any D gives a valid bracket, and it is rounded to powers of two, so that weighting rounds nothing.

Rounding. Let P be what was computed of M = W^k / s, |P|_F = 1, with |P - M|_F <= d. With Q the computed P P, and g the
bound n u / (1 - n u) of a product of matrices (entries of |Q - P P| are at most g |P| |P|, in any order of summation),

    |Q - M M|_F  <=  2 d (1 + d) + d^2 + g,

since M M = (P - (P - M))^2 and |M| <= 1 + d. Dividing by |Q|_F gives the d of the next power, and both ends are taken
at the worst matrix within d. The first squarings run in float64, since what they round is doubled by every later one;
the last ones in float32. A power whose d is too large is left out.

A map that is itself off by E, |E|_F <= e, whose rows still sum to one: W moves by at most e' = e max(D) / min(D). If
|W^t| <= c r^t for all t, a product of k factors with j times E is at most c^(j + 1) r^(k - j) e'^j, so that

    rho(W + E) <= r + c e'    and    |tr (W + E)^k - tr W^k| <= (r + c e')^k - r^k.

The trace gains a factor c: turning a product in a circle joins its two ends. With one E the rest of the circle, with
two or more the E themselves stand in the Frobenius norm, which takes k >= 2. c comes from the binary digits of t, the
product of max(1, |W^(2^i)| / r^(2^i)) over the powers that are known, once r is above one of the upper ends.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rankscope.core.numerics import unit_roundoff
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.measures.gap_subspaces import Subspace, ends, shrinks, subspaces, weighted_maps
from rankscope.measures.norms import frobenius_norm
from rankscope.measures.sharing import shared

SQUARINGS = 7
"""Products per map of up to ``WHOLE`` tokens: the power 128, and with the traces of pairs 256. Two more halve a bracket
twice, but not what an error of the map adds to it, which is most of a floor."""

WHOLE = 256
"""Up to so many tokens all squarings are made, the first ones in float64."""

LONG = 1024
"""A map of so many tokens or more is squared once; a shorter one as many times as ``(LONG / tokens)^2`` exceeds one."""

COARSE_SQUARINGS = 4
"""How many of the last squarings run in float32."""

PAIRED = 1
"""Of so many last squarings the traces between and above the powers of two are taken too."""

STEPS = 2
"""Steps toward the stationary row."""

SMALLEST_WEIGHT = 1e-2
"""Squared weights are at least this share of the largest: an error of the map counts for more by its root."""

TINY = 1e-30
"""Products of matrices of norm one that are smaller are rounding."""

WIDER = (1e-12, *(10 ** (-4 + step / 3) for step in range(13)))
"""Rates r that are tried, in shares above the upper end; the first is above its rounding."""

DEPTHS = ((0, 6), (16, 8), (40, 40))
"""Blocks of the Krylov space of a longer map and powers of the rest, each where those before say little."""

WIDE = 0.1
"""A bracket of a longer map that is wider is tried again."""

CHUNK = 2**18
"""Entries that are squared together: three stacks of two megabytes."""

ROWS = 64
"""Rows of two factors whose trace is taken together."""


class Ends(NamedTuple):
    """Two ends around the modulus, one number per map."""

    low: PerMatrix
    high: PerMatrix


class _Powers(NamedTuple):
    """Bounds of powers of W in natural logarithms, one row per power and one column per map."""

    exponents: Tensor
    norms: Tensor  # of |W^k|_F, from above
    trace_exponents: Tensor
    traces: Tensor  # of |tr W^k|, from below; -inf where nothing is known
    spread: Tensor  # the largest weight over the smallest, itself: one number per map


def second_modulus(maps: TokenMatrix, moved: float | Tensor = 0.0) -> Ends:
    """The second largest eigenvalue modulus of square maps ``(*batch, n, n)`` whose rows sum to one, between two ends.

    The ends hold for all maps within ``moved`` of these in the Frobenius norm, as long as their rows sum to one.

    >>> low, high = second_modulus(torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64))
    >>> round(low.item(), 6), round(high.item(), 6)
    (0.5, 0.5)
    """
    n = maps.shape[-1]
    # Rows that sum to one are known to rounding alone, which is an error of the map like any other.
    rounded = 2 * n * unit_roundoff(torch.float64) * frobenius_norm(maps).reshape(-1)
    moved = torch.as_tensor(moved, dtype=maps.dtype, device=maps.device).expand(maps.shape[:-2]).reshape(-1)
    low, high = (
        _ends(_all_powers(maps), moved + rounded, n) if n <= WHOLE else _long_ends(maps, moved + rounded)
    )
    # The 0 in place of the eigenvalue 1 is one minus the sum of w, which is off by rounding.
    low = torch.minimum((low - rounded).clamp(min=0.0), high)
    return Ends(low.reshape(maps.shape[:-2]), high.reshape(maps.shape[:-2]))


def _long_ends(maps: TokenMatrix, moved: Tensor) -> tuple[Tensor, Tensor]:
    """The bracket of long maps: what each of the ways says that were taken for a map holds."""
    low, high = torch.zeros_like(moved), torch.ones_like(moved)
    for places, found in _long_pieces(maps):
        own = moved[places]
        below, above = ends(found, own) if isinstance(found, Subspace) else _ends(found, own, maps.shape[-1])
        low[places] = torch.maximum(low[places], below)
        high[places] = torch.minimum(high[places], above)
    return low, high


@shared
def _long_pieces(maps: TokenMatrix) -> list[tuple[Tensor, Subspace | _Powers]]:
    """What is known of which long maps, one way after the other, until the bracket is narrow or none is left."""
    flat = maps.reshape(-1, *maps.shape[-2:])
    weighted = weighted_maps(flat)
    pieces = list[tuple[Tensor, Subspace | _Powers]]()
    is_open = torch.ones(len(flat), dtype=torch.bool, device=maps.device)
    for steps, powers in DEPTHS:
        # without any direction the bracket begins at zero: only small moduli have a narrow one
        those = is_open if steps else is_open & (shrinks(weighted) < WIDE / 2)
        places = those.nonzero()[:, 0]
        if len(places):
            try:
                found = subspaces(weighted.only(places), steps=steps, powers=powers)
            except RuntimeError:  # no decomposition was found; squarings take none
                continue
            pieces.append((places, found))
            low, high = ends(found, torch.zeros_like(found.spread))
            is_open[places] = high.clamp(max=1.0) - low > WIDE
    places = is_open.nonzero()[:, 0]
    if not len(places):
        return pieces
    return [*pieces, (places, _all_powers(flat[places]))]


@shared
def _all_powers(maps: TokenMatrix) -> _Powers:
    """The powers of every map, some maps at a time."""
    n = maps.shape[-1]
    parts = [_powers(*_weighted(part)) for part in maps.reshape(-1, n, n).split(max(1, CHUNK // (n * n)))]
    return _Powers(*(torch.cat(each, dim=-1) for each in zip(*parts, strict=True)))


def squarings_for(tokens: int) -> int:
    """How many products a map of that many tokens is worth: one takes tokens^3, a model's pass about tokens."""
    if tokens <= WHOLE:
        return SQUARINGS
    return max(1, min(SQUARINGS, math.ceil((LONG / tokens) ** 2) - 1))


def _ends(powers: _Powers, moved: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The best ends over some rates r; axes are rates x powers x maps."""
    exponents = powers.exponents[:, :1]
    upper = (powers.norms / exponents).amin(dim=0)
    rates = (upper + torch.tensor(WIDER, dtype=upper.dtype, device=upper.device).log1p()[:, None])[:, None]
    above = powers.norms - exponents * rates
    is_digit = (above <= 0).cumsum(dim=1) == 0  # powers below the first that is under r^k
    humps = torch.where(is_digit, above, 0.0).sum(dim=1, keepdim=True)  # ln c
    faster = rates + torch.log1p((humps - rates).exp() * moved * powers.spread)  # ln (r + c e')
    low = _lower_end(powers, rates, faster, n)
    return low.exp(), faster.amin(dim=(0, 1)).exp().clamp(max=1.0)


def _lower_end(powers: _Powers, rates: Tensor, faster: Tensor, n: int) -> Tensor:
    """The largest lower end in logarithms: every trace with every norm, and with the number of eigenvalues."""
    exponents, trace_exponents = powers.exponents[:, :1], powers.trace_exponents[:, :1]
    traces = powers.traces + _log_less(_growth(trace_exponents, rates, faster) - powers.traces)
    norms = torch.logaddexp(powers.norms, _growth(exponents, rates, faster))
    whole = ((traces - math.log(max(n - 1, 1))) / trace_exponents)[None]
    # every trace with every norm: one axis more, that of the norms, in front
    left = trace_exponents - 2 * exponents[:, 0, None, None, None]
    pairs = torch.where(left > 0, (traces - 2 * norms.movedim(1, 0)[:, :, None]) / left, -torch.inf)
    return torch.cat([whole, pairs]).nan_to_num(nan=-torch.inf).amax(dim=(0, 1, 2))


def _growth(exponents: Tensor, rates: Tensor, faster: Tensor) -> Tensor:
    """ln ((r + c e')^k - r^k)."""
    return exponents * faster + _log_less(exponents * (rates - faster))


def _log_less(logs: Tensor) -> Tensor:
    """ln (1 - exp(logs)), -inf where that is not positive."""
    return torch.log(-torch.expm1(logs).clamp(max=0.0))


def _weighted(maps: Tensor) -> tuple[Tensor, Tensor]:
    """W, and the largest weight over the smallest."""
    row = maps.mean(dim=-2, keepdim=True)
    for _ in range(STEPS):
        row = row @ maps
    least = SMALLEST_WEIGHT * row.amax(dim=-1, keepdim=True)
    weights = torch.exp2(torch.maximum(row, least).log2().mul_(0.5).round_())
    return (maps - row).mul_(weights.mT).div_(weights), (weights.amax(dim=-1) / weights.amin(dim=-1))[:, 0]


def _powers(power: Tensor, spread: Tensor) -> _Powers:
    """Norms and traces of W^(2^i), and the traces that two neighbours give; W is overwritten."""
    n, count = power.shape[-1], squarings_for(power.shape[-1])
    fine = count - COARSE_SQUARINGS if n <= WHOLE else 0
    if torch.get_float32_matmul_precision() != "highest":
        fine = count  # products of float32 numbers may run in bfloat16, whose rounding is another
    size = _size(power)
    log, off = size.log(), torch.full_like(size, 4 * unit_roundoff(torch.float64))
    power.div_(size[:, None, None])
    paper = torch.empty_like(power)  # every product is written over the one before the last
    norms, traces = {1.0: log + torch.log1p(off + _norm_error(power))}, dict[float, Tensor]()
    for step in range(1, count + 1):
        if step > fine and power.dtype == torch.float64:
            power, off = power.float(), off + unit_roundoff(torch.float32)
            paper = torch.empty_like(power)
        unit, exponent = unit_roundoff(power.dtype), 2.0**step
        before, of_before = power, (log, off)
        power, paper = torch.matmul(power, power, out=paper), power
        size = _size(power)
        # one thousandth more: the norm of what is squared is one to its own rounding alone
        off = (2 * off * (1 + off) + off.square() + 1.001 * n * unit / (1 - n * unit)) / size + 4 * unit
        log = 2 * log + size.log()
        power.div_(size.to(power.dtype)[:, None, None])
        norms[exponent] = log + torch.log1p(off + _norm_error(power))
        traces[exponent] = _trace(power, log, off)
        if step > count - PAIRED:
            traces[1.5 * exponent] = _trace_of_pair(power, before, log + of_before[0], off, of_before[1])
            traces[2 * exponent] = _trace_of_pair(power, power, 2 * log, off, off)
    return _Powers(
        _exponents(norms, size),
        torch.stack([*norms.values()]),
        _exponents(traces, size),
        torch.stack([*traces.values()]),
        spread,
    )


def _exponents(bounds: dict[float, Tensor], like: Tensor) -> Tensor:
    return torch.tensor([*bounds], dtype=torch.float64, device=like.device)[:, None].expand(-1, len(like))


def _size(power: Tensor) -> Tensor:
    """Frobenius norms, or a number far below all rounding."""
    rows: Tensor = torch.linalg.vector_norm(power, dim=-1)
    norms: Tensor = torch.linalg.vector_norm(rows.double(), dim=-1)
    return norms.clamp(min=TINY)


def _norm_error(power: Tensor) -> float:
    """How far the Frobenius norm of a power that was divided by it may be from one: a row is summed in its dtype."""
    return float(power.shape[-1] * unit_roundoff(power.dtype))


def _trace(power: Tensor, log: Tensor, off: Tensor) -> Tensor:
    """ln of what the size of the trace is at least: n entries of the diagonal, off by sqrt(n) times the norm."""
    n = power.shape[-1]
    size = power.diagonal(dim1=-2, dim2=-1).sum(dim=-1, dtype=torch.float64).abs()
    return log + (size - math.sqrt(n) * off - n * unit_roundoff(torch.float64)).clamp(min=0.0).log()


def _trace_of_pair(one: Tensor, two: Tensor, log: Tensor, off: Tensor, other: Tensor) -> Tensor:
    """The same of a product that is not formed: sums over all entries, off by what both factors are off."""
    n, unit = one.shape[-1], unit_roundoff(min(one.dtype, two.dtype, key=lambda kind: kind.itemsize))
    # some rows at a time: columns of the other factor are read while they are near
    parts = zip(one.split(ROWS, dim=-2), two.split(ROWS, dim=-1), strict=True)
    sums = [(rows * columns.mT).sum(dim=(-2, -1), dtype=torch.float64) for rows, columns in parts]
    size = torch.stack(sums).sum(dim=0).abs()
    rounding = unit + n * n * unit_roundoff(torch.float64)
    return log + (size - off * (1 + other) - other * (1 + off) - off * other - rounding).clamp(min=0.0).log()
