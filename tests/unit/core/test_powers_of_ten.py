"""Numbers of any size as text: a bound is never printed on the wrong side of what was proven."""

import math
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.core.words import power, ranges

LOGS = st.one_of(
    st.floats(-40, 40), st.floats(-3e5, 3e5), st.integers(-12, 12).map(lambda e: e * math.log(10))
)


def exactly(log):
    """``e^log`` to forty digits."""
    with localcontext() as context:
        context.prec, context.Emin, context.Emax = 60, -10_000_000, 10_000_000
        return Decimal(log).exp()


@given(LOGS)
def test_a_lower_bound_is_rounded_down_and_an_upper_one_up_by_little(log):
    with localcontext() as context:
        context.prec, context.Emin, context.Emax = 60, -10_000_000, 10_000_000
        true = exactly(log)
        down, near, up = (Decimal(power(log, toward=toward)) for toward in (-1, 0, 1))
        assert down <= true <= up
        assert down > true * Decimal("0.985")
        assert up < true * Decimal("1.015")
        assert abs(near - true) <= true * Decimal("0.0051")


@pytest.mark.parametrize(
    ("log", "toward", "text"),
    [
        (math.log(0.3121), 0, "0.312"),
        (math.log(0.3121), 1, "0.313"),
        (math.log(0.3129), -1, "0.312"),
        (math.log(12345.0), 0, "12300"),
        (math.log(3e-5), 0, "3e-5"),
        (math.log(9.999), 0, "10"),
        (-11513.0, 0, "9.28e-5001"),
        (-1e12, 1, "10^-4.34e11"),
        (-1e12, -1, "10^-4.35e11"),
        (1e12, 1, "10^4.35e11"),
        (math.inf, 0, "inf"),
        (-math.inf, 0, "0"),
        (math.nan, 0, "-"),
        (None, 0, "-"),
    ],
)
def test_what_is_written(log, toward, text):
    assert power(log, toward=toward) == text


def test_numbers_are_listed_with_ranges():
    assert ranges([7, 3, 1, 2]) == "1-3, 7"
    assert ranges([]) == ""
