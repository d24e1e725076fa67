"""Numbers between which the largest eigenvalue modulus of one irreducible block certainly lies, rounding included.

A block comes as floats and with ``error``, how far each entry may be from the one it stands for, relative to that
entry. What is certified holds for all blocks within that distance. ``u`` below is the unit of rounding, 2^-53, and
``gamma(m) = m u / (1 - m u)`` bounds the relative rounding of m operations, in whatever order a library does them.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.sparse import csc_array, csr_array, eye_array
from scipy.sparse.linalg import splu

from rankscope.masks import eigen
from rankscope.masks.eigen import Vector, symmetric_modulus
from rankscope.masks.patterns import SparseMap

Ends = tuple[float, float]
Matrix = NDArray[np.float64]

_UNIT = 2.0**-53
_ENOUGH = 1e-11  # width at which squaring stops
_MUCH = 1e-8  # width that discs may leave before powers are computed too
_SYMMETRIC_TOKENS = (
    2500  # up to here all eigenvalues of a symmetric matrix are computed, in about ten seconds
)
_MOST_FILLED = 4_000_000  # entries of a triangle that is multiplied with itself
_SQUARINGS = 44
_TRACES = 6  # powers of the last square that are kept: traces of up to twice as many are looked at
_SHIFTS = (1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-6, 1e-4)
_COLUMNS, _STEPS = 64, 64


def gamma(operations: int) -> float:
    """The relative rounding of that many operations."""
    return operations * _UNIT / (1 - operations * _UNIT)


def open_ends(block: SparseMap, error: float) -> Ends:
    """Of an open block, which is nonnegative and irreducible: Collatz and Wielandt's quotients.

    For any positive x the spectral radius lies between the smallest and the largest ``(A x)_i / x_i``. Nothing
    cancels in these sums, so they are right relative to themselves. x is improved by steps of ``A + 1``, which has
    the same eigenvectors and no eigenvalue of equal modulus, from the eigenvector of a solver where there is one.
    """
    size = int(block.shape[0])
    slack = gamma(int(np.diff(block.indptr).max()) + 3) + error * (1 + 8 * _UNIT)
    low, high, x = 0.0, 1.0, _perron_vector(block)
    for _ in range(200):
        applied = np.asarray(block @ x)
        quotients = applied / x
        low = max(low, float(quotients.min()) * (1 - slack))
        high = min(high, float(quotients.max()) * (1 + slack))
        if high - low <= 4 * slack:
            break
        x = x + applied
        x = np.maximum(x / x.max(), 1e-280 * np.ones(size))
    return low, high


def _perron_vector(block: SparseMap) -> Vector:
    size = int(block.shape[0])
    if size > eigen.DENSE_TOKENS:
        return np.ones(size)
    values, vectors = linalg.eig(block.toarray())
    x: Vector = np.abs(vectors[:, int(values.real.argmax())])
    return np.asarray(np.maximum(x / x.max(), 1e-250))


def reversible_ends(form: SparseMap, top: Vector, error: float, *, is_symmetric: bool) -> Ends:
    """Of a closed block that is similar to a matrix within ``error``, entry by entry, of a symmetric one.

    ``top`` is the eigenvector to 1; ``is_symmetric`` if the matrix that is meant is known to be symmetric too. A matrix
    S + D with S symmetric has its eigenvalues in discs of radius |D| around those of S (Bauer and Fike).
    """
    if form.shape[0] > _SYMMETRIC_TOKENS:
        low, high = _by_inertia(form, top, error)
        # discs of that radius may form a chain; for symmetric matrices Weyl says that nothing moves further than one
        chain = 0.0 if is_symmetric else 2 * int(form.shape[0]) * error * float(abs(form).sum(axis=1).max())
        return max(0.0, low - chain), high
    values, radius = _symmetric_values(form.toarray(), error)
    modulus = np.abs(values)
    return _second(modulus - radius, modulus + radius)


def _symmetric_values(form: Matrix, error: float) -> tuple[Vector, float]:
    """Eigenvalues of all matrices within ``error``, entry by entry, of a symmetric one: centers, and one radius.

    Let V hold the computed eigenvectors, U the orthogonal matrix next to V and h >= |V^T V - 1|, so that
    |V - U| <= h. Then |S U - U L| <= |S V - V L| + 2 h |S|, and by Weyl eigenvalues of S differ from L by no more. All
    norms are Frobenius norms, of computed residuals plus their rounding.
    """
    size = len(form)
    values, vectors = linalg.eigh(form)
    length = float(np.linalg.norm(form))
    away = float(np.linalg.norm(form @ vectors - vectors * values))
    away += gamma(size + 2) * (length * size**0.5 + float(np.abs(values).max()) * size**0.5)
    skew = float(np.linalg.norm(vectors.T @ vectors - np.eye(size))) + gamma(size + 2) * size
    return values, (away + 2 * skew * length + (error + 4 * _UNIT) * length) * (1 + 1e-9)


def _by_inertia(form: SparseMap, top: Vector, error: float) -> Ends:
    """The same for large sparse matrices: how many eigenvalues lie beyond a shift, from the signs of pivots.

    ``S - shift = L D L^T + R`` with the computed triangle L and pivots D: by Sylvester D has as many positive entries
    as L D L^T has positive eigenvalues, and by Weyl R moves these by no more than its largest row sum. R is
    computed, with its rounding. Beginning at the solver's estimate, the shift moves out until the count is decided.
    """
    value = symmetric_modulus(form, top)
    low, high = 0.0, 1.0
    moved = error * float(abs(form).sum(axis=1).max()) + 8 * _UNIT
    for step in _SHIFTS:
        upper = _beyond(form, value + step)
        lower = _beyond(-form, value + step)
        if upper is not None and lower is not None and upper[0] == 1 and lower[0] == 0:
            high = min(high, value + step + max(upper[1], lower[1]) + moved)
            break
    for step in _SHIFTS:
        found = [(_beyond(form, value - step), 2), (_beyond(-form, value - step), 1)]
        sure = [one[1] for one, least in found if one is not None and one[0] >= least]
        if sure:
            low = max(low, value - step - min(sure) - moved)
            break
    return low, high


def _beyond(form: SparseMap, shift: float) -> tuple[int, float] | None:
    """How many eigenvalues of some matrix near ``form`` are above the shift, and how near it is; None if unknown."""
    size = int(form.shape[0])
    shifted = csc_array(form - shift * eye_array(size))
    options: dict[str, Any] = {"SymmetricMode": True}
    try:
        factors = splu(shifted, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
    except RuntimeError:  # a pivot is exactly zero
        return None
    if not np.array_equal(factors.perm_r, factors.perm_c) or factors.L.nnz > _MOST_FILLED:
        return None
    order = np.argsort(factors.perm_c)
    lower: Any = csr_array(factors.L)
    pivots = factors.U.diagonal()
    scaled = lower * pivots
    product = csr_array(scaled @ lower.T)
    sizes = csr_array(abs(scaled) @ abs(lower.T)) + abs(shifted)[order][:, order]
    away = abs(shifted[order][:, order] - product) + gamma(int(np.diff(lower.indptr).max()) + 4) * sizes
    return int(np.count_nonzero(pivots > 0)), float(away.sum(axis=1).max()) * (1 + 1e-9)


def general_ends(block: SparseMap, error: float) -> Ends:
    """Of any closed block: discs around eigenvalues, and high powers where these leave much open.

    Beyond ``DENSE_TOKENS`` tokens neither can be afforded, and few columns of a power have to do.
    """
    if block.shape[0] > eigen.DENSE_TOKENS:
        return by_overlap(block, error)
    low, high = _by_discs(block.toarray(), error)
    if high - low > _MUCH:
        others = _by_squaring(block.toarray(), error)
        low, high = max(low, others[0]), min(high, others[1])
    return low, high


def _by_discs(block: Matrix, error: float) -> Ends:
    """Gershgorin's discs after a change of basis to the computed eigenvectors.

    With X the computed eigenvectors, Y their computed inverse and R = 1 - Y X,

        X^-1 P X = (1 - R)^-1 Y P X = M + R (1 - R)^-1 M,    M = Y P X,

    if |R| < 1 in the largest row sum. Every eigenvalue lies in a disc around some M_ii whose radius is the sum of all
    other entries of that row: of M, as computed; of its rounding and of ``error``, both at most some units of
    |Y| |P| |X|; and of the last term, at most (row sum of |R|) |M| / (1 - |R|).
    """
    size = len(block)
    basis = linalg.eig(block)[1]
    try:
        inverse = np.linalg.inv(basis)
    except np.linalg.LinAlgError:
        return 0.0, 1.0
    ones = np.ones(size)
    formed = inverse @ (block @ basis)
    rounding = gamma(4 * size + 16)  # of complex products
    slop = (2 * rounding + error) * (np.abs(inverse) @ (block @ (np.abs(basis) @ ones)))
    left = np.abs(np.eye(size) - inverse @ basis) @ ones
    left += rounding * (np.abs(inverse) @ (np.abs(basis) @ ones)) + rounding
    if not left.max() < 0.5:
        return 0.0, 1.0
    centers = formed.diagonal()
    rows = np.abs(formed) @ ones
    others = rows - np.abs(centers) + rounding * rows
    radius = (others + slop + left * float((rows + slop).max()) / (1 - float(left.max()))) * (1 + 1e-9)
    return _second(np.abs(centers) - radius, np.abs(centers) + radius)


def _second(low: Vector, high: Vector) -> Ends:
    """The second largest modulus of a map with an eigenvalue 1, each of its eigenvalues in one of these rings.

    Rings that overlap form chains, and a chain holds as many eigenvalues as rings. If one ring alone reaches the
    largest modulus, 1, all others are in the rest. The largest of the rest lies in the first chain of the rest.
    """
    order = np.argsort(-high, kind="stable")
    low, high = low[order], high[order]
    if len(low) == 1:
        return 0.0, 0.0
    is_apart = bool(high[1:].max() < low[0])
    if is_apart:
        low, high = low[1:], high[1:]
    reach = np.minimum.accumulate(low)
    ends = np.flatnonzero(high[1:] < reach[:-1])
    lowest = reach[int(ends[0]) if len(ends) else len(reach) - 1]
    return max(0.0, float(lowest)), min(1.0, float(high[0]))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Power:
    """A computed power of a matrix, scaled by a power of two.

    Args:
        matrix: the power over ``2^exponent``.
        length: at least its Frobenius norm.
        off: at least the Frobenius norm of its distance from the exact power over ``2^exponent``.
        exponent: of two.
        order: which power.
    """

    matrix: Matrix
    length: float
    off: float
    exponent: int
    order: int

    @classmethod
    def of(cls, matrix: Matrix, off: float, exponent: int, order: int) -> "_Power":
        """With the largest entries near one: scaling by a power of two rounds nothing."""
        length = float(np.linalg.norm(matrix)) * (1 + gamma(matrix.size))
        shift = math.frexp(length)[1] if length > 0 else 0
        return cls(
            matrix=np.ldexp(matrix, -shift),
            length=math.ldexp(length, -shift),
            off=math.ldexp(off, -shift) + 1e-290,  # entries too small to be floats
            exponent=exponent + shift,
            order=order,
        )

    def times(self, other: "_Power") -> "_Power":
        """The product; ``|A| |B|``, entry by entry, has at most the product of the norms as its norm."""
        off = self.off * other.length + other.off * self.length + self.off * other.off
        off += gamma(len(self.matrix)) * self.length * other.length
        return _Power.of(
            self.matrix @ other.matrix,
            off * (1 + 1e-12),
            self.exponent + other.exponent,
            self.order + other.order,
        )

    def root(self, number: float) -> float:
        """log2 of the root, of this order, of ``number`` times ``2^exponent``."""
        return (self.exponent + math.log2(number)) / self.order


def _by_squaring(block: Matrix, error: float) -> Ends:
    """Norms and traces of high powers.

    ``B = P - 1 c^T`` with c the mean row has the eigenvalues of P but for its 1, which becomes ``1 - c^T 1``, zero up
    to rounding; rho is the largest modulus of the others. For any k

        (|trace B^k| / n)^(1/k)  <=  rho  <=  |B^k|^(1/k),

    because the trace is a sum of n k-th powers of modulus rho^k or less. k doubles from step to step, and the root
    shrinks what is unknown of the power as long as its error, which doubles too, is small beside it.

    If several eigenvalues share the modulus, the trace may vanish at one k. Of n numbers of modulus one or less, one of
    them of modulus one, some power sum of order up to n is at least one (Turan), so traces of a few powers of the last
    square are looked at too.
    """
    mean = block.mean(axis=0)
    lengths = float(np.linalg.norm(block)) + float(np.linalg.norm(mean)) * len(block) ** 0.5
    power = _Power.of(block - mean, (error + gamma(4)) * lengths, 0, 1)
    # B is that of the rounded c, whatever it is; its eigenvalue 1 - c^T 1 says nothing about rho
    spurious = 2 * (abs(float(mean.sum()) - 1) + gamma(len(block) + 2))
    low, high, last = -math.inf, 0.0, power
    for _ in range(_SQUARINGS):
        high = min(high, power.root(power.length + power.off))
        low = max(low, _from_trace(power, float(np.trace(power.matrix)), power.off))
        if 2.0**high - 2.0**low <= _ENOUGH or power.length < 4 * power.off:
            break
        last, power = power, power.times(power)
    if 2.0**high - 2.0**low > _ENOUGH:
        low = max(low, _from_many_traces(last))
    lowest, highest = 2.0**low * (1 - 16 * _UNIT), 2.0**high * (1 + 16 * _UNIT)
    return (lowest if lowest > spurious else 0.0), min(max(highest, spurious), 1.0)


def _from_trace(power: _Power, trace: float, off: float) -> float:
    """log2 of a lower bound: the trace of an error is at most root n times its norm."""
    size = len(power.matrix)
    sure = abs(trace) - size**0.5 * (off + gamma(size) * power.length)
    return power.root(sure / size) if sure > 0 else -math.inf


def _from_many_traces(first: _Power) -> float:
    """The same from powers up to ``2 _TRACES`` of ``first``; trace(A B) needs no product of matrices."""
    powers = [first]
    for _ in range(_TRACES - 1):
        powers.append(powers[-1].times(first))
    low = max(_from_trace(one, float(np.trace(one.matrix)), one.off) for one in powers)
    for one in powers:
        both = replace(one, exponent=one.exponent + powers[-1].exponent, order=one.order + powers[-1].order)
        off = one.off * powers[-1].length + powers[-1].off * one.length + one.off * powers[-1].off
        off += gamma(one.matrix.size) * one.length * powers[-1].length
        trace = float((one.matrix * powers[-1].matrix.T).sum())
        low = max(low, _from_trace(both, trace, off))
    return low


def by_overlap(block: SparseMap, error: float) -> Ends:
    """Of maps too large to be squared: what all rows of a power share, and traces of the first two powers.

    If every row of P^k gives column j at least m_j, differences of tokens fall by ``1 - sum_j m_j`` or more in k steps
    (Doeblin); any choice of columns is valid, and those with most weight are taken.
    """
    size = int(block.shape[0])
    slack = gamma(int(np.diff(block.indptr).max()) + 3) + error * (1 + 8 * _UNIT)
    weight = np.full(size, 1.0 / size)
    for _ in range(8):
        weight = np.asarray(block.T @ weight)
    chosen = np.argsort(-weight, kind="stable")[:_COLUMNS]
    columns = np.zeros((size, len(chosen)))
    columns[chosen, np.arange(len(chosen))] = 1.0
    high = 1.0
    for k in range(1, _STEPS + 1):
        columns = np.asarray(block @ columns)
        shared = float(columns.min(axis=0).sum()) * (1 - k * slack - gamma(len(chosen)))
        high = min(high, max(1 - shared, 0.0) ** (1 / k) * (1 + 8 * _UNIT))
    traces = float(block.diagonal().sum()), float((block * block.T).sum())
    sure = [one * (1 - 2 * slack - gamma(size)) - 1 for one in traces]
    low = max(max(one, 0.0) / (size - 1) for one in sure[:1])
    low = max(low, math.sqrt(max(sure[1], 0.0) / (size - 1)))
    return low * (1 - 8 * _UNIT), high
