"""Intervals of shares and means, against equations, a published table and scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rankscope.results.statistics import student, wilson


@given(st.integers(1, 500), st.data())
def test_ends_of_the_interval_solve_its_equation(total, data):
    count = data.draw(st.integers(0, total))
    z, share = 1.959963984540054, count / total
    low, high = wilson(count, total)
    assert 0 <= low <= share <= high <= 1
    # Wilson: all p with |share - p| <= z sqrt(p (1 - p) / n), so both ends are roots of a quadratic.
    roots = np.sort(np.roots([1 + z**2 / total, -(2 * share + z**2 / total), share**2]).real)
    assert (low, high) == pytest.approx(tuple(roots), abs=1e-7)  # a double root loses half the digits


def test_a_published_interval():
    # Brown, Cai and DasGupta 2001: no success in n trials leaves z^2 / (n + z^2) as the upper end.
    assert wilson(0, 10) == (0.0, pytest.approx(0.2775, abs=5e-5))
    assert wilson(10, 10) == (pytest.approx(0.7225, abs=5e-5), 1.0)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30))
def test_the_interval_of_a_mean_is_that_of_scipy(values):
    mean, low, high = student(values)
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    wanted = (
        stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=error) if error else (mean, mean)
    )
    # numpy sums in float64 and differs from an exact sum by some units of rounding of the largest number
    assert (mean, low, high) == pytest.approx((np.mean(values), *wanted), rel=1e-9, abs=1e-9)


def test_numbers_that_are_the_same_have_no_spread_and_one_has_no_interval():
    assert student([0.1] * 7) == (pytest.approx(0.1, rel=1e-15), pytest.approx(0.1), pytest.approx(0.1))
    assert student([0.3]) == (0.3, None, None)
