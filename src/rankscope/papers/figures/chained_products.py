"""Products of attention maps along paths, in two parts, so that what is left of them is not lost in rounding.

Every map is ``P = 1 q + E`` with ``q`` its mean row. Columns of ``E`` sum to zero by that choice, and its rows because
those of ``P`` and ``q`` both sum to one: ``E 1 = 0``. So in a product

    (1 q_2 + E_2) (1 q_1 + E_1) = 1 (q_1 + q_2 E_1) + E_2 E_1,

and on: what a product of maps differs by from its own mean row is the product of the ``E``, exactly. It is carried with
a scale, so that no difference of nearly equal rows is ever taken.

Axis letters: p path, i query token, j key token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor, unit_roundoff
from rankscope.core.registry import unknown_name
from rankscope.findings.base import Value
from rankscope.measures.maps import dobrushin_of
from rankscope.measures.norms import composite_norm, frobenius_norm, l1_norm, linf_norm, unit_scale

Order = Literal["true", "notebook"]
"""``true``: the last layer on the left, as tokens pass the network. ``notebook``: the first on the left."""

ORDERS: tuple[Order, ...] = ("true", "notebook")

MEAN, RANK_ONE = "residual_ratio[composite,mean]", "rank_one_ratio[composite,svd]"
ROWS = "residual_ratio[linf,mean]"

COEFFICIENTS = ("dobrushin", "spectral", "typical")

CHUNK = 10
"""Paths at a time, so that their matrices stay in the cache of a processor."""

NEAR = 0.5
"""Up to this part of the rank-one term the rest is small enough for the iteration: every step gains a factor 4."""

GOAL = math.log(1e-17)
"""The iteration ends when what is left of its error is below rounding."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Factors:
    """Maps ``*batch tokens tokens`` in two parts.

    Args:
        mean: ``*batch tokens``, the mean row of every map.
        rest: ``*batch tokens tokens``; rows and columns sum to zero, but for rounding.
        gain: ``*batch``, the spectral norm of ``rest``.
        error: ``*batch``, how far rounding may have moved ``rest`` in the Frobenius norm.
    """

    mean: Tensor
    rest: Tensor
    gain: Tensor
    error: Tensor

    def at(self, *index: Tensor) -> "Factors":
        """The maps at these places of the batch."""
        return Factors(
            mean=self.mean[index], rest=self.rest[index], gain=self.gain[index], error=self.error[index]
        )


def factors(maps: Tensor, *, layer: int, dtype: torch.dtype = torch.float64) -> Factors:
    """Row-stochastic maps of a layer of a network that ran in ``dtype``, each in two parts."""
    maps = maps.double()
    maps = maps / maps.sum(dim=-1, keepdim=True)
    mean = maps.mean(dim=-2)
    rest = maps - mean[..., None, :]
    gain: Tensor = torch.linalg.matrix_norm(rest, ord=2)
    error = relative_floor(layer, dtype) * torch.linalg.matrix_norm(maps)
    return Factors(mean=mean, rest=rest, gain=gain, error=error)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PathProduct:
    """Products ``1 mean + e^log_scale rest``, one per path.

    Args:
        rest: largest entry in [1, 2).
        error: bound of the error of ``rest`` in the Frobenius norm, in the same scale: rounding of the maps and of
            every product, carried on by the spectral norms of the factors.
    """

    mean: Tensor
    rest: Tensor
    log_scale: Tensor
    error: Tensor

    @property
    def scale(self) -> Tensor:
        """``e^log_scale``; zero where that is below the smallest float."""
        return self.log_scale.exp()

    def matrix(self) -> Tensor:
        """The product as one matrix; what is below rounding of its mean row is lost in it."""
        return self.mean[..., None, :] + self.rest * self.scale[..., None, None]


def products(steps: Sequence[Factors], *, order: Order) -> list[PathProduct]:
    """The products of the first 1, 2, ... of the factors, which are given first layer first."""
    if order not in ORDERS:
        raise unknown_name("order of a product", order, ORDERS)
    first, *others = steps
    found = [_rescale(first.mean, first.rest, torch.zeros_like(first.gain), first.error)]
    for step in others:
        found.append(_extend(found[-1], step, order))
    return found


def _extend(before: PathProduct, step: Factors, order: Order) -> PathProduct:
    if order == "true":
        rest = step.rest @ before.rest
        mean = before.mean + before.scale[..., None] * torch.einsum(
            "...i,...ij->...j", step.mean, before.rest
        )
    else:
        rest = before.rest @ step.rest
        mean = step.mean + torch.einsum("...i,...ij->...j", before.mean, step.rest)
    size = frobenius_norm(before.rest) + before.error
    rounding = rest.shape[-1] * unit_roundoff(torch.float64) * torch.linalg.matrix_norm(step.rest)
    error = step.gain * before.error + (step.error + rounding) * size
    return _rescale(mean, rest, before.log_scale, error)


def _rescale(mean: Tensor, rest: Tensor, log_scale: Tensor, error: Tensor) -> PathProduct:
    unit, scale = unit_scale(rest)
    return PathProduct(mean=mean, rest=unit, log_scale=log_scale + scale.log(), error=error / scale)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ratio:
    """``log10`` of a ratio of composite norms per path, and how far it may be off: ``floor`` is an absolute error."""

    log10: Tensor
    floor: Tensor

    @property
    def value(self) -> Tensor:
        return torch.pow(10.0, self.log10)

    @property
    def resolved(self) -> Tensor:
        return self.value > self.floor


def consensus_ratio(product: PathProduct) -> Ratio:
    """Composite norm of what differs from the mean row over that of the product.

    No constant row is better by more than a factor ``2 (1 - 1/n)``: subtracting the mean row is multiplication with
    ``J = I - 1 1^T / n``, whose column and row sums of absolute values are ``2 (1 - 1/n)``.
    """
    return _ratio(product, product.rest, product.error)


def rank_one_ratio(product: PathProduct) -> Ratio:
    """Composite norm of what differs from the best matrix of rank one over that of the product.

    The best one, ``P v v^T`` with the first right singular vector, is best in the Frobenius and the spectral norm, not
    in the composite one; the published notebook uses it all the same.
    """
    rest, error = torch.empty_like(product.rest), torch.empty_like(product.error)
    size = math.sqrt(product.mean.shape[-1]) * torch.linalg.vector_norm(product.mean, dim=-1)
    is_near = frobenius_norm(product.rest) * product.scale <= NEAR * size
    for chosen, found in ((is_near, _near), (~is_near, _direct)):
        if bool(chosen.any()):
            rest[chosen], error[chosen] = found(_some(product, chosen))
    return _ratio(product, rest, error)


def _some(product: PathProduct, chosen: Tensor) -> PathProduct:
    return PathProduct(
        mean=product.mean[chosen],
        rest=product.rest[chosen],
        log_scale=product.log_scale[chosen],
        error=product.error[chosen],
    )


def _near(product: PathProduct) -> tuple[Tensor, Tensor]:
    """``(P - best rank one) / scale`` without a difference of nearly equal numbers, and its error bound.

    With ``u = 1 / sqrt n``, ``w = mean / |mean|`` and ``s = sqrt n |mean|`` the product is ``s u w^T + t R`` where
    ``u^T R = 0``. Put ``R = c w^T + D`` with ``D w = 0``. The first right singular vector is ``w + y``, up to length,
    where ``y`` is of second order in ``t`` and a fixed point of power iteration:

        x = t (c + D y) / s,    y = t D^T x / (s + t c^T x).

    Then ``P - P v v^T`` with ``v = (w + y) / |w + y|`` is written out, every term with its power of ``t``.
    """
    n = product.mean.shape[-1]
    t = product.scale[:, None]
    length = torch.linalg.vector_norm(product.mean, dim=-1, keepdim=True)
    w, s = product.mean / length, math.sqrt(n) * length
    c = _times(product.rest, w)
    d = product.rest - _outer(c, w)
    y = torch.zeros_like(w)
    part = (frobenius_norm(product.rest) * product.scale / s[:, 0]).clamp(max=NEAR)
    for _ in range(_rounds(float(part.max()))):
        x = (c + _times(d, y)) / s
        y = t**2 * _times(d.mT, x) / (s + t**2 * (c * x).sum(dim=-1, keepdim=True))
    square = y.square().sum(dim=-1, keepdim=True)
    whole = 1 + square
    along = c + _times(d, y)
    # s y and s |y|^2 over t: the constant rows that the new direction takes away
    over = torch.where(t > 0, s / t, 0.0)
    row = (over * square * w - over * y) / whole
    rest = d + _outer((c * square - _times(d, y)) / whole, w) - _outer(along / whole, y)
    rest = rest + row[:, None, :] / math.sqrt(n)
    return rest, product.error * (1 + 2 / (1 - part))


def _rounds(part: float) -> int:
    """Every round multiplies the error by at most the square of ``part``; two rounds at least."""
    return 2 if part < 1e-8 else 2 + math.ceil(GOAL / (2 * math.log(part)))


def _direct(product: PathProduct) -> tuple[Tensor, Tensor]:
    """The same by a singular value decomposition of the product itself, where nothing is small.

    Moving the product by ``e`` moves the first singular vectors by at most about ``e`` over the gap, so the difference
    by ``e (1 + 2 s_1 / (s_1 - s_2))``; without a gap there is no best rank-one matrix, and the error is infinite.
    """
    left, sizes, right = torch.linalg.svd(product.matrix(), full_matrices=False)
    best = sizes[:, :1, None] * _outer(left[:, :, 0], right[:, 0])
    rounding = product.mean.shape[-1] * unit_roundoff(torch.float64) * sizes[:, 0] / product.scale
    factor = 1 + 2 * sizes[:, 0] / (sizes[:, 0] - sizes[:, 1])
    return (product.matrix() - best) / product.scale[:, None, None], (product.error + rounding) * factor


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return torch.einsum("pij,pj->pi", matrix, vector)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a[:, :, None] * b[:, None, :]


def _ratio(product: PathProduct, rest: Tensor, error: Tensor) -> Ratio:
    """Both column and row sums of an error of Frobenius norm e are at most ``sqrt(n) e``."""
    off = math.sqrt(rest.shape[-1]) * error
    columns, rows = l1_norm(rest), linf_norm(rest)
    moved = ((columns + off) * (rows + off)).sqrt() - (columns * rows).sqrt()
    size = composite_norm(product.matrix())
    log = (composite_norm(rest).log() + product.log_scale - size.log()) / math.log(10)
    return Ratio(log10=log, floor=moved * product.scale / size)


def plain_ratios(maps: Sequence[Tensor], *, order: Order) -> list[tuple[Tensor, Tensor]]:
    """Per depth both ratios, to the mean row and to the best rank one, of ordinary float64 products.

    This is what one gets without splitting: below some ``1e-15`` it is rounding.
    """
    found, whole = [], maps[0]
    for place, step in enumerate(maps):
        if place:
            whole = step @ whole if order == "true" else whole @ step
        left, sizes, right = torch.linalg.svd(whole, full_matrices=False)
        best = sizes[:, :1, None] * _outer(left[:, :, 0], right[:, 0])
        size = composite_norm(whole)
        off = whole - whole.mean(dim=-2, keepdim=True)
        found.append((composite_norm(off) / size, composite_norm(whole - best) / size))
    return found


# --------------------------------------------------------------------------------------------- all paths of a model


class RatioCurves(Value):
    """``log10`` and ``floor`` of a ratio, by depth and path."""

    log10: tuple[tuple[float, ...], ...]
    floor: tuple[tuple[float, ...], ...]


class LateCurves(RatioCurves):
    """The same for chains in the true order that start at a later layer."""

    start: int


class PathRatios(Value):
    """Ratios along random paths of one model, and coefficients of the maps on them."""

    layers: int
    heads: tuple[tuple[int, ...], ...]
    """Which head a path takes in every layer."""

    texts: tuple[int, ...]
    curves: dict[Order, dict[str, RatioCurves]]
    plain: dict[Order, dict[str, tuple[tuple[float, ...], ...]]]
    """The first paths as ordinary float64 products, by depth and path."""

    windows: tuple[LateCurves, ...]
    coefficients: dict[str, tuple[tuple[float, ...], ...]]
    """By layer and path, ``log10`` of three coefficients of the path's map, see ``_coefficients``."""


def path_ratios(maps: Sequence[Tensor], *, paths: int, plain: int, window: int, seed: int) -> PathRatios:
    """Ratios along ``paths`` random paths of nested depths; the first ``plain`` also as ordinary products.

    A path takes one head per layer and one text; its chain of depth k are the maps of layers 1 .. k. ``window`` more
    paths start at every later layer.
    """
    generator = torch.Generator().manual_seed(seed)
    texts, heads = maps[0].shape[:2]
    chosen = torch.randint(heads, (paths, len(maps)), generator=generator)
    text = torch.arange(paths) % texts
    split = [factors(own, layer=layer) for layer, own in enumerate(maps, start=1)]
    few = [own[text[:plain], chosen[:plain, place]] for place, own in enumerate(maps)]
    return PathRatios(
        layers=len(maps),
        heads=tuple(map(tuple, chosen.tolist())),
        texts=tuple(text.tolist()),
        curves={order: _curves(split, chosen, text, order) for order in ORDERS},
        plain={order: _plain(few, order) for order in ORDERS},
        windows=tuple(_windows(split, window, generator)),
        coefficients=_coefficients(maps, split, chosen, text),
    )


def _curves(split: Sequence[Factors], chosen: Tensor, text: Tensor, order: Order) -> dict[str, RatioCurves]:
    logs, floors = (
        {name: [list[float]() for _ in split] for name in (MEAN, RANK_ONE, ROWS)} for _ in range(2)
    )
    for start in range(0, len(text), CHUNK):
        part = slice(start, start + CHUNK)
        steps = [own.at(text[part], chosen[part, place]) for place, own in enumerate(split)]
        for depth, product in enumerate(products(steps, order=order)):
            ratios = {
                MEAN: consensus_ratio(product),
                RANK_ONE: rank_one_ratio(product),
                ROWS: row_distance(product),
            }
            for name, ratio in ratios.items():
                logs[name][depth] += ratio.log10.tolist()
                floors[name][depth] += ratio.floor.tolist()
    return {name: RatioCurves(log10=_tuples(logs[name]), floor=_tuples(floors[name])) for name in logs}


def row_distance(product: PathProduct) -> Ratio:
    """The largest row sum of what differs from the mean row; rows of the product itself sum to one."""
    log = (linf_norm(product.rest).log() + product.log_scale) / math.log(10)
    return Ratio(log10=log, floor=math.sqrt(product.rest.shape[-1]) * product.error * product.scale)


def _plain(few: Sequence[Tensor], order: Order) -> dict[str, tuple[tuple[float, ...], ...]]:
    found = plain_ratios(few, order=order)
    return {
        MEAN: _tuples([mean.tolist() for mean, _ in found]),
        RANK_ONE: _tuples([rank.tolist() for _, rank in found]),
    }


def _windows(split: Sequence[Factors], paths: int, generator: torch.Generator) -> list[LateCurves]:
    """Chains in the true order that start at layer 2, 3, ...: one entry per start."""
    texts, heads = split[0].mean.shape[:2]
    text = torch.arange(paths) % texts
    found = []
    for start in range(1, len(split)):
        own = split[start:]
        chosen = torch.randint(heads, (paths, len(own)), generator=generator)
        steps = [one.at(text, chosen[:, place]) for place, one in enumerate(own)]
        ratios = [consensus_ratio(product) for product in products(steps, order="true")]
        found.append(
            LateCurves(
                start=start + 1,
                log10=_tuples([one.log10.tolist() for one in ratios]),
                floor=_tuples([one.floor.tolist() for one in ratios]),
            )
        )
    return found


def _coefficients(
    maps: Sequence[Tensor], split: Sequence[Factors], chosen: Tensor, text: Tensor
) -> dict[str, tuple[tuple[float, ...], ...]]:
    """By layer and path, ``log10`` of three coefficients of the path's map.

    ``dobrushin`` bounds how the map shrinks distances between rows, ``spectral`` how it shrinks what differs from the
    mean row; ``typical`` is the root of the mean square of the latter over all directions, ``|E|_F / sqrt(n - 1)``.
    """
    found = {name: list[list[float]]() for name in COEFFICIENTS}
    for place, (own, parts) in enumerate(zip(maps, split, strict=True)):
        at = (text, chosen[:, place])
        size = torch.linalg.matrix_norm(parts.rest) / math.sqrt(own.shape[-1] - 1)
        tau = torch.stack([dobrushin_of(one) for one in own])  # a text at a time: n^3 numbers per map
        for name, values in zip(COEFFICIENTS, (tau, parts.gain, size), strict=True):
            found[name].append(values[at].log10().tolist())
    return {name: _tuples(rows) for name, rows in found.items()}


def _tuples(rows: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, rows))
