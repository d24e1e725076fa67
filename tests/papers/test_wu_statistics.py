import math

import numpy as np
import pytest
from scipy import stats

from rankscope.papers.figures.statistics import (
    Mean,
    depths,
    first_below,
    late_slope,
    mean_of,
    median_of,
    shallower,
    share_text,
    side,
    together,
    within,
)
from rankscope.results.statistics import wilson


def test_the_interval_is_that_of_a_t_test():
    values = np.random.default_rng(3).normal(size=20)
    found = mean_of(values.tolist())
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)  # the same formula, rounding only


def test_a_spread_of_zero_is_an_interval_of_no_width():
    assert mean_of([2.0, 2.0, 2.0]).text() == "2 (2 to 2)"


def test_together_the_level_of_each_is_stricter():
    values = np.random.default_rng(4).normal(size=(3, 12))
    for found, group in zip(together(values.tolist()), values, strict=True):
        low, high = stats.ttest_1samp(group, 0.0).confidence_interval(1 - 0.05 / 3)
        assert (found.low, found.high) == pytest.approx(
            (low, high), rel=1e-12
        )  # the same formula, rounding only
    assert together([]) == []


@pytest.mark.parametrize(
    ("low", "high", "above", "inside"),
    [(1.0, 2.0, True, None), (-2.0, -1.0, False, False), (-1.0, 1.0, None, None), (0.2, 0.8, True, True)],
)
def test_an_interval_is_beside_a_level_or_does_not_say(low, high, above, inside):
    one = Mean(mean=(low + high) / 2, low=low, high=high, count=6)
    assert side(one, 0.0) is above
    assert within(one, 0.0, 1.5) is inside
    assert side(one.model_copy(update={"low": None}), 0.0) is None


def test_powers_go_far_below_floats():
    log = Mean(mean=-5000.0, low=-5001.0, high=-4999.0, count=3)
    assert log.power() == "1e-5000 (1e-5001 to 1e-4999)"
    assert mean_of([-0.30103]).power(4) == "0.5"
    assert median_of([-2.0] * 6).power() == "0.01 (0.01 to 0.01)"


def test_one_seed_has_no_interval():
    assert mean_of([2.0]).low is None
    assert mean_of([2.0]).text() == "2"


def test_a_depth_counts_only_where_the_curve_stays_below():
    assert first_below([0.0, -4.0, -2.0, -4.0], -3.0) == 3
    assert first_below([0.0, -1.0], -3.0) is None
    assert first_below([-4.0], -3.0) == 0
    assert depths(np.array([[0.0, 0.0], [-4.0, -1.0]]), -3.0) == [1, None]


def test_a_depth_that_is_never_reached_is_the_largest():
    assert shallower(5, None)
    assert not shallower(None, 5)
    assert not shallower(5, 5)


def test_the_late_slope_is_blind_to_the_first_half():
    curve = np.concatenate([np.linspace(50, 0, 10), -0.3 * np.arange(10)])
    assert late_slope(curve) == pytest.approx(-0.3, rel=1e-12)


@pytest.mark.parametrize(("count", "total"), [(0, 10), (5, 200), (7, 20), (200, 200)])
def test_the_interval_of_a_share_is_wilsons(count, total):
    """At its ends p, what was seen lies z standard errors away: (seen - p)^2 = z^2 p (1 - p) / n."""
    seen, z = count / total, stats.norm.ppf(0.975)
    low, high = wilson(count, total)
    for end in (low, high):
        # the two sides are of the order z^2 / 4n; rounding of the root is far below a millionth of it
        assert (seen - end) ** 2 == pytest.approx(z**2 * end * (1 - end) / total, rel=1e-6, abs=1e-12)
    assert low < seen < high or seen in (0.0, 1.0)


def test_a_share_is_written_with_its_interval():
    assert share_text(5, 200) == "5 of 200 (95% interval 1.07% to 5.72%)"
    assert share_text(0, 0) == "none"


@pytest.mark.parametrize(("count", "outer"), [(6, 1), (9, 2), (20, 6), (50, 18)])
def test_the_interval_of_a_median_is_the_sign_test(count, outer):
    """Ranks of the table of Dixon and Mood for 95%."""
    found = median_of([float(value) for value in range(1, count + 1)][::-1])
    assert (found.low, found.high) == (outer, count + 1 - outer)
    missed = sum(math.comb(count, k) for k in range(outer)) / 2**count
    assert 2 * missed <= 0.05 < 2 * (missed + math.comb(count, outer) / 2**count)


def test_few_seeds_have_no_interval_of_the_median():
    found = median_of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.low, found.high, found.is_enough, found.sign) == (1.0, 5.0, False, None)
    assert median_of([1.0] * 6).sign == 1
    assert median_of([-1.0] * 6).sign == -1
    assert median_of([-1.0, *[1.0] * 5]).sign == 0
