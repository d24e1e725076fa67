"""Floors of measures of a split state, estimated from its perturbed twins, the largest of each.

With R and s the residual and log scale of the run, R' and s' those of a twin, ``D = exp(s' - s) R' - R`` is how far
the disturbances moved the residual, in units of ``exp(s)``. It is a matrix, not the difference of two norms, which may
be small by chance. A seminorm m moves by at most ``m(D)``, so every measure gets its floor from the same D:

    floor = SAFETY m(D) exp(s) + 16 u (1 + |s|) m(R) exp(s).

The second term is the rounding of the measure itself and of the logarithm of its scale. SAFETY pays for two things: a
disturbance is a draw, which for two tokens of one channel is a single number, and parts round inside too.
A floor of this kind is estimated from a perturbed run. It is no bound.

Not every measure is a seminorm. How far each of them can move:

- center mean, and the best center of a true norm: a seminorm; ``N(D)`` for a D without mean.
- center median and midrange: the center moves by at most ``delta_k = max_i |D_ik|`` in channel k, so the residual
  moves by at most ``|D| + 1 delta`` entry by entry. The spectral norm of that is at most its Frobenius norm.
- center linf: any row within one percent of the smallest largest distance r will do, and two such rows may be
  ``2.02 r`` apart in l1, however exact the tokens.
- the composite norm ``sqrt(a b)``, a the l1 and b the linf norm, is no norm: the triangle inequality fails. But a moves
  by at most alpha and b by at most beta, so it stays between ``sqrt((a - alpha)+ (b - beta)+)`` and
  ``sqrt((a + alpha) (b + beta))``. With the best row for the product the same holds with ``alpha / A`` and
  ``beta / B`` as relative changes, A and B the smallest l1 and linf norms over all rows: the best row of one state is
  a row for the other too, and a >= A, b >= B at any row.
- a ratio ``m / N``, N the norm of the tokens, m off by f and N by g, is off by at most
  ``(f / N + (m / N) (g / N)) / (1 - g / N)``.
"""

import math

import torch
from torch import Tensor

from rankscope.core.numerics import unit_roundoff
from rankscope.core.types import PerMatrix
from rankscope.measures import Bracket, Measure, find_measure
from rankscope.measures.diameters import diameter_of
from rankscope.measures.norms import NORMS
from rankscope.split.state import Split

SAFETY = 4.0
"""What the distance of the twin is multiplied by; calibrated on random and on adversarial trees (docs/split.md)."""

OWN = 16 * unit_roundoff(torch.float64)
"""Rounding of a measure relative to its value, and of a log scale relative to that."""

UNDERFLOW = -670.0
"""Natural log, relative to the tokens, below which differences between them may have vanished inside a part: floats
end at e^-745, and the 75 in between leave room for what weights and the number of entries add."""

UNSURE = 2.02
"""How many linf radii apart two centers can be that are both within one percent of the best."""


def log_floor(measure: Measure, state: Split, twins: Split, log: PerMatrix) -> PerMatrix:
    """Natural log of the floor of ``measure``, whose natural log is ``log``; plus infinity where nothing is known.

    ``twins`` are stacked along a first axis; the largest floor that one of them gives counts. The texts of ``state``
    have no padding.
    """
    return _by_twin(measure, state, twins, log).amax(dim=0)


def _by_twin(measure: Measure, state: Split, twin: Split, log: PerMatrix) -> PerMatrix:
    """The same by each twin, along a first axis."""
    known, both_zero = _known(state, twin)
    usable = known & ~both_zero
    moved = (twin.log_scale - state.log_scale)[..., None, None].exp() * twin.residual - state.residual
    usable = usable & torch.isfinite(moved).all(dim=-1).all(dim=-1)
    moved = torch.where(usable[..., None, None], moved, 0.0)
    moved = moved - moved.mean(dim=-2, keepdim=True)
    name, norm, center = _named(measure)
    own = OWN * (1 + state.log_scale.abs())
    off = _moves(name, norm, center, state.residual, moved, own)  # in units of exp(log_scale)
    floor = off.log() + state.log_scale
    under = UNDERFLOW + torch.log1p(state.common.abs().amax(dim=-1) * state.common.shape[-1])
    floor = torch.where(both_zero, under, floor)
    if name == "residual_ratio":
        floor = _of_ratio(norm, state, twin, floor, log)
    floor = torch.where(known & (usable | both_zero), floor, torch.inf)
    return torch.where(torch.isnan(floor), torch.inf, floor)


def _known(state: Split, twin: Split) -> tuple[Tensor, Tensor]:
    """Where both runs have finite numbers and agree whether tokens differ; and where neither sees a difference."""
    zero, also = state.log_scale == -torch.inf, twin.log_scale == -torch.inf
    finite = torch.isfinite(twin.common).all(dim=-1) & torch.isfinite(twin.residual).all(dim=-1).all(dim=-1)
    known = finite & (twin.log_scale < torch.inf) & (zero == also)
    for lost in (state.lost, twin.lost):
        known = known if lost is None else known & ~lost
    return known, zero & also


def _named(measure: Measure) -> tuple[str, str, str]:
    """Name, norm and center of ``residual[norm,center]`` and the like; diameters have no center."""
    norm, _, center = measure.definition.partition("[")[2].rstrip("]").partition(",")
    return measure.name, norm, center


def _moves(name: str, norm: str, center: str, residual: Tensor, moved: Tensor, own: Tensor) -> PerMatrix:
    """The floor of a residual or a diameter, for a residual of scale one."""
    if name == "diameter":
        return SAFETY * diameter_of(moved, norm) + own * diameter_of(residual, norm)
    value = _high(f"residual[{norm},{center}]", residual)
    if norm != "composite":
        return SAFETY * _norm_moves(norm, center, moved, residual) + own * value
    relative = []
    for factor in ("l1", "linf"):
        size = _low(f"residual[{factor},{center}]", residual)
        change = SAFETY * _norm_moves(factor, center, moved, residual)
        relative.append(torch.where(size > 0, change / size, torch.inf))
    return value * (product_moves(*relative) + own)


def product_moves(one: Tensor, other: Tensor) -> Tensor:
    """How far ``sqrt(a b)`` may move relative to itself when a and b do by ``one`` and ``other``.

    Down ``1 - sqrt((1 - one)+ (1 - other)+)``, up ``sqrt((1 + one) (1 + other)) - 1``; the larger.
    """
    up = torch.expm1((torch.log1p(one) + torch.log1p(other)) / 2)
    down = -torch.expm1((torch.log1p(-one.clamp(max=1.0)) + torch.log1p(-other.clamp(max=1.0))) / 2)
    return torch.maximum(up, down)


def _norm_moves(norm: str, center: str, moved: Tensor, residual: Tensor) -> PerMatrix:
    """How far a residual in a true norm may move when the tokens, without their mean, move by ``moved``."""
    if center in ("mean", "best") or (norm, center) == ("linf", "linf"):
        return NORMS[norm](moved)
    half = (moved.amax(dim=-2, keepdim=True) + moved.amin(dim=-2, keepdim=True)) / 2
    rest = (moved - half).abs()  # tokens count without a common row, so that of the smallest reach will do
    size = NORMS["frobenius" if norm == "spectral" else norm]
    if center != "linf":
        return size(rest + rest.amax(dim=-2, keepdim=True))
    # A row of l1 length 2.02 r, repeated for every token, is in no norm longer than in one channel alone.
    apart = torch.zeros_like(rest)
    apart[..., 0] = UNSURE * _high("residual[linf,best]", residual)[..., None] / SAFETY
    return size(rest) + size(apart)


def _high(definition: str, x: Tensor) -> PerMatrix:
    value = find_measure(definition)(x)
    return value.high if isinstance(value, Bracket) else value


def _low(definition: str, x: Tensor) -> PerMatrix:
    value = find_measure(definition)(x)
    return value.low if isinstance(value, Bracket) else value


def _of_ratio(norm: str, state: Split, twin: Split, floor: PerMatrix, log: PerMatrix) -> PerMatrix:
    """Natural log of the floor of a ratio, from that of its numerator."""
    tokens = state.tokens()
    moved = torch.nan_to_num(twin.tokens() - tokens, nan=math.inf)
    if norm == "composite":
        off = (
            product_moves(*(SAFETY * NORMS[one](moved) / NORMS[one](tokens) for one in ("l1", "linf"))) + OWN
        )
    else:
        finite = torch.isfinite(moved).all(dim=-1).all(dim=-1)
        change = NORMS[norm](torch.where(finite[..., None, None], moved, 0.0))
        off = torch.where(finite, SAFETY * change / NORMS[norm](tokens) + OWN, torch.inf)
    size = NORMS[norm](tokens).log()
    return torch.logaddexp(floor - size, log + off.log()) - torch.log1p(-off.clamp(max=1.0))
