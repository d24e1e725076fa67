"""Matrix norms: their meaning, what the composite is and is not, and numbers near the ends of the float range."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankscope.errors import ShapeError, UnknownNameError
from rankscope.measures import NORMS, matrix_norm
from rankscope.measures.norms import row_lengths, unit_scale, unit_tokens


def test_columns_and_rows_are_not_swapped():
    x = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]])
    expected = {"l1": 9.0, "linf": 15.0, "composite": 135.0**0.5, "frobenius": 91.0**0.5, "max": 6.0}
    for norm, value in expected.items():
        assert matrix_norm(x, norm=norm).item() == pytest.approx(value, rel=1e-15)


def test_the_composite_norm_is_not_a_norm():
    column, row = torch.zeros(50, 50), torch.zeros(50, 50)
    column[:, 0] = 1
    row[0, :] = 1
    together = matrix_norm(column + row, norm="composite").item()
    apart = matrix_norm(column, norm="composite").item() + matrix_norm(row, norm="composite").item()
    assert together == pytest.approx(51, rel=1e-14)
    assert apart == pytest.approx(14.142135623730951, rel=1e-14)


@pytest.mark.parametrize("norm", ["l1", "linf", "composite", "frobenius", "spectral"])
def test_submultiplicative(norm, generator):
    a = torch.randn(1000, 5, 4, generator=generator, dtype=torch.float64).pow(3)
    b = torch.randn(1000, 4, 6, generator=generator, dtype=torch.float64).pow(3)
    product = matrix_norm(a @ b, norm=norm)
    assert (product <= matrix_norm(a, norm=norm) * matrix_norm(b, norm=norm) * (1 + 1e-13)).all()


@given(st.integers(-1060, 1000), st.sampled_from(sorted(NORMS)))
def test_norms_survive_every_scale(exponent, norm):
    x = torch.tensor([[1.0, 2.0, 0.5], [0.25, -3.0, 1.0]], dtype=torch.float64)
    scaled = (x * 2.0 ** (exponent // 2)) * 2.0 ** (exponent - exponent // 2)
    expected = matrix_norm(x, norm=norm).item() * 2.0 ** (exponent // 2) * 2.0 ** (exponent - exponent // 2)
    # Below 2^-1022 floats have fewer digits: one unit in the last place there.
    assert matrix_norm(scaled, norm=norm).item() == pytest.approx(expected, rel=1e-14, abs=2 * 5e-324)


def test_unit_scale_changes_no_digit(generator):
    for size in (1e-310, 1e-200, 1.0, 3e7, 1.7e308):
        x = torch.rand(4, 3, 2, generator=generator, dtype=torch.float64) * size
        y, scale = unit_scale(x)
        assert torch.equal(y * scale[:, None, None], x)
        largest = y.amax(dim=(-2, -1))
        assert ((largest >= 1) & (largest < 2)).all()
        assert torch.equal(torch.frexp(scale)[0], torch.full((4,), 0.5, dtype=torch.float64))


def test_the_zero_matrix_has_every_norm_zero():
    for norm in NORMS:
        assert matrix_norm(torch.zeros(2, 3, 4), norm=norm).tolist() == [0.0, 0.0]


def test_unit_tokens_have_length_one_and_zero_tokens_stay():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-200, 0.0], [1e200, -1e200]], dtype=torch.float64)
    lengths = row_lengths(unit_tokens(x))
    torch.testing.assert_close(lengths, torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(row_lengths(x)[3], torch.tensor(2.0**0.5 * 1e200, dtype=torch.float64))


def test_low_precision_is_measured_in_float64():
    x = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)
    assert matrix_norm(x, norm="frobenius").dtype == torch.float64


def test_wrong_name_and_wrong_input():
    with pytest.raises(UnknownNameError, match="unknown matrix norm 'composit'; did you mean 'composite'"):
        matrix_norm(torch.ones(2, 2), norm="composit")
    with pytest.raises(ShapeError, match="int64"):
        matrix_norm(torch.ones(2, 2, dtype=torch.int64), norm="l1")
