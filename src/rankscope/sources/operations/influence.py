"""What moves what, by cause and effect: some elements of a node are changed and others are looked at.

Noise is what moves them, because norms do not see a constant; several sizes, because thresholds and saturated maps
answer at some sizes alone; a fresh point each time, because one point may lie where nothing answers.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor

from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.region import Region

SAMPLES = ((False, 0.01), (False, 1.0), (False, 30.0), (True, 1.0), (True, 10.0))
"""Points at which effects are looked for: independent tokens or tokens all alike, and their size."""

_ALONE = 16
"""So many rows are moved by themselves; of more, some all over the batch."""

_ROUNDING = 1e-10
"""Relative to an element: what is summed in another order because other rows went elsewhere differs by less."""

_ROUNDING_OF_ALL = 1e-12
"""Relative to the largest element, for those that nearly cancel."""

Run = Callable[[Tensor], Tensor]


def draw(shape: Sequence[int], size: float, seed: int) -> Tensor:
    """Random numbers of a size."""
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
    shape = start.shape
    base = draw(shape, size, seed) if base is None else base
    other = torch.where(where.expand(shape), base + draw(shape, size, seed + 1), base)
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


def is_tokenwise(run: Run, shape: Sequence[int]) -> bool:
    """Whether a map moves no row by another: every row of what it gives depends on the same row of what it is given.

    Rows are what the last axis holds, in row-major order: tokens of all texts. They are moved in halves, one for each
    binary digit of their number and one for its opposite, so that every two rows are told apart, and then each alone,
    at several sizes. Numbers that are not finite and errors say no. It says nothing of whether all rows are treated
    alike.

    Args:
        shape: of the float64 tensor that the map takes.
    """
    rows = prod(shape[:-1])
    for seed, (is_alike, size) in enumerate(SAMPLES):
        x, other = draw(shape, size, 2 * seed), draw(shape, size, 2 * seed + 1)
        if is_alike:
            x = x.reshape(rows, -1)[:1].expand(rows, -1).reshape(x.shape) + 0.1 * x
        before = _rows(run, x, rows)
        if before is None:
            return False
        for where in (*_halves(rows), *(() if is_alike else _single(rows))):
            after = _rows(run, torch.where(where.view(*shape[:-1], 1), x + other, x), rows)
            if after is None or bool(differs(before, after).any(-1)[~where].any()):
                return False
    return True


def _rows(run: Run, x: Tensor, rows: int) -> Tensor | None:
    """What a map gives, row by row; None where it gives none, or numbers that are not finite."""
    try:
        found = run(x).reshape(rows, -1)
    except Exception:  # what runs for one batch only is not a map of tokens
        return None
    return found if bool(found.isfinite().all()) else None


def _halves(rows: int) -> Iterator[Tensor]:
    number = torch.arange(rows)
    for digit in range((rows - 1).bit_length()):
        is_set = (number >> digit) % 2 == 1
        yield is_set
        yield ~is_set


def _single(rows: int) -> Iterator[Tensor]:
    for row in range(rows) if rows <= _ALONE else torch.linspace(0, rows - 1, _ALONE).int().tolist():
        yield torch.arange(rows) == row


def are_texts_alike(run: Run, shape: Sequence[int]) -> bool:
    """Whether no text of ``texts tokens dim`` reads another, and texts that change places take their results along.

    The others are much larger or much smaller than the text that is held, because a threshold may be what reads them.
    """
    for seed, (_, size) in enumerate(SAMPLES):
        x = draw(shape, size, 2 * seed)
        before = run(x)
        if len(before) != shape[0] or bool(differs(before.roll(1, 0), run(x.roll(1, 0))).any()):
            return False
        for text, factor in product(range(shape[0]), (0.01, 100)):
            moved = draw(shape, factor * size, 2 * seed + 1)
            moved[text] = x[text]
            if bool(differs(before[text], run(moved)[text]).any()):
                return False
    return True


def is_alike_everywhere(run: Run, shape: Sequence[int]) -> bool:
    """Whether a map of rows is the same at every place: rows that change places take their results along."""
    rows = prod(shape[:-1])
    orders = [torch.arange(rows).roll(1), torch.randperm(rows, generator=torch.Generator().manual_seed(rows))]
    for seed, (_, size) in enumerate(SAMPLES):
        x = draw(shape, size, 2 * seed)
        before = _rows(run, x, rows)
        for order in orders:
            after = _rows(run, x.reshape(rows, -1)[order].view(x.shape), rows)
            if before is None or after is None or bool(differs(before[order], after).any()):
                return False
    return True
