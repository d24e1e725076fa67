"""Intervals of shares and means, against their equations and published tables."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.results.statistics import mean_interval, wilson


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


@pytest.mark.parametrize(("count", "quantile"), [(2, 12.7062), (3, 4.30265), (10, 2.26216), (31, 2.04227)])
def test_the_interval_of_a_mean_has_the_quantile_of_the_tables(count, quantile):
    values = np.random.default_rng(count).normal(5.0, 2.0, count)
    spread = sum((one - sum(values) / count) ** 2 for one in values) / (count - 1)
    half = quantile * (spread / count) ** 0.5
    found = mean_interval(values)
    # the tables have six digits
    assert found == pytest.approx((sum(values) / count - half, sum(values) / count + half), rel=2e-5)
