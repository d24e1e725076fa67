"""Residuals: zero at consensus, 0/0, how good the mean is, tiny residuals, and bad input."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankscope.errors import ConfigError, ShapeError, UnknownNameError
from rankscope.measures import (
    CENTERS,
    NORMS,
    Bracket,
    center_row,
    diameter,
    matrix_norm,
    residual,
    residual_bracket,
    residual_norm,
    residual_ratio,
)

PAIRS = [(norm, center) for norm in NORMS for center in CENTERS]


def high(value):
    return value.high if isinstance(value, Bracket) else value


@pytest.mark.parametrize(("norm", "center"), PAIRS)
@pytest.mark.parametrize("tokens", [2, 7, 129])
def test_equal_rows_have_residual_exactly_zero(norm, center, tokens):
    row = torch.tensor([0.1, -1 / 3, 7.3, 1e-9, 12345.678, 0.0], dtype=torch.float64)
    x = row.expand(tokens, 6)
    assert high(residual_norm(x, norm=norm, center=center)).item() == 0.0
    assert high(residual_ratio(x, norm=norm, center=center)).item() == 0.0
    assert residual(x, center=center, norm=norm).abs().max().item() == 0.0
    assert torch.equal(center_row(x, center=center, norm=norm), row)


@pytest.mark.parametrize(("norm", "center"), PAIRS)
def test_the_ratio_of_the_zero_matrix_is_nan(norm, center):
    x = torch.zeros(4, 3)
    assert math.isnan(high(residual_ratio(x, norm=norm, center=center)).item())
    assert high(residual_norm(x, norm=norm, center=center)).item() == 0.0


@pytest.mark.parametrize(("norm", "center"), PAIRS)
def test_norm_residual_and_center_agree(norm, center, generator):
    x = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    value = high(residual_norm(x, norm=norm, center=center))
    torch.testing.assert_close(matrix_norm(residual(x, center=center, norm=norm), norm=norm), value)
    row = center_row(x, center=center, norm=norm)
    torch.testing.assert_close(matrix_norm(x - row[:, None], norm=norm), value)
    torch.testing.assert_close(
        high(residual_ratio(x, norm=norm, center=center)), value / matrix_norm(x, norm=norm)
    )


@pytest.mark.parametrize("tokens", [2, 3, 5, 16])
@pytest.mark.parametrize("norm", ["l1", "linf", "max"])
def test_the_mean_is_as_bad_as_allowed_at_one_token_away(norm, tokens):
    x = torch.zeros(tokens, 1)
    x[0] = 1
    mean = residual_norm(x, norm=norm, center="mean").item()
    best = residual_bracket(x, norm=norm, tolerance=1e-9).high.item()
    # 1e-9: the tolerance asked of the bracket.
    assert mean / best == pytest.approx(2 * (1 - 1 / tokens), rel=2e-9)


@given(
    st.integers(2, 7),
    st.integers(1, 4),
    st.integers(0, 2**16),
    st.sampled_from(["l1", "linf", "max", "composite"]),
)
def test_the_mean_is_never_worse_than_that(tokens, dim, seed, norm):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, dim, generator=g, dtype=torch.float64).pow(3)
    mean, best = residual_norm(x, norm=norm, center="mean"), residual_bracket(x, norm=norm)
    assert mean <= 2 * (1 - 1 / tokens) * best.high * (1 + 1e-12)
    assert mean >= best.low


@pytest.mark.parametrize(
    ("norm", "center"), [("frobenius", "mean"), ("spectral", "mean"), ("l1", "median"), ("max", "midrange")]
)
def test_closed_forms_beat_every_other_center(norm, center, generator):
    x = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    best = residual_norm(x, norm=norm, center=center)
    assert torch.equal(best, high(residual_norm(x, norm=norm, center="best")))
    rows = center_row(x, center=center) + 0.3 * torch.randn(500, 4, generator=generator, dtype=torch.float64)
    assert (matrix_norm(x - rows[:, None], norm=norm) >= best).all()


def test_a_better_row_than_the_mean_exists_for_the_composite_norm(generator):
    x = torch.randn(8, 5, 3, generator=generator, dtype=torch.float64).pow(3)
    assert (
        residual_bracket(x, norm="composite").high < 0.95 * residual_norm(x, norm="composite", center="mean")
    ).any()


@pytest.mark.parametrize(("norm", "center"), PAIRS)
@pytest.mark.parametrize("size", [2.0**-1000, 2.0**900])
def test_a_residual_keeps_its_digits_at_every_scale(norm, center, size, generator):
    y = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    plain, scaled = (
        residual_norm(y, norm=norm, center=center),
        residual_norm(y * size, norm=norm, center=center),
    )
    # A power of two changes no digit, so not even the search for a center may notice.
    torch.testing.assert_close(high(scaled) / size, high(plain), rtol=1e-15, atol=0)


@pytest.mark.parametrize(
    ("norm", "center"), [pair for pair in PAIRS if pair[1] != "linf" or pair[0] == "linf"]
)
def test_near_consensus_nothing_cancels(norm, center, generator):
    """Offsets are multiples of 2^-40 and the common row of 1/8: their sum is exact, so the residual must be too."""
    offsets = torch.randint(-512, 512, (6, 3), generator=generator).double() * 2.0**-40
    row = torch.tensor([3.125, -7.5, 1000.25], dtype=torch.float64)
    expected = residual_norm(offsets, norm=norm, center=center)
    found = residual_norm(offsets + row, norm=norm, center=center)
    if isinstance(found, Bracket):
        assert found.low <= expected.high
        assert expected.low <= found.high
    else:
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(1, 3), r"at least two tokens, got shape \(1, 3\)"),
        (torch.ones(0, 3), r"at least two tokens, got shape \(0, 3\)"),
        (torch.ones(3), "expected token matrices"),
        (torch.ones(3, 0), "expected token matrices"),
        (torch.ones(3, 2, dtype=torch.int64), "got dtype int64"),
        (torch.tensor([[1.0], [float("nan")]]), "NaN or infinity"),
        (torch.tensor([[1.0], [float("inf")]]), "NaN or infinity"),
    ],
)
def test_bad_input_is_refused(x, message):
    for function in (residual, center_row):
        with pytest.raises(ShapeError, match=message):
            function(x, center="mean")
    for function in (residual_norm, residual_ratio):
        with pytest.raises(ShapeError, match=message):
            function(x, norm="l1", center="mean")
    with pytest.raises(ShapeError, match=message):
        residual_bracket(x, norm="linf")


def test_wrong_names():
    x = torch.ones(2, 2)
    with pytest.raises(UnknownNameError, match="unknown center 'men'; did you mean 'mean'"):
        residual_norm(x, norm="l1", center="men")
    with pytest.raises(UnknownNameError, match="unknown matrix norm 'fro'"):
        residual_ratio(x, norm="fro", center="mean")
    with pytest.raises(UnknownNameError, match="unknown matrix norm 'l3'"):
        residual_bracket(x, norm="l3")
    with pytest.raises(ConfigError, match="center 'best' depends on the norm"):
        residual(x, center="best")


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_diameters_of_many_tokens(norm, generator):
    """More tokens than the loops look at, with a massive one and close pairs: no cancellation in the widest pair."""
    order = {"l1": 1, "l2": 2, "linf": torch.inf}[norm]
    x = 1e-6 * torch.randn(60, 5, generator=generator, dtype=torch.float64) + 1
    for massive in (0.0, 1e8):
        x[7] += massive
        expected = torch.linalg.vector_norm(x[:, None] - x[None], ord=order, dim=-1).max()
        torch.testing.assert_close(diameter(x, norm=norm), expected, rtol=1e-14, atol=0)


def test_wrong_row_norm():
    with pytest.raises(UnknownNameError, match="unknown row norm 'l3'; did you mean 'l"):
        diameter(torch.ones(2, 2), norm="l3")
