"""Second largest eigenvalue modulus of row-stochastic maps, with the exact cases kept exact.

Eigenvalues of a block-triangular matrix are those of its diagonal blocks, so the map is taken apart into
strongly connected components first. That makes causal maps exact, whose Jordan blocks would cost an eigenvalue
solver most of its digits. What is left are irreducible blocks: *closed* if no row reads outside the block
(eigenvalue 1, once), *open* otherwise (spectral radius below 1).
"""

from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from math import frexp, gcd, nextafter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components
from scipy.sparse.linalg import ArpackNoConvergence

from rankscope.errors import ShapeError
from rankscope.masks import eigen
from rankscope.masks.bracket import by_overlap, gamma, general_ends, open_ends, reversible_ends
from rankscope.masks.eigen import SLEM_TOLERANCE, Vector, general_modulus, symmetric_modulus
from rankscope.masks.exact import EXACT_TOKENS, exact_modulus
from rankscope.masks.graph import Interval
from rankscope.masks.patterns import SparseMap

ROW_SUM_TOLERANCE = 1e-9
"""How far a row may miss one. Maps computed in single precision must be normalized again in double."""

_REVERSIBLE_TOLERANCE = 1e-11  # on log ratios: eigenvalues of the symmetric form move by no more than that
_EPS = float(np.finfo(np.float64).eps)
_WIDE = 0.01  # a bracket for which another method is tried
_UNIFORM = _EPS / 2  # of 1 / keys as a float


def slem_of(matrix: Any) -> float:
    """Second largest eigenvalue modulus of a row-stochastic matrix, dense or sparse: one 1 is left out.

    Exactly 1 if the map has several closed classes or a periodic one; 0 for one token. A map that gives all keys of a
    row the same weight is taken for that map in fractions, and its blocks of up to ``EXACT_TOKENS`` tokens are solved
    exactly. Of larger blocks and other maps the reversible ones (``w_i P_ij = w_j P_ji`` for some weights: every
    symmetric mask, every symmetric bias) are solved as symmetric matrices, to a few units of rounding, and less than
    that is returned as 0. Others go to a general solver, which takes the mean of eigenvalues that rounding has
    scattered; an answer whose error estimate is above 1e-4 is refused. ``slem_bracket_of`` says what is certain.

    >>> slem_of(np.tri(4) / np.arange(1, 5)[:, None])  # uniform causal attention
    0.5
    """
    taken = _taken_apart(_checked(matrix))
    if taken is None:
        return 1.0
    return _largest([(taken.alone, 0.0), *(_modulus(block) for block in taken.blocks)])


def slem_bracket_of(matrix: Any, *, error: float = 2 * _EPS) -> Interval:
    """Numbers between which the second largest eigenvalue modulus certainly lies, whatever was rounded on the way.

    A matrix of floats stands for all row-stochastic maps with the same zeros whose entries differ from it by
    ``error`` relative to each; a map that gives all keys of a row the same weight stands for itself, in fractions. A
    wide bracket need not be a weakness of the method: multiple eigenvalues of a float matrix may move by 1e-8 and more.

    Blocks of up to ``EXACT_TOKENS`` tokens in fractions are exact. Otherwise the bounds are those of Collatz and
    Wielandt for blocks that lose weight, of Weyl for reversible maps, and norms and traces of high powers for all
    others of up to 1000 tokens. Beyond that the bracket is of the kind [0.1, 0.99].

    >>> slem_bracket_of(np.tri(4) / np.arange(1, 5)[:, None])
    Interval(low=0.5, high=0.5)
    """
    taken = _taken_apart(_checked(matrix))
    if taken is None:
        return Interval(1.0, 1.0)
    ends = [_around(taken.alone, _UNIFORM if taken.is_uniform else error)]
    ends += [_ends(block, _UNIFORM if taken.is_uniform else error) for block in taken.blocks]
    return Interval(*(min(max(end[side] for end in ends), 1.0) for side in (0, 1)))


def _around(value: float, error: float) -> tuple[float, float]:
    """What a single diagonal entry may stand for; halves and other powers of two are no rounded fractions."""
    if value == 0.0 or (frexp(value)[0] == 0.5 and error <= _UNIFORM):
        return value, value
    return nextafter(value * (1 - error), 0.0), nextafter(value * (1 + error), 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """An irreducible block of at least two tokens; ``keys`` are those of each row, none where weights differ."""

    weights: SparseMap
    closed: bool
    keys: NDArray[np.int64] | None

    @property
    def is_exact(self) -> bool:
        return self.keys is not None and int(self.weights.shape[0]) <= EXACT_TOKENS

    def fractions(self) -> list[list[Fraction]]:
        """The block with weight 1 / keys on every key."""
        keys = [] if self.keys is None else self.keys.tolist()
        held = (self.weights.toarray() > 0).tolist()
        return [[Fraction(int(one), count) for one in row] for row, count in zip(held, keys, strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Apart:
    """A map with one closed class: the largest diagonal entry of tokens that are blocks alone, and larger blocks."""

    alone: float
    blocks: list[_Block]
    is_uniform: bool


def _taken_apart(p: SparseMap) -> _Apart | None:
    """The irreducible blocks of a map; None if there are several closed ones, so that 1 is a multiple eigenvalue."""
    count, labels = connected_components(p, directed=True, connection="strong")
    readers = labels[np.repeat(np.arange(p.shape[0]), np.diff(p.indptr))]
    is_open = np.zeros(count, dtype=np.bool_)
    is_open[readers[readers != labels[p.indices]]] = True
    if np.count_nonzero(~is_open) > 1:
        return None
    sizes = np.bincount(labels, minlength=count)
    alone = (sizes[labels] == 1) & is_open[labels]
    keys = np.diff(p.indptr).astype(np.int64)
    is_uniform = bool((np.abs(p.data * np.repeat(keys, keys) - 1) <= 2 * _EPS).all())
    blocks = []
    order = np.argsort(labels, kind="stable")
    for component, members in enumerate(np.split(order, np.cumsum(sizes)[:-1])):
        if len(members) > 1:
            weights = csr_array(p[members][:, members])
            weights.sort_indices()
            blocks.append(
                _Block(
                    weights=weights,
                    closed=not is_open[component],
                    keys=keys[members] if is_uniform else None,
                )
            )
    return _Apart(alone=float(p.diagonal()[alone].max(initial=0.0)), blocks=blocks, is_uniform=is_uniform)


def _largest(found: list[tuple[float, float]]) -> float:
    """The largest of several moduli given with their errors, or an error if they leave it open."""
    value = max(modulus for modulus, _ in found)
    low, high = (max(modulus + sign * error for modulus, error in found) for sign in (-1, 1))
    error = max(high - value, value - low)
    if error > SLEM_TOLERANCE:
        raise ShapeError(
            f"the second eigenvalue of this map is too sensitive to rounding: found modulus {value:.4g}, "
            f"certain only to {error:.1g} (allowed {SLEM_TOLERANCE:.0g}); "
            f"symmetric and triangular maps, and masks of up to {EXACT_TOKENS} tokens, have no such limit"
        )
    return min(value, 1.0)


def _checked(matrix: Any) -> SparseMap:
    shape = tuple(getattr(matrix, "shape", None) or np.shape(matrix))
    if len(shape) != 2 or shape[0] != shape[1] or not shape[0]:
        raise ShapeError(f"expected a square map, tokens x tokens, got shape {shape}")
    p = csr_array(matrix, dtype=np.float64, copy=True)
    p.sum_duplicates()
    p.eliminate_zeros()
    sums = p.sum(axis=1)
    wrong = np.flatnonzero(~(np.abs(sums - 1) <= ROW_SUM_TOLERANCE))  # NaN counts as wrong
    if len(wrong) or (p.data < 0).any():
        found = (
            f"row {wrong[0]} sums to {sums[wrong[0]]}" if len(wrong) else f"the least entry is {p.data.min()}"
        )
        raise ShapeError(f"expected a row-stochastic map (entries >= 0, rows summing to one), but {found}")
    return p


def _modulus(block: _Block) -> tuple[float, float]:
    """Largest eigenvalue modulus of an irreducible block and its error; of a closed one, without one 1."""
    if block.closed and _period(block.weights) > 1:
        return 1.0, 0.0
    if block.is_exact:
        return exact_modulus(block.fractions(), closed=block.closed).value, 0.0
    merged, _ = _merged(block.weights)
    if merged.shape[0] == 1:
        return (0.0 if block.closed else float(merged.data[0])), 0.0
    try:
        return _solved(merged, closed=block.closed)
    except ArpackNoConvergence as error:
        raise ShapeError(
            f"the second eigenvalue of this {merged.shape[0]}-token map was not found by iteration; "
            f"up to {eigen.DENSE_TOKENS} tokens it is computed without iteration"
        ) from error


def _solved(block: SparseMap, *, closed: bool) -> tuple[float, float]:
    symmetric = _symmetrized(block)
    if symmetric is None:
        return general_modulus(block, closed=closed)
    form, root_weights, _ = symmetric
    value = symmetric_modulus(form, root_weights if closed else None)
    # A symmetric solver is right to a few units per row; below that, zero and tiny cannot be told apart.
    rounding = 4 * block.shape[0] * _EPS
    return (value if value > rounding else 0.0), rounding


def _ends(block: _Block, error: float) -> tuple[float, float]:
    """The same as two numbers between which it certainly lies, for all blocks within ``error`` of each entry."""
    if block.closed and _period(block.weights) > 1:
        return 1.0, 1.0
    if block.is_exact:
        return exact_modulus(block.fractions(), closed=block.closed)[1:]
    # Rows that are equal as floats need not be equal: only those of fractions can be merged for certain.
    merged, rounding = (block.weights, 0.0) if block.keys is None else _merged(block.weights)
    error += rounding
    if merged.shape[0] == 1 and block.closed:
        return 0.0, 0.0
    if not block.closed:
        return open_ends(merged, error)
    symmetric = _symmetrized(merged)
    if symmetric is None:
        return general_ends(merged, error)
    form, root_weights, mismatch = symmetric
    try:
        is_symmetric = block.keys is not None and merged.shape == block.weights.shape  # weights: keys per row
        low, high = reversible_ends(form, root_weights, error + mismatch, is_symmetric=is_symmetric)
    except ArpackNoConvergence:
        low, high = 0.0, 1.0
    if high - low > _WIDE:
        others = by_overlap(merged, error)
        low, high = max(low, others[0]), min(high, others[1])
    return low, high


def _merged(block: SparseMap) -> tuple[SparseMap, float]:
    """The block with tokens of equal rows, or of equal columns, merged until there are none; and the rounding of it.

    With E the 0/1 membership of tokens in groups and F the average over each group (F E = 1), the result is
    F P E. Equal rows mean P = E (F P), equal columns P = (P E) F, and the products X Y and Y X have the same nonzero
    eigenvalues with the same multiplicities. Exact zeros go away without being solved for, and rows that summed
    to one still do. Nothing cancels in these sums, so the rounding is relative to each entry.
    """
    rounding = 0.0
    while True:
        size = int(block.shape[0])
        for group in (_equal_rows(block), _equal_rows(csr_array(block.T))):
            if group.max() + 1 < size:
                token = np.arange(size)
                members = csr_array(coo_array((np.ones(size), (token, group))))
                average = csr_array(coo_array((1 / np.bincount(group)[group], (group, token))))
                block = csr_array(average @ block @ members)
                block.sort_indices()
                rounding += gamma(2 * size + 2)
                break
        else:
            return block, rounding


def _equal_rows(block: SparseMap) -> NDArray[np.int64]:
    """For every row the number of its group; rows with the same entries, bit by bit, share a group."""
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault(digest, len(seen)) for digest in _row_digests(block)])


def _row_digests(block: SparseMap) -> list[bytes]:
    digests = []
    for start, stop in zip(block.indptr[:-1], block.indptr[1:], strict=True):
        digest = blake2b(block.indices[start:stop].tobytes(), digest_size=16)
        digest.update(block.data[start:stop].tobytes())
        digests.append(digest.digest())
    return digests


def _along_tree(block: SparseMap, step: Vector | None = None) -> Vector:
    """Sum of ``step`` over the edges of a search tree from row 0 to every row; of ones if not given.

    ``step`` holds one number per stored entry of the block.
    """
    order, before = breadth_first_order(block, 0, directed=True, return_predecessors=True)
    children = order[1:]
    steps = np.ones(len(children))
    if step is not None:
        steps = np.asarray(
            csr_array((step, block.indices, block.indptr), shape=block.shape)[before[children], children]
        )
    total = [0.0] * int(block.shape[0])
    for child, parent, gain in zip(children.tolist(), before[children].tolist(), steps.tolist(), strict=True):
        total[child] = total[parent] + gain
    return np.array(total)


def _period(block: SparseMap) -> int:
    """Greatest common divisor of the lengths of all cycles of an irreducible block."""
    if block.diagonal().any():
        return 1
    hops = _along_tree(block).astype(np.int64)
    rows = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    return gcd(*np.unique(hops[rows] + 1 - hops[block.indices]).tolist())


def _symmetrized(block: SparseMap) -> tuple[SparseMap, Vector, float] | None:
    """A symmetric matrix with the block's eigenvalues, the root of the weights, and how well they fit.

    None if not reversible.

    If ``w_i P_ij = w_j P_ji``, then ``w^(1/2) P w^(-1/2)`` has entries ``sqrt(P_ij P_ji)``, and the root of the
    weights is its eigenvector to 1 if the block is closed. The weights follow from ratios along a search tree;
    all other entries must agree with them. The last number is by how much of itself an entry of the symmetric matrix
    differs, at most, from that of ``w^(1/2) P w^(-1/2)`` with the weights as they are, rounding of logarithms included.
    """
    back = csr_array(block.T)
    if not (np.array_equal(block.indptr, back.indptr) and np.array_equal(block.indices, back.indices)):
        return None
    ratio = np.log(block.data) - np.log(back.data)
    log_weight = _along_tree(block, ratio)
    rows = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    mismatch = float(np.abs(log_weight[block.indices] - log_weight[rows] - ratio).max())
    if mismatch > _REVERSIBLE_TOLERANCE:
        return None
    logs = float(np.abs(log_weight).max() + 2 * np.abs(np.log(block.data)).max())
    form = csr_array(
        (np.sqrt(block.data) * np.sqrt(back.data), block.indices, block.indptr), shape=block.shape
    )
    weight = np.exp((log_weight - log_weight.max()) / 2)
    return form, weight / np.linalg.norm(weight), mismatch + 8 * _EPS * (1 + logs)
