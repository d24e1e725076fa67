"""The measures a scan takes at every site, computed together: shared pieces once, for all texts of a length.

Every number equals the catalog's own definition: to 1e-12 where states are float64, and to a fraction of its floor
where they are float32 or coarser. Where the quick formulas could lose digits (near consensus, zero tokens, extreme
scales, spectra too steep for a Gram matrix) float64 and then the catalog itself are asked instead.

*Sums in float32.* The entries of such a state are float32 numbers, and its floor is 32 units of float32 round-off or
more. Products, sizes and differences of entries are rounded to float32 once each, and sums of them run in float32
over one token, or over ``BLOCK`` tokens of one channel; what they yield is added up in float64. So a sum is off by
some units at most, also behind a massive token: never is a small number added to a running sum of more than
``BLOCK`` others, where it would be lost. A mean token is off by as much, which counts relative to the state, like
the floor. Below a ratio of ``NEAR_FLOAT32``, where that would cost more than two digits of the residual, the sums
are taken again in float64.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

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
    is_open,
    massive_count,
    massive_share,
    others,
)
from rankscope.measures.norms import turned
from rankscope.measures.rank_integrals import Sums, rank_sums
from rankscope.measures.residual_floors import product_change, ratio_change
from rankscope.measures.shares import share_floor
from rankscope.measures.spectra import entropy_rank_change, entropy_rank_floor

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

NEAR_FLOAT32 = 1e-2
"""Below this ratio sums are taken in float64, whatever the states are."""

BLOCK = 16
"""Tokens whose entries are added up in the precision of the state; float64 takes over after them."""

CHANNEL_MARGINS = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Channels that are massive when they move by this, of tokens of length one, are left to the catalog."""

SAFE_SIZES = {torch.float64: (1e-100, 1e100), torch.float32: (1e-24, 1e30)}
"""Squares of numbers in this range neither overflow nor vanish."""

GRAM_TOLERANCE = 1e-8
"""A rank whose Gram matrix may have cost more than this share of it is taken by singular value decomposition."""

GRAM_SHARE = 0.1
"""Of a float32 state the Gram matrix may also cost this share of the floor: a singular value of zero costs it about
1e-7 of the rank, and the floor is some 1e-4 of it."""

PAPER_BYTES = 2**20
"""States and scratch paper of texts that are measured together: so little that both stay in the processor's cache."""

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
    of_sites = len(definitions) - (len(RANKS) if ranks else 0)
    for places in _alike(texts):
        those = [texts[place] for place in places]
        values[places, :of_sites], floors[places, :of_sites] = _site_readings(
            those, sites, massive, relative, dtype
        )
        if ranks:
            values[places, of_sites:], floors[places, of_sites:] = _ranks(those, relative, dtype)
    for place in (~torch.isfinite(values).all(dim=-1)).nonzero()[:, 0].tolist():
        lost = [k for k in range(len(definitions)) if not bool(torch.isfinite(values[place, k]))]
        found = evaluate_many(
            [find_measure(definitions[k]) for k in lost], texts[place], layer=layer, dtype=dtype
        )
        for k, one in zip(lost, found, strict=True):
            values[place, k], floors[place, k] = one.value, one.floor
    return Readings(definitions=definitions, values=values, floors=floors)


def _alike(texts: Sequence[Tensor]) -> Iterator[list[int]]:
    """Places of texts of one shape, dtype and device."""
    kinds = [(text.shape, text.dtype, text.device) for text in texts]
    for kind in dict.fromkeys(kinds):
        yield [place for place, own in enumerate(kinds) if own == kind]


def _site_readings(
    texts: Sequence[Tensor], sites: bool, massive: bool, relative: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Values and floors of ``PANEL`` and ``MASSIVE``, as far as asked for; NaN where the catalog must be asked."""
    kind = _kind_of(texts[0], dtype)
    values, floors = _readings(texts, sites, massive, relative, dtype, kind)
    if kind != torch.float64 and (sites or massive):
        again = (~torch.isfinite(values[:, 0])).nonzero()[:, 0].tolist()
        if again:
            values[again], floors[again] = _readings(
                [texts[place] for place in again], sites, massive, relative, dtype, torch.float64
            )
    return values, floors


def _kind_of(text: Tensor, dtype: torch.dtype) -> torch.dtype:
    """What the sums of a text run in: float32 if its entries are such numbers and come out of nothing finer."""
    is_coarse = torch.finfo(text.dtype).bits <= 32 and unit_roundoff(dtype) >= unit_roundoff(torch.float32)
    # products of float32 numbers may run in bfloat16 if torch is told so
    is_plain = torch.get_float32_matmul_precision() == "highest"
    return torch.float32 if is_coarse and is_plain else torch.float64


def _readings(
    texts: Sequence[Tensor],
    sites: bool,
    massive: bool,
    relative: float,
    dtype: torch.dtype,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The readings of texts of one shape from sums that run in ``kind``; NaN where better sums must be taken."""
    sums = _sums(texts, kind)
    panel = _from_sums(sums.numbers, relative, texts[0].shape[-1], kind)
    columns = [panel] if sites else []
    columns += [_from_lengths(texts, sums, panel, relative, kind)] if massive else []
    none = torch.empty(len(texts), 0, dtype=torch.float64)
    values, floors = (torch.cat([none, *parts], dim=-1) for parts in zip((none, none), *columns, strict=True))
    is_normal = _is_normal(sums.numbers, texts[0].shape[-1], dtype)
    return torch.where(is_normal[:, None], values, torch.nan), floors


class _Sums(NamedTuple):
    """Of every text: the numbers ``SUMS``, the squared lengths of its tokens, those of the channels of unit tokens."""

    numbers: Tensor
    lengths: Tensor
    channels: Tensor


def _sums(texts: Sequence[Tensor], kind: torch.dtype) -> _Sums:
    """The sums of texts of one shape, in float64."""
    tokens = texts[0].shape[0]
    most = max(1, PAPER_BYTES // (2 * kind.itemsize * texts[0].numel()))
    parts = [_lines(texts[start : start + most], kind) for start in range(0, len(texts), most)]
    rows, columns = (torch.cat(part) for part in zip(*parts, strict=True))
    lengths, sizes, left, left_sizes, unit_left, unit_left_sizes = rows.unbind(dim=1)
    channels, channel, column, unit_column, left_column, unit_left_column, mean = columns.unbind(dim=1)
    one = torch.ones_like(lengths[:, 0])
    found = [one, one * tokens, lengths.sum(dim=-1), lengths.amax(dim=-1), lengths.amin(dim=-1)]
    found += [line.amax(dim=-1) for line in (channel, sizes, column)]
    found += [left.square().sum(dim=-1), left_sizes.amax(dim=-1), left_column.amax(dim=-1)]
    found += [line.amax(dim=-1) for line in (channels, sizes * lengths.rsqrt(), unit_column)]
    found += [unit_left.square().sum(dim=-1), unit_left_sizes.amax(dim=-1), unit_left_column.amax(dim=-1)]
    return _Sums(torch.stack([*found, mean.square().sum(dim=-1)], dim=-1).cpu(), lengths, channels)


def _lines(texts: Sequence[Tensor], kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Six numbers of every token, ``(texts, 6, tokens)``, and seven of every channel; see ``_sums``."""
    tokens, dim = texts[0].shape
    x = _side_by_side(texts, kind)
    blocks, work = (-1, BLOCK, dim), _paper("work", x.shape, kind, x.device)
    squares = torch.mul(x, x, out=work)
    lengths = squares.sum(dim=-1)[:, :tokens]
    inverse = lengths.double().rsqrt()
    weights = _paper(
        "weights", (*x.shape[:2], 3), kind, x.device
    )  # of squares the first two, else the last two
    weights.zero_()
    weights[:, :tokens, 0], weights[:, :tokens, 1], weights[:, :tokens, 2] = inverse.square(), 1.0, inverse
    by = weights.view(-1, BLOCK, 3).mT
    found = [torch.bmm(by[:, :2], squares.view(blocks))]
    sizes = torch.abs(x, out=work)
    rows = [lengths, sizes.sum(dim=-1)[:, :tokens]]
    found += [torch.bmm(by[:, 1:], sizes.view(blocks))]
    of_means = _added([torch.bmm(by[:, 1:], x.view(blocks))], len(texts)) / tokens
    mean, unit_mean = of_means.to(kind).unsqueeze(2).unbind(dim=1)
    rows += _of_rows(_residual(torch.sub(x, mean, out=work), tokens), tokens)
    found += [work.view(blocks).sum(dim=1, keepdim=True)]
    rows += _of_rows(_residual(torch.addcmul(-unit_mean, x, weights[..., 2:], out=work), tokens), tokens)
    found += [work.view(blocks).sum(dim=1, keepdim=True)]
    # sum_i (x_id / |x_i|)^2 stands first: the squared channels of the unit tokens
    columns = torch.cat([_added(found, len(texts)), of_means[:, 1:]], dim=1)
    return torch.stack(rows, dim=1).double(), columns


def _side_by_side(texts: Sequence[Tensor], kind: torch.dtype) -> Tensor:
    """Texts of one shape with whole blocks of tokens, zero where there is none: as it is a text that is all of it."""
    tokens, dim = texts[0].shape
    whole = -(-tokens // BLOCK) * BLOCK
    if len(texts) == 1 and whole == tokens and texts[0].dtype == kind and texts[0].is_contiguous():
        return texts[0][None]
    x = _paper("state", (len(texts), whole, dim), kind, texts[0].device)
    x[:, tokens:].zero_()
    for row, text in zip(x, texts, strict=True):
        row[:tokens].copy_(text)
    return x


def _residual(work: Tensor, tokens: int) -> Tensor:
    """Sizes of entries, zero where there is no token."""
    if work.shape[1] > tokens:
        work[:, tokens:].zero_()
    return work.abs_()


def _added(blocks: Sequence[Tensor], texts: int) -> Tensor:
    """The sums of all blocks of a text, in float64; ``(texts, lines, dim)``."""
    lines = torch.cat(list(blocks), dim=1)
    return lines.view(texts, -1, *lines.shape[1:]).sum(dim=1, dtype=torch.float64)


def _of_rows(sizes: Tensor, tokens: int) -> list[Tensor]:
    """Lengths and sums of the first tokens."""
    return [torch.linalg.vector_norm(sizes, dim=-1)[:, :tokens], sizes.sum(dim=-1)[:, :tokens]]


def _is_normal(sums: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Whether numbers are so far above the smallest normal one that no floor has to allow for subnormal ones."""
    row, column, shortest = (sums[:, SUMS.index(name)] for name in ("row", "column", "shortest"))
    tokens = sums[:, SUMS.index("tokens")]
    smallest = torch.finfo(dtype).smallest_normal
    # A matrix with the shortest token everywhere has no larger Frobenius norm than this one.
    return (smallest * (dim / shortest).sqrt() < COARSE) & (
        smallest * (tokens * dim).sqrt() < COARSE * row.sqrt() * column.sqrt()
    )


def _from_sums(sums: Tensor, relative: float, dim: int, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values and floors of ``PANEL``, one row per text; NaN in every column where better sums must be taken."""
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
    low, high = SAFE_SIZES[kind]
    least = NEAR_CONSENSUS if kind == torch.float64 else NEAR_FLOAT32
    ratios = values[:, _IS_ROOT].amin(dim=-1)
    shortest, total = (sums[:, SUMS.index(name)] for name in ("shortest", "total"))
    is_safe = (shortest > low) & (total < high) & (ratios > least)
    return torch.where(is_safe[:, None], values, torch.nan), floors


def _from_lengths(
    texts: Sequence[Tensor],
    sums: _Sums,
    panel: tuple[Tensor, Tensor],
    relative: float,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Values and floors of ``MASSIVE``, one row per text; NaN where the catalog must be asked.

    Without massive tokens the others are all tokens, whose ratio the panel holds already.
    """
    of_unit = panel[0][:, PANEL.index("residual_ratio[frobenius,mean,unit]")]
    count, share, may_differ, is_unknown, ratio = _of_massive_tokens(texts, sums.lengths, of_unit, relative)
    unit = torch.full_like(share, float(turned(relative)))
    shares = torch.where(may_differ > 0, 1.0, share_floor(share, torch.full_like(share, relative)))
    # with a channel that is massive, or nearly, the catalog is asked
    is_plain, open_channels = _of_massive_channels(
        (sums.channels / len(texts[0])).sqrt(), CHANNEL_MARGINS[kind], float(turned(relative))
    )
    none = torch.where(is_plain, 0.0, torch.nan)
    channel_shares = torch.where(open_channels > 0, 1.0, share_floor(torch.zeros_like(unit), unit))
    values = torch.stack([count, share, ratio, none, none, of_unit + none], dim=-1)
    of_others = torch.where(is_unknown, 1.0, unit)
    floors = torch.stack([may_differ, shares, of_others, open_channels, channel_shares, unit], dim=-1)
    is_safe = torch.isfinite(panel[0][:, 0]) & (ratio > NEAR_CONSENSUS)
    return torch.where(is_safe[:, None], values, torch.nan), floors


def _of_massive_tokens(
    texts: Sequence[Tensor], squares: Tensor, of_unit: Tensor, relative: float
) -> tuple[Tensor, ...]:
    """How many massive tokens, their share, by how many the count may be off, whether it is open which they are, and
    the residual ratio of the others."""
    lengths, size = squares.sqrt(), squares.sum(dim=-1).sqrt()
    none = torch.zeros(len(texts), dtype=torch.float64)
    count, share, by_how_many, who, ratio = none, none, none, none.bool(), of_unit
    # If none is massive though lengths may be off by three times as much, nothing is open: ``is_open`` lets the
    # quotient of both sides be off by 2 relative / (1 - relative), and no side is above the square root of the tokens
    # times size.
    near = (massive_count(lengths, 3 * relative * size) > 0).cpu().nonzero()[:, 0]
    if len(near):
        count, share, by_how_many, who, ratio = (
            part.clone() for part in (count, share, by_how_many, who, ratio)
        )
        some, moved = lengths[near.to(lengths.device)], relative * size[near.to(lengths.device)]
        counts = massive_count(some)
        count[near], share[near] = counts.cpu(), massive_share(some, counts).cpu()
        by_how_many[near] = count_floor(some, moved).cpu()
        who[near] = is_open(some, torch.full_like(counts, relative)).cpu()
    for row in (count > 0).nonzero()[:, 0].tolist():
        kept = others(lengths[row], int(count[row]))
        residual = texts[row][kept].double() / lengths[row, kept, None]
        residual -= residual.mean(dim=0)
        # k unit tokens have a Frobenius norm of sqrt(k)
        ratio[row] = residual.norm() / len(kept) ** 0.5
    return count, share, by_how_many, who, ratio


def _of_massive_channels(lengths: Tensor, margin: float, moved: float) -> tuple[Tensor, Tensor]:
    """Whether no channel is massive or nearly, and by how many their number may be off."""
    is_plain, by_how_many = torch.ones(len(lengths), dtype=torch.bool), torch.zeros(len(lengths)).double()
    near = channel_count(lengths, torch.full_like(lengths[:, 0], max(margin, moved))) > 0
    if bool(near.any()):
        some = lengths[near]
        is_plain[near.cpu()] = (channel_count(some, torch.full_like(some[:, 0], margin)) == 0).cpu()
        by_how_many[near.cpu()] = channel_count_floor(some, torch.full_like(some[:, 0], moved)).cpu()
    return is_plain, by_how_many


@cache
def _moved(relative: float) -> tuple[Tensor, Tensor]:
    """Per definition of ``PANEL``: the rounding of the tokens it reads, and its floor where that is a constant."""
    unit = float(turned(relative))
    moved = torch.tensor([unit if "unit" in name else relative for name in PANEL], dtype=torch.float64)
    return moved, torch.where(_IS_COSINE, (2 * turned(moved)).clamp(max=2.0), moved)


def _ranks(texts: Sequence[Tensor], relative: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values and floors of ``RANKS``, one row per text; NaN where the Gram matrix may have cost digits."""
    share = 0.0 if _kind_of(texts[0], dtype) == torch.float64 else GRAM_SHARE
    each = [_rank(one, relative, share) for one in rank_sums(texts)]
    values, floors = (torch.stack(parts, dim=-1) for parts in zip(*each, strict=True))
    return values, floors


def _rank(sums: Sums, relative: float, share: float) -> tuple[Tensor, Tensor]:
    """One rank and its floor; of the floor the Gram matrix may have cost a share."""
    value = (sums.total.log() - sums.logs / sums.total).exp().clamp(1.0, sums.terms)
    moved = (sums.lost / sums.total).nan_to_num(nan=1.0)
    lost = torch.maximum(moved, entropy_rank_change(value, moved, sums.terms) / value)
    delta = torch.full_like(value, relative).clamp(max=1e100)
    floor = entropy_rank_floor(value, sums.total, sums.length, sums.terms, delta)
    allowed = (share * floor / value).clamp(min=GRAM_TOLERANCE)
    return torch.where(lost <= allowed, value, torch.nan), floor


_sheets = threading.local()


def _paper(use: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that is kept per thread: fresh memory would cost more than the sums."""
    kept: dict[str, Tensor] = _sheets.__dict__
    if use not in kept or (kept[use].shape, kept[use].dtype, kept[use].device) != (shape, dtype, device):
        kept[use] = torch.empty(shape, dtype=dtype, device=device)
    return kept[use]
