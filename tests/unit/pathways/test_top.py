"""The top paths against all paths one by one; what is said when time runs out against the same."""

import inspect
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kit.top_trees import BLOCKS, CONSENSUS, DIM, heads, plain, small
from kit.trees import DIM as TREE_DIM
from kit.trees import Draws, mlp, networks, norm
from rankscope.errors import ConfigError
from rankscope.findings.paths import PathsConfig
from rankscope.network import Attention, Chain, Context, Fixed, Network, Skip, Spec, Sum, Values, build, stack
from rankscope.pathways import futures, search
from rankscope.pathways.drawing import every_path
from rankscope.pathways.freeze import freeze
from rankscope.pathways.path import Path
from rankscope.pathways.term import path_term
from rankscope.pathways.top import Score, Top, problem_of, top_paths
from reference import path_terms as loops

SCORES: tuple[Score, ...] = ("norm", "residual")
COLLAPSED = 1e-13
"""Residuals of maps with equal rows are rounding, which has no order."""


@cache
def listed(name: str) -> tuple[Network, Tensor, Tensor, dict[tuple, Tensor]]:
    network, x = small(name)
    held, output = loops.hold(plain(network), x)
    return network, x, output, loops.every_term(held, x)


def scores_of(terms: dict[tuple, Tensor], score: str) -> dict[tuple, float]:
    return {path: getattr(loops, score)(z) for path, z in terms.items()}


def never() -> Callable[[], float]:
    """A clock that stands still."""
    return lambda: 0.0


def after(calls: int) -> Callable[[], float]:
    """A clock that is past every deadline when it is asked once more than so often."""
    told = itertools.count()
    return lambda: 0.0 if next(told) <= calls else 1e9


def check_list(found: Top, scores: dict[tuple, float], count: int) -> None:
    """The list is that of the largest scores, whatever order equal ones have."""
    best = sorted(scores.values(), reverse=True)[:count]
    own = [scores[one.path.heads] for one in found.paths]
    assert own == pytest.approx(best, rel=1e-9, abs=COLLAPSED)
    assert len({one.path for one in found.paths}) == count
    # below the floor scores have no order, so nothing is proven
    assert found.exact == found.resolved[-1]
    assert found.gap == (0.0 if found.exact else None)
    assert found.ranked == (len(found.paths) if all(found.resolved) else found.resolved.index(False))
    if found.exact and count < len(scores):
        assert found.bound <= getattr(found.paths[-1], found.score) * (1 + 1e-12)
    assert found.waiting == 0
    assert found.of == len(scores)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", BLOCKS)
def test_the_list_is_that_of_all_paths_one_by_one(name: str, score: Score) -> None:
    network, x, output, terms = listed(name)
    found = top_paths(network, x, count=10, score=score, clock=never())
    check_list(found, scores_of(terms, score), 10)
    whole = output - output.mean(dim=0)
    for one in found.paths:
        z = terms[one.path.heads]
        centered = z - z.mean(dim=0)
        assert one.norm == pytest.approx(loops.norm(z), rel=1e-11)
        assert one.residual == pytest.approx(loops.residual(z), rel=1e-9, abs=COLLAPSED)
        if loops.residual(output) > 1e-6 * loops.norm(output):  # of a collapsed output nothing can be a part
            share = float((centered * whole).sum() / (whole * whole).sum())
            assert one.share == pytest.approx(share, rel=1e-8, abs=one.share_floor)
            cosine = float((centered * whole).sum() / centered.norm() / whole.norm())
            lost = 1e-13 * one.norm / one.residual  # digits that the centered term does not have
            assert one.cosine_to_output == pytest.approx(cosine, rel=1e-8, abs=lost)
    ranked = [getattr(one, score) for one in found.paths[: found.ranked]]  # below the floor there is no order
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(ranked))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    ("name", "count"), [("san+skip", 1), ("san+skip", 256), ("two of which one is taken", 36)]
)
def test_any_length_of_the_list(name: str, score: Score, count: int) -> None:
    network, x, _, terms = listed(name)
    check_list(top_paths(network, x, count=count, score=score), scores_of(terms, score), count)


@settings(max_examples=40)
@given(networks(most=3), st.integers(0, 2**16), st.sampled_from(SCORES), st.integers(1, 8))
def test_the_list_is_right_for_any_tree(network: Network, seed: int, score: Score, count: int) -> None:
    paths = list(itertools.islice(every_path(network), 400))
    frozen = freeze(network, Draws(seed)(4, TREE_DIM))
    if not count <= len(paths) < 400:
        return
    terms = {path.heads: path_term(frozen, None, path) for path in paths}
    scores = scores_of(terms, score)
    found = top_paths(frozen, count=count, score=score)
    own = [scores[one.path.heads] for one in found.paths]
    size = max(loops.norm(z) for z in terms.values())
    assert own == pytest.approx(
        sorted(scores.values(), reverse=True)[:count], rel=1e-9, abs=1e-13 * (1 + size)
    )
    assert found.of == len(paths)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("calls", [0, 2])
def test_when_time_runs_out_the_gap_is_true(name: str, score: Score, calls: int) -> None:
    network, x, _, terms = listed(name)
    found = top_paths(network, x, count=5, score=score, beam=5, clock=after(calls))
    scores = scores_of(terms, score)
    assert len({one.path for one in found.paths}) == 5
    own = [scores[one.path.heads] for one in found.paths]
    for one, wanted in zip(found.paths, own, strict=True):
        assert getattr(one, score) == pytest.approx(wanted, rel=1e-9, abs=COLLAPSED)
    outside = max(
        value for path, value in scores.items() if path not in {one.path.heads for one in found.paths}
    )
    assert outside <= found.bound * (1 + 1e-12) + COLLAPSED
    assert found.exact == (found.gap == 0.0)
    if found.gap is None:  # nothing is a multiple of rounding
        assert score == "residual"
        assert not found.paths[-1].resolved
        assert found.bound < COLLAPSED
    else:
        assert outside <= (1 + found.gap) * own[-1] * (1 + 1e-9) + COLLAPSED


def test_what_more_would_cost_is_told() -> None:
    network = build(Spec(layers=6, heads=4, dim=16), torch.Generator().manual_seed(0))
    frozen = freeze(network, Draws(0)(6, 16))
    times = map(float, itertools.count())
    found = top_paths(frozen, count=3, seconds=6, beam=3, clock=lambda: next(times))
    assert not found.exact
    assert found.waiting > 0
    assert found.seconds_more is not None
    each = found.seconds_more / found.waiting
    assert 5 / found.expanded <= each <= 8, (
        "a second for every call of the clock, divided by what was done in it"
    )
    proven = top_paths(frozen, count=3, clock=never())
    assert proven.exact
    assert (proven.waiting, proven.seconds_more) == (0, None)
    alone = top_paths(frozen, count=3, seconds=0, beam=3)
    assert alone.waiting == 1, "nothing was looked at yet"
    assert alone.seconds_more is None
    assert alone.seconds == 0


def test_the_search_is_given_three_seconds() -> None:
    assert inspect.signature(top_paths).parameters["seconds"].default == 3
    assert PathsConfig().seconds == 3


def test_without_time_there_is_a_beam_alone() -> None:
    network = build(Spec(layers=6, heads=4, dim=16), torch.Generator().manual_seed(0))
    frozen = freeze(network, Draws(0)(6, 16))
    found = top_paths(frozen, count=3, seconds=0, beam=3)
    assert not found.exact
    assert found.gap is not None
    assert found.gap > 0
    assert found.expanded == 1 + 5 * 3
    wider = top_paths(frozen, count=3, seconds=0, beam=1000)
    assert wider.exact, "a beam that left nothing out that could be better has proven its list"
    assert wider.paths == top_paths(frozen, count=3).paths


def test_only_few_of_many_paths_are_looked_at() -> None:
    network = build(Spec(layers=12, heads=12, dim=48, variant="san+skip"), torch.Generator().manual_seed(0))
    frozen = freeze(network, Draws(0)(8, 48))
    for score in SCORES:
        found = top_paths(frozen, count=5, score=score, seconds=1e9)
        assert found.exact
        assert found.of == 13**12
        assert found.expanded < 5000


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["san+skip", "pre-norm"])
def test_terms_that_are_not_kept_are_computed_again(
    name: str, score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x, _, terms = listed(name)
    monkeypatch.setattr(search, "MOST_BYTES", 0)
    check_list(top_paths(network, x, count=10, score=score), scores_of(terms, score), 10)


def test_too_many_waiting_nodes_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x, _, terms = listed("san")
    monkeypatch.setattr(search, "MOST_NODES", 2)
    found = top_paths(network, x, count=2, beam=2)
    scores = scores_of(terms, "norm")
    outside = max(
        value for path, value in scores.items() if path not in {one.path.heads for one in found.paths}
    )
    assert outside <= found.bound


def test_bounds_without_marks_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x, _, terms = listed("san+skip")
    with_marks = top_paths(network, x, count=4)
    monkeypatch.setattr(futures, "MOST_WORK", -1)
    without = top_paths(network, x, count=4)
    assert without.paths == with_marks.paths
    check_list(without, scores_of(terms, "norm"), 4)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["san", "san+skip", "post-norm", "two side by side"])
def test_a_padded_batch_is_scored_as_its_texts_together(name: str, score: Score) -> None:
    network, _ = small(name)
    is_token = torch.tensor([[True, True, False, True, True], [False, True, True, True, False], [True] * 5])
    x = Draws(7)(3, 5, DIM) + torch.where(is_token, 0.0, 50.0).unsqueeze(-1)
    squares: dict[tuple, float] = {}
    along, whole = dict[tuple, float](), 0.0
    for text, keep in zip(x, is_token, strict=True):
        own = text[keep]
        held, output = loops.hold(plain(network, len(own)), own)
        whole += loops.residual(output) ** 2
        for path, z in loops.every_term(held, own).items():
            squares[path] = squares.get(path, 0.0) + getattr(loops, score)(z) ** 2
            part = float(((z - z.mean(dim=0)) * (output - output.mean(dim=0))).sum())
            along[path] = along.get(path, 0.0) + part
    found = top_paths(network, x, Context(is_token=is_token), count=6, score=score)
    check_list(found, {path: math.sqrt(square) for path, square in squares.items()}, 6)
    for one in found.paths:
        assert one.share == pytest.approx(along[one.path.heads] / whole, rel=1e-8, abs=one.share_floor)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["san+skip", "pre-norm"])
def test_only_the_tokens_that_are_kept_are_scored(name: str, score: Score) -> None:
    network, x, _, terms = listed(name)
    keep = torch.tensor([False, True, True, True, False])
    read = {path: z[keep] for path, z in terms.items()}
    check_list(top_paths(freeze(network, x, keep=keep), count=6, score=score), scores_of(read, score), 6)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("variant", ["san+skip", "transformer"])
def test_a_stack_of_seeds_is_scored_as_its_networks_together(variant: str, score: Score) -> None:
    spec = Spec(layers=3, heads=2, dim=4, variant=variant, norm="none" if variant == "san+skip" else "layer")
    singles = [build(spec, torch.Generator().manual_seed(seed)) for seed in range(2)]
    x = Draws(3)(2, 4, 4)
    squares: dict[tuple, float] = {}
    for network, own in zip(singles, x, strict=True):
        frozen = freeze(network, own)
        for path in every_path(network):
            size = getattr(loops, score)(path_term(frozen, None, path))
            squares[path.heads] = squares.get(path.heads, 0.0) + size**2
    found = top_paths(stack(singles), x, count=5, score=score)
    check_list(found, {path: math.sqrt(square) for path, square in squares.items()}, 5)


def nearly_uniform(layers: int, tokens: int) -> tuple[Network, list[list[list[Fraction]]], Tensor]:
    """One head per layer whose rows differ by about 2^-21 alone, as a network and as exact numbers."""
    draw = Draws(11)
    exact, blocks = [], []
    for _ in range(layers):
        tilt = torch.round(draw(tokens, tokens) * 8) * 2.0**-24
        tilt[:, -1] = -tilt[:, :-1].sum(dim=1)
        maps = 1 / tokens + tilt  # without rounding if tokens is a power of two
        exact.append([[Fraction(float(entry)) for entry in row] for row in maps])
        eye = torch.eye(2, dtype=torch.float64)
        blocks.append(Attention(Fixed(maps.unsqueeze(0)), Values(eye, eye, heads=1)))
    return Network(blocks), exact, torch.round(draw(tokens, 2) * 8) / 8


def test_residuals_far_below_the_rounding_of_the_term_are_right() -> None:
    network, maps, x = nearly_uniform(4, 4)
    exact = [[Fraction(float(entry)) for entry in row] for row in x]
    for one in maps:
        exact = [[sum(p * z[d] for p, z in zip(row, exact, strict=True)) for d in range(2)] for row in one]
    mean = [sum(row[d] for row in exact) / 4 for d in range(2)]
    wanted = math.sqrt(sum((row[d] - mean[d]) ** 2 for row in exact for d in range(2)))
    (found,) = top_paths(network, x, count=1, score="residual").paths
    assert wanted < 1e-20 * found.norm
    assert found.residual == pytest.approx(wanted, rel=1e-8)
    assert found.resolved
    (by_norm,) = top_paths(network, x, count=1, score="norm").paths
    assert not by_norm.resolved, "computed as a difference of terms it is rounding"


@pytest.mark.parametrize("name", BLOCKS)
def test_residuals_are_carried_alone_where_consensus_is_kept(name: str) -> None:
    network, x = small(name)
    assert problem_of(freeze(network, x), "residual").is_centered == (name in CONSENSUS)
    assert not problem_of(freeze(network, x), "norm").is_centered


@pytest.mark.parametrize("score", SCORES)
def test_float32_finds_what_float64_finds(score: Score) -> None:
    network, x = small("post-norm")
    single = top_paths(network, x, count=5, score=score, dtype=torch.float32)
    double = top_paths(network, x, count=5, score=score)
    assert [one.path for one in single.paths] == [one.path for one in double.paths]
    assert single.exact
    for one, other in zip(single.paths, double.paths, strict=True):
        assert one.norm == pytest.approx(other.norm, rel=1e-4)
    assert single.paths[0].floor > 1e8 * double.paths[0].floor


def test_terms_that_vanish_are_listed_with_a_score_of_zero() -> None:
    zero = torch.zeros(2, 2, dtype=torch.float64)
    maps = torch.full((1, 3, 3), 1 / 3, dtype=torch.float64)
    network = Network([Skip(Attention(Fixed(maps), Values(zero, zero, heads=1))) for _ in range(3)])
    found = top_paths(network, Draws(0)(3, 2), count=3)
    assert [one.norm for one in found.paths[1:]] == [0.0, 0.0]
    assert found.paths[0].path == Path((None, None, None))
    assert found.exact
    assert not found.paths[1].resolved
    assert math.isnan(found.paths[1].cosine_to_output)


def test_paths_end_where_mlps_are_sources() -> None:
    draw = Draws(2)
    network = Network([Chain([Skip(heads(draw)), Skip(mlp(draw, dim=DIM))]) for _ in range(2)])
    x = draw(4, DIM)
    found = top_paths(network, x, count=16, mlps="source")
    for one in found.paths:
        wanted = path_term(network, x, one.path, mlps="source")
        assert one.norm == pytest.approx(float(wanted.norm()), rel=1e-12)
    closed = Network([Chain([Skip(heads(draw)), mlp(draw, dim=DIM)])])
    assert top_paths(closed, x, count=4).of == 4
    with pytest.raises(ConfigError, match="the network has 0 from its input"):
        top_paths(closed, x, count=1, mlps="source")


def test_a_network_without_heads_has_one_path() -> None:
    draw = Draws(2)
    network = Network([Chain([norm("layer", draw, DIM), mlp(draw, dim=DIM)]), Chain([])])
    (only,) = top_paths(network, draw(4, DIM), count=1).paths
    assert only.path == Path(())
    (nothing,) = top_paths(Network([]), draw(4, DIM), count=1).paths
    assert nothing.share == pytest.approx(1.0)


def test_progress_is_told() -> None:
    told = []
    network, x = small("san+skip")
    top_paths(network, x, count=4, progress=lambda done, total: told.append((done, total)))
    assert told[0] == (0, None)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_what_cannot_be_asked_is_refused() -> None:
    network, x = small("san+skip")
    with pytest.raises(
        ConfigError, match=r"257 paths were asked for, but the network has 256 .* at most 256"
    ):
        top_paths(network, x, count=257)
    with pytest.raises(ConfigError, match="at least one"):
        top_paths(network, x, count=0)
    with pytest.raises(ConfigError, match="beam=3 is narrower than the list of 4"):
        top_paths(network, x, count=4, beam=3)
    with pytest.raises(ConfigError, match="score='length'"):
        top_paths(network, x, score="length")  # type: ignore[arg-type]
    for seconds in (-1.0, math.nan):
        with pytest.raises(ConfigError, match="0 or more"):
            top_paths(network, x, seconds=seconds)
    with pytest.raises(ConfigError, match="frozen at its input already"):
        top_paths(freeze(network, x), x)
    with pytest.raises(ConfigError, match="training mode"):
        top_paths(network.train(), x)


def test_a_step_with_too_many_choices_is_refused() -> None:
    draw = Draws(0)
    together = Skip(Sum([Chain([heads(draw) for _ in range(9)])]))
    with pytest.raises(ConfigError, match=r"9 attention parts share a skip or a sum.*19684 choices"):
        top_paths(Network([together]), draw(4, DIM))
