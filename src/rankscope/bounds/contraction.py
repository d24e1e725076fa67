"""Contraction coefficients of attention maps as true upper bounds, fast enough for a thousand tokens.

Averaging with a row-stochastic map multiplies every token diameter by at most the Dobrushin coefficient of the map,
which is at most its Doeblin coefficient.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from rankscope.core.operator_norms import MARGIN
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.errors import NumericalError, ShapeError
from rankscope.measures.row_distances import largest_distance

BATCHED_ROWS = 32
"""Up to so many rows all maps of a batch are compared in one call; beyond, one call per map is faster."""


def dobrushin_bound(maps: Tensor, rows: Tensor | None = None) -> PerMatrix:
    """Half the largest l1 distance between two rows of ``*batch tokens keys``, one billionth up, ``*batch``.

    The value is that of the stored numbers; a caller who knows that rows sum to one may cut it off at 1. Distances
    are sums of non-negative terms, so their rounding is relative and far below the margin.

    Args:
        maps: attention maps.
        rows: which rows are real tokens, broadcasting over ``*batch tokens``; the others are left out.

    >>> round(dobrushin_bound(torch.tensor([[1.0, 0.0], [0.25, 0.75]])).item(), 6)
    0.75
    """
    maps = real_rows(maps, rows)
    if maps.shape[-2] <= BATCHED_ROWS:
        return _raised(torch.cdist(maps, maps, p=1.0).amax(dim=(-2, -1)))
    return _raised(_each(maps, largest_distance))


def doeblin_bound(maps: Tensor, rows: Tensor | None = None) -> PerMatrix:
    """``1 - sum_k min_i P_ik``, what a row holds above the part that all rows share, one billionth up, ``*batch``.

    Never below the Dobrushin coefficient, and computed in two passes over the map.

    >>> round(doeblin_bound(torch.tensor([[0.5, 0.5], [0.25, 0.75]])).item(), 6)
    0.25
    """
    maps = real_rows(maps, rows)
    above = _above_shared(maps) if maps.shape[-2] <= BATCHED_ROWS else _each(maps, _above_shared_by_sums)
    return _raised(2 * above)


def real_rows(maps: Tensor, rows: Tensor | None) -> TokenMatrix:
    """``maps`` in float64, with every row that is no token replaced by the first that is one.

    A repeated row changes no maximum or minimum over rows, and maps of different lengths stay one batch.
    """
    if maps.ndim < 2 or 0 in maps.shape[-2:] or not maps.is_floating_point():
        raise ShapeError(
            f"expected floating-point maps (*batch, tokens, keys), got {maps.dtype} of shape {tuple(maps.shape)}"
        )
    maps = maps.double()
    if rows is None or bool(rows.all()):
        return maps
    if not bool(rows.any(dim=-1).all()):
        raise ShapeError("a map of the batch has no row that is a token; drop that text")
    first = rows.long().argmax(dim=-1)[..., None, None].expand(*maps.shape[:-2], 1, maps.shape[-1])
    return torch.where(rows[..., None], maps, maps.gather(-2, first))


def _each(maps: TokenMatrix, of_one: Callable[[Tensor], Tensor]) -> Tensor:
    """``of_one`` of every map of the batch."""
    flat = maps.reshape(-1, *maps.shape[-2:])
    found = [of_one(one) for one in flat]
    return torch.stack(found).reshape(maps.shape[:-2]) if found else maps.new_zeros(maps.shape[:-2])


def _above_shared(maps: Tensor) -> Tensor:
    """The largest sum of a row's entries above their column's minimum: exactly zero if all rows are equal."""
    return (maps - maps.amin(dim=-2, keepdim=True)).sum(dim=-1).amax(dim=-1)


def _above_shared_by_sums(one: Tensor) -> Tensor:
    """The same of one map: row sums less the shared part, without a copy, where little cancels."""
    shared = one.amin(dim=-2)
    above = one.sum(dim=-1).amax() - shared.sum()
    # both sums are near one: at a tenth their rounding is far below one billionth of the difference
    return above if float(above) > 0.1 else (one - shared).sum(dim=-1).amax()


def _raised(doubled: Tensor) -> Tensor:
    """Half of ``doubled``, one billionth up; zero stays zero."""
    if not bool(torch.isfinite(doubled).all()):
        raise NumericalError("an attention map holds NaN or infinity; no contraction is certified for it")
    least = torch.finfo(torch.float64).tiny  # below it, one billionth would be rounded away
    return torch.where(doubled > 0, (doubled * (0.5 * (1 + MARGIN))).clamp(min=least), 0.0)
