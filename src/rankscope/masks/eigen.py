"""Largest eigenvalue modulus of one irreducible block: LAPACK for small blocks, Lanczos and Arnoldi beyond."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.sparse import csc_array, eye_array
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh, splu

from rankscope.masks.patterns import SparseMap

Vector = NDArray[np.float64]
Complexes = NDArray[np.complex128]

SLEM_TOLERANCE = 1e-4
"""Largest error estimate with which a modulus is returned; a less certain one is refused."""

DENSE_TOKENS = 1000
"""Blocks up to this size are solved densely, in about a second."""

_PLAIN_RESTARTS = 30  # what a spectrum with a gap needs; without one, a shift is faster
_ARNOLDI_RESTARTS = 200
_OFFSET = 1e-10  # how far a shift stays from the eigenvalue it would otherwise hit
_LARGEST_CLUSTER = 16  # the error of m coinciding eigenvalues is an m-th root: more are hopeless in float64
_IN_DOUBT = 1e-10  # an eigenvalue less certain than this is looked at together with its neighbors
_SCATTER = 8.0  # a solver that rounds m coinciding eigenvalues by 8^m times our estimate would be a bad one
_MOST_IN_DOUBT = 32  # eigenvalues looked at one by one; a map with more of them is hopeless too
_EPS = float(np.finfo(np.float64).eps)


def symmetric_modulus(form: SparseMap, top: Vector | None) -> float:
    """Largest eigenvalue modulus of a symmetric matrix similar to a substochastic one.

    With ``top``, its eigenvector to the eigenvalue 1, that eigenvalue is left out.
    """
    if form.shape[0] <= DENSE_TOKENS:
        values = linalg.eigvalsh(form.toarray())
        return float(np.abs(values[:-1] if top is not None else values).max())
    try:
        return abs(_lanczos(form, top, which="LM", tol=0.0, maxiter=_PLAIN_RESTARTS))
    except ArpackNoConvergence:
        upper = _largest(form, top)
    # Every eigenvalue lies within 1 - P_ii of some P_ii (Gershgorin); the symmetric form has the same diagonal.
    if upper >= 1 - 2 * form.diagonal().min():
        return upper
    return max(upper, _largest(-form, None))


def _lanczos(form: SparseMap, top: Vector | None, *, which: str, tol: float, maxiter: int) -> float:
    operator = _operator(form.shape, lambda x: _without(np.asarray(form @ _without(x, top)), top))
    options: dict[str, Any] = {"which": which, "tol": tol, "maxiter": maxiter, "v0": _start(form.shape[0])}
    return float(eigsh(operator, k=1, ncv=40, return_eigenvectors=False, **options)[0])


def _largest(form: SparseMap, top: Vector | None) -> float:
    """Largest eigenvalue but that of ``top``, where eigenvalues crowd and plain Lanczos takes too many steps.

    A shift just above it, found by trial, spreads them. By Sylvester's law the pivots of the shifted matrix show
    how many eigenvalues lie above the shift, so none can be missed.
    """
    above = 0 if top is None else 1
    rough = _lanczos(form, top, which="LA", tol=1e-4, maxiter=1000)
    margin = 1e-5
    while True:
        shift = min(rough + margin, 1.0 + _OFFSET)
        factors = splu(
            csc_array(form - shift * eye_array(form.shape[0])),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
        if shift > 1 or np.count_nonzero(factors.U.diagonal() > 0) == above:
            break
        margin *= 10
    solve = _operator(form.shape, lambda x: _without(factors.solve(_without(x, top)), top))
    options: dict[str, Any] = {"sigma": shift, "OPinv": solve, "v0": _start(form.shape[0])}
    return float(eigsh(form, k=1, ncv=40, return_eigenvectors=False, **options)[0])


def _operator(shape: tuple[int, ...], product: Any) -> Any:
    return LinearOperator(shape, matvec=product, dtype=np.float64)


def _without(x: Vector, top: Vector | None) -> Vector:
    """The part of ``x`` that is orthogonal to ``top``."""
    return x.ravel() if top is None else x.ravel() - (top @ x.ravel()) * top


def _start(size: int) -> Vector:
    """A fixed start vector, so that the same mask gives the same bits."""
    return np.random.Generator(np.random.PCG64(0)).standard_normal(size)


def general_modulus(block: SparseMap, *, closed: bool) -> tuple[float, float]:
    """Largest eigenvalue modulus of an irreducible block, and an estimate of its error.

    Of a closed block, whose rows sum to one, one eigenvalue 1 is left out.
    """
    return _dense(block, closed) if block.shape[0] <= DENSE_TOKENS else _arnoldi(block, closed)


def _dense(block: SparseMap, closed: bool) -> tuple[float, float]:
    """Modulus, and estimate of its error from discs around all eigenvalues, not of the largest alone.

    The radius of a disc is to first order the rounding times the condition of the eigenvalue. Discs that leave
    the answer open, mostly those of multiple eigenvalues, are replaced by discs around clusters.
    """
    balanced = linalg.matrix_balance(block.toarray(), permute=False)[0]
    values, left, right = linalg.eig(balanced, left=True, right=True)  # type: ignore[misc]  # stub: two
    rounding = 8 * _EPS * float(np.linalg.norm(balanced))  # simple eigenvalues were seen to move by 3.4 units
    overlap = np.abs((left.conj() * right).sum(axis=0))  # columns have length one
    radius = rounding / np.maximum(overlap, _EPS)
    if closed:
        others = np.arange(len(values)) != np.abs(values - 1).argmin()
        values, radius = values[others], radius[others]
    centers = values.copy()
    in_doubt = np.flatnonzero(np.abs(values) + radius > (np.abs(values) - radius).max() + _IN_DOUBT)
    if 0 < len(in_doubt) <= _MOST_IN_DOUBT:
        form, basis = linalg.schur(balanced, output="complex")
        for k in in_doubt:
            centers[k], radius[k] = _cluster(form, basis, rounding, values, int(k), float(radius[k]))
    modulus = np.abs(centers)
    return float(modulus.max()), float((modulus + radius).max() - (modulus - radius).max()) / 2


def _cluster(
    form: Complexes, basis: Complexes, rounding: float, values: Complexes, k: int, radius: float
) -> tuple[complex, float]:
    """Center and radius of a disc for eigenvalue k, alone or together with its nearest others.

    Rounding scatters m coinciding eigenvalues by the m-th root of ``rounding / s`` but hardly moves their mean: by
    ``rounding / s`` itself, with 1 / s the norm of the projection on their invariant subspace. Neighbors that lie no
    further apart than that may be one multiple eigenvalue. Of all such groups, k alone included, the one whose mean
    rounding moves least gives the center: a group that cuts a multiple eigenvalue in two has a large 1 / s, as has
    each member by itself. That it is one eigenvalue is not proven, so the radius still covers the scatter and the root.
    """
    nearest = np.argsort(np.abs(values - values[k]), kind="stable")
    center, moved, size = complex(values[k]), radius, len(form)
    alone, found = radius, radius
    for count in range(2, min(_LARGEST_CLUSTER, len(values)) + 1):
        members = values[nearest[:count]]
        select = _matching(form.diagonal(), members)
        s = float(linalg.lapack.ztrsen(select, form, basis, job="E", lwork=size**2)[4])
        error = rounding / max(s, _EPS)
        mean, root = complex(members.mean()), error ** (1 / count)
        scatter = float(np.abs(members - mean).max())
        if scatter <= _SCATTER * root and error < moved:
            center, moved = mean, error
            found = min(scatter + root, alone + abs(mean - complex(values[k])))
    return center, found


def _matching(diagonal: Complexes, members: Complexes) -> NDArray[np.int32]:
    """1 on the diagonal entries that stand for ``members``, each the nearest one still free."""
    select = np.zeros(len(diagonal), dtype=np.int32)
    for member in members:
        select[np.where(select, np.inf, np.abs(diagonal - member)).argmin()] = 1
    return select


def _arnoldi(block: SparseMap, closed: bool) -> tuple[float, float]:
    """The same by Arnoldi iteration, with the residual of the eigenvector in place of rounding.

    Rows of a closed block sum to one, so ``P - 1 1^T / n`` has 0 in place of its eigenvalue 1 and otherwise the
    same eigenvalues.
    """
    size = int(block.shape[0])
    mean = 1.0 / size if closed else 0.0
    forward = _operator(block.shape, lambda x: block @ x.ravel() - mean * x.sum())
    backward = _operator(block.shape, lambda x: block.T @ x.ravel() - mean * x.sum())
    options: dict[str, Any] = {"k": 4, "ncv": 60, "maxiter": _ARNOLDI_RESTARTS, "v0": _start(size)}
    values, right = eigs(forward, **options)
    mirrored, left = eigs(backward, **options)
    k = int(np.abs(values).argmax())
    x, y = right[:, k], left[:, np.abs(mirrored - values[k]).argmin()]
    applied = forward.matvec(x.real) + 1j * forward.matvec(x.imag)
    residual = float(np.linalg.norm(applied - values[k] * x))
    return float(abs(values[k])), (residual + _EPS) / max(float(abs(y @ x)), _EPS)
