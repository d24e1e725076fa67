"""How far tokens are from all being equal: the residual and its norms, absolute and relative to the state."""

from collections.abc import Callable
from typing import Literal, NamedTuple, overload

from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.measures.brackets import SOLVERS, TOLERANCE, Bracket, best_rows
from rankscope.measures.centers import BEST_ROWS, ROWS, center_rule, offsets_from, spread
from rankscope.measures.norms import norm_named
from rankscope.measures.sharing import shared

PlainCenter = Literal["mean", "median", "midrange"]

BRACKETED = {("linf", "best"), ("linf", "linf"), ("composite", "best")}
"""(norm, center) pairs without a closed form: their residual is a certified ``Bracket``."""


def residual(x: Tensor, *, center: str, norm: str | None = None) -> TokenMatrix:
    """``x`` minus a constant row, in float64: ``R = X - 1 c``. Equal rows give exactly zero.

    ``norm`` matters only for ``center="best"``, and is the norm the row should be best for.

    >>> import torch
    >>> residual(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), center="mean").tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    parts = spread(checked(x, tokens=2))
    offset = center_rule(center, norm)(parts.offsets)
    return (parts.offsets - offset[..., None, :]) * parts.scale[..., None, None]


@overload
def residual_norm(x: Tensor, *, norm: str, center: PlainCenter) -> PerMatrix: ...
@overload
def residual_norm(x: Tensor, *, norm: str, center: str) -> PerMatrix | Bracket: ...
def residual_norm(x: Tensor, *, norm: str, center: str) -> PerMatrix | Bracket:
    """Norm of the residual. No defaults on purpose: papers disagree, so every call states its choice.

    A ``Bracket`` for the best center in linf and in the composite norm, where no closed form exists; exact
    otherwise.

    >>> import torch
    >>> round(residual_norm(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), norm="frobenius", center="mean").item(), 12)
    1.414213562373
    """
    return residual_norm_of(checked(x, tokens=2), norm, center)


@overload
def residual_ratio(x: Tensor, *, norm: str, center: PlainCenter) -> PerMatrix: ...
@overload
def residual_ratio(x: Tensor, *, norm: str, center: str) -> PerMatrix | Bracket: ...
def residual_ratio(x: Tensor, *, norm: str, center: str) -> PerMatrix | Bracket:
    """Norm of the residual over the same norm of ``x``; NaN for the zero matrix, where it is 0/0.

    >>> import torch
    >>> residual_ratio(torch.tensor([[1.0], [3.0]]), norm="max", center="midrange").item()
    0.3333333333333333
    """
    return residual_ratio_of(checked(x, tokens=2), norm, center)


def residual_bracket(x: Tensor, *, norm: str, tolerance: float = TOLERANCE) -> Bracket:
    """Certified ``(low, high)`` around the smallest residual norm over all constant rows.

    Both ends agree where the minimizer is known (l1 median, frobenius and spectral mean, max midrange). For linf
    and composite the search stops at ``high <= (1 + tolerance) * low``, or earlier if it runs out of rounds: the
    bracket is certified either way, and never claims more than it has.
    """
    norm_named(norm)
    return _bracket(checked(x, tokens=2), norm, tolerance)


def residual_norm_of(x: TokenMatrix, norm: str, center: str) -> PerMatrix | Bracket:
    """As ``residual_norm``, of checked input."""
    norm_named(norm)
    rule = center_rule(center, norm)
    if (norm, center) in BRACKETED:
        return _bracket(x, norm, TOLERANCE)
    if center == "linf":
        return norm_named(norm)(solved(x, "linf").residual)
    return _at_row(x, norm, rule)


def residual_ratio_of(x: TokenMatrix, norm: str, center: str) -> PerMatrix | Bracket:
    """As ``residual_ratio``, of checked input."""
    value, size = residual_norm_of(x, norm, center), norm_named(norm)(x)
    if isinstance(value, Bracket):
        return Bracket(value.low / size, value.high / size)
    return value / size


def is_own_center(norm: str, center: str) -> bool:
    """Whether ``center`` is the norm's own minimizer, so that the residual is never above the norm itself."""
    return center == "best" or ROWS[center] is BEST_ROWS[norm]


def _at_row(x: TokenMatrix, norm: str, rule: Callable[[Tensor], Tensor]) -> PerMatrix:
    """Norm of ``x`` minus the row that ``rule`` picks."""
    return norm_named(norm)(offsets_from(x, rule)) * spread(x).scale


class Solved(NamedTuple):
    """What is left of the tokens at a center that was searched for, and the two ends of the search."""

    residual: TokenMatrix
    low: PerMatrix
    high: PerMatrix


@shared
def solved(x: TokenMatrix, norm: str, tolerance: float = TOLERANCE) -> Solved:
    """The near-best center of checked input in linf or in the composite norm."""
    parts = spread(x)
    center, low, high = best_rows(parts.offsets, SOLVERS[norm], tolerance)
    residual = (parts.offsets - center[..., None, :]) * parts.scale[..., None, None]
    return Solved(residual, low * parts.scale, high * parts.scale)


def _bracket(x: TokenMatrix, norm: str, tolerance: float) -> Bracket:
    """Certified ends around the smallest residual norm."""
    if norm not in SOLVERS:
        value = _at_row(x, norm, BEST_ROWS[norm])
        return Bracket(value, value)
    found = solved(x, norm, tolerance)
    return Bracket(found.low, found.high)
