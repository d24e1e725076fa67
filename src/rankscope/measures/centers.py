"""Which constant row is subtracted: mean, median, midrange, the best one in linf, or the best one for a norm."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.core.registry import unknown_name
from rankscope.core.types import CenterRow, PerMatrix, TokenMatrix
from rankscope.errors import ConfigError
from rankscope.measures.brackets import TOLERANCE, best_rows, composite_best, linf_best
from rankscope.measures.norms import norm_named, unit_scale
from rankscope.measures.sharing import shared


class Spread(NamedTuple):
    """A token matrix as ``outer * (1 anchor + inner * offsets)``, with offsets of order one around zero.

    The anchor is the rounded mean. Offsets are differences to it, exact or nearly so near consensus, and every
    center below moves with a shift and a scale, so it is taken of the offsets: no digit of a tiny residual is
    lost, and equal rows have offsets that are equal to the last bit.
    """

    anchor: CenterRow
    offsets: TokenMatrix
    inner: PerMatrix
    outer: PerMatrix

    @property
    def scale(self) -> PerMatrix:
        return self.inner * self.outer


@shared
def spread(x: TokenMatrix) -> Spread:
    """``x`` taken apart into anchor and offsets."""
    y, outer = unit_scale(x.contiguous())
    anchor = y.mean(dim=-2)
    offsets, inner = unit_scale(y - anchor[..., None, :])
    return Spread(anchor, offsets, inner, outer)


@shared
def offsets_from(x: TokenMatrix, rule: Callable[[Tensor], CenterRow]) -> TokenMatrix:
    """What is left of the offsets at the row that ``rule`` picks."""
    offsets = spread(x).offsets
    return offsets - rule(offsets)[..., None, :]


def mean_row(x: TokenMatrix) -> CenterRow:
    """Column means: best for the Frobenius, the spectral and every unitarily invariant norm."""
    return x.mean(dim=-2)


@shared
def median_row(x: TokenMatrix) -> CenterRow:
    """Column medians (midpoint of the median interval): best for l1."""
    ordered = x.sort(dim=-2).values
    tokens = x.shape[-2]
    return (ordered[..., (tokens - 1) // 2, :] + ordered[..., tokens // 2, :]) / 2


def midrange_row(x: TokenMatrix) -> CenterRow:
    """Half way between the largest and the smallest entry of every column: best for the max norm."""
    return (x.amax(dim=-2) + x.amin(dim=-2)) / 2


def linf_row(x: TokenMatrix) -> CenterRow:
    """A row whose largest l1 distance to a token is certified within one percent of the smallest possible.

    Minimizers in linf are not unique: compare values between programs, never centers.
    """
    return best_rows(x, linf_best, TOLERANCE)[0]


def composite_row(x: TokenMatrix) -> CenterRow:
    """A row whose composite residual is certified within one percent of the smallest possible, unless cut short."""
    return best_rows(x, composite_best, TOLERANCE)[0]


ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": mean_row,
    "median": median_row,
    "midrange": midrange_row,
    "linf": linf_row,
}

BEST_ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "l1": median_row,
    "linf": linf_row,
    "composite": composite_row,
    "frobenius": mean_row,
    "spectral": mean_row,
    "max": midrange_row,
}

CENTERS = (*ROWS, "best")


def center_rule(center: str, norm: str | None) -> Callable[[Tensor], Tensor]:
    """The function that finds the center; ``best`` asks which norm it should be best for."""
    if center not in CENTERS:
        raise unknown_name("center", center, CENTERS)
    if center != "best":
        return ROWS[center]
    if norm is None:
        raise ConfigError(
            "center 'best' depends on the norm and none was given; add norm='frobenius' or another"
        )
    norm_named(norm)
    return BEST_ROWS[norm]


def center_row(x: Tensor, *, center: str, norm: str | None = None) -> CenterRow:
    """The constant row that ``center`` subtracts: mean, median, midrange, linf, or best for ``norm``.

    >>> import torch
    >>> center_row(torch.tensor([[0.0], [0.0], [3.0]]), center="midrange").item()
    1.5
    """
    parts = spread(checked(x, tokens=2))
    offset = center_rule(center, norm)(parts.offsets)
    return (parts.anchor + offset * parts.inner[..., None]) * parts.outer[..., None]
