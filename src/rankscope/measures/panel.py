"""The measures a scan takes at every site, computed together: shared pieces once, for all texts of a length.

Every number equals the catalog's own definition. Where the quick formulas could lose digits (near consensus, zero
tokens, extreme scales, spectra too steep for a Gram matrix) the catalog itself is asked instead.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor, unit_roundoff
from rankscope.errors import ShapeError
from rankscope.measures.catalog import find_measure
from rankscope.measures.evaluate import COARSE, evaluate_many
from rankscope.measures.massive import (
    MASSIVE,
    channel_count,
    channel_count_floor,
    count_floor,
    massive_count,
    massive_share,
    others,
)
from rankscope.measures.massive import is_open as who_is_open
from rankscope.measures.norms import turned
from rankscope.measures.residual_floors import product_change, ratio_change
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

CHANNEL_MARGIN = 1e-9
"""Channels that are massive when they move by this, of tokens of length one, are left to the catalog."""

SAFE_SIZES = (1e-100, 1e100)
"""Squares of numbers in this range neither overflow nor vanish."""

GRAM_UNITS = 32.0
"""Rounding of an eigenvalue of a Gram matrix, in units of round-off of the squared Frobenius norm; ten times what
random signs give, a bound in practice."""

GRAM_TOLERANCE = 1e-8
"""A rank whose Gram matrix may have cost more than this share of it is taken by singular value decomposition."""

PAPER_ENTRIES = 2**20
"""Entries of a sheet of scratch paper: eight megabytes."""

SUMS = (
    *("one", "tokens", "total", "longest", "shortest", "channel", "row", "column"),
    *("left", "left_row", "left_column", "unit_channel", "unit_row", "unit_column"),
    *("unit_left", "unit_left_row", "unit_left_column", "unit_mean"),
)
"""What one pass over a matrix yields; every site measure is a simple function of these.

Squared lengths: in total, of the longest and the shortest token, of the largest channel. Largest row and column sum of
sizes. The same of the residual (``left``) and of unit tokens; the squared length of their mean."""

_QUOTIENTS: tuple[tuple[str, str, str, str], ...] = (
    ("left", "one", "total", "one"),
    ("left_row", "left_column", "row", "column"),
    ("one", "one", "one", "one"),  # the place of the cosine
    ("longest", "one", "total", "one"),
    ("channel", "one", "total", "one"),
    ("unit_left", "one", "tokens", "one"),
    ("unit_left_row", "unit_left_column", "unit_row", "unit_column"),
    ("one", "one", "one", "one"),
    ("one", "one", "tokens", "one"),
    ("unit_channel", "one", "tokens", "one"),
)
"""Per definition of ``PANEL``: two factors above the line, two below; of residuals the square root is taken."""

_PLACES = torch.tensor([[SUMS.index(name) for name in row] for row in _QUOTIENTS]).T
_IS_ROOT = torch.tensor([name.startswith("residual") for name in PANEL])
_IS_SHARE = torch.tensor(["share" in name for name in PANEL])
_IS_COSINE = torch.tensor([name.startswith("cosine") for name in PANEL])


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
    texts: Sequence[Tensor],
    *,
    layer: int,
    dtype: torch.dtype,
    sites: bool = True,
    massive: bool = True,
    ranks: bool = True,
) -> Readings:
    """The panel of token matrices ``(tokens, dim)``, each of at least two tokens, that came out of ``dtype``.

    ``PANEL`` if ``sites``, then ``MASSIVE`` if asked for, then ``RANKS``.
    """
    for text in texts:
        if text.ndim != 2 or text.shape[0] < 2:
            raise ShapeError(
                f"the panel needs matrices (tokens, dim) of at least two tokens, got {tuple(text.shape)}"
            )
    relative = relative_floor(layer, dtype)
    definitions = (PANEL if sites else ()) + (MASSIVE if massive else ()) + (RANKS if ranks else ())
    values, floors = (torch.empty(len(texts), len(definitions), dtype=torch.float64) for _ in range(2))
    for places in _alike(texts):
        x, work = _workspace(len(places), texts[places[0]])
        for row, place in enumerate(places):
            x[row].copy_(texts[place])
        sums, squares, channels = _sums(x, work)
        panel = _from_sums(sums, relative, x.shape[-1])
        columns = [panel] if sites else []
        columns += [_from_lengths(x, squares, channels, panel, relative)] if massive else []
        columns += [_from_spectra(_gram_spectra(x), sums, relative)] if ranks else []
        values[places], floors[places] = (torch.cat(parts, dim=-1) for parts in zip(*columns, strict=True))
        values[places] = torch.where(_is_normal(sums, x.shape[-1], dtype)[:, None], values[places], torch.nan)
    for place in (~torch.isfinite(values).all(dim=-1)).nonzero()[:, 0].tolist():
        lost = [k for k in range(len(definitions)) if not bool(torch.isfinite(values[place, k]))]
        found = evaluate_many(
            [find_measure(definitions[k]) for k in lost], texts[place], layer=layer, dtype=dtype
        )
        for k, one in zip(lost, found, strict=True):
            values[place, k], floors[place, k] = one.value, one.floor
    return Readings(definitions=definitions, values=values, floors=floors)


def _alike(texts: Sequence[Tensor]) -> Iterator[list[int]]:
    """Places of texts of one shape, so many at a time that their scratch paper stays in the processor's cache."""
    shapes = [text.shape for text in texts]
    for shape in dict.fromkeys(shapes):
        places = [place for place, own in enumerate(shapes) if own == shape]
        most = max(1, PAPER_ENTRIES // shape.numel())
        yield from (places[start : start + most] for start in range(0, len(places), most))


def _sums(x: Tensor, work: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers ``SUMS`` of every matrix, with ``work`` as scratch paper.

    Then the squared lengths of its tokens, and those of the channels of its unit tokens.
    """
    tokens = x.shape[-2]
    squares = torch.mul(x, x, out=work)
    lengths = squares.sum(dim=-1)
    inverse = lengths.rsqrt()
    one = torch.ones_like(lengths[:, 0])
    found = [one, one * tokens, lengths.sum(dim=-1), lengths.amax(dim=-1), lengths.amin(dim=-1)]
    found += [squares.sum(dim=-2).amax(dim=-1)]
    # sum_i (x_id / |x_i|)^2: the squared channels of the unit tokens
    channels = _weighted(inverse.square(), squares)
    sizes = torch.abs(x, out=work)
    rows = sizes.sum(dim=-1)
    found += [rows.amax(dim=-1), sizes.sum(dim=-2).amax(dim=-1)]
    unit_column = _weighted(inverse, sizes).amax(dim=-1)
    found += _residual_sums(torch.sub(x, x.mean(dim=-2, keepdim=True), out=work))
    found += [channels.amax(dim=-1), (rows * inverse).amax(dim=-1), unit_column]
    mean = _weighted(inverse, x) / tokens
    found += _residual_sums(torch.addcmul(-mean[:, None], x, inverse[..., None], out=work))
    return torch.stack([*found, mean.square().sum(dim=-1)], dim=-1).cpu(), lengths, channels


def _weighted(weights: Tensor, x: Tensor) -> Tensor:
    """Sums over tokens with one weight per token."""
    return torch.bmm(weights[:, None], x)[:, 0]


def _residual_sums(residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of squares, largest row sum and largest column sum of sizes; the residual is overwritten."""
    square = torch.linalg.vector_norm(residual.flatten(1), dim=-1).square()
    residual.abs_()
    return square, residual.sum(dim=-1).amax(dim=-1), residual.sum(dim=-2).amax(dim=-1)


def _is_normal(sums: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Whether numbers are so far above the smallest normal one that no floor has to allow for subnormal ones."""
    row, column, shortest = (sums[:, SUMS.index(name)] for name in ("row", "column", "shortest"))
    tokens = sums[:, SUMS.index("tokens")]
    smallest = torch.finfo(dtype).smallest_normal
    # A matrix with the shortest token everywhere has no larger Frobenius norm than this one.
    return (smallest * (dim / shortest).sqrt() < COARSE) & (
        smallest * (tokens * dim).sqrt() < COARSE * row.sqrt() * column.sqrt()
    )


def _from_sums(sums: Tensor, relative: float, dim: int) -> tuple[Tensor, Tensor]:
    """Values and floors of ``PANEL``, one row per text; NaN in every column where the catalog must be asked."""
    above, times, below, and_below = (sums[:, places] for places in _PLACES)
    quotients = above * times / (below * and_below)
    n, mean = (sums[:, SUMS.index(name), None] for name in ("tokens", "unit_mean"))
    # Of unit tokens u_i: |sum u_i|^2 = n + sum_{i != j} u_i . u_j, and the left side is n^2 times the squared length of
    # their mean. The mean over the n (n - 1) ordered pairs follows.
    cosine = (n.square() * mean - n) / (n * (n - 1))
    values = torch.where(_IS_COSINE, cosine, torch.where(_IS_ROOT, quotients.sqrt(), quotients))
    moved, fixed = _moved(relative)
    floors = torch.where(_IS_SHARE, share_floor(values, moved.expand_as(values)), fixed)
    for name in ("", "unit_"):
        place = PANEL.index(f"residual_ratio[composite,mean{',unit' if name else ''}]")
        f, g, all_f, all_g = (
            sums[:, SUMS.index(f"{name}{one}")] for one in ("left_column", "left_row", "column", "row")
        )
        # Both factors over those of the state: tokens and channels count for as much as one factor is the other.
        wide = all_f / all_g
        delta = product_change(f / all_f, g / all_g, moved[place], moved[place], n[:, 0] / wide, dim * wide)
        floors[:, place] = ratio_change(delta, values[:, place], moved[place])
    low, high = SAFE_SIZES
    ratios = values[:, _IS_ROOT].amin(dim=-1)
    shortest, total = (sums[:, SUMS.index(name)] for name in ("shortest", "total"))
    is_safe = (shortest > low) & (total < high) & (ratios > NEAR_CONSENSUS)
    return torch.where(is_safe[:, None], values, torch.nan), floors


def _from_lengths(
    x: Tensor, squares: Tensor, channels: Tensor, panel: tuple[Tensor, Tensor], relative: float
) -> tuple[Tensor, Tensor]:
    """Values and floors of ``MASSIVE``, one row per text; NaN where the catalog must be asked.

    Without massive tokens the others are all tokens, whose ratio the panel holds already.
    """
    lengths = squares.sqrt()
    count = massive_count(lengths)
    share = massive_share(lengths, count).cpu()
    ratio = panel[0][:, PANEL.index("residual_ratio[frobenius,mean,unit]")].clone()
    for row in (count > 0).nonzero()[:, 0].tolist():
        kept = others(lengths[row], int(count[row]))
        residual = x[row, kept] / lengths[row, kept, None]
        residual -= residual.mean(dim=0)
        # k unit tokens have a Frobenius norm of sqrt(k)
        ratio[row] = residual.norm() / len(kept) ** 0.5
    is_open = count_floor(lengths, relative * squares.sum(dim=-1).sqrt())
    moved = torch.full_like(share, relative)
    shares = torch.where(is_open.cpu() > 0, 1.0, share_floor(share, moved))
    everything = panel[0][:, PANEL.index("residual_ratio[frobenius,mean,unit]")]
    unit = torch.full_like(share, float(turned(relative)))
    of_channels = (channels / x.shape[-2]).sqrt()
    # with a channel that is massive, or nearly, the catalog is asked
    is_plain = (channel_count(of_channels, torch.full_like(count, CHANNEL_MARGIN)) == 0).cpu()
    none = torch.where(is_plain, 0.0, torch.nan)
    open_channels = channel_count_floor(of_channels, unit.to(x.device)).cpu()
    channel_shares = torch.where(open_channels > 0, 1.0, share_floor(torch.zeros_like(unit), unit))
    values = torch.stack([count.cpu(), share, ratio, none, none, everything + none], dim=-1)
    of_others = torch.where(who_is_open(lengths, torch.full_like(count, relative)).cpu(), 1.0, unit)
    floors = torch.stack([is_open.cpu(), shares, of_others, open_channels, channel_shares, unit], dim=-1)
    is_safe = torch.isfinite(panel[0][:, 0]) & (ratio > NEAR_CONSENSUS)
    return torch.where(is_safe[:, None], values, torch.nan), floors


@cache
def _moved(relative: float) -> tuple[Tensor, Tensor]:
    """Per definition of ``PANEL``: the rounding of the tokens it reads, and its floor where that is a constant."""
    unit = float(turned(relative))
    moved = torch.tensor([unit if "unit" in name else relative for name in PANEL], dtype=torch.float64)
    return moved, torch.where(_IS_COSINE, (2 * turned(moved)).clamp(max=2.0), moved)


def _gram_spectra(x: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values of ``x`` and of centered ``x`` from the eigenvalues of the smaller Gram matrix.

    Centered tokens are ``J x`` with ``J = 1 - e e^T / n`` (e all ones), a projection. So their Gram matrices follow
    from those of ``x``: ``J (x x^T) J`` subtracts row means and column means and adds the mean of all entries, and
    ``x^T J x = x^T x - n m m^T`` with the mean token m. J has rank n - 1, hence at most that many singular values.
    """
    tokens, dim = x.shape[-2:]
    if tokens <= dim:
        gram = x @ x.mT
        rows = gram.mean(dim=-1)
        centered = gram - rows[:, :, None] - rows[:, None] + rows.mean(dim=-1)[:, None, None]
    else:
        gram, mean = x.mT @ x, x.mean(dim=-2)
        centered = gram - tokens * mean[:, :, None] * mean[:, None]
    both = torch.cat([gram, centered])
    both = torch.where(torch.isfinite(both), both, 0.0)  # the catalog says NaN
    values = torch.linalg.eigvalsh(both).clamp(min=0).sqrt().flip(-1).cpu()
    return values[: len(x)], values[len(x) :, : min(tokens - 1, dim)]


def _from_spectra(spectra: Sequence[Tensor], sums: Tensor, relative: float) -> tuple[Tensor, Tensor]:
    """Values and floors of ``RANKS``, one row per text; NaN where the Gram matrix may have cost digits."""
    size = sums[:, SUMS.index("total")]
    each = [_ranks(one, size, relative) for one in spectra]
    values, floors = (torch.stack(parts, dim=-1) for parts in zip(*each, strict=True))
    return torch.where(torch.isfinite(size)[:, None], values, torch.nan), floors


def _ranks(spectra: Tensor, size: Tensor, relative: float) -> tuple[Tensor, Tensor]:
    value, floor = SPECTRAL["effective_rank", "entropy"]
    spectrum = Spectrum(values=spectra, scale=torch.ones_like(size))
    rank = value(spectrum)
    rounding = GRAM_UNITS * unit_roundoff(torch.float64) * size[:, None]
    # |sigma' - sigma| <= min(sqrt(e), e / sigma) if the eigenvalue sigma^2 moves by e, since
    # |sigma' - sigma| (sigma' + sigma) <= e, and sigma' + sigma is at least sigma, and at least |sigma' - sigma|.
    # The shares move by the sum of these.
    lost = floor(spectrum, torch.minimum(rounding.sqrt(), rounding / spectra).norm(dim=-1))
    own = floor(spectrum, (relative * size.sqrt()).clamp(max=1e100))
    return torch.where(lost <= GRAM_TOLERANCE * rank, rank, torch.nan), own


_paper = threading.local()


def _workspace(count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Two stacks of float64 matrices, kept per thread: fresh memory would cost more than the sums."""
    shape = (count, *like.shape)
    key = (shape, like.device)
    if getattr(_paper, "key", None) != key:
        _paper.key = key
        _paper.pair = tuple(torch.empty(shape, dtype=torch.float64, device=like.device) for _ in range(2))
    first, second = _paper.pair
    return first, second
