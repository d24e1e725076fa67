"""Certified brackets of the best residual in linf and in the composite norm, where no closed form exists."""

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch

from rankscope.core.types import CenterRow, PerMatrix, TokenMatrix
from rankscope.measures.one_center import (
    ROUNDOFF,
    Array,
    Box,
    Columns,
    distances,
    lower_bound,
    one_center,
    sorted_columns,
    weighted_medians,
)

TOLERANCE = 0.01
"""Brackets stop at ``high <= 1.01 low`` unless told otherwise."""

CUTS = 25  # lines of the composite bracket; one or two are usual at one percent


class Bracket(NamedTuple):
    """Two certified ends around a minimum; ``high`` is attained at an actual center."""

    low: PerMatrix
    high: PerMatrix


class Best(NamedTuple):
    """A center that attains ``high``, and ``low`` which no center can beat."""

    center: Array
    low: float
    high: float


class Line(NamedTuple):
    """A certified inequality ``row + slope * column >= level`` between the two factors of the composite norm."""

    slope: float
    level: float


def linf_best(rows: Array, tolerance: float) -> Best:
    """A near-best center in linf, the 1-center of the rows in l1. Minimizers are not unique; this is one."""
    columns = sorted_columns(rows)
    found = one_center(columns, tolerance=tolerance, seeds=(np.zeros(rows.shape[1]), columns.medians()))
    return Best(found.center, found.low, found.high)


def composite_best(rows: Array, tolerance: float) -> Best:
    """The best center in the composite norm, by outer approximation.

    Write f(c) and g(c) for the largest column and row sum of |y - 1c|. The pairs (f, g) of all centers lie above
    a convex curve, so every line ``g + q f >= level`` that holds for all centers cuts the plane, and f g is
    smallest at a corner of what remains: that corner is the lower bound. ``{f <= t}`` is a box, so the next line
    comes from the 1-center inside the box of the worst corner, whose own center lowers the upper bound.
    """
    columns = sorted_columns(rows)
    medians = columns.medians()
    seeds: tuple[Array, ...] = (np.zeros(rows.shape[1]), medians)
    start = one_center(columns, tolerance=tolerance / 3, seeds=seeds)
    best = _best_composite((*start.tried, start.center), columns)
    at_medians = float(distances(columns, medians)[1].max())
    smallest = at_medians * (1 - columns.margin)
    lines = [Line(0.0, start.low)]
    weights, seeds = start.weights, (*seeds, start.center)
    for cut in range(CUTS + 1):
        low, corner = _lowest_corner(lines, smallest)
        if best.high <= (1 + tolerance) * low or cut == CUTS:
            break
        # A shade wider than the corner, so that rounding cannot empty the box of a column at its median.
        box = level_box(columns, max(corner, at_medians) * (1 + 4 * columns.margin))
        found = one_center(columns, tolerance=tolerance / 3, box=box, weights=weights, seeds=seeds)
        best = min(best, _best_composite((*found.tried, found.center), columns), key=lambda one: one.high)
        weights, seeds = found.weights, (*seeds, found.center)
        lines = _with_line(lines, _line(columns, weights, box))
    return Best(best.center, min(low, best.high), best.high)


SOLVERS = {"linf": linf_best, "composite": composite_best}


def _best_composite(centers: tuple[Array, ...], columns: Columns) -> Best:
    """The best of some centers in the composite norm."""
    values = []
    for center in centers:
        of_rows, of_columns = distances(columns, center)
        values.append(float(np.sqrt(of_rows.max()) * np.sqrt(of_columns.max())))
    place = int(np.argmin(values))
    return Best(centers[place], 0.0, values[place] * (1 + columns.margin))


def level_box(columns: Columns, level: float) -> Box:
    """All centers whose column sums of |y - c| are at most ``level``: an interval per column.

    A column sum is convex and piecewise linear in ``c`` with kinks at the sorted entries; the ends of the
    interval lie on the pieces next to the outermost kinks below ``level``.
    """
    dim, tokens = columns.values.shape
    running = np.cumsum(columns.values, axis=1)
    below = np.arange(1, tokens + 1)
    sums = columns.values * (2 * below - tokens) - 2 * running + running[:, -1:]
    inside = sums <= level
    first, last = inside.argmax(axis=1), tokens - 1 - inside[:, ::-1].argmax(axis=1)
    every = np.arange(dim)

    def end(place: np.ndarray, steepness: np.ndarray, sign: int) -> Array:
        room = np.maximum(level - sums[every, place], 0.0) / np.maximum(steepness, 1)
        edge: Array = columns.values[every, place] + sign * np.where(steepness > 0, room, 0.0)
        return edge

    # The median belongs to every level that is not empty; rounding must not lose it.
    medians, some = columns.medians(), inside.any(axis=1)
    low = np.where(some, np.minimum(end(first, tokens - 2 * first, -1), medians), medians)
    high = np.where(some, np.maximum(end(last, 2 * (last + 1) - tokens, 1), medians), medians)
    return Box(low=low, high=high)


def _line(columns: Columns, weights: Array, box: Box) -> Line:
    """The certified line through the 1-center of a box.

    Where the box holds a median back, the multiplier of its column sum is the ratio of the two slopes there. Any
    multipliers give a valid line, good ones a line that touches the curve.
    """
    medians = weighted_medians(columns, weights)
    center = np.clip(medians, box.low, box.high)
    tokens = weights.size
    upward = medians > center
    left = np.where(upward, columns.rows <= center, columns.rows < center)
    slope = 2 * (weights @ left) - weights.sum()
    steepness = 2 * left.sum(axis=0) - tokens
    held = (medians != center) & (slope * steepness < 0)
    extra = np.where(held, np.abs(slope) / np.maximum(np.abs(steepness), 1), 0.0)
    return Line(float(extra.sum()), lower_bound(columns, weights, extra))


def _with_line(lines: list[Line], new: Line) -> list[Line]:
    """The lines with one more; of two nearly parallel ones only the higher stays, so that corners are well defined."""
    for place, old in enumerate(lines):
        if abs(old.slope - new.slope) <= 1e-9 * max(old.slope, new.slope):
            return lines if old.level >= new.level else [*lines[:place], new, *lines[place + 1 :]]
    return [*lines, new]


def _lowest_corner(lines: list[Line], smallest: float) -> tuple[float, float]:
    """Square root of the smallest product f g above all lines with ``f >= smallest``, and the f where it is.

    On a line the product is concave in f, so its minimum is at a corner. All crossings are looked at with the
    height of the upper envelope there: those that are not corners lie on the boundary and cannot be lower.
    """

    def height(f: float) -> float:
        return max(line.level - line.slope * f for line in lines)

    products = [(smallest * height(smallest), smallest)]
    for one, two in combinations(lines, 2):
        if one.slope == two.slope:
            continue
        f = (one.level - two.level) / (one.slope - two.slope)
        if f > smallest:
            # Error of the crossing itself, moved along the steeper of the two lines.
            off = 8 * ROUNDOFF * (one.level + two.level) / abs(one.slope - two.slope)
            lower = max(height(f) - max(one.slope, two.slope) * off, 0.0)
            products.append((max(f - off, smallest) * lower, f))
    product, place = min(products)
    return float(np.sqrt(max(product, 0.0)) * (1 - 16 * ROUNDOFF)), place


def best_rows(
    y: TokenMatrix, solve: Callable[[Array, float], Best], tolerance: float
) -> tuple[CenterRow, PerMatrix, PerMatrix]:
    """Center, low and high of every matrix of a batch, solved one by one on the CPU; they carry no gradient."""
    flat = y.detach().reshape(-1, *y.shape[-2:]).cpu().contiguous()
    found = [solve(matrix.numpy(), tolerance) for matrix in flat]
    batch, dim = y.shape[:-2], y.shape[-1]

    def stacked(values: list[float] | list[Array], *shape: int) -> torch.Tensor:
        return torch.from_numpy(np.array(values, dtype=np.float64)).to(y.device).reshape((*batch, *shape))

    return (
        stacked([one.center for one in found], dim),
        stacked([one.low for one in found]),
        stacked([one.high for one in found]),
    )
