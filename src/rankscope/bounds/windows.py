"""Contraction of several attention blocks in a row, where no single one of them contracts.

Under a mask two tokens may share no key, so one map need not bring them closer; the product of as many maps as the
radius of the mask graph does (Wu et al. 2024, arXiv:2405.18781). Blocks act on the residual as
``R -> sum_k P_k R W_k``, a skip being the identity map with its scale. Over a window of blocks this is a sum over
paths, one term of each block, and every token diameter grows by at most ``sum_path tau(P_path) |W_path|``, with
``tau`` the Dobrushin coefficient.

Axes: ``sizes`` are the row norms asked for, ``terms`` the heads of a block and its skip.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.bounds.contraction import dobrushin_bound, real_rows
from rankscope.bounds.logs import raised
from rankscope.core.numerics import unit_roundoff
from rankscope.core.operator_norms import MARGIN
from rankscope.errors import ShapeError
from rankscope.masks import Full, MaskRule

LONGEST = 16
"""Blocks in a window, unless asked for less; the window that begins where the stretch does has all of them."""

MOST_PATHS = 256
"""Paths of a window that are followed one by one at most; fewer where maps are large."""

_PATH_WORK = 2**27  # multiplications for one more block on all paths of a window: a tenth of a second
_PATH_ENTRIES = 2**22  # 32 MB of path maps per window
_KNOWN = 0.5  # a map with a larger radius counts as unknown
_TINY = 1e-290  # more than all products that underflow can add up to


def longest_window(rules: Sequence[MaskRule], tokens: int) -> int:
    """Blocks that a window should have under these masks: the radius of their graphs, from 4 to ``LONGEST``.

    1 where single maps say it all: if every query reads every key, or if some graph has no center. A causal mask has
    radius 1, but the products of a few of its maps contract much faster than each of them.

    >>> from rankscope.masks import parse_mask
    >>> [longest_window([parse_mask(mask)], 25) for mask in ("full", "causal", "window:2", "window:1", "blocks:2")]
    [1, 4, 6, 12, 1]
    """
    if all(rule == Full() for rule in rules):
        return 1
    radii = [rule.graph(tokens).radius() for rule in rules]
    known = [radius for radius in radii if radius is not None]
    return min(LONGEST, max(4, *known)) if len(known) == len(radii) else 1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MixingBlock:
    """A block as far as windows are concerned: ``R -> sum_k P_k R W_k``.

    Args:
        maps: ``*batch terms tokens tokens``, non-negative, as computed.
        radius: ``*batch terms tokens``: the exact maps sum to one in every row and are within ``radius`` of the
            computed ones, relative to each entry; 1 or more says nothing. Zero for a skip.
        norms: ``sizes *batch terms``: ``|W_k|`` in the row norm of each size, at most.
        rows: ``*batch tokens``, False on padding, which no real token reads; None if there is none.
    """

    maps: Tensor
    radius: Tensor
    norms: Tensor
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        batch, (terms, tokens, keys) = self.maps.shape[:-3], self.maps.shape[-3:]
        if self.maps.ndim < 3 or tokens != keys:
            raise ShapeError(
                f"expected maps (*batch, terms, tokens, tokens), got shape {tuple(self.maps.shape)}"
            )
        held = {
            "radius": (self.radius.shape, (*batch, terms, tokens)),
            "norms": (self.norms.shape[1:], (*batch, terms)),
        }
        for name, (found, wanted) in held.items():
            if tuple(found) != wanted:
                raise ShapeError(
                    f"{name} of maps of shape {tuple(self.maps.shape)} have shape {tuple(getattr(self, name).shape)}, "
                    f"expected {wanted if name == 'radius' else ('sizes', *wanted)}"
                )

    @property
    def worst_radius(self) -> Tensor:
        """The largest radius of a real row, ``*batch terms``."""
        radius = self.radius.double()
        if self.rows is not None:
            radius = radius.masked_fill(~self.rows.unsqueeze(-2), 0.0)
        return radius.amax(dim=-1)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Paths:
    """All paths through a window: one by one, or ``merged`` into what their maps have in common.

    Args:
        maps: ``*batch paths tokens tokens``, products as computed; merged: entrywise below the map of every path.
        off: ``*batch paths``: computed and exact entries differ by a factor between ``exp(-off)`` and ``exp(off)``.
        log_norms: ``sizes *batch paths``, logarithms of products of norms; merged: of their sum over paths.
    """

    maps: Tensor
    off: Tensor
    log_norms: Tensor
    merged: bool = False

    @classmethod
    def of(cls, block: MixingBlock) -> "_Paths":
        worst = block.worst_radius
        off = torch.where(worst <= _KNOWN, -torch.log1p(-worst.clamp(max=_KNOWN)) * (1 + MARGIN), torch.inf)
        return cls(maps=block.maps.double(), off=off, log_norms=raised(block.norms.double().log()))

    def then(self, block: "_Paths") -> "_Paths":
        """The window one block longer."""
        paths = self.maps.shape[-3] * block.maps.shape[-3]
        if self.merged or paths > _most_paths(self.maps):
            return _product(self.merge(), block.merge())
        return _product(self, block)

    def merge(self) -> "_Paths":
        """The entrywise minimum of all maps: what it leaves above its column minima bounds every ``tau``."""
        if self.maps.shape[-3] == 1:
            return self
        return _Paths(
            maps=self.maps.amin(dim=-3, keepdim=True),
            off=self.off.amax(dim=-1, keepdim=True),
            log_norms=_log_sum(self.log_norms).unsqueeze(-1),
            merged=True,
        )

    def log_factor(self, rows: Tensor | None) -> Tensor:
        """``log sum_path tau(P_path) |W_path|``, at most, ``sizes *batch``."""
        rows = None if rows is None else rows.unsqueeze(-2)
        log_tau = self._log_doeblin(rows)
        if not self.merged:
            # rows of an exact map sum to one, so all entries of a row together err by no more than that
            off = torch.expm1(self.off)
            tau = (dobrushin_bound(self.maps, rows) + off * (1 + MARGIN) + _TINY).clamp(max=1.0)
            log_tau = torch.minimum(log_tau, raised(tau.log()))
        return _log_sum(self.log_norms + log_tau)

    def _log_doeblin(self, rows: Tensor | None) -> Tensor:
        """``log(1 - sum_j min_i P_ij)`` from what is surely shared, ``*batch paths``: exact where that is little."""
        shared = real_rows(self.maps, rows).amin(dim=-2).sum(dim=-1) * torch.exp(-self.off)
        return torch.log1p(-(shared * (1 - MARGIN) - _TINY).clamp(min=0.0))


def _product(before: _Paths, block: _Paths) -> _Paths:
    """Every path of ``before`` followed by every term of ``block``.

    A sum of n products of non-negative numbers has a relative error of at most n rounding units, entry by entry.
    """
    rounding = 2 * (before.maps.shape[-1] + 1) * unit_roundoff(torch.float64)
    maps = block.maps.unsqueeze(-3) @ before.maps.unsqueeze(-4)
    off = block.off.unsqueeze(-1) + before.off.unsqueeze(-2) + rounding
    log_norms = block.log_norms.unsqueeze(-1) + before.log_norms.unsqueeze(-2)
    return _Paths(
        maps=maps.flatten(-4, -3),
        off=off.flatten(-2),
        log_norms=raised(log_norms).flatten(-2),
        merged=before.merged or block.merged,
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Distances:
    """Distances of all tokens from one of them, the anchor, as multiples of the diameter where the window began.

    With ``d_i`` the distance of token i, ``d_i' <= sum_k |W_k| sum_j |P_k,ij - P_k,aj| d_j``: the anchor a drops out of
    the sum. If it reads itself alone, as the first token under a causal mask, the factors are entries of the maps: the
    rate is that of their diagonal, for any number of heads.

    Args:
        shares: ``*batch tokens sizes``, the largest is 1.
        log_scale: ``*batch sizes``; NaN once a map or a norm is not known.
    """

    shares: Tensor
    log_scale: Tensor

    def then(self, block: MixingBlock, spread: Tensor) -> "_Distances":
        """One block later; ``spread`` holds ``|P_k,ij - P_k,aj|``, at most, ``*batch terms tokens tokens``."""
        norms = block.norms.double().movedim(0, -1)
        largest = norms.amax(dim=-2)
        weights = norms / torch.where(largest > 0, largest, 1.0).unsqueeze(-2)
        moved = ((spread @ self.shares.unsqueeze(-3)) * weights.unsqueeze(-2)).sum(dim=-3)
        moved = torch.where(self.shares > 0, moved + _TINY, 0.0)  # the anchor and padding stay at zero
        size = moved.amax(dim=-2)
        return _Distances(
            shares=moved / torch.where(size > 0, size, 1.0).unsqueeze(-2),
            log_scale=raised(self.log_scale + size.log() + largest.log()) + MARGIN,
        )

    def log_factor(self) -> Tensor:
        """Two tokens are no farther apart than their distances from the anchor add up to, ``sizes *batch``."""
        two = self.shares.topk(min(2, self.shares.shape[-2]), dim=-2).values.sum(dim=-2)
        return raised(two.log() + self.log_scale).movedim(-1, 0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Window:
    """The last ``blocks`` blocks of a stretch."""

    blocks: int
    paths: _Paths
    distances: _Distances

    def log_factor(self, rows: Tensor | None) -> Tensor:
        found = torch.stack([self.paths.log_factor(rows), self.distances.log_factor()])
        return torch.where(torch.isnan(found), torch.inf, found).amin(dim=0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Stretch:
    """Blocks in a row, each of the form ``R -> sum_k P_k R W_k``, fed one at a time; a value that never changes.

    >>> half = MixingBlock(
    ...     maps=torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]), radius=torch.zeros(1, 2), norms=torch.ones(1, 1)
    ... )
    >>> factors = Stretch().then(half).then(half).log_factors()
    >>> {blocks: round(log.exp().item(), 6) for blocks, log in factors.items()}
    {2: 0.25, 1: 0.5}
    """

    longest: int = LONGEST
    windows: tuple[_Window, ...] = ()
    anchor: Tensor | None = None
    rows: Tensor | None = None

    def then(self, block: MixingBlock) -> "Stretch":
        """The stretch one block longer."""
        anchor = _anchor(block) if self.anchor is None else self.anchor
        spread, paths = _spread(block, anchor), _Paths.of(block)
        longer = [
            _Window(
                blocks=window.blocks + 1,
                paths=window.paths.then(paths),
                distances=window.distances.then(block, spread),
            )
            for place, window in enumerate(self.windows)
            if place == 0 or window.blocks < self.longest
        ]
        fresh = _Window(blocks=1, paths=paths, distances=_apart(block, anchor).then(block, spread))
        return replace(self, windows=(*longer, fresh), anchor=anchor, rows=block.rows)

    def log_factors(self) -> dict[int, Tensor]:
        """By how much diameters grew over the last so many blocks, at most: logarithms ``sizes *batch``.

        The whole stretch comes first, then windows of at most ``longest`` blocks, down to the last block alone.
        """
        return {window.blocks: window.log_factor(self.rows) for window in self.windows}


def log_epsilon_bound(epsilon: Tensor, *, radius: int, layers: int) -> Tensor:
    """``log (1 - epsilon^radius)^floor(layers / radius)``, at most: the rate of Wu et al. 2024 with its constant.

    ``epsilon`` is below every non-zero entry of all maps, and every token reads itself; the factor is that of the
    token diameter, beside the norms of the value maps.

    >>> log_epsilon_bound(torch.tensor(1e-9), radius=2, layers=5).item()
    -1.999...e-18
    """
    if radius < 1 or layers < 0:
        raise ShapeError(
            f"the rate was asked for radius {radius} and {layers} layers; a graph of several tokens has a radius of 1 "
            "or more, and layers count from 0"
        )
    within = torch.exp(radius * epsilon.double().log())
    return (layers // radius) * torch.log1p(-within) * (1 - MARGIN)


def _anchor(block: MixingBlock) -> Tensor:
    """The token that attends most to itself in every term, ``*batch``: any choice is valid."""
    own = block.maps.diagonal(dim1=-2, dim2=-1).amin(dim=-2)
    return (own if block.rows is None else own.masked_fill(~block.rows, -1.0)).argmax(dim=-1)


def _apart(block: MixingBlock, anchor: Tensor) -> _Distances:
    """No token is farther from the anchor than the diameter."""
    tokens, sizes = block.maps.shape[-1], block.norms.shape[0]
    other = torch.arange(tokens, device=anchor.device) != anchor.unsqueeze(-1)
    alive = other if block.rows is None else other & block.rows
    shares = alive.double().unsqueeze(-1).expand(*alive.shape, sizes)
    return _Distances(shares=shares, log_scale=shares.new_zeros(*alive.shape[:-1], sizes))


def _spread(block: MixingBlock, anchor: Tensor) -> Tensor:
    """``|P_k,ij - P_k,aj|`` of the exact maps, at most; infinite for maps that are not known."""
    maps, radius = block.maps.double(), block.radius.double().unsqueeze(-1)
    place = anchor[..., None, None, None].expand(*maps.shape[:-2], 1, maps.shape[-1])
    of_anchor, off = maps.gather(-2, place), radius.gather(-2, place[..., :1])
    found = (maps - of_anchor).abs() + radius * maps + off * of_anchor + _TINY
    known = (block.worst_radius <= _KNOWN)[..., None, None]
    return torch.where(known, found, torch.inf)


def _most_paths(maps: Tensor) -> int:
    tokens, batch = maps.shape[-1], math.prod(maps.shape[:-3])
    return max(1, min(MOST_PATHS, _PATH_WORK // tokens**3, _PATH_ENTRIES // max(1, batch * tokens**2)))


def _log_sum(logs: Tensor) -> Tensor:
    """``log sum exp`` over the last axis, rounded up; infinite where a summand is not known."""
    known = torch.where(torch.isnan(logs), torch.inf, logs)
    infinite = (known == torch.inf).any(dim=-1)
    total = raised(torch.logsumexp(known, dim=-1)) + logs.shape[-1] * unit_roundoff(torch.float64)
    return torch.where(infinite, torch.inf, total)
