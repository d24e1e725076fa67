import numpy as np
import pytest
from scipy import stats

from rankscope.studies.figures.statistics import depths, first_below, late_slope, mean_of, shallower


def test_the_interval_is_that_of_a_t_test():
    values = np.random.default_rng(3).normal(size=20)
    found = mean_of(values.tolist())
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)  # the same formula, rounding only


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
