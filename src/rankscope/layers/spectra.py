"""Largest eigenvalue moduli of the derivative of a layer: on common rows, and on what is left of token matrices.

Axis letters: i j tokens, d e entries of a token. A derivative J maps R to sum_j J_ij R_j, with blocks J_ij of d x d.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigs
from torch import Tensor

from rankscope.layers.derivatives import Derivative, Terms

Array = NDArray[Any]
Blocks = NDArray[Any]
"""All blocks of a derivative, ``i d j e``."""

LAPACK = 1100
"""Blocks up to this size are solved as they are."""

NOTHING = 1e-13
"""A block of this size relative to the largest is zero; exact zeros of masks stay exact in the derivative."""


APART = 1e3
"""How much larger than rounding, and than each other, the errors are from which its effect is read."""

COARSE = 1e-2
"""Largest of these errors: a coarse derivative is moved by less than APART."""

SAFETY = 10.0
"""How much larger the effect may be than the one that was read: errors are drawn at random."""

CLEAR = 1e-9
"""A radius that moves by no more than this is known well enough."""


class Radius(NamedTuple):
    """A spectral radius and how far it may be off."""

    value: float
    error: float


def ratio_of_radii(
    found: Derivative, profile: Tensor, *, seed: int = 0, error: float | None = None
) -> Radius | None:
    """Spectral radius on token matrices modulo {c u}, over that on {c u}: c is the profile, u any row.

    None where the second is zero: then nothing is common, and there is no ratio. ``error`` is how far it may be off
    where that is known from another row.
    """
    c = profile.numpy()
    held: Blocks | Terms
    if found.terms is not None:
        held, reads = found.terms, found.terms.reads.numpy()
        size = float(torch.einsum("k,kde->de", held.maps.abs().amax(dim=(1, 2)), held.entries.abs()).max())
    elif found.whole is not None:
        held, size = found.whole.numpy(), float(found.whole.abs().max())
        sizes = found.whole.square().sum(dim=(1, 3)).sqrt().numpy()
        reads = sizes > max(NOTHING, 10 * found.error) * sizes.max(initial=0.0)
    else:
        return _matrix_free(found, profile, seed)
    first, second = _radii(held, reads, c, seed)
    if first <= max(NOTHING, 100 * found.error) * size or first == 0:
        return None

    def moved(by: float) -> float:
        common, rest = _radii(_moved(held, by, np.random.default_rng(seed)), reads, c, seed + 1)
        return rest / common

    value = second / first
    if error is not None:
        return Radius(value, error)
    return Radius(value, _off(value, found.error, moved) + found.error)


def _off(value: float, error: float, moved: Callable[[float], float]) -> float:
    """How far rounding moves a radius, from what larger errors move it by.

    An error e moves an eigenvalue by C e^(1/k), with k the size of its largest Jordan block: two errors that are a
    thousand times apart show the power, and with it the part that the error itself has. A matrix that differs by no
    more than rounding would show nothing: it lies on the same circle around the eigenvalue as the one at hand. Errors
    of both signs are taken, since of two eigenvalues that part, moduli stay if they leave the real line.
    """

    def far(by: float) -> float:
        return max(abs(moved(by) - value), abs(moved(-by) - value))

    apart = min(APART, max(math.sqrt(COARSE / error), 2.0))
    once = far(apart * error)
    if once <= CLEAR:
        return once
    # Beside what the error itself does, C e^(1/k), these do A - 1 and A^2 - 1 times as much, with A = apart^(1/k).
    ratio = far(apart**2 * error) / once
    return SAFETY * once / min(max(ratio - 2, 0.1), apart)


def _moved(held: "Blocks | Terms", error: float, drawn: np.random.Generator) -> "Blocks | Terms":
    if not isinstance(held, Terms):
        moved: Blocks = held * (1 + error * drawn.standard_normal(held.shape))
        return moved
    maps, entries = (
        one * (1 + error * torch.from_numpy(drawn.standard_normal(one.shape)))
        for one in (held.maps, held.entries)
    )
    return Terms(maps, entries, held.reads)


def _radii(held: Blocks | Terms, reads: Array, profile: Array, seed: int) -> tuple[float, float]:
    """The two radii, from all blocks or from terms; ``reads`` says which token reads which.

    Tokens that read each other, directly or not, form a class; classes read one another in one direction alone. So J is
    block triangular and its eigenvalues are those of its classes, which also holds where eigenvalues coincide and J has
    too few eigenvectors (a causal window). The rows {c u} are an eigenspace of the first class that c lives on, the
    class that reads no other token where c is not zero; there, and only there, they are divided out.
    """
    _, label = connected_components(reads, directed=True, connection="strong")
    lives = np.abs(profile) > 1e-9 * np.abs(profile).max()
    classes = [np.flatnonzero(label == one) for one in range(label.max() + 1)]
    home = next(
        members
        for members in classes
        if lives[members].any() and not reads[np.ix_(members, lives & (label != label[members[0]]))].any()
    )
    c = profile[home] / np.linalg.norm(profile[home])
    first, second = 0.0, 0.0
    for members in classes:
        across = c if members is home else None
        if isinstance(held, Terms):
            common, rest = _of_terms(held, members, across, seed)
        else:
            common, rest = _of_blocks(held, members, across, seed)
        first, second = max(first, common), max(second, rest)
    return first, second


def _of_blocks(whole: Blocks, members: Array, c: Array | None, seed: int) -> tuple[float, float]:
    """Radii of one class: on {c u}, and on what is left; without c all is left."""
    block, first = whole[np.ix_(members, np.arange(whole.shape[1]), members)], 0.0
    if c is not None:
        first = _modulus(np.einsum("i,idje,j->de", c, block, c, optimize=True))
        rest = linalg.null_space(c[None])  # an orthonormal basis of the tokens' directions across c
        block = np.einsum("ia,idje,jb->adbe", rest, block, rest, optimize=True)
    return first, _block_radius(block, seed)


def _of_terms(terms: Terms, members: Array, c: Array | None, seed: int) -> tuple[float, float]:
    """The same from terms.

    Where the maps P_k commute, as one map and skips do, they are triangular in one common basis, the Schur basis of a
    general member of their family. In it J is block triangular, and its eigenvalues are those of n diagonal blocks of
    d x d. Checked, not assumed: what is below the diagonal must vanish.
    """
    maps, entries, first = terms.maps.numpy()[:, members][:, :, members], terms.entries.numpy(), 0.0
    if c is not None:
        first = _modulus(np.tensordot(np.einsum("i,kij,j->k", c, maps, c), entries, 1))
        rest = linalg.null_space(c[None])  # an orthonormal basis of the tokens' directions across c
        maps = rest.T @ maps @ rest
    if not maps.size:
        return first, 0.0
    weights = np.random.default_rng(seed).standard_normal(len(maps))
    _, basis = linalg.schur(np.tensordot(weights, maps, 1), output="complex")
    turned = basis.conj().T @ maps @ basis
    if np.linalg.norm(np.tril(turned, -1)) > 1e-10 * np.linalg.norm(turned):
        return first, _radius_of_sum(maps, entries, seed)
    diagonal = np.einsum("kaa->ak", turned)
    if len(maps) == 1:
        return first, float(np.abs(diagonal).max()) * _modulus(entries[0])
    return first, max(_modulus(np.tensordot(one, entries, 1)) for one in diagonal)


def _radius_of_sum(maps: Array, entries: Array, seed: int) -> float:
    """Spectral radius of R -> sum_k P_k R W_k."""
    tokens, dim = maps.shape[-1], entries.shape[-1]
    if tokens * dim <= LAPACK:
        return _modulus(np.einsum("kij,ked->idje", maps, entries).reshape(tokens * dim, -1))
    return _arnoldi(
        lambda v: (maps @ (v.reshape(tokens, dim) @ entries)).sum(axis=0).reshape(-1), tokens * dim, seed
    )


def _modulus(matrix: Array) -> float:
    return float(np.abs(linalg.eigvals(matrix)).max(initial=0.0)) if matrix.size else 0.0


def _block_radius(block: Array, seed: int) -> float:
    """Spectral radius of one class, ``token dim token dim``."""
    tokens, dim = block.shape[:2]
    flat = block.reshape(tokens * dim, tokens * dim)
    if not np.abs(flat).max(initial=0.0):
        return 0.0
    if tokens == 1 or len(flat) <= LAPACK:
        return _modulus(flat)
    return _arnoldi(lambda v: flat @ v, len(flat), seed)


def _arnoldi(times: Callable[[Array], Array], size: int, seed: int, tol: float = 1e-10) -> float:
    """Largest modulus by Arnoldi; a wide subspace, because rotations give many eigenvalues of one modulus."""
    start = np.random.default_rng(seed).standard_normal(size)
    operator = LinearOperator((size, size), matvec=times, dtype=np.float64)
    options: dict[str, Any] = {"k": 6, "ncv": min(size - 1, 160), "v0": start, "tol": tol, "maxiter": 60}
    try:
        values: Array = eigs(operator, which="LM", return_eigenvectors=False, **options)
    except ArpackNoConvergence as error:
        values = error.eigenvalues
    except ArpackError:
        return math.nan
    return float(np.abs(values).max()) if len(values) else math.nan


def _matrix_free(found: Derivative, profile: Tensor, seed: int) -> Radius | None:
    """The same from products alone, for token matrices whose derivative is too large to write out."""
    c = profile / profile.norm()
    tokens, dim = found.shape

    def on_common(u: Array) -> Array:
        out: Array = (c @ found.times(torch.outer(c, torch.from_numpy(u).reshape(dim)))).numpy()
        return out

    def across(v: Array) -> Array:
        given = torch.from_numpy(v).reshape(tokens, dim)
        out = found.times(given - torch.outer(c, c @ given))
        rest: Array = (out - torch.outer(c, c @ out)).reshape(-1).numpy()
        return rest

    first = _modulus(np.stack([on_common(unit) for unit in np.eye(dim)], axis=1))
    second = _arnoldi(across, tokens * dim, seed)
    if not first > 0 or math.isnan(second):
        return None
    again = _arnoldi(across, tokens * dim, seed + 1)
    return Radius(second / first, abs(again - second) / first + 1e-9)


def slem_of_map(held: Array, off: float = 0.0) -> float:
    """Second largest eigenvalue modulus of a map of tokens, counted with multiplicity; the first is left out.

    Classes of tokens are solved one by one, as for derivatives. A map whose rows sum to one has the profile 1. ``off``
    is how coarse the map is, relative to the first: what is below is nothing.
    """
    whole = held[:, None, :, None]
    rows = held.sum(axis=1)
    if np.allclose(rows, rows[0], rtol=max(1e-9, off), atol=1e-12):
        sizes = np.abs(held)
        first, second = _radii(whole, sizes > NOTHING * sizes.max(initial=0.0), np.ones(len(held)), 0)
        return second if second > max(NOTHING, off) * first else 0.0
    *_, second, first = np.sort(np.abs(linalg.eigvals(held)))
    return float(second) if second > off * first else 0.0
