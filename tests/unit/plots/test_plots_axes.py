"""Ticks stand where their labels say, however many decades an axis has."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rankscope.plots.axes import log_axis, log_ticks


@given(st.floats(-300, 300), st.floats(0.25, 60))
def test_a_label_is_the_number_at_its_position(low, span):
    assume(low + span < 300)
    ticks = log_ticks(low, low + span)
    for position, label in zip(ticks.positions, ticks.labels, strict=True):
        # Labels are rounded decimals of exact factors: only the logarithm rounds.
        assert math.log10(float(label)) == pytest.approx(position, abs=1e-12)


@given(st.floats(-1e6, 1e6), st.floats(0.25, 1e6))
def test_ticks_are_few_ordered_and_inside(low, span):
    ticks = log_ticks(low, low + span)
    assert 1 <= len(ticks.positions) <= 10
    assert ticks.positions == sorted(set(ticks.positions))
    assert all(low <= position <= low + span for position in ticks.positions)
    assert len(set(ticks.labels)) == len(ticks.labels)


def test_numbers_far_below_the_smallest_float_have_labels():
    assert log_ticks(-47000.0, 0.0).labels[:2] == ["1e-40000", "1e-30000"]


def test_a_short_axis_is_written_in_decimals():
    assert log_ticks(-1.1, 0.05).labels == ["0.1", "0.2", "0.5", "1"]
    assert log_ticks(-7.1, -6.0).labels == ["1e-7", "2e-7", "5e-7", "1e-6"]


def test_the_axis_looks_labels_up_by_position():
    axis = log_axis(log_ticks(-6.0, 0.0)).to_dict()
    assert axis["values"] == [-6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0]
    assert axis["labelExpr"].startswith('["1e-6", "1e-5"')
    assert axis["labelExpr"].endswith("datum.value)]")
