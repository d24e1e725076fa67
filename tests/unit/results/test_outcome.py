"""Limits and numbers that rounding leaves open: the ends of a span against every number inside it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.results.statistics import Outcome, Span, judge_span, span_of, worst

SIGNS = ("<", "<=", ">", ">=")
FINITE = st.floats(-1e6, 1e6)
FLOORS = st.floats(0, 1e6)


def holds(value: float, sign: str, limit: float) -> bool:
    """The comparison, written out."""
    return {"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}[sign]


@given(low=FINITE, high=FINITE, share=st.floats(0, 1), sign=st.sampled_from(SIGNS), limit=FINITE)
def test_the_outcome_is_true_of_every_number_in_the_span(
    low: float, high: float, share: float, sign: str, limit: float
) -> None:
    low, high = sorted((low, high))
    inside = min(max(low + share * (high - low), low), high)
    found = judge_span(Span(low=low, high=high), sign, limit)
    if found is Outcome.UNDECIDED:
        assert holds(low, sign, limit) != holds(high, sign, limit)
    else:
        assert holds(inside, sign, limit) == (found is Outcome.CROSSED)


@given(
    terms=st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1)), min_size=1, max_size=6)
)
def test_the_span_of_a_mean_holds_every_mean_of_what_its_terms_may_be(
    terms: list[tuple[float, float, float]],
) -> None:
    """A term above its floor is itself, one that is not is anything from zero to the floor."""
    values = [value for value, _, _ in terms]
    floors = [floor for _, floor, _ in terms]
    truths = [value if value > floor else share * floor for value, floor, share in terms]
    resolved = sum(value > floor for value, floor, _ in terms) / len(terms)
    mean, floor, truth = (math.fsum(column) / len(terms) for column in (values, floors, truths))
    span = span_of(mean, floor, vanishes=True, resolved=resolved)
    slack = 1e-12 * (1 + truth)  # of the sums in this test
    assert span.low - slack <= truth <= span.high + slack


@given(value=FINITE, floor=FLOORS, share=st.floats(-1, 1))
def test_the_floor_of_other_measures_is_an_error(value: float, floor: float, share: float) -> None:
    span = span_of(value, floor, vanishes=False)
    assert span.low <= value + share * floor <= span.high or abs(share) == 1


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("vanishes", [True, False])
@pytest.mark.parametrize("sign", SIGNS)
def test_what_is_no_number_decides_nothing(value: float | None, vanishes: bool, sign: str) -> None:
    assert judge_span(span_of(value, 1e-6, vanishes=vanishes), sign, 0.5) is Outcome.UNDECIDED


@pytest.mark.parametrize("floor", [None, math.nan, math.inf])
def test_without_a_floor_a_number_may_be_anything(floor: float | None) -> None:
    assert judge_span(span_of(0.3, floor, vanishes=False), "<", 0.5) is Outcome.UNDECIDED
    assert judge_span(span_of(0.3, floor, vanishes=True, resolved=0.0), "<", 0.5) is Outcome.UNDECIDED
    assert judge_span(span_of(0.3, floor, vanishes=True, resolved=0.0), "<", 0.0) is Outcome.CLEAR


def test_a_measure_cannot_leave_its_own_range() -> None:
    wide = span_of(0.9, 0.4, vanishes=False)
    assert judge_span(wide, ">", 1.0) is Outcome.UNDECIDED
    assert judge_span(wide.within(0.0, 1.0), ">", 1.0) is Outcome.CLEAR
    assert judge_span(wide.within(1.0, math.inf), ">=", 1.0) is Outcome.CROSSED
    assert judge_span(span_of(None, None, vanishes=True).within(0.0, 1.0), "<", 2.0) is Outcome.UNDECIDED


@given(st.lists(st.sampled_from(list(Outcome)), max_size=5))
def test_crossed_outweighs_undecided_outweighs_clear(outcomes: list[Outcome]) -> None:
    order = [Outcome.CLEAR, Outcome.UNDECIDED, Outcome.CROSSED]
    assert worst(outcomes) is max(outcomes, key=order.index, default=Outcome.CLEAR)
