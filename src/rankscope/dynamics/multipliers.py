"""Multipliers of an equilibrium: the eigenvalues of the Jacobian of one step, and how well they are known."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs
from torch import Tensor

from rankscope.dynamics.jacobian import Block, block_at, components_of
from rankscope.dynamics.system import System
from rankscope.errors import ConfigError, NumericalError, ShapeError

Complex = NDArray[np.complex128]
Real = NDArray[np.float64]

LARGEST_DENSE = 512
"""Blocks of up to so many coordinates are formed; of larger ones only the largest multipliers are found."""

ARNOLDI_COUNT = 8
"""Multipliers of a large block that are found if the caller does not say how many."""

_ROUNDING = 16  # units of rounding, relative to the norm of a block, that its products may be off by


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
        """Which multipliers have modulus one as far as their errors can tell."""
        neutral: list[bool] = (np.abs(np.abs(self.values) - 1) <= self.errors).tolist()
        return neutral


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
    uncertainty: float = 0.0,
    largest_dense: int = LARGEST_DENSE,
    seed: int = 0,
) -> Multipliers:
    """Eigenvalues of the Jacobian of one step at ``x`` (tokens, dim), largest modulus first.

    Every strongly connected component of the mask graph has its own, from its own diagonal block: all of them up to
    ``largest_dense`` coordinates, above that the ``count`` largest by Arnoldi's method from a random vector of that
    seed. On the unit sphere only directions tangent to it count, ``tokens (dim - 1)`` multipliers in all.

    The error of a multiplier is estimated as its condition number (of left and right eigenvectors) times the
    perturbation of the block: rounding, and ``uncertainty``, the distance of ``x`` from the true equilibrium. Of m
    multipliers that nearly agree it is no more than the m-th root of that perturbation, as for a Jordan block.
    """
    if x.ndim != 2:
        raise ShapeError(f"multipliers belong to one state (tokens, dim), got shape {tuple(x.shape)}")
    if not system.is_steady:
        raise ConfigError(
            "multipliers need every step to apply the same block; this system draws its maps anew"
        )
    if count is not None and count < 1:
        raise ConfigError(f"at least one multiplier must be asked for, got count={count}")
    unsure = uncertainty / max(float(x.abs().max()), torch.finfo(x.dtype).tiny)
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


def _all(block: Block, unsure: float) -> tuple[Complex, Real]:
    matrix = block.dense().cpu().numpy()
    if not np.isfinite(matrix).all():
        raise NumericalError(
            "the Jacobian of one step is not finite at this state; a norm may divide by zero here"
        )
    if not matrix.size:
        return np.zeros(0, dtype=np.complex128), np.zeros(0)
    values, left, right = scipy.linalg.eig(matrix, left=True, right=True)
    overlap = np.abs((left.conj() * right).sum(axis=0))
    norm = float(np.linalg.norm(matrix))
    return values, _errors(values, overlap, norm, unsure)


def _largest(block: Block, count: int, unsure: float, seed: int) -> tuple[Complex, Real]:
    start = np.random.default_rng(seed).standard_normal(block.size)
    values, right = _arnoldi(block, count, start, transposed=False)
    others, left = _arnoldi(block, count, start, transposed=True)
    # a transposed matrix has the same eigenvalues; its eigenvectors are the conjugates of the left ones
    partner = np.abs(values[:, None] - others[None, :]).argmin(axis=1)
    overlap = np.abs((left[:, partner] * right).sum(axis=0))
    images = np.stack([_apply(block, right[:, i]) for i in range(len(values))], axis=1)
    missed = np.linalg.norm(images - values * right, axis=0)
    scale = float(np.linalg.norm(images, axis=0).max(initial=0.0))
    errors = _errors(values, overlap, scale, unsure) + missed / np.maximum(overlap, 1e-8)
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


def _errors(values: Complex, overlap: Real, norm: float, unsure: float) -> Real:
    """Condition number times perturbation, at most the radius in which a Jordan block would scatter its eigenvalue."""
    change = max(norm, 1.0) * (_ROUNDING * np.finfo(np.float64).eps + unsure)
    first_order = change / np.maximum(overlap, np.finfo(np.float64).tiny)
    distance = np.abs(values[:, None] - values[None, :])
    radius = np.full(len(values), change)
    for near in range(2, len(values) + 1):
        scatter = max(norm, 1.0) ** (1 - 1 / near) * change ** (1 / near)
        crowded = (distance <= 2 * scatter).sum(axis=1) >= near
        radius = np.where(crowded, scatter, radius)
    result: Real = np.minimum(first_order, radius)
    return result
