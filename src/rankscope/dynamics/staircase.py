"""Equilibria of every rank for one value map ``W = I + w S``, built token by token.

That such equilibria exist for one and the same value map is a statement of Wu et al. 2024 (arXiv:2405.18781),
Section 4; the construction is our own, for uniform attention over any mask in which every token reads itself and
no two read each other, directly or by way of others. How a token is found is written in ``climb``.

Rank k is possible exactly up to the longest chain of tokens, each reading the one before, and up to ``dim``: a token
has at most one channel more than what it reads, and the tokens built here have exactly one more until there are k.
For the causal mask the first k tokens are known in closed form: token i (from 0) has ``(-1/w)^m q_(i-m)`` in channel
``d - m``, with ``q_0 = 1`` and ``q_i = +-sqrt(1 - 1/w^2)``. So every ``w >= 1`` will do there, and at ``w = 1`` the k
tokens are orthogonal. Other masks need larger ones.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankscope.dynamics.buildable import check_chain, check_numbers, order_of
from rankscope.dynamics.climb import Climbed, Signs, TooLong, chain_levels, climb
from rankscope.dynamics.extended import (
    FLOAT_DIGITS,
    Spectrum,
    channels,
    context,
    equation_residual,
    extended_spectrum,
    float_spectrum,
)
from rankscope.dynamics.system import System, attention_system
from rankscope.errors import ConfigError
from rankscope.masks import MaskRule
from rankscope.network import Sphere, Uniform

FLOAT_RANK = 8
"""The highest rank for which float64 is tried."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Construction:
    """An equilibrium on the unit sphere whose rank is known from how it was built.

    Args:
        rule: the mask; attention is uniform over it.
        shear: the ``w`` of ``W = I + w S``.
        tokens: ``tokens dim``, float64, rounded from the arithmetic used.
        exact_tokens: the same as decimal strings where more than 15 digits were used, otherwise empty.
        rank: exact, by construction.
        proof: why, in words.
        levels: for every token how many channels, counted from the last, it fills.
        signs: for every token the sign of its last channel where it was chosen (tokens that read nobody else, and
            climbing ones), 0 where not (staying ones).
        pivots: the first entry that is not zero of one token per level, levels in order; 0.0 below float64's range.
        log10_pivots: log10 of their sizes.
        log10_singular_values: falling.
        log10_rank_threshold: log10 of ``max(tokens, dim) eps sigma_1`` with the eps of the arithmetic used.
        svd_rank: how many singular values are above the threshold.
        digits: decimal digits of the arithmetic used, 15 for float64.
        equation_residual: largest entry of ``|step(x) - x|`` in the arithmetic used.
        float_equation_residual: the same for ``tokens`` in float64.
    """

    rule: MaskRule
    shear: float
    tokens: Tensor
    exact_tokens: tuple[tuple[str, ...], ...]
    rank: int
    proof: str
    levels: tuple[int, ...]
    signs: tuple[int, ...]
    pivots: tuple[float, ...]
    log10_pivots: tuple[float, ...]
    log10_singular_values: tuple[float, ...]
    log10_rank_threshold: float
    svd_rank: int
    digits: int
    equation_residual: float
    float_equation_residual: float

    @property
    def singular_values(self) -> tuple[float, ...]:
        """As floats; 0.0 where they are below the range of float64."""
        return tuple(_power(log) for log in self.log10_singular_values)

    @property
    def rank_threshold(self) -> float:
        """As a float; 0.0 where it is below the range of float64."""
        return _power(self.log10_rank_threshold)

    @property
    def value_map(self) -> Tensor:
        """``I + w S``, ``dim dim``: the same for every rank."""
        return shear_map(self.tokens.shape[-1], self.shear)

    def system(self) -> System:
        """Uniform attention over the mask, the value map, the unit sphere."""
        return attention_system(Uniform(heads=1, rule=self.rule), self.value_map, Sphere())


def shear_map(dim: int, shear: float) -> Tensor:
    """``W = I + w S``: every channel is kept, and passed on to the next one ``w`` times."""
    return torch.eye(dim, dtype=torch.float64) + shear * torch.diag(
        torch.ones(dim - 1, dtype=torch.float64), 1
    )


def greatest_rank(rule: MaskRule, tokens: int, dim: int) -> int:
    """The largest rank of any equilibrium with this value map: the longest chain of tokens, at most ``dim``.

    >>> from rankscope.masks import parse_mask
    >>> [greatest_rank(parse_mask(text), 6, 4) for text in ("causal", "causal-window:1", "prefix:1")]
    [4, 4, 2]
    """
    mask = rule.matrix(tokens)
    return min(dim, max(chain_levels(mask, order_of(rule, tokens))))


def every_rank(
    rule: MaskRule,
    tokens: int,
    dim: int,
    rank: int,
    *,
    shear: float = 10.0,
    signs: Signs = "stable",
    digits: int | None = None,
) -> Construction:
    """An equilibrium of exactly that rank, for the value map ``I + w S`` that ``dim`` and ``shear`` alone decide.

    ``signs``: of two climbing tokens that differ in the sign of the last channel, ``stable`` takes the one with the
    smaller multipliers of its own, ``positive`` always the upper one. ``digits`` above 15 asks for that arithmetic, 15
    for float64; None takes float64 up to rank 8 if the smallest singular value is clear of rounding, otherwise as many
    digits as that needs.

    >>> from rankscope.masks import parse_mask
    >>> found = every_rank(parse_mask("causal"), 6, 4, 3, shear=2.0)
    >>> found.rank, found.svd_rank, found.pivots, found.signs, found.equation_residual < 1e-14
    (3, 3, (1.0, -0.5, 0.25), (1, -1, 1, 0, 0, 0), True)
    """
    check_numbers(tokens, dim, rank, shear, digits)
    if rank == 1:  # all tokens at the last unit vector: at rest under any mask
        mask, order = np.eye(tokens, dtype=np.bool_), list(range(tokens))
    else:
        mask, order = rule.matrix(tokens), order_of(rule, tokens)
        check_chain(rule, mask, order, rank)
    plan = _Plan(rule=rule, mask=mask, order=order, dim=dim, rank=rank, shear=shear, signs=signs)
    if digits is not None:
        return plan.built(digits)
    if rank <= FLOAT_RANK and _is_clear(found := plan.built(FLOAT_DIGITS)):
        return found
    digits = 20 + math.ceil(1.5 * (rank - 1) * math.log10(shear))
    while not _is_clear(found := plan.built(digits)):
        digits = math.ceil(1.5 * digits)
    return found


def _is_clear(found: Construction) -> bool:
    """Whether the singular value of the rank is well above the threshold, a hundred thousand times."""
    return found.log10_singular_values[found.rank - 1] > found.log10_rank_threshold + 5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Plan:
    """What is to be built, checked; ``order`` has every token behind what it reads."""

    rule: MaskRule
    mask: NDArray[np.bool_]
    order: list[int]
    dim: int
    rank: int
    shear: float
    signs: Signs

    def built(self, digits: int) -> Construction:
        if (
            self.rank > 1 and self.shear < 1
        ):  # a token that reads r at the last unit vector has r / w before its last
            raise self._too_small("above rank 1 every mask needs at least 1")
        is_float = digits <= FLOAT_DIGITS
        number = np.float64 if is_float else context(digits).mpf
        found = climb(self.mask, self.order, self.rank, number(self.shear), self.signs, number)
        if isinstance(found, TooLong):
            raise self._too_small(
                f"the channels of token {found.token} before its last would have length {found.length:.3g}, above 1"
            )
        full = self.rule.matrix(len(self.mask))
        x = channels(found.graded, number(self.shear))
        rounded = np.zeros((len(x), self.dim))
        rounded[:, self.dim - self.rank :] = x.astype(np.float64)
        spectrum = float_spectrum(rounded) if is_float else extended_spectrum(x, digits, dim=self.dim)
        blank = ("0.0",) * (self.dim - self.rank)
        exact = () if is_float else tuple((*blank, *(_decimal(one, digits) for one in row)) for row in x)
        return self._described(
            found, spectrum, rounded, exact, digits, equation_residual(x, full, number(self.shear))
        )

    def _described(
        self,
        found: Climbed,
        spectrum: Spectrum,
        rounded: NDArray[np.float64],
        exact: tuple[tuple[str, ...], ...],
        digits: int,
        residual: float,
    ) -> Construction:
        levels = [min(level, self.rank) for level in chain_levels(self.mask, self.order)]
        first = [next(token for token in self.order if levels[token] == m + 1) for m in range(self.rank)]
        leads = [found.graded[token, m] for m, token in enumerate(first)]
        logs = tuple(
            math.log10(abs(float(lead))) - m * math.log10(self.shear) for m, lead in enumerate(leads)
        )
        pivots = tuple(float(lead) * (1 / self.shear) ** m for m, lead in enumerate(leads))
        return Construction(
            rule=self.rule,
            shear=self.shear,
            tokens=torch.from_numpy(rounded),
            exact_tokens=exact,
            rank=self.rank,
            proof=_proof(first, pivots, self.dim),
            levels=tuple(levels),
            signs=found.signs,
            pivots=pivots,
            log10_pivots=logs,
            log10_singular_values=spectrum.log10_values,
            log10_rank_threshold=spectrum.log10_threshold,
            svd_rank=spectrum.rank,
            digits=digits,
            equation_residual=residual,
            float_equation_residual=equation_residual(rounded, self.rule.matrix(len(rounded)), self.shear),
        )

    def _too_small(self, why: str) -> ConfigError:
        return ConfigError(
            f"shear {self.shear:g} is too small to build rank {self.rank} under the mask {self.rule} with one sign for "
            f"all tokens that read nobody else: {why}; shear {self._working_shear():g} works"
        )

    def _working_shear(self) -> float:
        """A shear for which all climbs exist, close above one for which they do not; at large ones they always do."""
        low = high = max(self.shear, 1.0)
        while not self._works(high):
            low, high = high, 2 * high
        for _ in range(12):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self._works(middle) else (middle, high)
        return next(one for one in _rounded(high) if self._works(one))

    def _works(self, shear: float) -> bool:
        """Whether all climbs exist; staying tokens are read by none of them and are left out."""
        levels = chain_levels(self.mask, self.order)
        order = [token for token in self.order if levels[token] <= self.rank]
        return isinstance(climb(self.mask, order, self.rank, np.float64(shear), self.signs), Climbed)


def _power(log10: float) -> float:
    return 10.0**log10 if log10 > -320 else 0.0


def _decimal(value: Any, digits: int) -> str:
    return str(value.context.nstr(value, digits))


def _rounded(value: float) -> Iterator[float]:
    """The value to three digits, then rounded up, then as it is."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    yield round(value / unit) * unit
    yield math.ceil(value / unit) * unit
    yield value


def _proof(first: list[int], pivots: tuple[float, ...], dim: int) -> str:
    """Why the rank is what it is; ``first[m]`` is a token whose first entry that is not zero is in channel d - m."""
    if len(first) == 1:
        return f"every token is the unit vector of channel {dim - 1}: rank 1"
    shown = [
        f"token {token}: {pivot:.3g} in channel {dim - 1 - m}"
        for m, (token, pivot) in enumerate(zip(first, pivots, strict=True))
    ]
    if len(shown) > 4:
        shown = [*shown[:3], "and so on", shown[-1]]
    rank = len(first)
    return (
        f"{rank} tokens have their first entry that is not zero in {rank} different channels ({', '.join(shown)}), so "
        f"they are independent; all tokens are zero before channel {dim - rank}: rank exactly {rank}"
    )
