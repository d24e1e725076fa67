"""The two tokens that the sphere keeps apart: closed forms against steps taken with plain numbers."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rankscope.dynamics.two_tokens import CircleEquilibrium, TwoTokens
from rankscope.errors import ConfigError
from rankscope.measures import find_measure
from rankscope.network import Network
from rankscope.split import log_measure, split_states

ALPHAS = st.floats(0.05, 0.95)
SHEARS = st.floats(0.05, 50.0)


def stepped(alpha: float, shear: float, first: list[float], second: list[float]) -> np.ndarray:
    """Both tokens after one step, from the definition."""
    mixed = [np.array(first), alpha * np.array(first) + (1 - alpha) * np.array(second)]
    moved = [np.array([a, b + shear * a]) for a, b in mixed]
    return np.array([one / math.hypot(*one) for one in moved])


def slope(alpha: float, shear: float, token: tuple[float, float]) -> float:
    """Derivative of token 2's angle by its angle before the step, in 40 digits, by mpmath."""
    with mpmath.workdps(40):
        p, q = (mpmath.mpf(number) for number in token)
        here = mpmath.atan2(q, p)

        def after(by: mpmath.mpf) -> mpmath.mpf:
            a, b = (1 - alpha) * mpmath.cos(here + by), alpha + (1 - alpha) * mpmath.sin(here + by)
            angle = mpmath.atan2(b + shear * a, a)
            return angle + 2 * mpmath.pi * mpmath.nint((here - angle) / (2 * mpmath.pi))

        return float(mpmath.diff(after, 0))


def named(pair: TwoTokens) -> dict[str, CircleEquilibrium]:
    return {one.name: one for one in pair.equilibria()}


def settled(pair: TwoTokens, angle: float, steps: int) -> tuple[float, float]:
    """Token 2's angle after many steps and one more, with plain numbers."""
    token = [math.cos(angle), math.sin(angle)]
    for _ in range(steps):
        token = list(stepped(pair.alpha, pair.shear, [0.0, 1.0], token)[1])
    after = stepped(pair.alpha, pair.shear, [0.0, 1.0], token)[1]
    return math.atan2(token[1], token[0]), math.atan2(after[1], after[0])


def test_the_published_figure() -> None:
    found = named(TwoTokens(alpha=0.5, shear=3.0))
    assert list(found) == ["B", "A", "same"]
    assert found["B"].token == pytest.approx((-1 / 3, -math.sqrt(8) / 3), abs=1e-15)
    assert found["B"].multiplier == pytest.approx(1 - math.sqrt(8) / 3, abs=1e-15)
    assert found["A"].multiplier == pytest.approx(1 + math.sqrt(8) / 3, abs=1e-15)
    assert (found["B"].stable, found["A"].stable, found["same"].stable) == (True, False, True)


@settings(max_examples=30)
@given(ALPHAS, SHEARS)
def test_every_equilibrium_rests_and_has_the_slope_it_names(alpha: float, shear: float) -> None:
    pair = TwoTokens(alpha=alpha, shear=shear)
    assume(abs(shear / pair.least_shear - 1) > 1e-6)  # near the merger q is a square root of rounding
    assume(abs(alpha - 0.5) > 1e-3)  # near 1/2 the token (0, -1) is sent almost to zero
    for one in pair.equilibria():
        after = stepped(alpha, shear, [0.0, 1.0], list(one.token))
        # a step loses a few units of rounding, times the shear; division by 1 - 2 alpha for "opposite" costs 1e3
        np.testing.assert_allclose(after, [[0.0, 1.0], one.token], rtol=0, atol=1e-12)
        assert one.multiplier == pytest.approx(slope(alpha, shear, one.token), rel=1e-8, abs=1e-8)
        torch.testing.assert_close(pair.system().step(one.tokens()), one.tokens(), rtol=0, atol=1e-12)
        assert one.stable is (abs(one.multiplier) < 1)


@settings(max_examples=30)
@given(ALPHAS, SHEARS)
def test_there_are_no_other_equilibria(alpha: float, shear: float) -> None:
    """Sign changes of the turn over a fine grid of angles: a double root aside, each is an equilibrium."""
    pair = TwoTokens(alpha=alpha, shear=shear)
    assume(abs(shear / pair.least_shear - 1) > 1e-3 and abs(alpha - 0.5) > 1e-2)
    angles = torch.linspace(-math.pi, math.pi, 20001, dtype=torch.float64) + 1e-5
    turn = torch.sin(pair.circle_map(angles) - angles)
    back = torch.cos(pair.circle_map(angles) - angles)
    crossings = int(((turn[1:] * turn[:-1] < 0) & (back[1:] > 0.5)).sum())
    assert crossings == len(pair.equilibria())


@given(ALPHAS, SHEARS, st.floats(-3.0, 3.0))
def test_the_circle_map_is_the_step_of_token_two(alpha: float, shear: float, angle: float) -> None:
    after = stepped(alpha, shear, [0.0, 1.0], [math.cos(angle), math.sin(angle)])[1]
    found = TwoTokens(alpha=alpha, shear=shear).circle_map(torch.tensor([[angle]], dtype=torch.float64))
    assert found.shape == (1, 1)
    length = math.hypot(
        (1 - alpha) * math.cos(angle), alpha + (1 - alpha) * (math.sin(angle) + shear * math.cos(angle))
    )
    assume(length > 1e-3)  # shorter tokens have a direction of rounding
    np.testing.assert_allclose([found.cos().item(), found.sin().item()], after, rtol=0, atol=1e-11)


@given(ALPHAS, SHEARS)
def test_rank_two_exists_from_the_odds_on(alpha: float, shear: float) -> None:
    pair = TwoTokens(alpha=alpha, shear=shear)
    odds = alpha / (1 - alpha)
    assume(abs(shear / odds - 1) > 1e-9)
    assert pair.exists == (shear > odds) == ("B" in named(pair)) == ("A" in named(pair))


def test_at_the_least_shear_both_are_one_point() -> None:
    for alpha, shear in ((0.5, 1.0), (0.6, 1.5), (0.75, 3.0)):  # 0.6 / 0.4 is not 1.5 in binary
        found = named(TwoTokens(alpha=alpha, shear=shear))
        assert next(iter(found)) == "A=B"
        assert found["A=B"] == CircleEquilibrium(name="A=B", token=(-1.0, 0.0), multiplier=1.0, stable=None)
        np.testing.assert_allclose(stepped(alpha, shear, [0, 1], [-1, 0])[1], [-1, 0], rtol=0, atol=1e-15)


def test_b_attracts_up_to_the_flip_and_a_cycle_of_two_comes_after_it() -> None:
    boundary = TwoTokens(alpha=0.75, shear=1.0).greatest_stable_shear
    assert boundary == pytest.approx(9 / math.sqrt(5), rel=1e-15)
    assert named(TwoTokens(alpha=0.75, shear=boundary))["B"].multiplier == pytest.approx(-1, abs=1e-14)
    assert named(TwoTokens(alpha=0.75, shear=boundary))["B"].stable is None
    below, beyond = TwoTokens(alpha=0.75, shear=0.95 * boundary), TwoTokens(alpha=0.75, shear=1.05 * boundary)
    places = [named(pair)["B"].token for pair in (below, beyond)]
    assert [named(pair)["B"].stable for pair in (below, beyond)] == [True, False]
    starts = [math.atan2(q, p) + 1e-3 for p, q in places]
    one, two = settled(below, starts[0], 2000)
    assert abs(one - two) < 1e-12
    assert one == pytest.approx(starts[0] - 1e-3, abs=1e-12)
    one, two = settled(beyond, starts[1], 2000)
    assert abs(one - two) > 0.1
    assert settled(beyond, starts[1], 2002) == pytest.approx((one, two), abs=1e-12)


def test_far_beyond_the_flip_every_start_goes_to_the_same_point() -> None:
    pair = TwoTokens(alpha=0.75, shear=20.0)
    angles = torch.linspace(-3.1, 3.1, 500, dtype=torch.float64)
    for _ in range(2000):
        angles = pair.circle_map(angles)
    assert (angles - math.pi / 2).abs().max() < 1e-9


@given(st.floats(0.01, 0.6666))
def test_up_to_two_thirds_b_always_attracts(alpha: float) -> None:
    assert TwoTokens(alpha=alpha, shear=1.0).greatest_stable_shear == math.inf
    for factor in (1.01, 2.0, 1e6):
        assert named(TwoTokens(alpha=alpha, shear=factor * alpha / (1 - alpha)))["B"].stable


def test_opposite_rests_only_below_one_half() -> None:
    assert "opposite" in named(TwoTokens(alpha=0.4, shear=1.0))
    assert "opposite" not in named(TwoTokens(alpha=0.5, shear=1.0))
    assert "opposite" not in named(TwoTokens(alpha=0.6, shear=1.0))
    assert named(TwoTokens(alpha=0.4, shear=1.0))["opposite"].multiplier == pytest.approx(3.0)
    np.testing.assert_allclose(stepped(0.6, 1.0, [0, 1], [0, -1])[1], [0, 1])


def test_without_the_norm_the_same_weights_collapse() -> None:
    pair = TwoTokens(alpha=0.5, shear=3.0)
    part = pair.system(sphere=False).block(0)
    x = torch.tensor([[0.6, 0.8], [-1 / 3, -0.9]], dtype=torch.float64)
    ratio = find_measure("residual_ratio[frobenius,mean]")
    logs = [float(log_measure(ratio, state).log10) for state in split_states(Network([part] * 200), x)]
    # eigenvalue 1/2 of the attention map: the ratio falls by log10(2) a layer, here over the last hundred
    assert (logs[200] - logs[100]) / 100 == pytest.approx(-math.log10(2), abs=1e-3)
    assert logs[200] < -59


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, math.nan])
def test_alpha_is_a_weight(alpha: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        TwoTokens(alpha=alpha, shear=1.0)


@pytest.mark.parametrize("shear", [0.0, -1.0, math.inf, math.nan])
def test_the_shear_is_above_zero(shear: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        TwoTokens(alpha=0.5, shear=shear)
