"""The axis of a scan holds what is drawn on it, and larger values stand higher."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.plots.scan_axes import layer_ticks, linear_ticks, value_axis
from rankscope.plots.scan_entries import Entry

SIZES = st.floats(1e-12, 1e3)


def entry(mean, *, floor=0.0, low=None, high=None, measure="residual_ratio"):
    low, high = (mean if low is None else low), (mean if high is None else high)
    return Entry(
        stack="blocks", layer=1, site="block", head=None, measure=measure, definition=measure, texts=2,
        mean=mean, std=0.0, low=low, high=high, floor=floor, resolved=1.0,
    )  # fmt: skip


@given(st.lists(SIZES, min_size=1, max_size=8))
def test_every_value_lies_on_its_axis(values):
    axis = value_axis([entry(value) for value in values])
    for value in values:
        assert axis.bottom <= axis.position(value, 0.0) <= axis.top


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8))
def test_negative_values_lie_on_a_linear_axis(values):
    axis = value_axis([entry(value) for value in [*values, -0.5]])
    assert not axis.is_log
    assert all(axis.bottom <= value <= axis.top for value in values)


@given(st.lists(SIZES, min_size=2, max_size=8))
def test_a_larger_value_never_stands_lower(values):
    axis = value_axis([entry(value) for value in values])
    depths = [axis.depth(value) for value in sorted(values)]
    assert depths == sorted(depths, reverse=True)
    assert all(0 <= depth <= 1 for depth in depths)


@pytest.mark.parametrize(("least", "is_log"), [(0.5, False), (0.04, False), (0.03, True), (1e-9, True)])
def test_the_axis_is_logarithmic_from_one_and_a_half_decades_on(least, is_log):
    assert value_axis([entry(1.0), entry(least)]).is_log == is_log


def test_the_spread_counts_and_not_the_means_alone():
    assert value_axis([entry(0.5, low=1e-4, high=1.0)]).is_log


def test_zero_stands_at_its_floor_or_at_the_lower_end():
    axis = value_axis([entry(1.0), entry(1e-6, floor=1e-8), entry(0.0, floor=1e-8)])
    assert axis.position(0.0, 1e-8) == pytest.approx(-8, rel=1e-12)
    assert axis.position(0.0, 0.0) == axis.bottom
    assert axis.depth(0.0, None) == 1.0


@pytest.mark.parametrize(("floor", "is_drawn"), [(1e-6, True), (2e-9, True), (1e-10, False), (0.0, False)])
def test_a_floor_further_than_three_decades_below_is_not_drawn(floor, is_drawn):
    axis = value_axis([entry(1.0, floor=floor), entry(1e-6, floor=floor)])
    assert axis.has_floor == is_drawn
    assert not is_drawn or axis.bottom < math.log10(floor) < axis.top


def test_the_floor_of_a_measure_that_does_not_vanish_is_drawn_only_among_its_values():
    pair = [(1.0, 1e-5), (1e-3, 1e-5)]
    assert not value_axis(
        [entry(mean, floor=floor, measure="channel_share") for mean, floor in pair]
    ).has_floor
    assert value_axis([entry(mean, floor=0.01, measure="channel_share") for mean, _ in pair]).has_floor


def test_a_linear_axis_holds_the_values_that_it_must_include():
    axis = value_axis([entry(0.93), entry(0.95)], include=(0.0, 1.0))
    assert axis.bottom == 0
    assert axis.top >= 1
    assert (axis.ticks.labels[0], axis.ticks.labels[-1]) == ("0", "1")


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_linear_ticks_are_even_round_and_inside(low, length):
    positions = linear_ticks(low, low + length).positions
    assert 2 <= len(positions) <= 7
    steps = [b - a for a, b in pairwise(positions)]
    # Positions near 1e3 carry rounding of 1e-13, and steps are at least 1e-4.
    assert all(step == pytest.approx(steps[0], rel=1e-6) for step in steps)
    assert low - 1e-6 * length <= positions[0]
    assert positions[-1] <= low + length * (1 + 1e-6)


def test_equal_values_and_no_values_still_have_an_axis():
    assert value_axis([entry(0.2)]).top > value_axis([entry(0.2)]).bottom
    assert value_axis([entry(0.0)]).top > value_axis([entry(0.0)]).bottom
    assert value_axis([]).top > value_axis([]).bottom


@pytest.mark.parametrize("last", [0, 1, 12, 13, 30, 48, 96])
def test_layer_ticks_start_at_zero_and_are_few(last):
    ticks = layer_ticks(last)
    assert ticks[0] == 0
    assert ticks[-1] <= last
    assert len(ticks) <= 13
