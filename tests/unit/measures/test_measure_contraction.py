"""What attention shrinks and what it does not: true laws as properties, false ones as kept counter-examples."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.measures import diameter, dobrushin, residual_bracket, residual_norm

# Rows of the averaging: uniform on three vertices of the octahedron, with these signs.
SIGNS = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])


def averaging_and_tokens(tokens, dim, seed, sharpness):
    g = torch.Generator().manual_seed(seed)
    averaging = torch.softmax(
        sharpness * torch.randn(tokens, tokens, generator=g, dtype=torch.float64), dim=-1
    )
    return averaging, torch.randn(tokens, dim, generator=g, dtype=torch.float64).pow(3)


def rounding(x):
    """What rounding the products of the averaging may add: a few units of the largest entry in every entry."""
    return 1e-15 * x.abs().max() * x.numel()


@given(st.integers(2, 8), st.integers(1, 5), st.integers(0, 2**16), st.floats(0.1, 20))
def test_diameters_and_the_half_range_contract(tokens, dim, seed, sharpness):
    averaging, x = averaging_and_tokens(tokens, dim, seed, sharpness)
    tau = dobrushin(averaging)
    for norm in ("l1", "l2", "linf"):
        assert diameter(averaging @ x, norm=norm) <= tau * diameter(x, norm=norm) + rounding(x)
    half_range = residual_norm(x, norm="max", center="midrange")
    assert residual_norm(averaging @ x, norm="max", center="midrange") <= tau * half_range + rounding(x)
    torch.testing.assert_close(half_range, diameter(x, norm="linf") / 2)


@settings(max_examples=20)  # each one solves ten brackets
@given(st.integers(2, 8), st.integers(1, 5), st.integers(0, 2**16), st.floats(0.1, 20))
def test_other_residuals_contract_by_the_residual_of_the_map(tokens, dim, seed, sharpness):
    averaging, x = averaging_and_tokens(tokens, dim, seed, sharpness)
    for norm in ("l1", "linf", "composite", "frobenius", "spectral"):
        factor = residual_bracket(averaging, norm="spectral" if norm == "frobenius" else norm).high
        before, after = residual_bracket(x, norm=norm), residual_bracket(averaging @ x, norm=norm)
        assert after.low <= factor * before.high + rounding(x)


def test_dobrushin_does_not_contract_the_linf_residual():
    x = 3 * torch.cat([torch.eye(3), -torch.eye(3)]).double()
    averaging = torch.cat([SIGNS > 0, SIGNS < 0], dim=1).double() / 3
    before, after = (residual_bracket(one, norm="linf", tolerance=1e-9) for one in (x, averaging @ x))
    tau = dobrushin(averaging).item()
    assert tau == pytest.approx(2 / 3, rel=1e-15)
    # 1e-9: the tolerance asked of the brackets.
    assert before.high.item() == pytest.approx(3, rel=2e-9)
    assert after.low.item() == pytest.approx(3, rel=2e-9)
    assert (after.low / (tau * before.high)).item() == pytest.approx(1.5, rel=4e-9)


@pytest.mark.parametrize("tokens", [2, 4, 8, 10])
@pytest.mark.parametrize("t", [0.125, 0.5, 1.0])
def test_dobrushin_contracts_other_residuals_only_up_to_sharp_constants(tokens, t):
    averaging = torch.zeros(tokens, tokens, dtype=torch.float64)
    averaging[: tokens // 2, :2] = torch.tensor([1 + t, 1 - t], dtype=torch.float64) / 2
    averaging[tokens // 2 :, :2] = torch.tensor([1 - t, 1 + t], dtype=torch.float64) / 2
    tau = dobrushin(averaging)
    torch.testing.assert_close(tau, torch.tensor(t, dtype=torch.float64))
    # As tokens: the identity for l1, the first two axes' difference for the Frobenius norm.
    x = torch.eye(tokens, dtype=torch.float64)
    one = residual_norm(averaging @ x, norm="l1", center="median") / residual_norm(
        x, norm="l1", center="median"
    )
    torch.testing.assert_close(one, tokens // 2 * tau)
    y = (x[:, :1] - x[:, 1:2]).contiguous()
    two = residual_norm(averaging @ y, norm="frobenius", center="mean") / residual_norm(
        y, norm="frobenius", center="mean"
    )
    torch.testing.assert_close(two, (tokens / 2) ** 0.5 * tau)


def test_attention_can_double_the_frobenius_and_the_composite_residual():
    """Eight tokens in one channel; half copy the token at +1 and half the one at -1, the others are at zero."""
    x = torch.zeros(8, 1, dtype=torch.float64)
    x[0], x[1] = 1.0, -1.0
    copies = torch.zeros(8, 8, dtype=torch.float64)
    copies[:4, 0] = 1.0
    copies[4:, 1] = 1.0
    for norm in ("frobenius", "composite"):
        before, after = (residual_norm(one, norm=norm, center="mean") for one in (x, copies @ x))
        assert (after / before).item() == pytest.approx(2.0, rel=1e-15)
    assert diameter(copies @ x, norm="l2") == diameter(x, norm="l2")
