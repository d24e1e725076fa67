"""The measures a scan takes at every site, computed together: shared pieces once, text by text, in cache.

Every number equals the catalog's own definition. Where the quick formulas could lose digits (near consensus, zero
tokens, extreme scales, spectra too steep for a Gram matrix) the catalog itself is asked instead.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor, unit_roundoff
from rankscope.core.types import TokenMatrix
from rankscope.errors import ShapeError
from rankscope.measures.catalog import find_measure
from rankscope.measures.evaluate import evaluate
from rankscope.measures.norms import turned
from rankscope.measures.shares import share_floor
from rankscope.measures.spectra import SPECTRAL, Spectrum

PANEL = (
    "residual_ratio[frobenius,mean]",
    "residual_ratio[composite,mean]",
    "cosine[off_diagonal]",
    "token_share[largest]",
    "channel_share[largest]",
    "residual_ratio[frobenius,mean,unit]",
    "residual_ratio[composite,mean,unit]",
    "cosine[off_diagonal,unit]",
    "token_share[largest,unit]",
    "channel_share[largest,unit]",
)
"""Taken at every site, of the tokens and of the tokens scaled to length one."""

RANKS = ("effective_rank[entropy]", "effective_rank[entropy,centered]")
"""Taken once per block."""

NEAR_CONSENSUS = 1e-5
"""Below this ratio the mean must be subtracted twice to keep its digits: the catalog does."""

SAFE_SIZES = (1e-100, 1e100)
"""Squares of numbers in this range neither overflow nor vanish."""

GRAM_UNITS = 32.0
"""Rounding of an eigenvalue of a Gram matrix, in units of round-off of the squared Frobenius norm; ten times what
random signs give, a bound in practice."""

GRAM_TOLERANCE = 1e-8
"""A rank whose Gram matrix may have cost more than this share of it is taken by singular value decomposition."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, slots=True)
class Readings:
    """One row per text, one column per definition; NaN where a definition is 0/0 or a state not finite."""

    definitions: tuple[str, ...]
    values: Tensor
    floors: Tensor

    @property
    def resolved(self) -> Tensor:
        return self.values.abs() > self.floors


def read_panel(
    texts: Sequence[Tensor], *, layer: int, dtype: torch.dtype, sites: bool = True, ranks: bool = True
) -> Readings:
    """The panel of token matrices ``(tokens, dim)``, each of at least two tokens, that came out of ``dtype``."""
    for text in texts:
        if text.ndim != 2 or text.shape[0] < 2:
            raise ShapeError(
                f"the panel needs matrices (tokens, dim) of at least two tokens, got {tuple(text.shape)}"
            )
    relative = relative_floor(layer, dtype)
    definitions = (PANEL if sites else ()) + (RANKS if ranks else ())
    quick = _together(lambda x: _pieces(x, sites, ranks), texts)
    columns: list[tuple[Tensor, Tensor]] = []
    if sites:
        columns.append(_from_sums(torch.stack([pieces.sums for pieces in quick]), relative))
    if ranks:
        columns.append(_stacked([_from_spectra(pieces, relative) for pieces in quick]))
    values, floors = (torch.cat(parts, dim=-1) for parts in zip(*columns, strict=True))
    for place in (~torch.isfinite(values).all(dim=-1)).nonzero()[:, 0].tolist():
        lost = [k for k in range(len(definitions)) if not bool(torch.isfinite(values[place, k]))]
        for k in lost:
            found = evaluate(
                find_measure(definitions[k]), texts[place].contiguous(), layer=layer, dtype=dtype
            )
            values[place, k], floors[place, k] = found.value, found.floor
    return Readings(definitions=definitions, values=values.cpu(), floors=floors.cpu())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pieces:
    """What one text contributes: sums for the site measures, spectra for the ranks (None: ask the catalog)."""

    sums: Tensor
    spectra: tuple[Spectrum, ...]
    size: Tensor  # squared Frobenius norm


def _pieces(text: Tensor, sites: bool, ranks: bool) -> _Pieces:
    x = text.double().contiguous()
    squares = x.square()
    lengths2, energy = squares.sum(dim=1), squares.sum(dim=0)
    total = lengths2.sum()
    sums = _sums(x, squares, lengths2, energy) if sites else total
    return _Pieces(sums=sums, spectra=_gram_spectra(x, total) if ranks else (), size=total)


def _sums(x: Tensor, squares: Tensor, lengths2: Tensor, energy: Tensor) -> Tensor:
    """The numbers that every site measure is a simple function of."""
    tokens = x.shape[0]
    sizes = x.abs()
    row_sums, inverse = sizes.sum(dim=1), lengths2.rsqrt()
    mean, unit_mean = x.mean(dim=0), inverse @ x / tokens
    unit = x * inverse[:, None]
    return torch.stack(
        [
            torch.full_like(energy[0], tokens),
            lengths2.sum(),
            lengths2.max(),
            lengths2.min(),
            energy.max(),
            row_sums.max(),
            sizes.sum(dim=0).max(),
            *_residual_sums(x - mean),
            (inverse.square() @ squares).max(),
            (row_sums * inverse).max(),
            (inverse @ sizes).max(),
            *_residual_sums(unit.sub_(unit_mean)),
            unit_mean.square().sum(),
        ]
    )


def _residual_sums(residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of squares, largest row sum and largest column sum of sizes; the residual is overwritten."""
    flat = residual.view(-1)
    square = flat @ flat
    residual.abs_()
    return square, residual.sum(dim=1).max(), residual.sum(dim=0).max()


def _from_sums(sums: Tensor, relative: float) -> tuple[Tensor, Tensor]:
    """Values and floors of ``PANEL``, one row per text; NaN in every column where the catalog must be asked."""
    n, total, longest, shortest, channel, row, column, *rest = sums.unbind(dim=-1)
    left, left_row, left_column, unit_channel, unit_row, unit_column, *rest = rest
    unit_left, unit_left_row, unit_left_column, unit_mean = rest
    frobenius, unit_frobenius = (left / total).sqrt(), (unit_left / n).sqrt()
    cosine = (n.square() * unit_mean - n) / (n * (n - 1))
    values = torch.stack(
        [
            frobenius,
            (left_row * left_column / (row * column)).sqrt(),
            cosine,
            longest / total,
            channel / total,
            unit_frobenius,
            (unit_left_row * unit_left_column / (unit_row * unit_column)).sqrt(),
            cosine,
            1 / n,
            unit_channel / n,
        ],
        dim=-1,
    )
    ones = torch.ones_like(total)
    moved = turned(relative) * ones
    cosine_moved, unit_cosine_moved = ((2 * turned(size)).clamp(max=2.0) * ones for size in (relative, moved))
    floors = torch.stack(
        [
            relative * ones,
            relative * ones,
            cosine_moved,
            share_floor(values[..., 3], relative),
            share_floor(values[..., 4], relative),
            moved,
            moved,
            unit_cosine_moved,
            share_floor(values[..., 8], moved),
            share_floor(values[..., 9], moved),
        ],
        dim=-1,
    )
    low, high = SAFE_SIZES
    is_safe = (shortest > low) & (total < high) & (torch.minimum(frobenius, unit_frobenius) > NEAR_CONSENSUS)
    return torch.where(is_safe[:, None], values, torch.nan), floors


def _gram_spectra(x: TokenMatrix, total: Tensor) -> tuple[Spectrum, ...]:
    """Singular values of ``x`` and of centered ``x`` from the eigenvalues of the smaller Gram matrix."""
    tokens, dim = x.shape
    if tokens <= dim:
        gram = x @ x.T
        rows = gram.mean(dim=0)
        centered = gram - rows[:, None] - rows + rows.mean()
    else:
        gram, mean = x.T @ x, x.mean(dim=0)
        centered = gram - tokens * torch.outer(mean, mean)
    if not bool(torch.isfinite(total)):
        gram = centered = torch.zeros_like(gram)  # the catalog says NaN
    values = torch.linalg.eigvalsh(torch.stack([gram, centered])).clamp(min=0).sqrt().flip(-1)
    count = min(tokens - 1, dim)
    scale = torch.ones_like(total)
    return Spectrum(values=values[0], scale=scale), Spectrum(values=values[1, :count], scale=scale)


def _from_spectra(pieces: _Pieces, relative: float) -> tuple[Tensor, Tensor]:
    """Values and floors of ``RANKS`` of one text; NaN where the Gram matrix may have cost digits."""
    value, floor = SPECTRAL["effective_rank", "entropy"]
    delta = (relative * pieces.size.sqrt()).clamp(max=1e100)
    rounding = GRAM_UNITS * unit_roundoff(torch.float64) * pieces.size
    values, floors = [], []
    for spectrum in pieces.spectra:
        rank = value(spectrum)
        # |sigma' - sigma| <= min(sqrt(e), e / sigma) if the eigenvalue moves by e; the shares move by their sum
        moved = torch.minimum(rounding.sqrt(), rounding / spectrum.values).norm()
        lost = floor(spectrum, moved)
        values.append(torch.where(lost <= GRAM_TOLERANCE * rank, rank, torch.nan))
        floors.append(floor(spectrum, delta))
    return torch.stack(values), torch.stack(floors)


def _stacked(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([value for value, _ in pairs]), torch.stack([floor for _, floor in pairs])


@cache
def _workers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))


def _together(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """``function`` of every item, on as many threads as torch may use, each item on one of them."""
    threads = min(torch.get_num_threads(), len(items))
    if threads == 1:
        return [function(item) for item in items]
    return list(_workers(threads).map(function, items))
