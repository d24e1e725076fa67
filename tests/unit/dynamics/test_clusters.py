"""Clusters on the sphere: counted, their speeds in logs, and the long way to one."""

import math
from itertools import islice

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.dynamics import Ending, iterate, run
from rankscope.dynamics.clusters import (
    cluster_labels,
    cluster_system,
    count_clusters,
    find_clusters,
    log_exact_life,
    log_merging_life,
    log_merging_speed,
    log_speed,
    uniform_starts,
)
from rankscope.dynamics.plateaus import Plateau, coarsen, log_estimate, nearest_pair, plateaus
from rankscope.errors import ConfigError, ShapeError
from rankscope.masks import parse_mask
from rankscope.network.initial import haar_orthogonal


def circle(*angles: float) -> torch.Tensor:
    return torch.tensor([[math.cos(a), math.sin(a)] for a in angles], dtype=torch.float64)


def starts(count: int, tokens: int, dim: int, seed: int = 0) -> torch.Tensor:
    return uniform_starts(count, tokens, dim, generator=torch.Generator().manual_seed(seed))


def components(x: np.ndarray, angle: float) -> list[int]:
    """Single linkage by walking the graph, angles by arccos."""
    n, labels = len(x), [-1] * len(x)
    for first in range(n):
        waiting = [first] if labels[first] < 0 else []
        while waiting:
            token = waiting.pop()
            labels[token] = first
            for other in range(n):
                cos = float(x[token] @ x[other] / np.linalg.norm(x[token]) / np.linalg.norm(x[other]))
                if labels[other] < 0 and math.acos(max(-1.0, min(1.0, cos))) <= angle:
                    waiting.append(other)
    return labels


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 14), d=st.integers(2, 4), angle=st.floats(0.01, 3.1))
def test_labels_are_those_of_a_walk(seed: int, n: int, d: int, angle: float) -> None:
    x = 3 * np.random.default_rng(seed).normal(size=(2, n, d))
    found = cluster_labels(torch.tensor(x), angle=angle)
    assert found.tolist() == [components(one, angle) for one in x]


def test_a_long_chain_is_one_cluster() -> None:
    x = circle(*[0.1 * k for k in range(40)])[torch.randperm(40, generator=torch.Generator().manual_seed(0))]
    assert int(count_clusters(x, angle=0.1001)) == 1
    assert int(count_clusters(x, angle=0.0999)) == 40


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [2, 3, 12, 50, 101])
def test_ties_are_joined_and_said_to_be_ties(n: int, dtype: torch.dtype) -> None:
    """Neighbors of a regular polygon are all at the threshold; which of them pass it would be rounding."""
    step = 2 * math.pi / n if n > 2 else math.pi
    ring, turns = circle(*[step * k for k in range(n)]), torch.linspace(0.0, 1.0, 7, dtype=torch.float64)
    for turn in turns.tolist():  # turned and scaled, the same polygon has other last digits
        turned = torch.stack([ring @ circle(turn, turn + math.pi / 2), 3.7 * ring]).to(dtype)
        found = find_clusters(turned, angle=step)
        assert (found.count.tolist(), found.most.tolist()) == ([1, 1], [n, n])
        assert not bool(found.is_settled.any())
        assert count_clusters(turned, angle=step).tolist() == [1, 1]
        for angle, count in (
            (1.2 * step, 1),
            (0.8 * step, n),
        ):  # a fifth is above the margin of bfloat16 up to n = 12
            clear = find_clusters(turned, angle=min(angle, math.pi))
            if clear.margin < 0.1 * step and n > 2:
                assert clear.count.tolist() == clear.most.tolist() == [count, count]
                assert bool(clear.is_settled.all())


def test_a_margin_can_be_given() -> None:
    x = circle(0, 0.1, 0.3)
    assert find_clusters(x, angle=0.15, margin=0.0).count == 2
    wide = find_clusters(x, angle=0.15, margin=0.06)
    assert (int(wide.count), int(wide.most), wide.margin) == (1, 3, 0.06)
    assert (
        int(find_clusters(circle(0, 0), angle=0.0, margin=1.0).most) == 2
    )  # not even equal tokens are sure to be
    with pytest.raises(ConfigError, match="margin of a tie"):
        find_clusters(x, margin=-1.0)


def exact_speeds(x: list[list[str]], beta: int) -> list[mpmath.mpf]:
    """Angles of one step with 300 digits: the definition, written out."""
    with mpmath.workdps(300):
        tokens = [mpmath.matrix([mpmath.mpf(entry) for entry in row]) for row in x]
        tokens = [t / mpmath.norm(t) for t in tokens]
        found = []
        for mine in tokens:
            weights = [mpmath.exp(beta * mpmath.fdot(mine, other)) for other in tokens]
            mean = sum((w * t for w, t in zip(weights, tokens, strict=True)), mpmath.matrix(len(mine), 1))
            along = mpmath.fdot(mean, mine)
            across = mean - along * mine
            found.append(mpmath.atan2(mpmath.norm(across), along))
        return found


@pytest.mark.parametrize("beta", [1, 20, 200])
def test_log_speeds_against_three_hundred_digits(beta: int) -> None:
    points = [["3", "4", "0"], ["-3", "4", "0"], ["0.6", "-0.8", "0.1"], ["0.5", "0.1", "-2"]]
    x = torch.tensor([[float(entry) for entry in row] for row in points], dtype=torch.float64)
    x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    wanted = [float(mpmath.log(speed)) for speed in exact_speeds(points, beta)]
    assert min(wanted) < -beta / 4
    # a cosine off by 1e-16 changes an exponent by beta times that
    assert log_speed(x, float(beta)).tolist() == pytest.approx(wanted, abs=beta * 1e-14, rel=1e-14)


def test_log_speeds_against_plain_steps_with_masks() -> None:
    x = starts(3, 9, 3)
    for mask in ("full", "causal", "window:2"):
        after = cluster_system(3.0, 3, rule=parse_mask(mask)).step(x)
        turned = 2 * torch.asin(torch.linalg.vector_norm(after - x, dim=-1) / 2)
        found = log_speed(x, 3.0, rule=parse_mask(mask)).exp()
        torch.testing.assert_close(found, turned, rtol=1e-12, atol=1e-14)
    assert log_speed(x, 3.0, rule=parse_mask("causal"))[:, 0].tolist() == [-math.inf] * 3


@pytest.mark.parametrize(("angle", "beta"), [(0.7, 40.0), (1.9, 60.0), (2.6, 180.0)])
def test_two_clusters_turn_as_derived(angle: float, beta: float) -> None:
    x = circle(0, 0, 0, angle, angle)
    found = log_speed(x, beta)
    # next term: the denominator m + k w cos t, with w = exp(-beta (1 - cos t))
    slack = 2 * math.exp(-beta * (1 - math.cos(angle))) + beta * 1e-14
    assert float(found[0]) == pytest.approx(log_merging_speed(angle, beta, (3, 2)), abs=slack)
    assert float(found[3]) == pytest.approx(log_merging_speed(angle, beta, (2, 3)), abs=slack)


def test_an_orthogonal_value_map_only_turns_the_frame() -> None:
    generator = torch.Generator().manual_seed(2)
    turn, x = haar_orthogonal(torch.randn(3, 3, generator=generator, dtype=torch.float64)), starts(2, 8, 3)
    plain = list(islice(iterate(cluster_system(9.0, 3), x), 6))
    turned = list(islice(iterate(cluster_system(9.0, 3, values=turn), x), 6))
    for number, (one, other) in enumerate(zip(plain, turned, strict=True)):
        torch.testing.assert_close(one @ torch.linalg.matrix_power(turn, number), other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("angle", "beta", "sizes"), [(2.0, 5.0, (3, 2)), (2.4, 4.0, (1, 1)), (1.2, 9.0, (4, 1))]
)
def test_leaps_count_the_steps_of_a_walk(angle: float, beta: float, sizes: tuple[int, int]) -> None:
    x, walked = circle(*[0.0] * sizes[0], *[angle] * sizes[1]), 0
    (found,) = coarsen(x.unsqueeze(0), beta)
    system = cluster_system(beta, 2)
    while int(count_clusters(x)) > 1:
        x, walked = system.step(x), walked + 1
    leapt = next(s for s, count in zip(found.steps, found.counts, strict=True) if count == 1)
    # the midpoint rule is good to (2 leap)^2 / 24 < 1%, and a leap may overshoot the last few steps
    assert leapt == pytest.approx(walked, rel=0.03, abs=2)


def test_the_whole_way_of_random_starts_against_a_walk() -> None:
    x, beta = starts(8, 32, 2)[[0, 1, 2, 7]], 4.0
    found = coarsen(x, beta)
    walked = [0] * 4
    for number, state in enumerate(islice(iterate(cluster_system(beta, 2), x), 600)):
        for index, count in enumerate(count_clusters(state).tolist()):
            walked[index] = number if count > 1 else walked[index]
    leapt = [max(s for s, count in zip(one.steps, one.counts, strict=True) if count > 1) for one in found]
    assert leapt == pytest.approx(walked, rel=0.04, abs=3)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [30.0, 100.0, 200.0])
def test_lives_beyond_any_walk_against_the_integral_and_the_law(beta: float) -> None:
    angle, sizes = 2.0, (3, 2)
    (found,) = coarsen(circle(0, 0, 0, angle, angle).unsqueeze(0), beta)
    (plateau,) = found.plateaus()
    exact = log_exact_life(angle, beta, sizes)
    assert math.log(plateau.length) == pytest.approx(exact, abs=0.02)  # (2 leap)^2 / 24 and the last leap
    # next term of the integral: 1 / (beta sin^2 t) times a number of order one
    assert log_merging_life(angle, beta, sizes) == pytest.approx(
        exact, abs=1.5 / (beta * math.sin(angle) ** 2)
    )
    assert log_estimate(found.tokens_of(plateau), beta) == pytest.approx(log_merging_life(angle, beta, sizes))


def test_the_integral_against_many_digits() -> None:
    angle, beta, (m, k) = 2.0, 40.0, (3, 2)

    def inverse(t: mpmath.mpf) -> mpmath.mpf:
        w = mpmath.exp(-beta * (1 - mpmath.cos(t)))
        first = mpmath.atan2(k * w * mpmath.sin(t), m + k * w * mpmath.cos(t))
        return 1 / (first + mpmath.atan2(m * w * mpmath.sin(t), k + m * w * mpmath.cos(t)))

    wanted = mpmath.log(mpmath.quad(inverse, [1 / math.sqrt(beta), 1, 1.5, 1.8, angle]))
    assert log_exact_life(angle, beta, (m, k)) == pytest.approx(float(wanted), abs=1e-4)  # trapezoids


def test_colder_starts_have_more_clusters_and_a_longer_way() -> None:
    x = starts(3, 16, 2, seed=4)
    warm, cold = coarsen(x, 4.0), coarsen(x, 30.0)
    for one, other in zip(warm, cold, strict=True):
        assert one.is_over
        assert other.is_over
        assert other.steps[-1] > 1e6 * one.steps[-1]
        assert other.plateaus()[0].clusters >= max([p.clusters for p in one.plateaus()], default=1)
        counts = [p.clusters for p in other.plateaus()]
        assert counts == sorted(counts, reverse=True)


def test_a_plain_run_takes_a_slow_plateau_for_an_equilibrium() -> None:
    x = circle(0, 0, 2.8, 2.8)
    assert run(cluster_system(4.0, 2), x, 50).endings == (Ending.RUNNING,)
    assert run(cluster_system(40.0, 2), x, 50).endings == (Ending.EQUILIBRIUM,)
    assert float(log_speed(x, 40.0).max()) / math.log(10) == pytest.approx(-34.2, abs=0.2)
    assert coarsen(x.unsqueeze(0), 40.0)[0].is_over


def test_plateaus_of_a_series() -> None:
    steps = [0.0, 1, 2, 5, 9, 10, 11, 30]
    counts = [4, 3, 3, 3, 2, 2, 2, 1]
    speeds = [-1.0, -8, -9, -8, -2, -7.5, -7, -20]
    found = plateaus(steps, counts, speeds, slow=math.exp(-6))
    assert found == [
        Plateau(first=1, start=1, length=8, clusters=3, log_speed=-9, is_over=True),
        Plateau(first=5, start=10, length=20, clusters=2, log_speed=-7.5, is_over=True),
    ]
    (last,) = plateaus([0, 1, 2], [2, 2, 2], [-9, -9, -9])
    assert (last.length, last.is_over) == (2, False)
    with pytest.raises(ConfigError, match="3 steps, 2 counts and 3 speeds"):
        plateaus([0, 1, 2], [1, 1], [0, 0, 0])


def test_the_nearest_pair() -> None:
    gap, sizes = nearest_pair(circle(0, 0, 1.0, 3.0, 3.0, 3.0))
    assert (gap, sizes) == (pytest.approx(1.0, rel=1e-14), (2, 1))
    with pytest.raises(ConfigError, match="one cluster"):
        nearest_pair(circle(0, 0))


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(ShapeError, match="zero token"):
        count_clusters(torch.zeros(2, 2))
    with pytest.raises(ConfigError, match="from 0 to pi"):
        count_clusters(circle(0, 1), angle=4.0)
    with pytest.raises(ShapeError, match="length one"):
        log_speed(2 * circle(0, 1), 1.0)
    with pytest.raises(ConfigError, match="above zero"):
        coarsen(circle(0, 1).unsqueeze(0), 0.0)
    with pytest.raises(ConfigError, match="not negative"):
        cluster_system(-1.0, 2)
