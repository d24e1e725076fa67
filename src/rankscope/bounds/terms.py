"""Parts that map differences of tokens linearly: ``R -> sum_k P_k R W_k`` on residuals, and the bounds that follow.

The identity on tokens with some matrix of channels (a skip, a scale, an MLP at its mean slope) stands beside the heads
of attention parts. Every gain of a skip connection is read off such a sum, with all its terms in view at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from rankscope.bounds import dense
from rankscope.bounds.assumption import Assumption
from rankscope.bounds.enclosure import U, gamma, known
from rankscope.bounds.gains import (
    ALIKE,
    JOINT,
    LIPSCHITZ,
    RANGE,
    SKIP,
    SLOPE,
    STACKED,
    SUM,
    Gains,
    gains_of,
    per_size,
)
from rankscope.bounds.logs import log_difference, log_sum, lowered, raised
from rankscope.bounds.map_gains import MapGains, ValueNorms, map_gains, value_norms
from rankscope.bounds.map_rules import Maps
from rankscope.bounds.numerical_range import symmetric_range
from rankscope.bounds.sizes import COUNT, D2, F, by_norm
from rankscope.core.operator_norms import MARGIN, column_sum_bound, row_sum_bound


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Heads:
    """The heads of one attention part.

    Args:
        maps: of all heads.
        values: ``*seeds heads dim width``.
        outs: ``*seeds heads width dim``.
        norms: of their products, computed once, when they are asked for.
    """

    maps: Maps
    values: Tensor
    outs: Tensor
    norms: Callable[[], ValueNorms]


def heads_of(maps: Maps, values: Tensor, outs: Tensor) -> Heads:
    """Heads with these maps, values and outputs."""
    return Heads(maps=maps, values=values, outs=outs, norms=cache(lambda: value_norms(values, outs)))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Terms:
    """``R -> R (diag(scale) + channels) + sum_h P_h R V_h O_h``, up to ``radius``.

    Args:
        scale: ``*seeds dim`` or ``*seeds 1``, or None for zero.
        channels: ``*batch dim dim``, or None for zero.
        heads: attention parts that read the same tokens.
        radius: ``sizes *batch``, the norm of what is not known of ``channels``; None for zero.
        loose: ``*seeds``, what rounding may have moved scale and channels by, in the norm of any size; None for zero.
        most: ``sizes *batch``, the norm of ``channels`` with what is not known, if that is bounded in another way too.
    """

    scale: Tensor | None = None
    channels: Tensor | None = None
    heads: tuple[Heads, ...] = ()
    radius: Tensor | None = None
    loose: Tensor | None = None
    most: Tensor | None = None

    def plus(self, other: "Terms") -> "Terms":
        """Both read the same tokens."""
        rounding = _sum(
            _rounding(self.scale, other.scale, (-1,)), _rounding(self.channels, other.channels, (-2, -1))
        )
        return Terms(
            scale=_sum(self.scale, other.scale),
            channels=_sum(self.channels, other.channels),
            heads=(*self.heads, *other.heads),
            radius=_sum(self.radius, other.radius),
            loose=_sum(_sum(self.loose, other.loose), rounding),
            most=self._most_with(other),
        )

    def _most_with(self, other: "Terms") -> Tensor | None:
        if self.channels is None or other.channels is None:
            return other.most if self.channels is None else self.most
        return None if self.most is None or other.most is None else self.most + other.most

    def scaled(self, value: Tensor) -> "Terms":
        """What comes out multiplied by ``*seeds dim`` or ``*seeds 1``."""
        heads = tuple(
            heads_of(one.maps, one.values, one.outs * value[..., None, None, :]) for one in self.heads
        )
        largest = value.abs().amax(dim=-1)
        return Terms(
            scale=None if self.scale is None else self.scale * value,
            channels=None if self.channels is None else self.channels * value.unsqueeze(-2),
            heads=heads,
            radius=None if self.radius is None else self.radius * largest * (1 + MARGIN),
            loose=None if self.loose is None else self.loose * largest * (1 + MARGIN),
            most=None if self.most is None else self.most * largest * (1 + MARGIN),
        )


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _rounding(a: Tensor | None, b: Tensor | None, axes: tuple[int, ...]) -> Tensor | None:
    """What rounding adds to the sum of two scales or two matrices of channels, in any norm used here, at most."""
    if a is None or b is None:
        return None
    sizes = [one.double().abs().amax(dim=axes) for one in (a, b)]
    return 2 * U * max(a.shape[-1], b.shape[-1]) * (sizes[0] + sizes[1])


def term_gains(terms: Terms, log_diameter: Tensor) -> Gains:
    """Bounds of every size; ``log_diameter`` is that of what enters (l2, at most, ``*batch``)."""
    alike = alike_gains(terms, log_diameter)
    if not terms.heads:
        return alike
    norms = [one.norms() for one in terms.heads]
    maps = [map_gains(one.maps, log_diameter) for one in terms.heads]
    branches = [(method, _joined(bounds)) for method, bounds in _branches(maps, norms)]
    upper = [(method, log_sum(alike.upper, branch)) for method, branch in branches]
    lower = [(SKIP, log_difference(alike.lower, branch)) for _, branch in branches]
    if terms.channels is None and terms.scale is not None and terms.scale.shape[-1] == 1:
        loose = torch.zeros_like(log_diameter) if terms.loose is None else terms.loose
        spread = symmetric_range(terms.heads, terms.scale[..., 0].double(), loose, branches[-1][1][F])
        lower.append((RANGE, per_size(f=spread[0])))
        upper.append((RANGE, per_size(f=spread[1])))
    alone = _single_head(terms.heads)
    if alone is not None:
        lower.append((SUM, per_size(f=log_difference(alone, alike.upper[F]))))
    smallest = torch.stack([branch for _, branch in branches]).nan_to_num(nan=torch.inf).amin(dim=0)
    return gains_of(lower, upper, _failed(alike.lower, smallest, terms))


def alike_gains(terms: Terms, like: Tensor) -> Gains:
    """Bounds of what the terms that treat all tokens alike do to each size, for a batch shaped as ``like``."""
    nothing = like.new_full((COUNT, *like.shape), -torch.inf)
    least, most = nothing, nothing
    if terms.scale is not None:
        size, rounding = terms.scale.double().abs(), 0.0 if terms.loose is None else terms.loose
        pair = (
            (size.amin(dim=-1) * (1 - MARGIN) - rounding).clamp(min=0.0),
            size.amax(dim=-1) * (1 + MARGIN) + rounding,
        )
        least, most = (one.log().expand(COUNT, *like.shape) for one in pair)
    if terms.channels is None:
        return gains_of([(ALIKE, least)], [(ALIKE, most)])
    matrix = _channel_matrix(terms)
    values = torch.linalg.svdvals(matrix)
    rounding = MARGIN * values[..., 0]
    norms = by_norm(values[..., 0] + rounding, row_sum_bound(matrix), column_sum_bound(matrix))
    loose = torch.zeros_like(norms) if terms.radius is None else terms.radius
    loose = loose if terms.loose is None else loose + terms.loose
    smallest = values[..., -1] - rounding
    lowest = per_size(f=smallest - loose[F], d2=smallest - loose[D2])
    lower, upper = [(SLOPE, lowest.clamp(min=0.0).log())], [(SLOPE, raised((norms + loose).log()))]
    if terms.most is not None:
        steepest = raised(terms.most.log())
        lower.append((LIPSCHITZ, log_difference(least, steepest)))
        upper.append((LIPSCHITZ, log_sum(most, steepest)))
    return gains_of(lower, upper, _failed_alike(smallest, loose[F]))


def _channel_matrix(terms: Terms) -> Tensor:
    if terms.channels is None:
        raise TypeError("terms without a matrix of channels have a scale alone")
    if terms.scale is None:
        return terms.channels
    return terms.channels + torch.diag_embed(
        terms.scale.double().expand(*terms.scale.shape[:-1], terms.channels.shape[-1])
    )


def _branches(maps: list[MapGains], norms: list[ValueNorms]) -> list[tuple[int, list[Tensor]]]:
    """Upper bounds of each attention part, by method."""
    sums, stacks = [], []
    for own, value in zip(maps, norms, strict=True):
        frobenius, d1, d2, dinf, columns = (
            log_sum(*(factor + norm).unbind(dim=-1))
            for factor, norm in (
                (own.kappa, value.spectral),
                (own.tau, value.rows),
                (own.tau, value.spectral),
                (own.tau, value.columns),
                (own.columns, value.columns),
            )
        )
        sums.append(per_size(f=frobenius, d1=d1, d2=d2, dinf=dinf, col=columns))
        wide, tall = own.side_by_side + value.side_by_side, own.below + value.below
        stacks.append(per_size(f=torch.minimum(frobenius, raised(torch.minimum(wide, tall)))))
    return [(SUM, sums), (STACKED, stacks)]


def _joined(bounds: list[Tensor]) -> Tensor:
    return bounds[0] if len(bounds) == 1 else log_sum(*bounds)


def _single_head(heads: tuple[Heads, ...]) -> Tensor | None:
    """Logarithm of the smallest gain of one head, ``sigma_min(J P J) sigma_min(W)``; None for more heads."""
    if (
        len(heads) != 1
        or heads[0].values.shape[-3] != 1
        or heads[0].values.shape[-1] < heads[0].values.shape[-2]
    ):
        return None
    one = heads[0]
    maps, product = one.maps.maps[..., 0, :, :], (one.values @ one.outs)[..., 0, :, :]
    inside = dense.basis(maps.shape[-1], maps)
    apart = one.maps.radius[..., 0, :] * torch.linalg.vector_norm(maps, dim=-1)
    sizes = torch.linalg.matrix_norm(one.values) * torch.linalg.matrix_norm(one.outs)
    slack = (torch.linalg.vector_norm(apart, dim=-1), gamma(one.values.shape[-1]) * sizes[..., 0])
    factors = []
    for matrix, loose in zip((inside.mT @ maps @ inside, product), slack, strict=True):
        values = torch.linalg.svdvals(matrix)
        factors.append((values[..., -1] - MARGIN * values[..., 0] - loose).clamp(min=0.0).log())
    return lowered(factors[0] + factors[1])


def _failed(least: Tensor, branch: Tensor, terms: Terms) -> tuple[Assumption, ...]:
    if terms.scale is None and terms.channels is None:
        return (
            Assumption.of(
                "attention has a skip around it",
                torch.zeros_like(branch[F], dtype=torch.bool),
                says="without one, attention may map different tokens to the same",
            ),
        )
    radius = torch.stack([one.maps.radius.amax(dim=(-2, -1)) for one in terms.heads]).amax(dim=0)
    return (
        Assumption.arithmetic(radius, 1.0),
        Assumption.below(
            "attention weaker than its skip",
            branch[F].exp(),
            least[F].exp(),
            says="what attention can add to the residual is no smaller than what the skip carries, so the two "
            "may cancel; scale the branch down",
        ),
    )


def _failed_alike(middle: Tensor, loose: Tensor) -> tuple[Assumption, ...]:
    return (
        Assumption.below(
            "MLP keeps tokens apart",
            loose,
            middle.clamp(min=0.0),
            says="between these tokens the slopes of the MLP differ by more than its mean slope, with the skip, keeps "
            "of every direction; two tokens may be mapped to the same",
        ),
    )


def dense_terms(terms: Terms, like: Tensor, tokens: int, dim: int) -> dense.Dense:
    """The same as one matrix on residuals; the caller has made sure that it fits."""
    zero = like.new_zeros(like.shape)
    nothing = torch.zeros(dim, dim, dtype=torch.float64, device=like.device)
    total = dense.of_channels(nothing, tokens, zero if terms.loose is None else zero + terms.loose)
    if terms.scale is not None:
        matrix = torch.diag_embed(terms.scale.double().expand(*terms.scale.shape[:-1], dim))
        total = total.plus(dense.of_channels(matrix, tokens, zero))
    if terms.channels is not None:
        loose = zero if terms.radius is None else terms.radius[F]
        total = total.plus(dense.of_channels(terms.channels, tokens, loose))
    for one in terms.heads:
        value_out = one.values @ one.outs
        norm = one.norms().spectral.exp()
        apart = one.maps.radius * torch.linalg.vector_norm(one.maps.maps, dim=-1)
        sizes = torch.linalg.matrix_norm(one.values) * torch.linalg.matrix_norm(one.outs)
        rounding = gamma(one.values.shape[-1] + tokens) * sizes * tokens**0.5
        loose = known(torch.linalg.vector_norm(apart, dim=-1) * norm + rounding).sum(dim=-1)
        total = total.plus(dense.of_maps(one.maps.maps, value_out, loose * (1 + MARGIN)))
    return total


def joint_gains(found: dense.Dense) -> Gains:
    """Bounds of the Frobenius residual from singular values."""
    lower, upper = found.gains()
    return gains_of([(JOINT, per_size(f=lower))], [(JOINT, per_size(f=upper))])
