"""Numbers of rows of inputs, against loops that share no code, and the Gaussian yardstick against drawn matrices."""

import math

import numpy as np
import pytest

from rankscope.measures import embeddings as e
from rankscope.measures import gaussian_rows as g


def rows(many=40, dim=12, seed=0):
    return np.random.default_rng(seed).standard_normal((many, dim))


def entropy_rank(shares):
    return math.exp(-sum(p * math.log(p) for p in shares if p > 0))


def test_rankme_is_the_formula_of_its_paper():
    x = rows() + 3.0
    values = np.sqrt(np.linalg.eigvalsh(x.T @ x))
    shares = [value / sum(values) + 1e-7 for value in values]
    found = e.rankme(np.linalg.svd(x, compute_uv=False))
    assert found == pytest.approx(entropy_rank(shares), rel=1e-9)
    assert e.effective_rank(np.linalg.svd(x, compute_uv=False)) != pytest.approx(found, rel=1e-9)


def test_equal_rows_have_a_rankme_of_one():
    found = e.rankme(np.linalg.svd(np.ones((64, 32)), compute_uv=False))
    assert f"{found:.3f}" == "1.000"
    assert math.isnan(e.rankme(np.zeros(4)))


def test_uniformity_and_alignment_are_loops_over_pairs():
    x = rows(12, 5)
    groups = np.array([0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 4, 4])
    unit = [row / math.sqrt(sum(row * row)) for row in x]
    apart = {(i, j): sum((unit[i] - unit[j]) ** 2) for i in range(12) for j in range(i)}
    expected = math.log(sum(math.exp(-2 * one) for one in apart.values()) / len(apart))
    assert e.uniformity(x) == pytest.approx(expected)
    same = [one for (i, j), one in apart.items() if groups[i] == groups[j]]
    assert e.alignment(x, groups) == pytest.approx(sum(same) / len(same))
    assert math.isnan(e.alignment(x, np.arange(12)))


def test_lidar_is_the_whitened_spread_between_groups():
    x = rows(60, 6, seed=3)
    groups = np.repeat(np.arange(15), 4)
    means = np.stack([x[groups == one].mean(axis=0) for one in range(15)])
    within = sum(
        np.outer(row - means[one], row - means[one]) for row, one in zip(x, groups, strict=True)
    ) / len(x)
    values, vectors = np.linalg.eigh(within + 1e-4 * np.eye(6))
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    between = np.cov(means.T, bias=True)
    eigenvalues = np.linalg.eigvalsh(root @ between @ root)
    shares = [one / sum(eigenvalues) + 1e-8 for one in eigenvalues]
    assert e.lidar(x, groups) == pytest.approx(entropy_rank(shares), rel=1e-9)


def test_the_gap_of_two_modalities_is_the_distance_of_their_means():
    x = np.concatenate([rows(30, 8) + 4 * np.eye(8)[0], rows(50, 8, seed=1) - 4 * np.eye(8)[0]])
    labels = np.array(["image"] * 30 + ["text"] * 50)
    unit = x / np.linalg.norm(x, axis=1)[:, None]
    expected = np.linalg.norm(unit[:30].mean(axis=0) - unit[30:].mean(axis=0))
    gap, by_chance, _ = e.label_gap(x, labels)
    assert gap == pytest.approx(expected)
    assert by_chance == pytest.approx(math.sqrt(1 / 30 + 1 / 50))


def test_an_exponent_is_that_of_the_variances():
    assert e.exponent(np.arange(1, 400.0) ** -0.6) == pytest.approx(1.2)
    assert math.isnan(e.exponent(np.ones(8)))  # too few places


def test_a_long_row_moves_the_spatial_median_hardly():
    x = rows(200, 4)
    before = e.spatial_median(x)
    x[0] = 1e9
    assert np.linalg.norm(e.spatial_median(x) - before) < 0.05
    assert np.linalg.norm(x.mean(axis=0)) > 1e6


@pytest.mark.parametrize(("many", "dim"), [(30, 12), (12, 30), (20, 20), (7, 1), (1, 5)])
def test_gaussian_spectra_are_those_of_drawn_matrices(many, dim):
    """Mean and spread of every singular value, from 4000 bidiagonal and 4000 full matrices."""
    generator = np.random.default_rng(1)
    drawn = np.stack(
        [np.linalg.svd(generator.standard_normal((many, dim)), compute_uv=False) for _ in range(4000)]
    )
    made = np.stack([g.gaussian_singular_values(many, dim, generator=generator) for _ in range(4000)])
    error = np.sqrt((drawn.var(axis=0) + made.var(axis=0)) / 4000)
    assert (np.abs(drawn.mean(axis=0) - made.mean(axis=0)) < 5 * error).all()
    assert made.std(axis=0) == pytest.approx(drawn.std(axis=0), rel=0.08)


def test_the_yardstick_of_uniformity_and_duplicates_is_that_of_drawn_rows():
    x = rows(3000, 6)
    assert e.uniformity(x) == pytest.approx(g.gaussian_uniformity(6), abs=0.02)
    for many, dim, within in ((400, 2, 0.05), (1000, 1, 0.01)):
        x = rows(many, dim)
        apart = np.linalg.norm(x[:, None] - x[None], axis=-1)
        np.fill_diagonal(apart, np.inf)
        share = (apart.min(axis=1) < within * np.median(apart[np.isfinite(apart)])).mean()
        # Three standard deviations of a share of so many rows, of which neighbours go together.
        assert g.gaussian_duplicates(many, dim, within) == pytest.approx(share, abs=3 * (0.5 / many) ** 0.5)
