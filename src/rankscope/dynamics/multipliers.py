"""Multipliers of an equilibrium: the eigenvalues of the Jacobian of one step, and how well they are known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs
from torch import Tensor

from rankscope.dynamics.jacobian import Block, block_at, components_of
from rankscope.dynamics.resting import TRIED, signs
from rankscope.dynamics.system import System
from rankscope.errors import ConfigError, NumericalError, ShapeError

Complex = NDArray[np.complex128]
Real = NDArray[np.float64]

LARGEST_DENSE = 512
"""Blocks of up to so many coordinates are formed; of larger ones only the largest multipliers are found."""

ARNOLDI_COUNT = 8
"""Multipliers of a large block that are found if the caller does not say how many."""

SURE = 1e-3
"""A multiplier that may have modulus one is called neutral up to this error; beyond it nothing is decided."""

_ROUNDING = 16  # units of rounding, relative to the norm of a block, that its products may be off by
_UNKNOWN = 1e6  # error of a multiplier of which nothing is known
_MARGIN = 2  # times the largest change of a block that was seen under random signs of the uncertainty


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Group:
    """Multipliers of one strongly connected component, given that the tokens it reads are at rest."""

    tokens: tuple[int, ...]
    values: Complex
    errors: Real

    @property
    def largest(self) -> float:
        return float(np.abs(self.values[0])) if len(self.values) else 0.0

    @property
    def is_neutral(self) -> Sequence[bool]:
        """Which multipliers have modulus one within an error that is small."""
        neutral: list[bool] = (self._may_be_one() & (self.errors <= SURE)).tolist()
        return neutral

    @property
    def is_undecided(self) -> Sequence[bool]:
        """Which multipliers are known too badly to say on which side of one they are, or that they are one."""
        undecided: list[bool] = (self._may_be_one() & (self.errors > SURE)).tolist()
        return undecided

    def _may_be_one(self) -> NDArray[np.bool_]:
        may: NDArray[np.bool_] = np.abs(np.abs(self.values) - 1) <= self.errors
        return may


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Multipliers:
    """Eigenvalues of the Jacobian of one step, component by component.

    Args:
        groups: the components, those that are read by others first.
        is_complete: whether these are all, or only the largest.
    """

    groups: tuple[Group, ...]
    is_complete: bool

    @property
    def values(self) -> Complex:
        """All of them, largest modulus first."""
        return np.concatenate([group.values for group in self.groups])[self._order()]

    @property
    def errors(self) -> Real:
        """Estimated error of each, in the order of ``values``."""
        return np.concatenate([group.errors for group in self.groups])[self._order()]

    def _order(self) -> NDArray[np.int64]:
        return _falling(np.concatenate([group.values for group in self.groups]))


def multipliers(
    system: System,
    x: Tensor,
    *,
    count: int | None = None,
    uncertainty: Tensor | float = 0.0,
    largest_dense: int = LARGEST_DENSE,
    seed: int = 0,
) -> Multipliers:
    """Eigenvalues of the Jacobian of one step at ``x`` (tokens, dim), largest modulus first.

    Every strongly connected component of the mask graph has its own, from its own diagonal block: all of them up to
    ``largest_dense`` coordinates, above that the ``count`` largest by Arnoldi's method from a random vector of that
    seed. On the unit sphere only directions tangent to it count, ``tokens (dim - 1)`` multipliers in all.

    The error of a multiplier is estimated as its condition number (of left and right eigenvectors) times the
    perturbation of the block: rounding, and how much the block changes if ``x`` is off by ``uncertainty`` (one number,
    or one for every entry), its own tokens and those it reads. Of m multipliers that nearly agree it is no more than
    the m-th root of that perturbation, as for a Jordan block. Where zeros of a block make it triangular, its parts are
    taken one by one.
    """
    if x.ndim != 2:
        raise ShapeError(f"multipliers belong to one state (tokens, dim), got shape {tuple(x.shape)}")
    if not system.is_steady:
        raise ConfigError(
            "multipliers need every step to apply the same block; this system draws its maps anew"
        )
    if count is not None and count < 1:
        raise ConfigError(f"at least one multiplier must be asked for, got count={count}")
    unsure = torch.as_tensor(uncertainty, dtype=x.dtype, device=x.device).expand_as(x)
    groups, is_complete = [], True
    for members in components_of(system, x.shape[-2]):
        block = block_at(system, x, members)
        wanted = min(block.size, ARNOLDI_COUNT if count is None else count)
        if block.size <= largest_dense or wanted > block.size - 2:
            values, errors = _all(block, unsure)
        else:
            values, errors = _largest(block, wanted, unsure, seed)
            is_complete = False
        order = _falling(values)[:count]
        is_complete = is_complete and len(order) == block.size
        groups.append(Group(tokens=tuple(members.tolist()), values=values[order], errors=errors[order]))
    return Multipliers(groups=tuple(groups), is_complete=is_complete)


def _falling(values: Complex) -> NDArray[np.int64]:
    """Largest modulus first; of a conjugate pair the one above the real axis first."""
    return np.lexsort((-values.imag, -values.real, -np.abs(values)))


def _all(block: Block, unsure: Tensor) -> tuple[Complex, Real]:
    matrix = block.dense().cpu().numpy()
    if not np.isfinite(matrix).all():
        raise NumericalError(
            "the Jacobian of one step is not finite at this state; a norm may divide by zero here"
        )
    values, errors = np.zeros(len(matrix), dtype=np.complex128), np.zeros(len(matrix))
    changes = _changes(block, matrix, unsure)
    pattern = (matrix != 0) | (changes != 0).any(axis=0)
    for part in _irreducible(pattern):
        inside = np.ix_(part, part)
        values[part], errors[part] = _eigenvalues(
            matrix[inside], np.stack([change[inside] for change in changes])
        )
    return values, errors


def _changes(block: Block, matrix: Real, unsure: Tensor) -> Real:
    """Changes of the block, ``tries size size``: under the uncertainty, and under the rounding of every entry.

    A small uncertainty is tried larger and the change divided by it, or rounding would hide the derivative.
    """
    x, eps = block.x, torch.finfo(block.x.dtype).eps
    tiny, size = torch.finfo(x.dtype).tiny, float(x.abs().max())
    scale = max(1.0, TRIED * size / max(float(unsure.max()), tiny)) if bool((unsure > 0).any()) else 1.0
    tries = [(scale, unsure * sign) for sign in signs(x)] + [(1.0, eps * x.abs() * sign) for sign in signs(x)]
    moved = torch.stack([x + factor * off for factor, off in tries])
    basis = block.basis.expand(len(tries), *block.basis.shape)
    found = Block(block.system, moved, block.members, basis).dense().cpu().numpy() - matrix
    changes: Real = found / np.array([factor for factor, _ in tries])[:, None, None]
    return np.where(np.isfinite(changes), changes, np.inf)


def _irreducible(pattern: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Sets of coordinates between which the matrix is triangular, so that each has eigenvalues of its own."""
    count, labels = connected_components(pattern, directed=True, connection="strong")
    return [np.flatnonzero(labels == label) for label in range(count)]


def _eigenvalues(matrix: Real, changes: Real) -> tuple[Complex, Real]:
    """Of one irreducible part; balanced first, since channels of very different size are not ill-conditioned."""
    balanced, (scale, _) = scipy.linalg.matrix_balance(matrix, permute=False, separate=True)
    with np.errstate(invalid="ignore"):
        moved = np.nan_to_num(changes / scale[:, None] * scale[None, :], nan=np.inf)
    change = _MARGIN * float(np.linalg.norm(moved, axis=(-2, -1)).max(initial=0.0))
    found: tuple[Any, ...] = scipy.linalg.eig(balanced, left=True, right=True)
    values, left, right = found
    overlap = np.abs((left.conj() * right).sum(axis=0))
    norm = float(np.linalg.norm(balanced))
    return values, _errors(values, overlap, norm, change)


def _largest(block: Block, count: int, unsure: Tensor, seed: int) -> tuple[Complex, Real]:
    start = np.random.default_rng(seed).standard_normal(block.size)
    values, right = _arnoldi(block, count, start, transposed=False)
    others, left = _arnoldi(block, count, start, transposed=True)
    # a transposed matrix has the same eigenvalues; its eigenvectors are the conjugates of the left ones
    partner = np.abs(values[:, None] - others[None, :]).argmin(axis=1)
    overlap = np.abs((left[:, partner] * right).sum(axis=0))
    images = np.stack([_apply(block, right[:, i]) for i in range(len(values))], axis=1)
    missed = np.linalg.norm(images - values * right, axis=0)
    scale = float(np.linalg.norm(images, axis=0).max(initial=0.0))
    tiny = torch.finfo(block.x.dtype).tiny
    relative = float(unsure.max()) / max(float(block.x.abs().max()), tiny)
    errors = _errors(values, overlap, scale, max(scale, 1.0) * relative) + missed / np.maximum(overlap, 1e-8)
    return values, errors


def _arnoldi(block: Block, count: int, start: Real, *, transposed: bool) -> tuple[Complex, Complex]:
    like = block.x

    def times(vector: Real) -> Real:
        v = torch.as_tensor(vector, dtype=like.dtype, device=like.device).reshape(-1)
        moved = block.transposed_times(v) if transposed else block.times(v)
        return moved.cpu().numpy()

    operator = LinearOperator((block.size, block.size), matvec=times, dtype=np.dtype(np.float64))
    try:
        found = eigs(operator, k=count, which="LM", v0=start, ncv=min(block.size, max(4 * count, 40)))
    except ArpackNoConvergence as error:
        raise NumericalError(
            f"Arnoldi's method found {len(error.eigenvalues)} of {count} multipliers of a block with {block.size} "
            "coordinates; ask for fewer, or for a larger dense block"
        ) from error
    return found


def _apply(block: Block, vector: Complex) -> Complex:
    parts = np.stack([vector.real, vector.imag])
    moved = block.times(torch.as_tensor(parts, dtype=block.x.dtype, device=block.x.device)).cpu().numpy()
    image: Complex = moved[0] + 1j * moved[1]
    return image


def _errors(values: Complex, overlap: Real, norm: float, change: float) -> Real:
    """Condition number times perturbation, at most the radius in which a Jordan block would scatter its eigenvalue."""
    change = max(norm, 1.0) * _ROUNDING * np.finfo(np.float64).eps + change
    first_order = change / np.maximum(overlap, np.finfo(np.float64).tiny)
    distance = np.abs(values[:, None] - values[None, :])
    radius = np.full(len(values), change)
    for near in range(2, len(values) + 1):
        scatter = max(norm, 1.0) ** (1 - 1 / near) * change ** (1 / near)
        crowded = (distance <= 2 * scatter).sum(axis=1) >= near
        radius = np.where(crowded, scatter, radius)
    result: Real = np.minimum(np.minimum(first_order, radius), _UNKNOWN)
    return result
