"""Means over random paths: exact where all are listed, unbiased and covered as promised where they are drawn."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from kit.path_trees import layered
from kit.trees import DIM, Draws
from rankscope.errors import ConfigError, NumericalError, ShapeError
from rankscope.measures import find_measure
from rankscope.network import Context, Network, Spec, build, generators
from rankscope.pathways.drawing import draw_paths, every_path
from rankscope.pathways.isolated import run_path
from rankscope.pathways.path import Path
from rankscope.pathways.sampling import Estimate, estimate_sum, sample_statistic

DRAW = Draws(0)


def toy(path: Path) -> Tensor:
    """A term whose only entry is a number that differs from path to path."""
    value = sum(
        math.sin(3.0 * place + 7.0 * head) for place, head in enumerate(path.heads) if head is not None
    )
    return torch.full((1, 1), value, dtype=torch.float64)


def entry(x: Tensor) -> Tensor:
    return x[..., 0, 0]


def real() -> tuple[Network, Tensor]:
    network = build(Spec(layers=4, heads=2, dim=DIM, variant="transformer", norm="layer"), generators(0)[0])
    return network, Draws(1)(3, 6, DIM)


def test_all_paths_looked_at_is_exact(generator: torch.Generator) -> None:
    network = layered([2, 3, 2])
    every = [float(toy(path)) for path in every_path(network, 2)]
    assert len(every) == 16
    for count in (16, 1000):
        found = sample_statistic(network, 2, toy, entry, count=count, generator=generator)
        assert found.is_exact
        assert (found.count, found.paths) == (16, 16)
        assert float(found.low) == float(found.mean) == float(found.high)
        torch.testing.assert_close(float(found.mean), float(np.mean(every)))
        torch.testing.assert_close(float(found.std), float(np.std(every)))
    drawn = sample_statistic(network, 2, toy, entry, count=15, generator=generator)
    assert not drawn.is_exact
    assert float(drawn.low) < float(drawn.mean) < float(drawn.high)


def test_a_single_path_needs_no_second_one(generator: torch.Generator) -> None:
    found = sample_statistic(layered([2, 2]), 0, toy, entry, count=1, generator=generator)
    assert found.is_exact
    assert float(found.mean) == float(found.std) == 0.0


def test_the_interval_is_that_of_student() -> None:
    network, count = layered([3] * 6), 12
    found = sample_statistic(
        network, 3, toy, entry, count=count, generator=torch.Generator().manual_seed(4), confidence=0.9
    )
    paths = draw_paths(network, 3, count, generator=torch.Generator().manual_seed(4))
    values = [float(toy(path)) for path in paths]
    low, high = stats.t.interval(0.9, count - 1, loc=np.mean(values), scale=stats.sem(values))
    torch.testing.assert_close((float(found.low), float(found.high)), (float(low), float(high)))
    torch.testing.assert_close(float(found.std), float(np.std(values, ddof=1)))
    assert (found.count, found.paths) == (count, math.comb(6, 3) * 27)


@pytest.mark.parametrize("confidence", [0.95, 0.6])
def test_intervals_cover_the_mean_as_often_as_they_say(confidence: float, generator: torch.Generator) -> None:
    network, repetitions = layered([1, 4, 2, 3, 2]), 400
    truth = float(np.mean([float(toy(path)) for path in every_path(network, 3)]))
    known = {path: toy(path) for path in every_path(network, 3)}
    covered, means = 0, []
    for _ in range(repetitions):
        found = sample_statistic(
            network, 3, known.__getitem__, entry, count=20, generator=generator, confidence=confidence
        )
        assert not found.is_exact
        covered += bool(found.low <= truth <= found.high)
        means.append(float(found.mean))
    assert stats.binomtest(covered, repetitions, confidence).pvalue > 1e-3
    assert stats.ttest_1samp(means, truth).pvalue > 1e-3  # unbiased


@pytest.mark.parametrize("statistic", ["residual_ratio", "residual[frobenius,mean]", "cosine[off_diagonal]"])
@pytest.mark.parametrize("mode", ["isolated", "official"])
def test_measures_of_terms_text_by_text(statistic: str, mode: str, generator: torch.Generator) -> None:
    network, x = real()
    term = partial(run_path, network, x, mode=mode)
    found = sample_statistic(network, 2, term, statistic, count=100, generator=generator)
    values = [find_measure(statistic)(term(path)) for path in every_path(network, 2)]
    assert found.mean.shape == (3,)
    torch.testing.assert_close(found.mean, torch.stack(values).mean(dim=0))
    torch.testing.assert_close(found.resolved, torch.ones(3, dtype=torch.float64))
    same = sample_statistic(network, 2, term, find_measure(statistic), count=100, generator=generator)
    assert torch.equal(same.mean, found.mean)
    function = sample_statistic(
        network, 2, term, find_measure(statistic).value_fn, count=100, generator=generator
    )
    torch.testing.assert_close(function.mean, found.mean)
    assert function.resolved is None


def test_padding_is_left_out(generator: torch.Generator) -> None:
    network, x = real()
    is_token = torch.tensor([[True] * 6, [False, True, True, True, False, False], [True] * 5 + [False]])
    term = partial(run_path, network, x, context=Context(is_token=is_token), mode="isolated")
    for statistic in ("residual_ratio", find_measure("residual_ratio").value_fn):
        found = sample_statistic(
            network, 3, term, statistic, count=40, generator=generator, is_token=is_token
        )
        for row, keep in enumerate(is_token):
            alone = partial(run_path, network, x[row][keep], mode="isolated")
            single = sample_statistic(network, 3, alone, "residual_ratio", count=40, generator=generator)
            torch.testing.assert_close(found.mean[row], single.mean)


def test_values_below_the_floor_are_counted(generator: torch.Generator) -> None:
    """Long isolated paths without norms collapse below what float64 resolves."""
    network = build(Spec(layers=8, heads=2, dim=DIM, variant="san+skip"), generators(0)[0])
    term = partial(run_path, network, Draws(1)(6, DIM), mode="isolated")
    shares = [
        float(sample_statistic(network, k, term, "residual_ratio", count=10, generator=generator).resolved)
        for k in (1, 8)
    ]
    assert shares[0] == 1.0
    assert shares[1] < 0.5


def test_one_number_for_all_texts_is_fine(generator: torch.Generator) -> None:
    network, x = real()
    term = partial(run_path, network, x, mode="isolated")
    found = sample_statistic(network, 1, term, lambda y: float(y.norm()), count=20, generator=generator)
    assert found.mean.shape == ()
    expected = np.mean([float(term(path).norm()) for path in every_path(network, 1)])
    torch.testing.assert_close(float(found.mean), float(expected))


def test_a_path_that_is_drawn_again_counts_again_but_is_not_run_again() -> None:
    network, seen = layered([2, 3, 2]), list[Path]()

    def term(path: Path) -> Tensor:
        seen.append(path)
        return toy(path)

    found = sample_statistic(network, 2, term, entry, count=15, generator=torch.Generator().manual_seed(1))
    drawn = draw_paths(network, 2, 15, generator=torch.Generator().manual_seed(1))
    assert len(seen) == len(set(seen)) < 15 == found.count
    torch.testing.assert_close(float(found.mean), float(np.mean([float(toy(path)) for path in drawn])))


def test_sums_are_means_times_paths(generator: torch.Generator) -> None:
    network = layered([2, 3, 2])
    exact = estimate_sum(sample_statistic(network, 2, toy, entry, count=16, generator=generator))
    expected = sum(float(toy(path)) for path in every_path(network, 2))
    torch.testing.assert_close([float(part) for part in exact], [expected] * 3)
    one = torch.ones(())
    many = Estimate(mean=one, low=one, high=one, std=one, count=2, paths=13**400, is_exact=False)
    with pytest.raises(NumericalError, match="more paths than a floating-point number can say"):
        estimate_sum(many)


def test_bad_questions_are_refused(generator: torch.Generator) -> None:
    network = layered([2, 2])

    def ask(term=toy, statistic=entry, length=1, count=3, confidence=0.95) -> Estimate:
        return sample_statistic(
            network, length, term, statistic, count=count, generator=generator, confidence=confidence
        )

    with pytest.raises(ConfigError, match="no path has length 3"):
        ask(length=3)
    with pytest.raises(ConfigError, match="0 paths were asked for"):
        ask(count=0)
    with pytest.raises(ConfigError, match="an interval needs at least two paths"):
        ask(count=1)
    for confidence in (0.0, 1.0, 95.0, math.nan):
        with pytest.raises(ConfigError, match="is not between 0 and 1"):
            ask(confidence=confidence)
    with pytest.raises(ConfigError, match="is a measure of attention maps"):
        ask(statistic="dobrushin[map]")
    with pytest.raises(ShapeError, match="must be a tensor, got float"):
        ask(term=lambda path: 1.0)
    with pytest.raises(ShapeError, match=r"must be a token matrix .* got shape \(2,\)"):
        ask(term=lambda path: torch.ones(2))
    zero = torch.zeros(3, 2, dtype=torch.float64)
    with pytest.raises(NumericalError, match=r"the statistic of path .* is not a finite number"):
        ask(term=lambda path: zero, statistic="residual_ratio")
