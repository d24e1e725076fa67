"""No path that begins with a prefix is larger than the bound of the prefix, and marks make bounds smaller."""

import math

import pytest
import torch
from torch import Tensor

from kit.top_trees import BLOCKS, DIM, small
from kit.trees import Draws
from rankscope.network import Context, Spec, build
from rankscope.pathways.freeze import FrozenNetwork, freeze
from rankscope.pathways.futures import Futures, futures_of, over_texts, sizes_of
from rankscope.pathways.search import Problem
from rankscope.pathways.steps import number_of_paths
from rankscope.pathways.top import Score, problem_of

Ways = tuple[int, ...]


def every_prefix(problem: Problem) -> dict[Ways, Tensor]:
    """The term of every prefix, whole paths included."""
    found = {(): problem.after(())}
    level = dict(found)
    for step in problem.steps:
        level = {
            (*ways, choice): problem.carried(step.taken(choice, step.led(term)))
            for ways, term in level.items()
            for choice in range(len(step.choices))
        }
        found |= level
    return found


def bounds(problem: Problem, futures: Futures, terms: dict[Ways, Tensor]) -> dict[Ways, float]:
    """The bound of every prefix, as a logarithm."""
    found, marks, read = {}, {(): 0}, problem.read
    for ways, term in terms.items():
        if ways:
            marks[ways] = futures.moves[len(ways) - 1][ways[-1]][marks[ways[:-1]]]
        sizes = sizes_of(term.unsqueeze(0), problem.frame, read)
        found[ways] = float(futures.bounds(len(ways), [marks[ways]], sizes)[0])
    return found


def reached(problem: Problem, terms: dict[Ways, Tensor]) -> dict[Ways, float]:
    """The largest score of any path that begins with a prefix, as a logarithm."""
    best: dict[Ways, float] = {}
    for path, term in terms.items():
        if len(path) == len(problem.steps):
            score = float(problem.scores(term.unsqueeze(0))[0])
            for depth in range(len(path) + 1):
                best[path[:depth]] = max(best.get(path[:depth], -math.inf), score)
    return best


def check(frozen: FrozenNetwork, score: Score) -> None:
    problem = problem_of(frozen, score)
    terms = every_prefix(problem)
    plain, marked = (
        bounds(problem, futures_of(problem.steps, problem.frame, with_marks=flag), terms)
        for flag in (False, True)
    )
    for ways, best in reached(problem, terms).items():
        if best > math.log(1e-14):  # below, maps have equal rows but for rounding
            assert marked[ways] >= best - 1e-12
            assert plain[ways] >= marked[ways] - 1e-12


@pytest.mark.parametrize("score", ["norm", "residual"])
@pytest.mark.parametrize("name", BLOCKS)
def test_bounds_hold_for_every_prefix(name: str, score: Score) -> None:
    network, x = small(name, seed=1)
    blocks = list(network.blocks)[: 3 if len(network.blocks) > 2 else 1]
    check(freeze(network.with_blocks(blocks), x), score)


@pytest.mark.parametrize("score", ["norm", "residual"])
@pytest.mark.parametrize("name", ["san+skip", "post-norm", "two in a row"])
def test_bounds_hold_for_padded_batches(name: str, score: Score) -> None:
    network, _ = small(name, seed=1)
    is_token = torch.tensor([[True, True, False, True], [False, True, True, False]])
    x = Draws(2)(2, 4, DIM) + torch.where(is_token, 0.0, 50.0).unsqueeze(-1)
    blocks = list(network.blocks)[: 3 if len(network.blocks) > 2 else 1]
    check(freeze(network.with_blocks(blocks), x, Context(is_token=is_token)), score)


def test_marks_tell_how_little_later_heads_read_of_a_head() -> None:
    spec = Spec(layers=8, heads=8, dim=64, variant="san+skip")
    frozen = freeze(build(spec, torch.Generator().manual_seed(0)), Draws(0)(8, 64))
    problem = problem_of(frozen, "norm")
    assert number_of_paths(problem.steps) == 9**8
    plain, marked = (
        futures_of(problem.steps, problem.frame, with_marks=flag).gains[1][1].max().exp()
        for flag in (False, True)
    )
    assert marked < 2 < 10 < plain


def test_texts_are_added_in_square() -> None:
    logs = torch.tensor([[3.0, 4.0], [0.0, 2.0]], dtype=torch.float64).log()
    torch.testing.assert_close(over_texts(logs).exp(), torch.tensor([5.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(over_texts(logs[:, 0]), logs[:, 0])
