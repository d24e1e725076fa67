"""What rows of inputs are called, on rows whose truth is planted."""

import numpy as np
import pytest

from rankscope.findings.inputs import InputThresholds
from rankscope.verdict.inputs import judge_inputs

N, D = 256, 96


def gauss(seed, many=N, dim=D):
    return np.random.default_rng(seed).standard_normal((many, dim))


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def low_rank(rank, noise, seed=0):
    return gauss(seed, N, rank) @ gauss(seed + 1, rank, D) + noise * gauss(seed + 2)


def grouped(groups, noise, seed=0):
    return gauss(seed, groups)[np.arange(N) % groups] + noise * gauss(seed + 1)


AXIS = unit(gauss(99, 1))
LENGTHS = np.exp(0.7 * gauss(98, N, 1))


def scaled(places, factor):
    x = gauss(5)
    x[places] *= factor
    return x


PLANTED = {
    "gaussian": (gauss(0), "healthy"),
    "fewer rows than dimensions": (gauss(0, 32), "healthy"),
    "unit rows": (unit(gauss(1)), "healthy"),
    "layer norm": (gauss(1) - gauss(1).mean(axis=1, keepdims=True), "healthy"),
    "half precision": (gauss(2).astype(np.float16), "healthy"),
    "exponent 1": (gauss(3) * np.arange(1, D + 1) ** -0.5, "healthy"),
    "exponent 2 along channels": (gauss(3, 200, 200) * np.arange(1, 201) ** -1.0, "healthy"),
    "exponent 4 along channels": (gauss(3, 200, 200) * np.arange(1, 201) ** -2.0, "dimensional"),
    "exponent 4": (gauss(3) * np.arange(1, D + 1) ** -2.0, "dimensional"),
    "heavy tails": (np.random.default_rng(4).standard_cauchy((N, D)), "healthy"),
    "long rows": (scaled(slice(4), 100.0), "healthy"),
    "tiny": (gauss(4) * 1e-160, "healthy"),
    "huge": (gauss(4) * 1e160, "healthy"),
    "each row twice": (np.concatenate([gauss(6, N // 2)] * 2), "healthy"),
    "rank 1": (low_rank(1, 1e-3), "dimensional"),
    "circle": (
        np.stack([np.cos(np.arange(N) ** 2), np.sin(np.arange(N) ** 2)], 1) @ gauss(7, 2),
        "dimensional",
    ),
    "a small mean": (gauss(8) + 0.5, "healthy"),
    "mean 2": (gauss(8) + 2.0, "shared mean"),
    "mean 10": (gauss(8) + 10.0, "shared mean"),
    "mean 10, half precision": ((gauss(8) + 10.0).astype(np.float16), "shared mean"),
    "unit cone": (unit(AXIS + 0.3 * gauss(9) / D**0.5), "cone"),
    "unit cone of few dimensions": (unit(np.ones(10) + 0.3 * gauss(9, N, 10)), "cone"),
    "cone of lengths": (LENGTHS * (AXIS + 0.3 * gauss(9) / D**0.5), "cone"),
    "line both ways": (gauss(11, N, 1) * (AXIS + 0.4 * gauss(9) / D**0.5), "cone"),
    "channel that varies": (scaled((slice(None), 7), 50.0), "massive channel"),
    "channel that is large": (gauss(10) + 60.0 * np.eye(D)[7], "massive channel"),
    "equal": (np.tile(gauss(12, 1), (N, 1)), "collapsed"),
    "nearly equal": (gauss(12, 1) + 1e-3 * gauss(13), "collapsed"),
    "zeros": (np.zeros((N, D)), "collapsed"),
    "two equal rows": (np.ones((2, D)), "collapsed"),
    "nearly equal, few directions": (20 * gauss(12, 1) + low_rank(2, 0.0, 14), "collapsed"),
    "one row most of the time": (np.concatenate([gauss(12, 100), np.zeros((156, D))]), "collapsed"),
    "a third of the rows is zero": (np.concatenate([gauss(12, 170), np.zeros((86, D))]), "healthy"),
    "dead channels around a mean": (np.hstack([gauss(13, N, 80) + 5, np.zeros((N, 16))]), "shared mean"),
    "random ReLU": (np.maximum(gauss(14), 0), "healthy"),
    "one-hot": (np.eye(D), "healthy"),
    "signs": (np.sign(gauss(14)), "healthy"),
    "whole numbers": (np.round(3 * gauss(14)).astype(int), "healthy"),
    "contrastive, few dimensions": (
        unit(unit(gauss(16, N, 16)) @ gauss(17, 16) + 0.05 * gauss(18)),
        "dimensional",
    ),
    "clusters of unequal sizes": (
        gauss(19, 5)[np.repeat(range(5), [120, 70, 40, 16, 10])] + 0.3 * gauss(20),
        "clusters",
    ),
    "most in one cluster": (
        np.where(np.arange(N)[:, None] < 240, *gauss(21, 2)[:, None]) + 0.1 * gauss(22),
        "clusters",
    ),
    "two rows": (gauss(15, 2), "too few"),
    "eight rows": (gauss(15, 8), "too few"),
    "eight rows around a mean": (gauss(15, 8) + 10, "shared mean"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_rows_are_called_by_their_name(name):
    rows, truth = PLANTED[name]
    assert judge_inputs(rows).name == truth


@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.1, 0.3])
@pytest.mark.parametrize("rank", [2, 8, 24, 64])
def test_planted_directions_are_counted(rank, noise):
    found = judge_inputs(low_rank(rank, noise, seed=rank))
    assert (found.name, found.directions) == ("dimensional", rank)


@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.1, 0.4])
@pytest.mark.parametrize("groups", [2, 3, 8, 20])
def test_planted_clusters_are_counted(groups, noise):
    found = judge_inputs(grouped(groups, noise, seed=groups))
    assert (found.name, found.clusters) == ("clusters", groups)


def test_small_clusters_are_counted_and_rows_on_the_edge_are_not():
    sizes = [120, 60, 40, 20, 12, 4]
    rows = gauss(19, 6)[np.repeat(range(6), sizes)] + 0.2 * gauss(20)
    assert (judge_inputs(rows).name, judge_inputs(rows).clusters) == ("clusters", 6)
    near = gauss(19, 5)[np.repeat(range(5), [120, 60, 40, 20, 16])] + 0.2 * gauss(20)
    near[:4] += 0.3 * gauss(21, 1)
    assert judge_inputs(near).clusters == 5


def test_a_cloud_around_its_groups_is_no_collapse():
    assert judge_inputs(grouped(8, 1.5)).name == "healthy"


@pytest.mark.parametrize(
    "name", ["gaussian", "rank 1", "mean 10", "unit cone", "equal", "channel that is large"]
)
def test_the_name_does_not_depend_on_order_and_size(name):
    rows, truth = PLANTED[name]
    turned = np.random.default_rng(1).permutation(rows) * 37.0
    assert judge_inputs(turned).name == truth


def test_long_rows_and_copies_are_counted_aside():
    assert judge_inputs(PLANTED["long rows"][0]).long_rows == 4
    assert judge_inputs(PLANTED["each row twice"][0]).near_duplicates == 1.0
    few = low_rank(8, 1e-3)
    few[:4] = 1e3 * gauss(20, 4)
    assert judge_inputs(few).directions == 8


def test_what_holds_besides_is_said_too():
    found = judge_inputs(low_rank(8, 1e-3) + 6.0)
    assert (found.name, found.also, found.directions) == ("dimensional", ("shared mean",), 8)
    channel = low_rank(8, 1e-3)
    channel[:, 3] += 500.0
    found = judge_inputs(channel)
    assert (found.name, found.also, found.channels) == ("dimensional", ("massive channel",), (3,))


def test_two_hundred_gaussian_clouds_are_healthy():
    """No chance event of Gaussian rows has a name, whatever their number and width."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        many, dim = int(generator.integers(16, 80)), int(generator.integers(1, 60))
        assert judge_inputs(generator.standard_normal((many, dim))).name == "healthy", (many, dim)


def test_limits_are_arguments():
    rows = PLANTED["mean 2"][0]
    assert judge_inputs(rows, InputThresholds(cone_cosine=0.9)).name == "healthy"
