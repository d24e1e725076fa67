"""The five statements that the decomposition rests on, each against a loop or an integral that shares no code."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.mechanism.identities import (
    growth,
    log_ratio,
    odds_to_ratio,
    response,
    share_and_diversity,
)
from rankscope.mechanism.states import (
    inverse_lengths,
    log_energies,
    log_odds,
    measured,
    of_tokens,
    plain_log_ratio,
    plus,
    unit_log_ratio,
    weighed,
)
from rankscope.split.state import Split, split_tokens
from reference import mechanism_loops

SEEDS = st.integers(0, 2**16)


def draws(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(SEEDS, st.floats(0.01, 3.0), st.floats(0.01, 10.0))
def test_i1_the_ratio_is_skip_share_times_growth_of_differences(seed: int, scale: float, size: float) -> None:
    x, f = draws(seed, 5, 4), size * draws(seed + 1, 5, 4)
    y = scale * x + f
    centred = [one - one.mean(dim=0) for one in (x, f)]
    logs = [scale * x, y, scale * centred[0], scale * centred[0] + centred[1]]
    share, grown = share_and_diversity(*(torch.linalg.matrix_norm(one).log() for one in logs))
    found = log_ratio(log_odds(of_tokens(x, None))) + share.log() + grown.log()
    assert float(found) == pytest.approx(mechanism_loops.log_ratio(y.numpy()), abs=1e-12)


@given(SEEDS, st.floats(0.01, 3.0), st.floats(0.01, 10.0))
def test_i2_log_odds_change_by_two_growths(seed: int, scale: float, size: float) -> None:
    x, f = draws(seed, 5, 4), size * draws(seed + 1, 5, 4)
    m, r = x.mean(dim=0), x - x.mean(dim=0)
    common, apart = scale * m + f.mean(dim=0), scale * r + f - f.mean(dim=0)
    d = float((apart.square().sum() / (scale * r).square().sum()).log())
    g = float((common.square().sum() / (scale * m).square().sum()).log())
    change = log_odds(of_tokens(scale * x + f, None)) - log_odds(of_tokens(x, None))
    assert float(change) == pytest.approx(d - g, abs=1e-10 * (1 + abs(d) + abs(g)))


@settings(max_examples=25)
@given(SEEDS, st.floats(-4.0, 4.0), st.sampled_from([0.0, 1.0, 1e-3, -0.7]))
def test_i4_shares_are_the_integrals_of_the_derivative(seed: int, decades: float, same: float) -> None:
    a = draws(seed, 2, 3)
    pieces = [10.0**decades * (draws(seed + k, 2, 3) + same * a) for k in (1, 2, 3)]
    v = sum(pieces)
    found = growth((a * a).sum(), (a * v).sum(), (v * v).sum())
    expected = mechanism_loops.shares_of_growth(a.numpy(), [one.numpy() for one in pieces])
    largest = 1 + max(abs(size) + abs(along) for size, along in expected)
    for one, (size, along) in zip(pieces, expected, strict=True):
        assert float((v * one).sum() * found.size) == pytest.approx(size, abs=1e-11 * largest)
        assert float((a * one).sum() * found.along) == pytest.approx(along, abs=1e-11 * largest)
    total = math.log(float((a + v).square().sum() / a.square().sum()))
    # the total is a logarithm of a sum in which up to eight digits may cancel
    assert float(found.total) == pytest.approx(total, abs=1e-8)


@pytest.mark.parametrize("size", [1e-12, 1e-6, 0.3, 1.0, 1e3, 1e9])
def test_i4_parallel_rows_have_no_angle_and_still_add_up(size: float) -> None:
    one = torch.ones((), dtype=torch.float64)
    found = growth(one, size * one, size**2 * one)
    assert float(size * found.along + size**2 * found.size) == pytest.approx(2 * math.log1p(size), rel=1e-9)


def test_i4_orthogonal_rows_share_nothing_by_direction_and_cancelling_ones_still_add_up() -> None:
    one = torch.ones((), dtype=torch.float64)
    assert float(0.0 * growth(one, 0 * one, 4 * one).along) == 0.0
    back = growth(one, -3 * one, 9 * one)  # a - 3a passes through zero
    assert float(-3 * back.along + 9 * back.size) == pytest.approx(math.log(4.0))


@given(st.floats(-80.0, 80.0), st.floats(-50.0, 50.0))
def test_log_odds_become_logarithms_by_one_positive_factor(before: float, step: float) -> None:
    t = torch.tensor([before, before + step], dtype=torch.float64)
    factor = float(odds_to_ratio(t[0], t[1]))
    # 0 < w <= 1/2 holds exactly; far above zero the factor itself leaves the floats
    assert 0 <= factor <= 0.5 + 1e-12
    change = float(log_ratio(t[1]) - log_ratio(t[0]))
    assert factor * float(t[1] - t[0]) == pytest.approx(change, abs=1e-11 * (1 + abs(change)))


@pytest.mark.parametrize("odds", [-5.0, 0.0, 3.0, 20.0])
def test_of_a_small_step_the_factor_is_the_slope(odds: float) -> None:
    t = torch.tensor(odds, dtype=torch.float64)
    assert float(odds_to_ratio(t, t + 1e-8)) == pytest.approx(0.5 / (1 + math.exp(odds)), rel=1e-7)


# --------------------------------------------------------------------------------------------- states below rounding


@given(SEEDS, st.sampled_from([1.0, 1e-3, 1e-7]))
def test_unit_ratio_equals_the_loop_where_floats_can_see_it(seed: int, spread: float) -> None:
    x = draws(seed, 4) + spread * draws(seed + 1, 6, 4)
    expected = mechanism_loops.log_ratio(mechanism_loops.unit(x.numpy()))
    # rounding of the loop itself: sixteen digits of the tokens, of which the spread leaves the last ones
    for state in (split_tokens(x), of_tokens(x, None)):
        assert float(unit_log_ratio(state)) == pytest.approx(expected, abs=1e-13 / spread)


@pytest.mark.parametrize("log_scale", [-20.0, -90.0, -500.0, -5000.0])
def test_unit_ratio_goes_on_where_floats_end(log_scale: float) -> None:
    """To first order unit tokens differ by the residual without its part along the mean, over the mean's length."""
    r = draws(3, 6, 4)
    r = r - r.mean(dim=0)
    r = r / torch.linalg.matrix_norm(r)
    m = draws(4, 4)
    state = Split(common=m, residual=r, log_scale=torch.tensor(log_scale, dtype=torch.float64))
    across = r - (r @ m)[:, None] * m / m.square().sum()
    size = torch.linalg.matrix_norm(across) / m.norm() / math.sqrt(6)
    assert float(unit_log_ratio(state)) == pytest.approx(log_scale + float(size.log()), abs=1e-7)


@given(SEEDS)
def test_states_add_and_weigh_as_matrices_do(seed: int) -> None:
    x, y = (draws(seed + k, 2, 5, 3) for k in (0, 1))
    total = plus([of_tokens(x, None), of_tokens(y, None)])
    torch.testing.assert_close(total.tokens(), x + y, rtol=1e-12, atol=1e-12)
    found = weighed(of_tokens(y, None), inverse_lengths(of_tokens(x, None)))
    torch.testing.assert_close(found.tokens(), y / x.norm(dim=-1, keepdim=True), rtol=1e-11, atol=1e-11)
    assert float(log_energies(total)[1][0].exp()) == pytest.approx(
        float((x + y - (x + y).mean(dim=-2, keepdim=True))[0].square().sum())
    )


def test_only_measured_tokens_count() -> None:
    x, keep = draws(1, 1, 6, 3), torch.tensor([[True, False, True, True, False, True]])
    found = plain_log_ratio(measured(of_tokens(x, None), keep))
    assert float(found) == pytest.approx(mechanism_loops.log_ratio(x[0][keep[0]].numpy()), abs=1e-12)
    assert np.isfinite(float(found))


@pytest.mark.parametrize("reads_norm", [False, True])
def test_a_linear_map_answers_as_its_input_grows(reads_norm: bool) -> None:
    """The common part of a stream times 3 and its differences times 0.5; a norm then divides by the new length."""
    common, own = 9.0, 4.0
    read = (torch.tensor(math.log(common)), torch.tensor(math.log(own)))
    other = (torch.tensor(math.log(9 * common)), torch.tensor(math.log(0.25 * own)))
    shorter = math.sqrt((common + own) / (9 * common + 0.25 * own)) if reads_norm else 1.0
    found = [float(one.exp()) for one in response(read, other, reads_norm=reads_norm)]
    assert found == pytest.approx([3 * shorter, 0.5 * shorter], rel=1e-6)


def test_nothing_answers_to_nothing() -> None:
    nothing, some = torch.tensor(-math.inf), torch.tensor(0.0)
    for reads_norm in (False, True):
        assert [float(one) for one in response((some, nothing), (some, some), reads_norm=reads_norm)][1] == 0
        gone = response((some, some), (nothing, nothing), reads_norm=reads_norm)
        assert [float(one.exp()) for one in gone] == [0.0, 0.0]
