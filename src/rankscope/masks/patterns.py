"""Sparse building blocks of mask rules. A pattern is a boolean CSR matrix; rows are queries, columns keys.

Patterns are added with ``+``, which is the union of their entries because booleans add as "or".
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, dia_array

from rankscope.errors import MaskError

if TYPE_CHECKING:
    SparseMask = csr_array[np.bool_, tuple[int, int]]
    SparseMap = csr_array[np.float64, tuple[int, int]]
else:  # older scipy cannot subscript its arrays at run time
    SparseMask = SparseMap = csr_array

MaskArray = NDArray[np.bool_]
Indices = NDArray[np.signedinteger[Any]]


def from_edges(tokens: int, queries: Indices, keys: Indices) -> SparseMask:
    """The pattern with exactly these (query, key) pairs; pairs may repeat."""
    entries = np.ones(len(queries), dtype=np.bool_)
    pattern = csr_array(coo_array((entries, (queries, keys)), shape=(tokens, tokens)))
    pattern.sum_duplicates()
    return pattern


def band(tokens: int, distances: Indices) -> SparseMask:
    """Query i reads key j where ``i - j`` is one of ``distances``.

    >>> band(3, np.array([0, 1])).toarray().astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """
    inside = distances[np.abs(distances) < tokens]
    entries = np.ones((len(inside), tokens), dtype=np.bool_)
    pattern = csr_array(dia_array((entries, -inside), shape=(tokens, tokens)))
    pattern.sort_indices()
    return pattern


def window(tokens: int, width: int) -> SparseMask:
    """Query i reads key j where ``|i - j| <= width``."""
    reach = min(width, tokens - 1)
    return band(tokens, np.arange(-reach, reach + 1))


def first_keys(tokens: int, count: int) -> SparseMask:
    """Every query reads the first ``count`` keys."""
    count = min(count, tokens)
    return from_edges(tokens, np.repeat(np.arange(tokens), count), np.tile(np.arange(count), tokens))


def first_queries(tokens: int, count: int) -> SparseMask:
    """The first ``count`` queries read every key."""
    count = min(count, tokens)
    return from_edges(tokens, np.repeat(np.arange(count), tokens), np.tile(np.arange(tokens), count))


def window_and_globals(tokens: int, width: int, global_tokens: int) -> SparseMask:
    """A window, and ``global_tokens`` first tokens that are read by all and read all."""
    return window(tokens, width) + first_keys(tokens, global_tokens) + first_queries(tokens, global_tokens)


def diagonal_blocks(tokens: int, count: int) -> SparseMask:
    """``count`` runs of tokens, complete inside; the first ``tokens % count`` runs are one token longer."""
    sizes = np.full(count, tokens // count) + (np.arange(count) < tokens % count)
    starts = np.cumsum(sizes) - sizes
    start, size = np.repeat(starts, sizes), np.repeat(sizes, sizes)
    queries = np.repeat(np.arange(tokens), size)
    step = np.arange(len(queries)) - np.repeat(np.cumsum(size) - size, size)
    return from_edges(tokens, queries, np.repeat(start, size) + step)


def random_other_keys(tokens: int, width: int, global_tokens: int, count: int, seed: int) -> SparseMask:
    """Each query reads ``count`` keys drawn without replacement outside its window and the global tokens.

    A query with fewer such keys reads them all. The draw is a function of ``(seed, tokens)`` alone: Floyd's
    sampling in every row, fed by the raw 64-bit stream of PCG64, which numpy keeps fixed between releases
    (its ready-made samplers may change).
    """
    query = np.arange(tokens)
    left = np.maximum(query - width - global_tokens, 0)  # candidates before the window
    after = np.maximum(query + width + 1, global_tokens)  # first candidate behind it
    candidates = np.where(query < global_tokens, 0, left + np.maximum(tokens - after, 0))
    draws = np.minimum(candidates, count)
    most = int(draws.max())
    raw = np.random.PCG64([seed, tokens]).random_raw(tokens * most).reshape(tokens, most)
    uniform = (raw >> np.uint64(11)) * 2.0**-53
    chosen = np.full((tokens, most), -1)
    for turn in range(most):
        last = candidates - draws + turn
        pick = np.floor(uniform[:, turn] * (last + 1)).astype(np.int64)
        taken = (chosen[:, :turn] == pick[:, None]).any(axis=1)
        chosen[:, turn] = np.where(turn < draws, np.where(taken, last, pick), -1)
    key = np.where(chosen < left[:, None], chosen + global_tokens, chosen - left[:, None] + after[:, None])
    drawn = chosen >= 0
    return from_edges(tokens, np.broadcast_to(query[:, None], chosen.shape)[drawn], key[drawn])


def require_keys(keys_per_query: Indices, name: str) -> None:
    """Raise if some query has nothing to attend to: its softmax would be 0/0."""
    empty = np.flatnonzero(keys_per_query == 0)
    if len(empty):
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise MaskError(
            f"row {empty[0]}{more} of the mask {name} has nothing to attend to; "
            "allow at least one key in every row, for example the diagonal"
        )
