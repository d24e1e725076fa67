"""A mask as a directed graph on tokens, edge key -> query: the way information flows.

Definitions after Wu et al. (arXiv:2405.18781): a *center* reaches every token; the graph is quasi-strongly
connected if it has one, strongly connected if all tokens are; the *radius* is the least number of layers in
which one center can reach all tokens.
"""

from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from rankscope.errors import MaskError
from rankscope.masks.patterns import Indices, MaskArray, SparseMap, SparseMask, require_keys

if TYPE_CHECKING:
    SparseNumbers = csr_array[np.int8, tuple[int, int]]
else:  # older scipy cannot subscript its arrays at run time
    SparseNumbers = csr_array

Words = NDArray[np.uint64]

_GATHER_WORDS = 2**22  # 32 MB


class Interval(NamedTuple):
    """Two numbers between which another one certainly lies."""

    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


@final
@dataclass(frozen=True, eq=False)
class MaskGraph:
    """Who can influence whom under a mask. Made by ``rule.graph(tokens)``.

    >>> from rankscope.masks import Window
    >>> graph = Window(width=2).graph(9)
    >>> graph.radius(), len(graph.centers()), graph.is_strongly_connected
    (2, 9, True)
    """

    mask: SparseMask

    def __post_init__(self) -> None:
        require_keys(np.diff(self.mask.indptr), "of this graph")

    @property
    def tokens(self) -> int:
        return int(self.mask.shape[0])

    @property
    def edges(self) -> int:
        """Number of (query, key) pairs the mask allows, the diagonal included."""
        return int(self.mask.nnz)

    @property
    def self_loops(self) -> bool:
        """Whether every token may read itself."""
        return bool(self.mask.diagonal().all())

    @cached_property
    def _onward(self) -> SparseMask:
        """Row j holds the tokens that read token j."""
        return csr_array(self.mask.T)

    @cached_property
    def _labels(self) -> tuple[int, NDArray[np.int32]]:
        """Number of strongly connected components, and the component of every token."""
        from scipy.sparse.csgraph import connected_components  # here, not above: slow to import

        count, labels = connected_components(_as_numbers(self.mask), directed=True, connection="strong")
        return int(count), labels

    @cached_property
    def _condensation(self) -> SparseMask:
        """The graph on components, edge from -> to along the flow of information, without loops."""
        count, labels = self._labels
        readers = labels[np.repeat(np.arange(self.tokens), np.diff(self.mask.indptr))]
        read = labels[self.mask.indices]
        between = readers != read
        entries = np.ones(int(between.sum()), dtype=np.bool_)
        flow = csr_array((entries, (read[between], readers[between])), shape=(count, count), dtype=np.bool_)
        flow.sum_duplicates()
        return flow

    def components(self) -> list[Indices]:
        """Strongly connected components, each a sorted array of tokens, sources of information first.

        Among components that are ready at the same time the one with the smallest token comes first.
        """
        count, labels = self._labels
        order = np.argsort(labels, kind="stable")
        members = np.split(order, np.cumsum(np.bincount(labels, minlength=count))[:-1])
        flow = self._condensation
        waiting = np.bincount(flow.indices, minlength=count)
        ready = [(int(members[c][0]), int(c)) for c in np.flatnonzero(waiting == 0)]
        heapify(ready)
        ordered: list[Indices] = []
        while ready:
            _, component = heappop(ready)
            ordered.append(members[component])
            following = flow.indices[flow.indptr[component] : flow.indptr[component + 1]]
            waiting[following] -= 1
            for c in following[waiting[following] == 0]:
                heappush(ready, (int(members[c][0]), int(c)))
        return ordered

    def centers(self) -> Indices:
        """The tokens that reach every token, sorted; empty if there are none.

        Every token has a source component among its ancestors, so the centers are the members of the source
        component if it is the only one.
        """
        count, labels = self._labels
        sources = np.flatnonzero(np.bincount(self._condensation.indices, minlength=count) == 0)
        return np.flatnonzero(labels == sources[0]) if len(sources) == 1 else np.array([], dtype=np.int64)

    @property
    def is_quasi_strongly_connected(self) -> bool:
        """Whether some token reaches every token."""
        return len(self.centers()) > 0

    @property
    def is_strongly_connected(self) -> bool:
        """Whether every token reaches every token."""
        return self._labels[0] == 1

    def radius(self) -> int | None:
        """Least eccentricity of a center: layers until one token has reached all. None without a center.

        One token alone has radius 0. Exact, mostly with few searches: the distance of a center to any one token
        bounds its eccentricity from below, so search from the center with the least bound, then backwards from
        the token found farthest, which raises the bounds, until none is below the best eccentricity found.
        """
        centers = self.centers()
        if not len(centers):
            return None
        read_by_all = np.diff(self._onward.indptr) + ~self.mask.diagonal() == self.tokens
        bounds = np.where(read_by_all, min(1, self.tokens - 1), min(2, self.tokens - 1))[centers]
        best = self.tokens
        while bounds.min() < best:
            hops = _hops(self._onward, int(centers[bounds.argmin()]))
            best = min(best, int(hops.max()))
            if bounds.min() < best:
                back = _hops(self.mask, int(hops.argmax()))
                bounds = np.maximum(bounds, back[centers])
        return best

    def reach(self, layers: int) -> MaskArray:
        """Boolean ``tokens x tokens``: ``reach[i, j]`` if token j influences token i after that many layers.

        That is a walk of exactly ``layers`` edges from j to i. Self-loops are not implied: a token keeps its own
        influence only where the mask lets it read itself. 0 layers give the identity.
        """
        if layers < 0:
            raise MaskError(f"reach was asked for {layers} layers; the number of layers must be 0 or more")
        words = -(-self.tokens // 64)
        bits = np.packbits(np.eye(self.tokens, 64 * words, dtype=np.bool_), axis=1).view(np.uint64)
        for _ in range(layers):
            onward = _one_layer(self.mask, bits)
            if np.array_equal(onward, bits):
                break  # every further layer gives the same
            bits = onward
        return np.unpackbits(bits.view(np.uint8), axis=1, count=self.tokens).view(np.bool_)

    def uniform_map(self) -> SparseMap:
        """The attention map when all logits of a row are equal: ``1 / (number of keys)`` on every allowed key."""
        keys = np.diff(self.mask.indptr)
        weights = np.repeat(1.0 / keys, keys)
        return csr_array((weights, self.mask.indices, self.mask.indptr), shape=self.mask.shape, copy=True)

    def slem(self) -> float:
        """Second largest eigenvalue modulus of the uniform map, the factor per layer by which close tokens merge.

        Up to ``EXACT_TOKENS`` tokens it is right to the last digit, multiple eigenvalues included. Not for rotary or
        other position rules: these change the map, see ``slem_of``.
        """
        from rankscope.masks.spectrum import (
            slem_of,  # it imports solvers and mpmath, which masks alone do without
        )

        return slem_of(self.uniform_map())

    def slem_bracket(self) -> Interval:
        """Two numbers between which ``slem`` certainly lies, for any number of tokens; see ``slem_bracket_of``.

        >>> from rankscope.masks import Causal
        >>> Causal().graph(300).slem_bracket()
        Interval(low=0.5, high=0.5)
        """
        from rankscope.masks.spectrum import slem_bracket_of  # as above

        return slem_bracket_of(self.uniform_map())


def _as_numbers(edges: SparseMask) -> SparseNumbers:
    """The same graph for scipy's searches, whose types know numbers only; nothing is copied."""
    return csr_array((edges.data.view(np.int8), edges.indices, edges.indptr), shape=edges.shape)


def _hops(edges: SparseMask, start: int) -> Indices:
    """Number of edges on a shortest path from ``start`` to every token; -1 where there is none."""
    from scipy.sparse.csgraph import breadth_first_order  # as above

    order, before = breadth_first_order(_as_numbers(edges), start, directed=True, return_predecessors=True)
    hops = [-1] * edges.shape[0]
    hops[start] = 0
    for token, parent in zip(order[1:].tolist(), before[order[1:]].tolist(), strict=True):
        hops[token] = hops[parent] + 1
    return np.array(hops, dtype=np.int64)


def _one_layer(mask: SparseMask, bits: Words) -> Words:
    """For every query the union of its keys' rows of bits, gathered for a bounded number of edges at a time."""
    onward = np.empty_like(bits)
    most_edges = max(1, _GATHER_WORDS // bits.shape[1])
    first = 0
    while first < len(bits):
        start = mask.indptr[first]
        last = max(first + 1, int(np.searchsorted(mask.indptr, start + most_edges, side="right")) - 1)
        gathered = bits[mask.indices[start : mask.indptr[last]]]
        onward[first:last] = np.bitwise_or.reduceat(gathered, mask.indptr[first:last] - start, axis=0)
        first = last
    return onward
