"""Contraction coefficients of attention maps as true upper bounds, fast enough for a thousand tokens.

Averaging with a row-stochastic map multiplies every token diameter by at most the Dobrushin coefficient of the map,
which is at most its Doeblin coefficient.
"""

from collections.abc import Callable, Iterator
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import pdist

from rankscope.core.operator_norms import MARGIN
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.errors import NumericalError, ShapeError

BATCHED_ROWS = 32
"""Up to so many rows all maps of a batch are compared in one call; beyond, one call per map is faster."""

BLOCK_ROWS = 4096
"""Rows compared in one call: their distances take 128 MB."""

_SLACK = MARGIN / 100  # a pair that is overlooked by so little is still below the raised value


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
    return _raised(_each(maps, _largest_distance))


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


def _largest_distance(rows: Tensor) -> Tensor:
    """The largest l1 distance between two of ``rows keys``."""
    best, rivals = _rivals(rows)
    for block in _blocks(rows[rivals]):
        best = torch.maximum(best, pdist(block, p=1.0).amax())
    return best


def _rivals(rows: Tensor) -> tuple[Tensor, Tensor]:
    """A distance between two rows, and which rows may be part of a larger one.

    The first comes from the row farthest from the mean and the one farthest from that. No row ``i`` is farther from
    any other than ``d_i + max d``, with ``d`` the distances from any fixed point: the mean, either of the two rows,
    or zero, from where ``d`` is the row's sum, so that nothing is left to compare once two rows share no key.
    """
    from_mean = _distances(rows, rows.mean(dim=-2))
    from_first = _distances(rows, rows[from_mean.argmax()])
    from_second = _distances(rows, rows[from_first.argmax()])
    best = torch.maximum(from_first.amax(), from_second.amax())
    reach = torch.stack([d + d.amax() for d in (from_mean, from_first, from_second, rows.abs().sum(dim=-1))])
    return best, reach.amin(dim=0) > best * (1 + _SLACK)


def _distances(rows: Tensor, point: Tensor) -> Tensor:
    return (rows - point).abs_().sum(dim=-1)


def _blocks(rows: Tensor) -> Iterator[Tensor]:
    """Sets of at most ``BLOCK_ROWS`` rows such that every pair of rows is in one of them."""
    if len(rows) <= BLOCK_ROWS:
        yield from [rows] if len(rows) > 1 else []
        return
    for pair in combinations(rows.split(BLOCK_ROWS // 2), 2):
        yield torch.cat(pair)


def _raised(doubled: Tensor) -> Tensor:
    """Half of ``doubled``, one billionth up; zero stays zero."""
    if not bool(torch.isfinite(doubled).all()):
        raise NumericalError("an attention map holds NaN or infinity; no contraction is certified for it")
    least = torch.finfo(torch.float64).tiny  # below it, one billionth would be rounded away
    return torch.where(doubled > 0, (doubled * (0.5 * (1 + MARGIN))).clamp(min=least), 0.0)
