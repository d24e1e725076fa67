"""The largest l1 distance between two rows of a matrix, without comparing rows that cannot be part of it."""

from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import pdist

from rankscope.core.operator_norms import MARGIN
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.measures.brackets import Bracket

BLOCK_ROWS = 4096
"""Rows compared in one call: their distances take 128 MB."""

RIVALS = 160
"""Rows that are compared with each other where a bracket will do: as long as a few passes over the matrix."""

NEAR = 2**17
"""Entries whose distances from a point are taken in one go: a megabyte."""

_SLACK = (
    MARGIN / 100
)  # a pair that is overlooked by so little is still below a value that is raised by the margin


def largest_distance(rows: Tensor) -> Tensor:
    """The largest l1 distance between two of ``rows keys``, to a hundredth of ``MARGIN``."""
    best, reach = _reach(rows)
    return _among(rows[reach > best * (1 + _SLACK)], best)


def distance_bracket(maps: TokenMatrix, rivals: int = RIVALS) -> Bracket:
    """The largest l1 distance between two rows of every map, between two ends.

    At most ``rivals`` rows of a map are compared with each other, those of the longest reach; no pair with a row
    that was left out is farther apart than the reach of the first one. The ends are equal if none was left out.
    """
    low, high = [], []
    flat = maps.reshape(-1, *maps.shape[-2:])
    for rows, least, reach in zip(flat, *_reach(flat), strict=True):
        places = (reach > least * (1 + _SLACK)).nonzero()[:, 0]
        left_out = least
        if len(places) > rivals:
            places = places[reach[places].argsort(descending=True)]
            left_out, places = reach[places[rivals]], places[:rivals]
        best = _among(rows[places], least)
        low.append(best)
        high.append(torch.maximum(best, left_out))
    return Bracket(*(_stacked(ends, maps) for ends in (low, high)))


def _stacked(values: list[Tensor], maps: TokenMatrix) -> PerMatrix:
    return torch.stack(values).reshape(maps.shape[:-2]) if values else maps.new_zeros(maps.shape[:-2])


def _among(rivals: Tensor, best: Tensor) -> Tensor:
    """The largest distance between two rivals, or ``best``."""
    for block in _blocks(rivals):
        best = torch.maximum(best, pdist(block, p=1.0).amax())
    return best


def _reach(rows: Tensor) -> tuple[Tensor, Tensor]:
    """A distance between two rows, and for every row a distance beyond which no other row is from it; of each matrix.

    The first comes from the row farthest from the mean and the one farthest from that. No row ``i`` is farther from
    any other than ``d_i + max d``, with ``d`` the distances from any fixed point: the mean, either of the two rows,
    or zero, from where ``d`` is the row's sum, so that nothing is left to compare once two rows share no key.
    """
    paper = rows.new_empty(*rows.shape[:-2], _near(rows), rows.shape[-1])
    from_mean = _distances(rows, rows.mean(dim=-2, keepdim=True), paper)
    from_first = _distances(rows, _row(rows, from_mean.argmax(dim=-1)), paper)
    from_second = _distances(rows, _row(rows, from_first.argmax(dim=-1)), paper)
    best = torch.maximum(from_first.amax(dim=-1), from_second.amax(dim=-1))
    from_zero = _distances(rows, None, paper)
    reach = [d + d.amax(dim=-1, keepdim=True) for d in (from_mean, from_first, from_second, from_zero)]
    return best, torch.stack(reach).amin(dim=0)


def _row(rows: Tensor, place: Tensor) -> Tensor:
    """One row of each matrix."""
    return torch.take_along_dim(rows, place[..., None, None], dim=-2)


def _near(rows: Tensor) -> int:
    """How many rows of each matrix are compared with a point at a time, so that they stay near the processor."""
    return max(1, min(rows.shape[-2], NEAR * rows.shape[-2] // max(1, rows.numel())))


def _distances(rows: Tensor, point: Tensor | None, paper: Tensor) -> Tensor:
    """From a point per matrix, or from zero; ``paper`` is written on."""
    sums = []
    for part in rows.split(paper.shape[-2], dim=-2):
        here = paper[..., : part.shape[-2], :]
        sizes = torch.abs(part, out=here) if point is None else torch.sub(part, point, out=here).abs_()
        sums.append(sizes.sum(dim=-1))
    return torch.cat(sums, dim=-1)


def _blocks(rows: Tensor) -> Iterator[Tensor]:
    """Sets of at most ``BLOCK_ROWS`` rows such that every pair of rows is in one of them."""
    if len(rows) <= BLOCK_ROWS:
        yield from [rows] if len(rows) > 1 else []
        return
    for pair in combinations(rows.split(BLOCK_ROWS // 2), 2):
        yield torch.cat(pair)
