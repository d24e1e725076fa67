"""Certified brackets: they hold what a linear program finds, no center beats them, and they never claim too much."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankscope.measures import diameter, matrix_norm, one_center, residual_bracket
from rankscope.measures.brackets import level_box
from rankscope.measures.one_center import distances, lower_bound, sorted_columns, weighted_medians
from reference import measure_loops as loops


def sample(kind, tokens, dim, seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal((tokens, dim))
    made = {
        "gaussian": x,
        "heavy": random.standard_t(1.5, (tokens, dim)),
        "massive token": x * np.where(np.arange(tokens) == 0, 1000.0, 1.0)[:, None],
        "massive channel": x * np.where(np.arange(dim) == 0, 1000.0, 1.0),
        "clusters": random.standard_normal((3, dim))[random.integers(0, 3, tokens)] + 0.1 * x,
        "low rank": random.standard_normal((tokens, 2)) @ random.standard_normal((2, dim)),
        "ties": np.round(x),
        "one hot": np.eye(dim)[np.arange(tokens) % dim],
        "one away": np.where((np.arange(tokens)[:, None] == 0) & (np.arange(dim) == 0), 1.0, 0.0),
        "tiny": 1e-9 * x + 1.0,
    }
    return torch.from_numpy(made[kind])


KINDS = [
    "gaussian",
    "heavy",
    "massive token",
    "massive channel",
    "clusters",
    "low rank",
    "ties",
    "one hot",
    "one away",
    "tiny",
]


@pytest.mark.parametrize("shape", [(2, 5), (7, 3), (12, 6)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_linf_bracket_holds_the_linear_program(kind, shape):
    x = sample(kind, *shape)
    # The program's tolerances are absolute, so it gets the matrix centered and scaled.
    offsets = x - x.mean(dim=0)
    scale = offsets.abs().max()
    exact = loops.linf_best((offsets / scale).tolist()) * scale
    for tolerance in (0.01, 1e-4):
        low, high = residual_bracket(x, norm="linf", tolerance=tolerance)
        assert low <= exact * (1 + 1e-6)
        assert high >= exact * (1 - 1e-6)
        assert high <= (1 + tolerance) * low


@pytest.mark.parametrize("norm", ["linf", "composite"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_center_beats_the_low_end(kind, norm):
    x = sample(kind, 20, 6)
    low, high = residual_bracket(x, norm=norm)
    assert high <= 1.01 * low
    g = torch.Generator().manual_seed(1)
    weights = torch.softmax(3 * torch.randn(2000, 20, generator=g, dtype=torch.float64), dim=-1)
    picks = x[torch.randint(20, (2000, 6), generator=g), torch.arange(6)]
    for rows in (weights @ x, picks, x):
        assert (matrix_norm(x - rows[:, None], norm=norm) >= low).all()


@given(st.integers(2, 6), st.integers(1, 2), st.integers(0, 2**16))
def test_in_one_or_two_channels_the_linf_residual_is_half_the_diameter(tokens, dim, seed):
    """Balls of l1 in the plane are turned squares: if they meet in pairs, they meet all together."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, dim, generator=g, dtype=torch.float64).pow(3)
    low, high = residual_bracket(x, norm="linf")
    half = diameter(x, norm="l1") / 2
    assert low <= half * (1 + 1e-12)
    assert half <= high * (1 + 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_composite_to_one_percent_at_32_by_16(kind):
    for seed in range(3):
        low, high = residual_bracket(sample(kind, 32, 16, seed), norm="composite")
        assert low <= high <= 1.01 * low


@pytest.mark.parametrize("kind", ["gaussian", "heavy", "massive token", "massive channel", "clusters"])
@pytest.mark.parametrize("norm", ["linf", "composite"])
def test_one_percent_at_128_by_768(kind, norm):
    low, high = residual_bracket(sample(kind, 128, 768), norm=norm)
    assert low <= high <= 1.01 * low


def test_composite_lies_between_the_cheap_bounds(generator):
    x = torch.randn(30, 8, 5, generator=generator, dtype=torch.float64).pow(3)
    one, rows, both = (residual_bracket(x, norm=norm) for norm in ("l1", "linf", "composite"))
    assert (both.high >= (one.low * rows.low).sqrt()).all()
    assert (both.low >= (one.low * rows.low).sqrt() * (1 - 0.01)).all()
    assert (both.low / (one.high * rows.high).sqrt() > 1.05).any()  # the cheap bound alone would not do


@pytest.mark.parametrize("norm", ["linf", "composite"])
def test_a_search_cut_short_reports_a_wide_but_true_bracket(norm, monkeypatch):
    x = sample("heavy", 12, 6)
    full = residual_bracket(x, norm=norm, tolerance=1e-4)
    monkeypatch.setattr(one_center, "UPDATES", 1)
    monkeypatch.setattr(one_center, "_matrix_game", lambda payoffs: None)  # the solver gives up
    low, high = residual_bracket(x, norm=norm)
    assert high > 1.01 * low
    assert low <= full.low
    assert high >= full.high


def test_weighted_medians_minimize(generator):
    y = torch.randn(7, 5, generator=generator, dtype=torch.float64).numpy()
    columns = sorted_columns(y)
    weights = torch.rand(7, generator=generator, dtype=torch.float64).numpy()
    extra = torch.rand(5, generator=generator, dtype=torch.float64).numpy()
    for more in (None, extra):
        center = weighted_medians(columns, weights, more)
        for j in range(5):
            pull = weights + (0 if more is None else more[j])
            costs = [float(pull @ np.abs(y[:, j] - value)) for value in y[:, j]]
            assert float(pull @ np.abs(y[:, j] - center[j])) == pytest.approx(min(costs), rel=1e-14)


@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 2**16))
def test_every_weight_certifies(tokens, dim, seed):
    random = np.random.default_rng(seed)
    y = random.standard_t(2, (tokens, dim))
    columns = sorted_columns(y)
    weights, extra = random.dirichlet(np.ones(tokens)), random.random(dim)
    bound = lower_bound(columns, weights, extra)
    for _ in range(50):
        of_rows, of_columns = distances(columns, random.dirichlet(np.ones(tokens) / 2) @ y)
        assert bound <= of_rows.max() + extra @ of_columns


@given(st.integers(2, 9), st.integers(1, 4), st.floats(0, 3), st.integers(0, 2**16))
def test_the_level_box_is_the_level_set(tokens, dim, above, seed):
    y = np.random.default_rng(seed).standard_normal((tokens, dim)).round(1)
    columns = sorted_columns(y)
    level = (1 + above) * float(distances(columns, columns.medians())[1].max()) + 1e-9
    box = level_box(columns, level)
    for end, outward in ((box.low, -1), (box.high, 1)):
        # Absolute: entries are of order one, a level next to zero is the difference of two of them.
        np.testing.assert_allclose(distances(columns, end)[1], level, rtol=1e-12, atol=1e-14)
        assert (distances(columns, end + outward * 1e-6)[1] > level).all()


def test_bracket_of_a_batch_keeps_its_axes(generator):
    x = torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64)
    for norm in ("linf", "composite", "l1"):
        bracket = residual_bracket(x, norm=norm)
        assert bracket.low.shape == bracket.high.shape == (2, 3)
        alone = residual_bracket(x[1, 2], norm=norm)
        assert torch.equal(bracket.low[1, 2], alone.low)
        assert torch.equal(bracket.high[1, 2], alone.high)
