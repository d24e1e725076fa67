"""Orthogonal values on the sphere collapse: the smallest cosine of two tokens, and how far one step must raise it.

One step is ``x_i' = (sum_k A_ik x_k) W / |..|`` with unit tokens and ``W`` orthogonal. Wu et al. 2024
(arXiv:2405.18781), Theorem 2, states collapse for strongly connected masks; here is one step, with constants.
With ``c = min_ij x_i . x_j >= 0`` and ``m = min_{i != j} <A_i, A_j>``

    1 - c' <= (1 - c) (1 - m).

``W`` turns all tokens together and drops out. ``sum_kl A_ik A_jl x_k . x_l >= c + (1 - c) <A_i, A_j> >= 0``, and
dividing by the two lengths, which are at most one, can only raise a number that is not negative.

Equality: permutations (m = 0, c' = c), rows with disjoint keys at c = 0, and rows all equal (m = 1, both sides 0).
For 0 < m < 1 the bound is strict: lengths of one need rows with a single key, and then m is 0 or 1.
The assumption is needed, for every c < 0: unit tokens with ``x_1 . x_2 = x_3 . x_4 = 0`` and all other products c.
Tokens 1 and 2 become their mean, 3 and 4 theirs: then m = 0 and ``c' = 2c < c``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from rankscope.core.numerics import checked, unit_roundoff
from rankscope.dynamics.endings import Ending
from rankscope.dynamics.run import Run, iterate, run
from rankscope.dynamics.system import attention_system
from rankscope.errors import ShapeError
from rankscope.masks import MaskRule
from rankscope.network import Context, Mixer, Softmax, Sphere
from rankscope.network.initial import haar_orthogonal


def cosine_defect(x: Tensor) -> Tensor:
    """``1 - c`` of unit tokens ``*starts tokens dim``: the largest half squared distance of two of them.

    From differences: near consensus ``1 - c`` by subtraction would be rounding.

    >>> cosine_defect(torch.tensor([[1.0, 0.0], [0.0, 1.0]])).item()
    1.0
    """
    x = checked(x)
    return (x.unsqueeze(-2) - x.unsqueeze(-3)).square().sum(dim=-1).amax(dim=(-2, -1)) / 2


def least_overlap(maps: Tensor) -> Tensor:
    """``m = min <A_i, A_j>`` over two different rows of maps ``*starts tokens tokens``; one for a single token."""
    tokens = maps.shape[-1]
    if maps.ndim < 2 or maps.shape[-2] != tokens:
        raise ShapeError(f"expected maps (*starts, tokens, tokens), got shape {tuple(maps.shape)}")
    products = maps @ maps.mT
    own = torch.eye(tokens, dtype=torch.bool, device=maps.device)
    return products.masked_fill(own, 1.0).amin(dim=(-2, -1)).clamp(max=1.0)


def complete_overlap(maps: Tensor) -> Tensor:
    """``n eps^2``, at most ``least_overlap`` where all n tokens read all: ``eps`` is the smallest entry."""
    return maps.shape[-1] * maps.amin(dim=(-2, -1)).square()


def defect_bound(defect: Tensor, overlap: Tensor) -> Tensor:
    """``(1 - c)(1 - m)`` where ``c >= 0``; NaN elsewhere, where nothing is proven."""
    return torch.where(defect <= 1, defect * (1 - overlap), torch.nan)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """What float64 may add to both sides of the bound.

    Args:
        before: how far a stored unit token is from length one: ``(dim + 3) u``.
        after: how far a computed token is from the true one. Sums over keys miss by ``n u`` and tokens by ``before``,
            both magnified by the division by a length, which is at least ``1 / sqrt(n)`` where c >= 0; the product with
            ``W`` by ``dim^1.5 u``; the division by ``(dim + 4) u``; and W by its own ``|W^T W - I|_F``.
        overlap: products of two rows of n entries, and row sums that miss one: ``2 (n + 4) u``.
    """

    before: float
    after: Tensor
    overlap: float

    @classmethod
    def of(cls, tokens: int, values: Tensor) -> "Rounding":
        """For so many tokens and the value map, or maps, ``*starts dim dim``."""
        u, dim = unit_roundoff(torch.float64), values.shape[-1]
        eye = torch.eye(dim, dtype=values.dtype, device=values.device)
        off = torch.linalg.matrix_norm(values.mT @ values - eye)
        before = (dim + 3) * u
        after = tokens**0.5 * (tokens * u + before) + (dim**1.5 + dim + 4) * u
        return cls(before=before, after=after + off, overlap=2 * (tokens + 4) * u)


def bound_ratio(defect: Tensor, overlap: Tensor, after: Tensor, rounding: Rounding) -> Tensor:
    """Left side over right side, with what rounding may have added taken off; at most one. NaN where ``c < 0``.

    Two tokens off by e each change their distance by 2e at most, and ``sqrt(1 - c)`` by ``sqrt(2) e``.
    """
    left = (after.sqrt() - 2**0.5 * rounding.after).clamp(min=0.0).square()
    right = (defect.sqrt() + 2**0.5 * rounding.before).square() * (1 - overlap + rounding.overlap)
    return torch.where(defect <= 1, left / right, torch.nan)


def in_hemisphere(x: Tensor) -> list[bool]:
    """For each start ``starts tokens dim``: whether some direction has a positive product with every token.

    A linear program: the largest t with ``x_i . w >= t`` for all tokens and entries of w within one.
    """
    found = []
    for tokens in checked(x).reshape(-1, *x.shape[-2:]).numpy():
        count, dim = tokens.shape
        limits: Sequence[tuple[float, float]] = [(-1.0, 1.0)] * dim + [(0.0, 1.0)]
        program = linprog(
            np.r_[np.zeros(dim), -1.0], np.c_[-tokens, np.ones(count)], np.zeros(count), bounds=limits
        )
        found.append(float(program.fun or 0.0) < -1e-9)
    return found


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Draw:
    """Random weights and a random start of each: query and key maps N(0, gain^2/dim), values uniform orthogonal."""

    mixer: Mixer
    values: Tensor
    x: Tensor

    @classmethod
    def of(
        cls,
        rule: MaskRule,
        *,
        starts: int,
        tokens: int,
        dim: int,
        generator: torch.Generator,
        gain: float = 1.0,
    ) -> "Draw":
        """Drawn in a fixed order, so that all masks of one seed share weights and starts."""

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        query, key = (normal(starts, dim, dim) * gain * dim**-0.5 for _ in range(2))
        values = haar_orthogonal(normal(starts, dim, dim))
        x = normal(starts, tokens, dim)
        x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return cls(mixer=Softmax(query, key, heads=1, rule=rule), values=values, x=x)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Followed:
    """Starts on the sphere under orthogonal values.

    Args:
        run: where each start ended, and when.
        defects: ``steps+1 starts``, ``1 - c`` of every state.
        overlaps: ``steps starts``, m of the map of every step.
        complete: ``steps starts``, ``n eps^2``, zero where the mask forbids a key.
        ratios: ``steps starts``, see ``bound_ratio``; NaN where ``c < 0``.
        rounding: what was taken off.
    """

    run: Run
    defects: Tensor
    overlaps: Tensor
    complete: Tensor
    ratios: Tensor
    rounding: Rounding

    @property
    def collapsed(self) -> int:
        """Starts that ended with all tokens equal to rounding."""
        return sum(ending is Ending.CONSENSUS for ending in self.run.endings)

    @property
    def worst(self) -> float:
        """The largest ratio over all steps with ``c >= 0``; NaN if there was none."""
        known = self.ratios[~self.ratios.isnan()]
        return float(known.max()) if known.numel() else float("nan")

    @property
    def bounds(self) -> Tensor:
        """``steps+1 starts``: ``1 - c`` of the first state with ``c >= 0`` times all factors since; NaN before it."""
        rows = [torch.where(self.defects[0] <= 1, self.defects[0], torch.nan)]
        for defect, overlap in zip(self.defects[1:], self.overlaps, strict=True):
            begins = rows[-1].isnan() & (defect <= 1)
            rows.append(torch.where(begins, defect, rows[-1] * (1 - overlap)))
        return torch.stack(rows)


@torch.no_grad()
def follow(mixer: Mixer, values: Tensor, x: Tensor, *, steps: int, looks: int | None = None) -> Followed:
    """Run the starts ``starts tokens dim`` for at most ``steps``, and look at the bound in the first ``looks`` of them.

    ``values`` is one orthogonal map or one per start; all steps are looked at unless ``looks`` says fewer.
    """
    rounding = Rounding.of(x.shape[-2], values)
    if not bool((rounding.after < 1e-9).all()):
        raise ShapeError(
            f"value maps must be orthogonal; |W^T W - I| is up to {float(rounding.after.max()):.1e} here"
        )
    system = attention_system(mixer, values, Sphere())
    found = run(system, x, steps, slowness=None)
    count = steps if looks is None else min(looks, steps)
    defects, overlaps, complete = [cosine_defect(x)], list[Tensor](), list[Tensor]()
    states = islice(iterate(system, x), count + 1)
    before = next(states)
    for state in states:
        maps = mixer(before, Context()).squeeze(-3)
        overlaps.append(least_overlap(maps))
        complete.append(complete_overlap(maps))
        defects.append(cosine_defect(state))
        before = state
    ratios = [bound_ratio(*each, rounding) for each in zip(defects, overlaps, defects[1:], strict=False)]
    return Followed(
        run=found,
        defects=torch.stack(defects),
        overlaps=torch.stack(overlaps),
        complete=torch.stack(complete),
        ratios=torch.stack(ratios),
        rounding=rounding,
    )
