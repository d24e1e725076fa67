"""Equilibria to machine precision: Newton's method for ``step(x) = x``.

Tokens are solved component by component of the mask graph, those that are read first: an error of a token that reads
others then never disturbs them. At a root of multiplicity m, where a neutral direction meets a curvature, a Newton
step covers only the m-th part of the way; longer steps are tried beside shorter ones, and the one that leaves the
smallest correction is taken (the natural monotonicity test of Deuflhard, Newton Methods for Nonlinear Problems, 2004,
Section 3.3: it looks at the error and not at the residual, which says little where directions are neutral).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.dynamics.jacobian import Block, block_at, components_of
from rankscope.dynamics.krylov import FACTORS, retracted, solve_large
from rankscope.dynamics.multipliers import LARGEST_DENSE
from rankscope.dynamics.resting import at_rest, box, free_coordinates, kept_zeros, residual_of, sway
from rankscope.dynamics.system import System
from rankscope.errors import ConfigError

# Directions with a singular value of J - 1 below this share of the largest, or of one if that is more, are those of a
# family of equilibria, or rounding: J and its decomposition are known to a few hundred units of round-off, 1e-13, at
# the sizes solved here.
_CUTOFF = 1e-12

# A factor other than one must leave less than this share of what one leaves, unless one fails. Near a simple root the
# plain step squares the error, so that no other factor is better by much more than luck.
_NOT_BETTER = 0.1

# A correction above this share of the last one is that of a multiple root. At a root of multiplicity m a plain step
# leaves (m - 1) / m of the distance, half of it or more; at a simple root the quotients of corrections tend to zero.
_LINEAR = 0.25

# Below this singular value of J - 1 a correction may miss how far a multiple root is. At a double root the value is
# proportional to the distance, which is known to the root of the round-off, 1.5e-8: this leaves room for a constant.
_BLIND = 1e-6

# Multipliers this near to one may be one. At a multiple root they are as far off as the tokens, and a Jordan block of
# size k makes the k-th root of it: 1e-6 becomes 0.03 for k = 4.
_NEAR_ONE = 5e-2

# Relative sizes up to which entries are tried as zeros. At a root of multiplicity m an entry that should be zero is the
# m-th root of the round-off: 1.5e-8, 6e-6 and 1.2e-4 for m = 2, 3, 4. The first one is for products of two roundings.
_REACHES = (1e-31, 1e-12, 1e-9, 1e-6, 1e-4, 1e-3, 1e-2)

# A state with entries held at zero may be this far, relative to the largest entry: farther is another one.
_MOVED = 0.05

# Relative uncertainty that needs no improvement: the rounding of the few dozen operations of a step.
_SURE = 64 * torch.finfo(torch.float64).eps


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Polished:
    """States brought as near to equilibria as the arithmetic allows.

    Args:
        tokens: ``*starts tokens dim``.
        residual: ``*starts``, the largest entry of ``|step(x) - x|``.
        uncertainty: ``*starts tokens dim``, for every entry an estimate of its distance from the true equilibrium:
            large where neutral directions make the residual blind, with what the tokens that are read add to it.
            Zero for zeros that a step keeps.
        converged: ``*starts``, whether the state is at rest: the residual is no more than rounding, see ``at_rest``.
    """

    tokens: Tensor
    residual: Tensor
    uncertainty: Tensor
    converged: Tensor


@torch.no_grad()
def polish(
    system: System, x: Tensor, *, iterations: int = 60, largest_dense: int = LARGEST_DENSE
) -> Polished:
    """Newton's method from every state of ``*starts tokens dim``, all as one batch.

    Directions in which the Jacobian is singular to rounding, as along a family of equilibria, are left alone, so the
    nearest member is taken. ``iterations=0`` changes nothing and only estimates. Blocks of more than
    ``largest_dense`` coordinates are solved matrix-free, start by start.

    >>> from rankscope.dynamics import attention_system
    >>> from rankscope.network import Sphere, Uniform
    >>> from rankscope.masks import parse_mask
    >>> shear = torch.tensor([[1.0, 3.0], [0.0, 1.0]], dtype=torch.float64)
    >>> system = attention_system(Uniform(heads=1, rule=parse_mask("causal")), shear, Sphere())
    >>> near = torch.tensor([[0.01, 1.0], [-0.3, -0.9]], dtype=torch.float64)
    >>> polish(system, near).tokens
    tensor([[ 0.0000,  1.0000],
            [-0.3333, -0.9428]], dtype=torch.float64)
    """
    if not system.is_steady:
        raise ConfigError(
            "an equilibrium needs every step to apply the same block; this system draws its maps anew"
        )
    checked(x)
    state = x.reshape(-1, *x.shape[-2:])
    if iterations:
        state = retracted(system, state)
    unsure, held = torch.zeros_like(state), torch.zeros_like(state, dtype=torch.bool)
    for members in components_of(system, x.shape[-2]):
        is_large = block_at(system, state[:1], members).size > largest_dense
        solve = solve_large if is_large else _solve
        read = sway(system, state, unsure, members)
        noise = _size(state) * torch.finfo(x.dtype).eps + _size(read)
        state, left = solve(system, state, members, iterations, noise)
        if not is_large:
            state, left, held = _tidied(system, state, members, left, held, iterations, noise)
        entries = torch.where(held, 0.0, left[:, None, None].expand_as(state))
        if not is_large:
            known, holds = box(system, state, members, held, read)
            entries = torch.where(holds[:, None, None], known, entries)
        unsure[:, members] = entries[:, members]
    if iterations:
        after = system.step(state)
        nearer = residual_of(system, after) < residual_of(system, state)
        state = torch.where(nearer[:, None, None], after, state)
    lead = x.shape[:-2]
    return Polished(
        tokens=state.reshape(x.shape),
        residual=residual_of(system, state).reshape(lead),
        uncertainty=unsure.reshape(x.shape),
        converged=at_rest(system, state).reshape(lead),
    )


def _size(x: Tensor) -> Tensor:
    return x.abs().amax(dim=(-2, -1))


def _tidied(
    system: System,
    x: Tensor,
    members: Tensor,
    unsure: Tensor,
    held: Tensor,
    iterations: int,
    noise: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Entries of the members that cannot be told from zero held at zero, where a step keeps them so.

    Held at zero they are no longer unsure, and in coordinates where a flag of subspaces is kept they carry what was
    neutral. Small entries are tried first; without iterations only entries that are zero already. Returns the states,
    how unsure they are, and which entries are held.
    """
    found, left, zeros = x, unsure, held.clone()
    size, everyone = _size(x), torch.arange(len(x), device=x.device)
    allowed = torch.maximum(_movement(system, x, members), 8 * torch.finfo(x.dtype).eps * size)
    before = x == 0
    for number, reach in enumerate(_REACHES if iterations else (0.0,)):
        small = torch.zeros_like(held)
        small[:, members] = x[:, members].abs() <= torch.minimum(reach * size, 2 * unsure)[:, None, None]
        is_new = (small & ~before).flatten(1).any(dim=1)
        todo = is_new | (left > _SURE * size) if number == 0 else is_new & (left > _SURE * size)
        before = before | small
        rows = everyone if system.per_start else torch.nonzero(todo).flatten()
        if not bool(todo.any()):
            continue
        tidy = retracted(system, torch.where(small, 0.0, x)[rows]) if iterations else x[rows]
        kept = kept_zeros(system, tidy, members, held[rows])
        tidy, rest, _ = _newton(system, tidy, members, iterations, _BLIND, noise[rows], zeros=kept)
        better = todo[rows] & (_movement(system, tidy, members) <= allowed[rows])
        better &= (rest <= (0.5 if number else 1.0) * left[rows]) & kept[:, members].flatten(1).any(dim=1)
        better &= _size(tidy - x[rows]) <= torch.minimum(4 * unsure[rows], _MOVED * size[rows])
        chosen = rows[better]
        found, left = found.index_copy(0, chosen, tidy[better]), left.index_copy(0, chosen, rest[better])
        zeros[chosen] = kept[better]
    return found, left, zeros | kept_zeros(system, found, members, held)


def _movement(system: System, x: Tensor, members: Tensor) -> Tensor:
    return (system.step(x) - x)[:, members].abs().amax(dim=(-2, -1))


def _solve(
    system: System, x: Tensor, members: Tensor, iterations: int, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """The states with the members at rest, given the tokens they read, and how unsure their place is.

    Where corrections near a multiple root are rounding, the directions that are still known are finished alone.
    """
    x, unsure, is_blind = _newton(system, x, members, iterations, _CUTOFF, noise)
    if iterations and bool(is_blind.any()):
        x, _, _ = _newton(system, x, members, iterations, _BLIND, noise)
    return x, unsure


def _newton(
    system: System,
    x: Tensor,
    members: Tensor,
    iterations: int,
    cutoff: float,
    noise: Tensor,
    *,
    zeros: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """States, how unsure they are, and whether ``J - 1`` is nearly singular there.

    ``noise`` is what a step may be off by, of every start; entries marked in ``zeros`` do not move.
    """
    x = x.clone()
    rows = torch.arange(len(x), device=x.device)
    unsure, last, way_left = (torch.zeros_like(x[:, 0, 0]) for _ in range(3))
    blind = torch.zeros_like(unsure, dtype=torch.bool)
    for number in range(iterations + 1):
        block = block_at(system, x[rows], members)
        inverse = _inverse(block, cutoff, None if zeros is None else zeros[rows])
        missing = block.lower(system.step(block.x) - block.x)
        correction = -inverse.times_known(missing, block.x)
        length = torch.linalg.vector_norm(correction, dim=-1)
        is_multiple = (length > _LINEAR * last[rows]) & (last[rows] > 0) & inverse.is_whole
        way_left[rows] = torch.where(is_multiple, (block.size + 1) * length, way_left[rows])
        known = torch.maximum(length, _blindness(block.x, inverse, noise[rows]))
        blind[rows] = inverse.least < _BLIND
        unsure[rows] = torch.where(blind[rows], torch.maximum(known, way_left[rows]), known)
        if number == iterations:
            break
        states, lengths, missed = _candidates(system, block, inverse, correction)
        taken = (lengths <= 0.95 * length) & (length > 0)
        taken &= ~blind[rows] | (missed <= torch.linalg.vector_norm(missing, dim=-1))
        x[rows] = torch.where(taken[:, None, None], states, block.x)
        last[rows] = torch.where(taken, length, last[rows])
        if not bool(taken.any()):
            break
        if not system.per_start:
            rows = rows[taken]
    return x, unsure, blind


@dataclass(frozen=True, slots=True, eq=False)
class _Inverse:
    """Pseudo-inverse of ``J - 1`` for every start: without directions whose singular value is below the cutoff."""

    matrix: Tensor
    left: Tensor
    size: Tensor
    right: Tensor
    kept: Tensor
    free: Tensor  # coordinates that may move, of every start

    @property
    def least(self) -> Tensor:
        """The least singular value in the coordinates that may move."""
        last = (self.free - 1).clamp(min=0).unsqueeze(-1)
        least = (
            self.size.gather(-1, last).squeeze(-1)
            if self.size.shape[-1]
            else self.size.new_ones(len(self.free))
        )
        return torch.where(self.free > 0, least, 1.0)

    @property
    def is_whole(self) -> Tensor:
        return self.kept.sum(dim=-1) == self.free

    def times(self, vector: Tensor) -> Tensor:
        return (self.right @ (self._scale() * (self.left @ vector.unsqueeze(-1)))).squeeze(-1)

    def times_known(self, vector: Tensor, x: Tensor) -> Tensor:
        """As ``times``, without directions that are nearly singular and in which the vector is rounding."""
        parts = self.left @ vector.unsqueeze(-1)
        rounding = 4 * torch.finfo(x.dtype).eps * x.abs().amax(dim=(-2, -1))[:, None, None]
        is_noise = (parts.abs() <= rounding) & (self.size.unsqueeze(-1) < _BLIND)
        return (self.right @ (self._scale() * torch.where(is_noise, 0.0, parts))).squeeze(-1)

    def _scale(self) -> Tensor:
        tiny = torch.finfo(self.size.dtype).tiny
        return torch.where(self.kept, 1 / self.size.clamp(min=tiny), 0.0).unsqueeze(-1)


def _inverse(block: Block, cutoff: float, zeros: Tensor | None) -> _Inverse:
    matrix = block.dense() - torch.eye(block.size, dtype=block.x.dtype, device=block.x.device)
    is_finite = torch.isfinite(matrix).flatten(1).all(dim=1)
    whole = torch.ones_like(matrix[:, 0], dtype=torch.bool)
    moves = whole if zeros is None else free_coordinates(block, zeros)
    matrix = torch.where(is_finite[:, None, None] & moves.unsqueeze(-2), matrix, 0.0)
    left, size, right = torch.linalg.svd(matrix)
    largest = size[..., :1].clamp(min=1.0) if block.size else size
    return _Inverse(matrix, left.mT, size, right.mT, size > cutoff * largest, moves.sum(dim=-1))


def _blindness(x: Tensor, inverse: _Inverse, noise: Tensor) -> Tensor:
    """How far a state can move before it shows above the noise of a step.

    That is the noise over the least singular value of ``J - 1``. At a root of multiplicity m this value vanishes with
    the distance to the power m - 1, so the distance is known to the m-th root of the noise; m is 2 where a neutral
    direction is simple, and more by what is missing of the eigenvectors of a Jordan block.
    """
    size = _size(x).clamp(min=torch.finfo(x.dtype).tiny)
    multiple = torch.full_like(inverse.least, 2.0)
    blind = inverse.least < _BLIND
    if bool(blind.any()):
        near_one = (torch.linalg.eigvals(inverse.matrix[blind]).abs() < _NEAR_ONE).sum(dim=-1)
        simple = (inverse.size[blind] < _BLIND).sum(dim=-1)  # held coordinates count in both
        multiple[blind] += (near_one - simple).clamp(min=0)
    least = torch.maximum(inverse.least, (noise / size) ** (1 - 1 / multiple)).clamp(max=1.0)
    # A correction covers the m-th part of the way, which leaves m - 1 times as much. The noise of a step is the sum of
    # a few roundings: 8 leaves room for them.
    return 8 * (multiple - 1) * noise / least


def _candidates(
    system: System, block: Block, inverse: _Inverse, correction: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The best state along the correction for every start, the correction it would leave, and what it misses."""
    factors = torch.tensor(FACTORS, dtype=correction.dtype, device=correction.device)
    states = retracted(system, block.x + factors[:, None, None, None] * block.lift(correction))
    missing = block.lower(system.step(states) - states)
    left = torch.linalg.vector_norm(inverse.times(missing), dim=-1)
    left = torch.where(torch.isfinite(left), left, torch.inf)
    lengths, best = left.min(dim=0)
    full = (left[0] < 0.95 * torch.linalg.vector_norm(correction, dim=-1)) & (lengths > _NOT_BETTER * left[0])
    best = torch.where(full, 0, best)
    starts = torch.arange(states.shape[1], device=states.device)
    missed = torch.linalg.vector_norm(missing, dim=-1)
    return states[best, starts], left[best, starts], missed[best, starts]
