"""The one rule for the word collapse, on curves whose fate is known."""

import math

import pytest
import torch

import rankscope as rs
from rankscope.verdict import RatioPoint, Thresholds, judge_fall


def curve(values, floor=1e-12):
    """Points of a curve; None is a layer without any number."""
    return [
        RatioPoint.of(
            layer,
            None if value is None or value <= floor else value,
            None if value is None else floor,
        )
        for layer, value in enumerate(values)
    ]


def judged(values, floor=1e-12, **options):
    return judge_fall(curve(values, floor), Thresholds(), **options)


def test_a_fall_has_no_knife_edge():
    """One name for the same fall whether it ends just above the threshold or just below it."""
    start = [0.98, 0.65, 0.50, 0.39, 0.23, 0.17]
    for end in (0.13, 0.11, 0.101, 0.1, 0.099, 0.086):
        found = judged([*start, end])
        assert found.verdict == "collapsing"
        assert (found.starts, found.last) == (1, 6)
        assert found.rate == pytest.approx((end / 0.98) ** (1 / 6))
        assert found.pace == pytest.approx((end / 0.39) ** (1 / 3))
        assert found.leads_at == 12
        assert found.leads_to == pytest.approx(end * found.pace**6)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.9, 0.9, 0.89, 0.9], "not collapsing"),
        ([0.98, 0.9, 0.85, 0.8, 0.75], "not collapsing"),  # on its way, but not far yet
        ([0.9, 0.9, 0.9, 0.9, 0.25], "not collapsing"),  # one drop is no fall
        ([0.9, 0.5, 0.28, 0.28, 0.28], "not collapsing"),  # came to rest above the threshold
        ([0.9, 0.05, 0.5, 0.9], "not collapsing"),  # came back
        ([0.09, 0.08, 0.05], "not collapsing"),  # low from the start
        ([0.9, 0.5, 0.2, 0.05], "collapsing"),
        ([0.9, 0.05], "collapsing"),
        ([0.9, 1e-13], "collapsing"),
        ([1e-13, 1e-13, 1e-13], "collapsed"),
        ([2e-12, 1e-13, 1e-13], "collapsed"),  # the start is above the floor, but not three times
        ([0.9, 0.5, None], "no numbers"),
        ([], "no numbers"),
    ],
)
def test_curves_by_name(values, verdict):
    assert judged(values).verdict == verdict


def test_an_end_below_a_high_floor_is_undecided():
    found = judged([0.9, 0.6, 0.2], floor=0.3)
    assert found.verdict == "undecided"
    assert (found.last, found.value) == (1, 0.6)
    assert judged([0.9, 0.6, 0.01], floor=0.1).verdict == "collapsing"


def test_the_factor_is_of_the_layers_above_their_floor():
    found = judged([1.0, 0.5, 0.25, 1e-9, 2e-9], floor=1e-6)
    assert (found.starts, found.last, found.equal_from) == (1, 2, 3)
    assert found.rate == pytest.approx(0.5)
    assert not found.rate_is_bound
    at_once = judged([1.0, 1e-9, 3e-9], floor=1e-6)
    assert at_once.rate_is_bound
    assert at_once.rate == pytest.approx(1e-6)
    assert (at_once.starts, at_once.equal_from) == (1, 1)


def test_layers_without_a_number_are_stepped_over():
    found = judged([1.0, None, 0.25, None, 0.0625])
    assert found.verdict == "collapsing"
    assert found.rate == pytest.approx(0.5)
    assert found.starts == 1


def test_what_is_below_a_floor_does_not_move_the_verdict():
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(100):
        noise = (1e-6 * torch.rand(4, generator=generator, dtype=torch.float64)).tolist()
        seen.add(judged([0.9, 0.1, *noise], floor=1e-6))
    assert len(seen) == 1


def test_a_dip_has_a_depth_and_an_end():
    dip = judged([0.9, 0.4, 0.03, 0.2, 0.5, 0.7, 0.72]).dip
    assert (dip.layer, dip.recovered) == (2, 5)
    assert 10**dip.log10 == pytest.approx(0.03)
    below = judged([0.9, 1e-13, 0.8]).dip
    assert (below.layer, below.log10, below.recovered) == (1, None, 2)
    assert judged([0.9, 0.6, 0.8]).dip is None
    assert judged([0.9, 0.3, 0.1]).dip is None
    assert judged([0.1, 0.2, 0.9]).dip is None


def test_far_below_the_smallest_float():
    logs = [0.0, -100.0, -5000.0]
    found = judge_fall(
        [RatioPoint(layer=k, log10=log, log10_most=log) for k, log in enumerate(logs)], Thresholds()
    )
    assert found.verdict == "collapsing"
    assert found.log10_rate == -2500.0
    assert found.rate == 0.0
    exact = [RatioPoint.of(0, 0.9, 0.0), RatioPoint.of(1, 0.0, 0.0)]
    assert judge_fall(exact, Thresholds()).verdict == "collapsing"


def shrinking(factors):
    """States whose unit tokens have about the residual ratios ``factors``: a row and differences of that size."""
    generator = torch.Generator().manual_seed(0)
    row, rest = (torch.randn(count, 48, generator=generator, dtype=torch.float64) for count in (1, 24))
    rest = torch.nn.functional.normalize(
        rest - rest.mean(dim=0) - (rest @ row.T) @ row / row.square().sum(), dim=-1
    )
    row = torch.nn.functional.normalize(row, dim=-1)
    return torch.stack([math.sqrt(1 - f * f) * row + f * rest for f in factors])[:, None]


def test_a_scan_asks_the_same_rule():
    factors = [0.98, 0.65, 0.50, 0.39, 0.23, 0.17, 0.11]
    for end in (0.11, 0.086):
        states = shrinking([*factors[:-1], end])
        unit = torch.nn.functional.normalize(states, dim=-1)
        ratios = (1 - unit.mean(dim=-2).square().sum(dim=-1)).sqrt()[:, 0].tolist()
        stack = rs.scan_states(states).verdict.stacks[0]
        own = judged(ratios)
        assert stack["verdict"] == own.verdict == "collapsing"
        assert stack["rate"] == pytest.approx(own.rate, rel=1e-6)
        assert stack["leads_to"]["value"] == pytest.approx(own.leads_to, rel=1e-6)
