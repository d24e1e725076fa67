"""Some tokens of a split alone: against splitting them by themselves, and lost in the rounding of the others."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kit.trees import DIM, Draws
from rankscope.measures import find_measure
from rankscope.split import LOST, Split, log_measure, of_measured, split_tokens

RATIO = find_measure("residual_ratio[frobenius,mean]")


@given(st.integers(0, 2**16), st.integers(2, 5))
def test_it_is_the_split_of_these_tokens_alone(seed: int, count: int) -> None:
    x = Draws(seed)(2, 6, DIM)
    keep = torch.zeros(2, 6, dtype=torch.bool)
    keep[0, :count] = keep[1, 6 - count :] = True
    own, share = of_measured(split_tokens(x), keep, 1)
    for text in range(2):
        alone = split_tokens(x[text][keep[text]])
        torch.testing.assert_close(own.common[text], alone.common)
        torch.testing.assert_close(own.log_scale[text], alone.log_scale)
        torch.testing.assert_close(own.residual[text][keep[text]], alone.residual)
        assert (own.residual[text][~keep[text]] == 0).all()
        expected = math.exp(float(split_tokens(x[text]).log_scale - alone.log_scale)) * 32 * 2.0**-53
        assert float(share[text]) == pytest.approx(expected, rel=1e-9)


def test_all_tokens_are_the_split_itself_without_an_error() -> None:
    x, padding = Draws(0)(2, 4, DIM), torch.tensor([[True] * 4, [True, True, True, False]])
    for split, keep in (
        (split_tokens(x), None),
        (split_tokens(x), torch.ones(2, 4, dtype=torch.bool)),
        (split_tokens(x, padding), padding),
    ):
        own, share = of_measured(split, keep, 3)
        assert own is split
        assert share.tolist() == [0.0, 0.0]


def test_tokens_far_below_the_residual_of_all_are_lost() -> None:
    """Two tokens that differ by ``gap`` of what a third one holds; rounding leaves 3.6e-15 on it."""

    def share(gap: float) -> float:
        residual = torch.tensor([[1.0, 0.0], [-0.5, gap], [-0.5, -gap]], dtype=torch.float64)
        common, log_scale = torch.ones(2, dtype=torch.float64), torch.tensor(-700.0, dtype=torch.float64)
        split = Split(common=common, residual=residual, log_scale=log_scale)
        return float(of_measured(split, torch.tensor([False, True, True]), 1)[1])

    assert share(1e-18) > 1
    assert share(1e-14) > LOST > share(1e-13)
    assert share(0.0) == math.inf


def test_equal_tokens_have_a_residual_of_exactly_zero() -> None:
    keep = torch.tensor([False, True, True])
    own, share = of_measured(split_tokens(torch.ones(3, DIM, dtype=torch.float64)), keep, 1)
    assert float(share) == 0.0
    assert float(log_measure(RATIO, own).log) == -math.inf
