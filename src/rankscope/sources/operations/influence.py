"""What moves what, by cause and effect: some elements of a node are changed and others are looked at.

Noise is what moves them, because norms do not see a constant; several sizes, because thresholds and saturated maps
answer at some sizes alone; a fresh point each time, because one point may lie where nothing answers.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.region import Region

SIZES = (0.01, 1.0, 30.0)
"""How large the numbers are at which effects are looked for."""

_ROUNDING = 1e-12
"""Relative to an element; the same operations on the same shapes agree to a few parts in 1e16, whatever else moves."""

_ROUNDING_OF_ALL = 1e-14
"""Relative to the largest element, for those that nearly cancel."""


def draw(node: Node, size: float, seed: int) -> Tensor:
    """Random numbers in the shape of a node."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(node.shape, generator=generator, dtype=torch.float64).to(node.value.device)
    return size * noise


def moved(
    region: Region,
    start: Node,
    where: Tensor,
    nodes: Sequence[Node],
    *,
    size: float = 1.0,
    seed: int = 0,
    base: Tensor | None = None,
) -> dict[Node, Tensor]:
    """For every node which of its elements move if those of ``start`` at ``where`` do, all else the same.

    Args:
        where: true at the elements to move, in a shape that expands to that of ``start``.
        base: the numbers from which they move; random ones of that size without it.
    """
    base = draw(start, size, seed) if base is None else base
    other = torch.where(where.expand(start.shape), base + draw(start, size, seed + 1), base)
    before, after = (region.replays(tuple(nodes), {start: one}) for one in (base, other))
    return {node: differs(before[node], after[node]) for node in nodes}


def differs(before: Tensor, after: Tensor) -> Tensor:
    """The elements that differ by more than rounding; what is no number twice does not."""
    if before.shape != after.shape:
        return torch.ones(before.shape, dtype=torch.bool, device=before.device)
    if not before.is_floating_point():
        return before != after
    gap = (before - after).abs()
    size = torch.maximum(before.abs(), after.abs())
    largest = size[size.isfinite()].amax() if bool(size.isfinite().any()) else size.new_zeros(())
    is_same = (before == after) | (before.isnan() & after.isnan())
    return ~is_same & ~(gap <= _ROUNDING * size + _ROUNDING_OF_ALL * largest)


def is_tokenwise(region: Region, start: Node, end: Node, *, sizes: Sequence[float] = SIZES) -> bool:
    """Whether every row of ``end`` depends on the same row of ``start`` alone, whatever else the region reads.

    Rows are what the last axis holds, in row-major order: tokens of all texts. Each is moved alone, at several sizes;
    one that moves another, or numbers that are no longer finite, say no. It says nothing of whether all rows are
    treated alike.
    """
    rows = start.shape[:-1].numel()
    if end.shape[:-1].numel() != rows:
        return False
    for seed, size in enumerate(sizes):
        base = draw(start, size, 2 * seed)
        for where in _groups(rows):
            try:
                effect = moved(
                    region,
                    start,
                    where.view(*start.shape[:-1], 1).to(start.value.device),
                    (end,),
                    size=size,
                    seed=2 * seed,
                    base=base,
                )[end]
            except (RuntimeError, IndexError):  # a shape that depends on numbers
                return False
            if bool(effect.reshape(rows, -1).any(-1).cpu()[~where].any()):
                return False
        if not bool(region.replay(end, {start: base}).isfinite().all()):
            return False
    return True


def _groups(rows: int) -> Iterator[Tensor]:
    """Rows to move at once: halves by each digit of their number, which finds most in a few runs, then each alone."""
    number = torch.arange(rows)
    for digit in range((rows - 1).bit_length()):
        is_set = (number >> digit) % 2 == 1
        yield is_set
        yield ~is_set
    for row in range(rows):
        yield number == row


def treats_rows_alike(region: Region, start: Node, end: Node, *, sizes: Sequence[float] = SIZES) -> bool:
    """Whether rows of ``start`` in another order give the rows of ``end`` in that order: none has rules of its own."""
    rows = start.shape[:-1].numel()
    if end.shape[:-1].numel() != rows:
        return False
    orders = [torch.arange(rows).roll(1), torch.arange(rows).flip(0)]
    orders += [torch.randperm(rows, generator=torch.Generator().manual_seed(rows))]
    for seed, size in enumerate(sizes):
        base = draw(start, size, 2 * seed)
        for order in orders:
            other = base.reshape(rows, -1)[order].view(start.shape)
            try:
                before, after = (region.replay(end, {start: one}).reshape(rows, -1) for one in (base, other))
            except (RuntimeError, IndexError):
                return False
            # another order of rows is another path through a product's kernel: not rounding of one run alone
            scale = float(before.abs().max())
            if not bool((before[order] - after).abs().max() <= 1e-9 * scale):
                return False
    return True
