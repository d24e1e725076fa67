"""Best-first search for the paths with the largest terms, and the beam that ends it when there is no more time.

A node is a prefix: one choice for each of the first steps. Its priority bounds the score of every path that begins so.
The node with the largest priority is taken next; a path whose score no priority exceeds cannot be beaten. Nodes are
taken several at a time, because parts carry a stack of terms at the cost of few single ones.

Terms are computed, so a bound of them is one of the terms themselves only together with the *error* of a term: what
rounding may have taken away at most, followed through the worst case of every step. The *noise* of a term is what
rounding has left typically, which shrinks as the term does. Where it is large beside the score, paths have no order.

A list is proven if no other path, with its error, exceeds what the last score is at least, its *floor* taken off. So
prefixes whose bound alone is a little below the last score, and with its error above it, are followed as well: most of
them turn out smaller. Where the error is as large as the score that would never end, and nothing is proven.
"""

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor
from rankscope.pathways.futures import futures_of, over_texts, sizes_of
from rankscope.pathways.reading import centered, kept_rows
from rankscope.pathways.row_gains import Frame
from rankscope.pathways.steps import Step

MOST_BYTES = 2**30
"""Memory for the terms of waiting nodes; those of further ones are computed again when their turn comes."""

MOST_NODES = 2_000_000
"""With more nodes waiting the search ends as if time were over."""

STACKED = 2**21
"""Entries of the terms that are carried through a step together."""

DOUBTFUL = math.log(2.0)
"""A prefix that could be better by its error alone is followed if its bound is at least half of the last score."""

Ways = tuple[int, ...]
"""The number of a choice for each of the first steps."""


class Node(NamedTuple):
    """A prefix; the term it has so far is None if it was let go. Nodes compare by priority, largest first."""

    rank: float  # minus the priority, a natural logarithm
    number: int
    ways: Ways
    mark: int
    term: Tensor | None
    noise: float  # of the term, over all texts
    error: float  # likewise, at most
    most: float  # the priority with the error, a natural logarithm: what no path that begins so exceeds

    @property
    def priority(self) -> float:
        return -self.rank


class Found(NamedTuple):
    """A path and its score, a natural logarithm; the one that came first is the better of two equals."""

    score: float
    number: int
    ways: Ways
    noise: float
    error: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Problem:
    """What is searched.

    Args:
        steps: the choices to make.
        start: what enters the first step, ``*batch tokens dim``.
        is_token: False on padding, or None.
        keep: the tokens whose norm is the score, or None for all.
        is_residual: whether the score is the norm of what is left of them without their mean.
        is_centered: whether that is what is carried, which is possible where every step keeps consensus: it stays
            precise however small it is beside the term.
    """

    steps: tuple[Step, ...]
    start: Tensor
    is_token: Tensor | None
    keep: Tensor | None
    is_residual: bool
    is_centered: bool

    @property
    def frame(self) -> Frame:
        """What gains are to speak of."""
        shape, device = self.start.shape, self.start.device
        rows = torch.ones(shape[:-1], dtype=torch.bool, device=device)
        rows = rows if self.is_token is None else self.is_token.expand(shape[:-1])
        return Frame(rows=rows, dim=shape[-1], dtype=self.start.dtype, is_centered=self.is_centered)

    @property
    def read(self) -> Tensor:
        """How many tokens of each text the score is about."""
        shape = self.start.shape
        if self.keep is None:
            return torch.full(shape[:-2], shape[-2], dtype=torch.float64, device=self.start.device)
        return self.keep.expand(shape[:-1]).sum(dim=-1).double()

    def carried(self, term: Tensor) -> Tensor:
        """The term without what need not be carried on."""
        term = kept_rows(term, self.is_token)
        return centered(term, self.is_token) if self.is_centered else term

    def after(self, ways: Ways) -> Tensor:
        """What the choices make of the start."""
        term = self.carried(self.start)
        for step, way in zip(self.steps, ways, strict=False):
            term = self.carried(step.taken(way, step.led(term)))
        return term

    def noise(self, terms: Tensor) -> Tensor:
        """What rounding may have left of the scores of whole paths that were carried with their mean token."""
        unit = relative_floor(len(self.steps), self.start.dtype)
        return unit * _size(kept_rows(terms.double(), self.keep))

    def scores(self, terms: Tensor) -> Tensor:
        """Scores of whole paths, ``paths *batch tokens dim``, as natural logarithms."""
        terms = kept_rows(terms.double(), self.keep)
        terms = centered(terms, self.keep) if self.is_residual else terms
        return over_texts(torch.linalg.matrix_norm(terms).log())


def _size(terms: Tensor) -> Tensor:
    """The Frobenius norm over all texts, one per term."""
    sizes: Tensor = torch.linalg.vector_norm(terms.reshape(len(terms), -1), dim=1)
    return sizes.double()


def _log(value: float) -> float:
    return math.log(value) if value else -math.inf


class _Parent(NamedTuple):
    """What is known of the prefix that a node continues: bounds of both kinds hold for the node too."""

    ways: Ways = ()
    priority: float = math.inf
    most: float = math.inf


class Search:
    """Paths found so far, prefixes that wait, and what those that were let go could reach at most."""

    def __init__(self, problem: Problem, count: int) -> None:
        self.problem, self.count = problem, count
        self.found: list[Found] = []
        self._listed: set[Ways] = set()
        self.frontier: list[Node] = []
        self.lost = self._lost_most = -math.inf
        self.expanded = 0
        self._frame, self._read = problem.frame, problem.read
        self._futures = futures_of(problem.steps, self._frame)
        # A computed term may be above its bound by the rounding of the steps.
        self._slack = math.log1p(relative_floor(len(problem.steps), problem.start.dtype))
        self._numbers, self._held = itertools.count(), 0
        self._floors: dict[Ways, float] = {}
        self._stack = max(1, min(32, STACKED // problem.start.numel()))
        first = problem.after(()).unsqueeze(0)
        before = _size(problem.start.unsqueeze(0)) * relative_floor(1, problem.start.dtype)
        before = before if problem.is_centered else torch.zeros(1)
        self._root = self._nodes([_Parent()], first, [0], before, before)[0]
        self.frontier.append(self._root)

    @property
    def last(self) -> float:
        """The score to beat, a natural logarithm: that of the last path of the list once it is full."""
        return self.found[0].score if len(self.found) == self.count else -math.inf

    @property
    def least(self) -> float:
        """What the last score is at least, its floor taken off, a natural logarithm; -inf where it is all rounding."""
        if len(self.found) < self.count:
            return -math.inf
        last = self.last
        lost = _log(self.floor(self.found[0])) - last if last > -math.inf else 0.0
        return last + math.log1p(-math.exp(lost)) if lost < 0 else -math.inf

    @property
    def bound(self) -> float:
        """What no path outside the list exceeds as it is computed, a natural logarithm."""
        return max(self.lost, self.frontier[0].priority if self.frontier else -math.inf)

    @property
    def most(self) -> float:
        """What no path outside the list exceeds, its rounding included, a natural logarithm."""
        return max(self._lost_most, max((node.most for node in self.frontier), default=-math.inf))

    @property
    def waiting(self) -> int:
        """How many prefixes may still lead to a better path."""
        return sum(self._hopeful(node.priority, node.most) for node in self.frontier)

    @property
    def is_over(self) -> bool:
        """Whether nothing that waits is worth following."""
        return len(self.found) == self.count and not any(
            self._hopeful(node.priority, node.most) for node in self.frontier
        )

    @property
    def is_proven(self) -> bool:
        """Whether no path outside the list has a larger score than the last one, rounding included on both sides.

        Not where the last score is all rounding: it has no place in an order, even if nothing is left out.
        """
        if len(self.found) < self.count or self.most > self.least:
            return False
        return self.least > -math.inf or self.floor(self.found[0]) == 0

    def floor(self, found: Found) -> float:
        """What rounding may have left of the score of a whole path.

        A unit of the term, or, of a term that was carried without its mean, what is known of its own rounding; and at
        least what is left of a noise that is carried beside it.
        """
        if found.ways not in self._floors:
            self._floors[found.ways] = max(found.noise, self.rounding(found.ways))
        return self._floors[found.ways]

    def rounding(self, ways: Ways, problem: Problem | None = None) -> float:
        """What rounding may have left of the term of a whole path, by a noise that is carried beside it.

        Every step rounds its sums by a unit of their size. Where a later step takes nearly all of a term away, it need
        not take the noise away with it: noise of a drawn direction goes through the same steps, which are linear.
        """
        problem, drawn = problem or self.problem, torch.Generator().manual_seed(0)
        unit = relative_floor(1, problem.start.dtype)

        def fresh(size: float) -> Tensor:
            noise = torch.randn(problem.start.shape, generator=drawn, dtype=torch.float64)
            return (noise * (size / float(noise.norm()))).to(problem.start)

        both = torch.stack([problem.start, torch.zeros_like(problem.start)])
        sums = unit * float(problem.start.norm()) if problem.is_centered else 0.0
        for depth in range(len(ways) + 1):
            if depth:
                step, way = problem.steps[depth - 1], ways[depth - 1]
                grown = float(np.exp(self._futures.sums[depth - 1][way]))
                sums = unit * grown * float(both[0].norm())
                both = step.taken(way, step.led(both))
            both[1] += fresh(sums)
            both = problem.carried(both)
        return float(kept_rows(both[1].double(), problem.keep).norm())

    def guess(self, width: int) -> None:
        """Fill the list with good paths, so that hopeless prefixes need not wait; nothing is let go."""
        self._descend([self._root], width)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Take the best nodes until no path can be better than those found, or it is over."""
        while self.frontier and self._hopeful(self.frontier[0].priority, math.inf):
            if is_over() or len(self.frontier) > MOST_NODES:
                return
            best = defaultdict[int, list[Node]](list)
            taken = 0
            while taken < self._stack and self.frontier:
                if not self._hopeful(self.frontier[0].priority, math.inf):
                    break
                node = heapq.heappop(self.frontier)
                if self._hopeful(node.priority, node.most):
                    best[len(node.ways)].append(node)
                    taken += 1
                else:
                    self._let_go(node)
                    self._lose(node.priority, node.most)
            for nodes in best.values():
                for child in self._expand(nodes):
                    heapq.heappush(self.frontier, child)

    def finish(self, width: int) -> None:
        """End with a beam: of the nodes of each depth only the best are taken, and the others let go."""
        waiting, self.frontier = self.frontier, []
        for node in self._descend(waiting, width):
            self._lose(node.priority, node.most)

    def _descend(self, nodes: Iterable[Node], width: int) -> list[Node]:
        """Take the best nodes of each depth down to the end; all others."""
        levels, left_out = defaultdict[int, list[Node]](list), list[Node]()
        for node in nodes:
            levels[len(node.ways)].append(node)
        for depth in range(len(self.problem.steps)):
            level = sorted(levels.pop(depth, []))
            for node in level[width:]:
                left_out.append(node)
                self._let_go(node)
            for first in range(0, min(width, len(level)), self._stack):
                levels[depth + 1] += self._expand(level[first : min(first + self._stack, width)])
        return left_out

    def _hopeful(self, priority: float, most: float) -> bool:
        """Whether a bound, and with its error ``most``, leaves room for a better path, or for doubt of the list."""
        if len(self.found) < self.count or priority > self.last:
            return True
        return priority > self.last - DOUBTFUL and most > self.least > -math.inf

    def _expand(self, nodes: Sequence[Node]) -> list[Node]:
        """The children of nodes of one depth that may lead to a better path; whole paths go to the list."""
        depth = len(nodes[0].ways)
        step, problem = self.problem.steps[depth], self.problem
        entered = torch.stack([self._term(node) for node in nodes])
        terms = step.led(entered)
        self.expanded += len(nodes)
        children = list[Node]()
        for choice, marks in enumerate(self._futures.moves[depth]):
            moved = problem.carried(step.taken(choice, terms))
            parents = [_Parent((*node.ways, choice), node.priority, node.most) for node in nodes]
            noise = self._noise_behind(nodes, choice, entered, moved)
            error = self._error_behind(nodes, choice, entered)
            if depth + 1 < len(problem.steps):
                children += self._nodes(parents, moved, [marks[node.mark] for node in nodes], noise, error)
            else:
                noise = noise if problem.is_centered else problem.noise(moved)
                scores = problem.scores(moved).tolist()
                for parent, *found in zip(parents, scores, noise.tolist(), error.tolist(), strict=True):
                    self._list(parent.ways, *found)
        return children

    def _noise_behind(self, nodes: Sequence[Node], choice: int, entered: Tensor, moved: Tensor) -> Tensor:
        """What rounding may have left of centered terms behind a step, one number per node.

        The step rounds its sums before the mean is taken away, by a unit of their own size; what came with the term
        shrinks as the term does, or, where nothing is left of that, by no more than the bound of the step. Terms that
        are carried with their mean are off by a unit of themselves, which is in the slack of every bound.
        """
        if not self.problem.is_centered:
            return torch.zeros(len(nodes), dtype=torch.float64)
        depth, before, after = len(nodes[0].ways), _size(entered), _size(moved)
        unit, sums = relative_floor(1, moved.dtype), float(np.exp(self._futures.sums[depth][choice]))
        carried = torch.tensor([node.noise for node in nodes], dtype=torch.float64, device=moved.device)
        growth = torch.where(before > 0, after / before, sums)
        return carried * growth + unit * sums * before

    def _error_behind(self, nodes: Sequence[Node], choice: int, entered: Tensor) -> Tensor:
        """By how much terms behind a step may be off at most, one number per node.

        What they were off by before goes through the step, and grows as nothing is known of its direction: a step may
        take a term away and leave its error. To that comes a unit of the sums that the step takes.
        """
        depth, unit = len(nodes[0].ways), relative_floor(1, entered.dtype)
        carried = torch.tensor([node.error for node in nodes], dtype=torch.float64, device=entered.device)
        grown = torch.where(carried > 0, carried * np.exp(self._futures.errors[depth][choice]), 0.0)
        return grown + unit * float(np.exp(self._futures.sums[depth][choice])) * _size(entered)

    def _nodes(
        self,
        parents: Sequence["_Parent"],
        terms: Tensor,
        marks: Sequence[int],
        noise: Tensor,
        error: Tensor,
    ) -> list[Node]:
        """Nodes for prefixes that may lead to a better path; none is bounded by more than its parent."""
        depth = len(parents[0].ways)
        bounds = self._futures.bounds(depth, marks, sizes_of(terms, self._frame, self._read)) + self._slack
        most = torch.logaddexp(bounds, self._futures.of_error(depth, error.to(bounds).log()))
        found = list[Node]()
        for index, (parent, bound, with_error, left, off) in enumerate(
            zip(parents, bounds.tolist(), most.tolist(), noise.tolist(), error.tolist(), strict=True)
        ):
            priority, at_most = min(bound, parent.priority), min(with_error, parent.most)
            if not self._hopeful(priority, at_most):
                self._lose(priority, at_most)
                continue
            term = terms[index].clone() if self._held < MOST_BYTES else None
            self._held += 0 if term is None else term.nbytes
            found.append(
                Node(-priority, next(self._numbers), parent.ways, marks[index], term, left, off, at_most)
            )
        return found

    def _lose(self, priority: float, most: float) -> None:
        self.lost, self._lost_most = max(self.lost, priority), max(self._lost_most, most)

    def _list(self, ways: Ways, score: float, noise: float, error: float) -> None:
        """Put a whole path on the list if it belongs there; one that is on it already stays once."""
        if ways in self._listed:
            return
        self._listed.add(ways)
        heapq.heappush(self.found, Found(score, -next(self._numbers), ways, noise, error))
        if len(self.found) > self.count:
            worst = heapq.heappop(self.found)
            self._listed.remove(worst.ways)
            self._lose(worst.score, float(np.logaddexp(worst.score, _log(worst.error))))

    def _term(self, node: Node) -> Tensor:
        self._let_go(node)
        return self.problem.after(node.ways) if node.term is None else node.term

    def _let_go(self, node: Node) -> None:
        self._held -= 0 if node.term is None else node.term.nbytes
