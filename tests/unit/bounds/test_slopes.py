"""Slopes of activations: the table of bends against many-digit arithmetic, and bounds over random intervals."""

import math
from itertools import pairwise

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankscope.bounds.slopes import BENDS, SLOPE_MARGIN, STRAIGHT, lipschitz, slope_range
from rankscope.errors import ShapeError, UnknownNameError
from rankscope.network.activations import ACTIVATIONS, Activation

K = mpmath.mpf("0.044715")

EXACT = {
    "gelu": lambda x: x * mpmath.ncdf(x),
    "gelu_tanh": lambda x: x / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + K * x**3))),
    "quick_gelu": lambda x: x / (1 + mpmath.exp(-mpmath.mpf("1.702") * x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "tanh": mpmath.tanh,
}

ENDS = st.one_of(st.floats(-8, 8), st.sampled_from([-math.inf, math.inf, 0.0, -1e300, 1e300, 1e-300]))


def test_every_activation_has_its_bends() -> None:
    assert {*BENDS, *STRAIGHT} == set(ACTIVATIONS)


@pytest.mark.parametrize("name", sorted(BENDS))
def test_the_second_derivative_changes_sign_at_the_bends_and_nowhere_else(name: str) -> None:
    with mpmath.workdps(40):
        edges = [-7.0, *BENDS[name], 7.0]  # further out tanh-GELU is straight to 40 digits
        signs = []
        for left, right in pairwise(edges):
            inner = [left + (right - left) * (k + 0.5) / 60 for k in range(60)]
            found = {mpmath.sign(mpmath.diff(EXACT[name], mpmath.mpf(x), 2)) for x in inner}
            assert len(found) == 1
            signs.append(found.pop())
        assert all(a == -b for a, b in pairwise(signs))
        for point in BENDS[name]:
            root = mpmath.findroot(lambda x: mpmath.diff(EXACT[name], x, 2), mpmath.mpf(point))
            assert abs(root - point) < 1e-15


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("relu", 1),
        ("leaky_relu", 1),
        ("relu2", math.inf),
        ("identity", 1),
        ("tanh", 1),
        ("gelu", 1.1289041451851548),
        ("gelu_tanh", 1.1289930686587718),
        ("silu", 1.0998393201288669),
        ("quick_gelu", 1.0998393201288669),
    ],
)
def test_the_largest_slope_is_rounded_up(name: str, expected: float) -> None:
    assert expected <= lipschitz(name) <= expected + 2 * SLOPE_MARGIN
    assert lipschitz(ACTIVATIONS[name]) == lipschitz(name)


@pytest.mark.parametrize("name", sorted(BENDS))
@pytest.mark.parametrize("width", [0.0, 1e-9, 0.1, 1.0, 7.0])
def test_bounds_hold_and_are_tight_on_a_dense_grid(name: str, width: float) -> None:
    low = torch.linspace(-9, 9, 401, dtype=torch.float64)
    least, most = slope_range(name, low, low + width)
    inside = low.unsqueeze(-1) + width * torch.linspace(0, 1, 2001, dtype=torch.float64)
    slopes = ACTIVATIONS[name].slope(inside)
    assert (least <= slopes.amin(dim=-1)).all()
    assert (most >= slopes.amax(dim=-1)).all()
    # between two grid points a slope moves by at most its curvature times the square of the step
    room = width**2 / 2000**2 + 2 * SLOPE_MARGIN
    torch.testing.assert_close(least, slopes.amin(dim=-1), rtol=0, atol=room)
    torch.testing.assert_close(most, slopes.amax(dim=-1), rtol=0, atol=room)


@given(st.sampled_from(sorted(ACTIVATIONS)), ENDS, ENDS, st.floats(0, 1), st.floats(0, 1))
def test_every_secant_lies_between_the_bounds(name: str, a: float, b: float, s: float, t: float) -> None:
    low, high = min(a, b), max(a, b)
    least, most = (float(end) for end in slope_range(name, torch.tensor(low), torch.tensor(high)))
    assert -0.2 < least <= most <= (2 * max(float(torch.tensor(high)), 0.0) if name == "relu2" else 1.2)
    left, right = max(low, -40.0), min(high, 40.0)
    x, y = left + s * (right - left), left + t * (right - left)
    x, y = (min(max(point, left), right) for point in (x, y))
    if abs(x - y) < 1e-4 or left > right:
        return  # the difference of two close numbers says nothing
    values = ACTIVATIONS[name].fn(torch.tensor([x, y], dtype=torch.float64))
    secant = float((values[0] - values[1]) / (x - y))
    assert least - 1e-10 <= secant <= most + 1e-10  # rounding of values up to 40, divided by 1e-4


@given(st.sampled_from(sorted(BENDS)), st.floats(-50, 50))
def test_a_point_has_the_slope_of_many_digits(name: str, x: float) -> None:
    with mpmath.workdps(30):
        exact = float(mpmath.diff(EXACT[name], mpmath.mpf(x)))
    least, most = slope_range(
        name, torch.tensor(x, dtype=torch.float64), torch.tensor(x, dtype=torch.float64)
    )
    assert least <= exact <= most
    assert most - least <= 4 * SLOPE_MARGIN


def test_relu_is_flat_below_zero_and_one_above() -> None:
    low = torch.tensor([-3.0, -3.0, -3.0, 0.0, 1.0, -torch.inf, 0.0], dtype=torch.float64)
    high = torch.tensor([-1.0, 0.0, 2.0, 2.0, torch.inf, torch.inf, 0.0], dtype=torch.float64)
    least, most = slope_range("relu", low, high)
    assert least.tolist() == [0, 0, 0, 0, 1, 0, 0]
    assert most.tolist() == [0, 0, 1, 1, 1, 1, 0]


def test_leaky_relu_has_its_slope_below_zero_and_one_above() -> None:
    low = torch.tensor([-3.0, -3.0, 1.0, -torch.inf], dtype=torch.float64)
    high = torch.tensor([-1.0, 2.0, 2.0, torch.inf], dtype=torch.float64)
    least, most = slope_range("leaky_relu", low, high)
    assert least.tolist() == [0.01, 0.01, 1, 0.01]
    assert most.tolist() == [0.01, 1, 1, 1]


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_an_unknown_end_means_the_whole_line(name: str) -> None:
    one, nan = torch.tensor(1.0), torch.tensor(torch.nan)
    whole = slope_range(name, torch.tensor(-torch.inf), torch.tensor(torch.inf))
    assert slope_range(name, nan, one) == whole
    assert slope_range(name, one, nan) == whole
    assert max(-whole[0], whole[1]) == lipschitz(name)


def test_ends_broadcast() -> None:
    least, most = slope_range("gelu", torch.zeros(3, 1), torch.ones(2))
    assert least.shape == most.shape == (3, 2)
    assert least.dtype == torch.float64


def test_an_interval_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(ShapeError, match="1 have a low end above"):
        slope_range("gelu", torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))


def test_an_activation_nobody_looked_at_is_refused() -> None:
    cube = Activation("cube", "h^3", torch.relu, torch.relu, torch.relu)
    with pytest.raises(UnknownNameError, match="cube"):
        lipschitz(cube)
