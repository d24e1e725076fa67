"""The quotient lemma in every norm: true, with constants that are attained; the TV lemma likewise."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.bounds.theorems.quotient import (
    COEFFICIENTS,
    logit_oscillation,
    map_coefficient,
    mean_ratio,
    sharp_ratio,
    value_coefficient,
    variation_bound,
)
from rankscope.errors import UnknownNameError
from rankscope.measures import dobrushin, find_measure, residual_bracket, residual_norm

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
QUICK = [name for name in COEFFICIENTS if name not in ("residual[linf,best]", "residual[composite,best]")]


def ends(quantity, x):
    value = find_measure(quantity)(x)
    return (value.low, value.high) if isinstance(value, tuple) else (value, value)


def drawn(batch, tokens, dim, seed, sharpness):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(batch, *shape, generator=g, dtype=torch.float64)

    return (
        torch.softmax(sharpness * normal(tokens, tokens), dim=-1),
        normal(tokens, dim).pow(3),
        normal(dim, dim),
    )


def check(quantity, batch, tokens, dim, seed, sharpness):
    maps, x, w = drawn(batch, tokens, dim, seed, sharpness)
    after, before = ends(quantity, maps @ x @ w + 3.0)[0], ends(quantity, x)[1]
    most = map_coefficient(maps, quantity) * value_coefficient(w, quantity) * before
    rounding = 1e-13 * (x.abs().amax(dim=(-2, -1)) + 3) * w.abs().sum(dim=(-2, -1)) * tokens
    assert bool((after <= most + rounding).all())
    tau = dobrushin(maps)
    ratio = sharp_ratio(
        quantity, tokens, tokens
    )  # the coefficient of a map is that of as many channels as tokens
    slack = 0.01 if quantity == "residual[linf,best]" else 1e-8  # brackets stop at one percent
    assert bool((map_coefficient(maps, quantity) <= ratio * tau * (1 + slack) + 1e-12).all())


@pytest.mark.parametrize("quantity", QUICK)
@settings(max_examples=12)
@given(st.integers(2, 8), st.integers(1, 5), st.integers(0, 2**16), st.floats(0.05, 20))
def test_maps_and_values_enlarge_by_no_more_than_their_coefficients(quantity, tokens, dim, seed, sharpness):
    check(quantity, 30, tokens, dim, seed, sharpness)


@pytest.mark.parametrize("quantity", ["residual[linf,best]", "residual[composite,best]"])
@settings(max_examples=60 if SOAK else 4)  # each draw solves nine brackets
@given(st.integers(2, 8), st.integers(1, 5), st.integers(0, 2**16), st.floats(0.05, 20))
def test_bracketed_residuals_too(quantity, tokens, dim, seed, sharpness):
    check(quantity, 3, tokens, dim, seed, sharpness)


def two_columns(tokens, t):
    maps = torch.zeros(tokens, tokens, dtype=torch.float64)
    maps[: tokens // 2, :2] = torch.tensor([1 + t, 1 - t], dtype=torch.float64) / 2
    maps[tokens // 2 :, :2] = torch.tensor([1 - t, 1 + t], dtype=torch.float64) / 2
    return maps


@pytest.mark.parametrize("tokens", [2, 5, 8])
def test_half_the_tokens_is_the_factor_of_column_sums(tokens):
    maps = two_columns(tokens, 0.25)
    found = map_coefficient(maps, "residual[l1,median]")
    expected = sharp_ratio("residual[l1,median]", tokens, tokens) * dobrushin(maps)
    torch.testing.assert_close(found, expected, rtol=2e-9, atol=0)  # raised by one billionth
    identity = torch.eye(tokens, dtype=torch.float64)
    after, before = ends("residual[l1,median]", maps @ identity)[0], ends("residual[l1,median]", identity)[0]
    torch.testing.assert_close(after, expected * before)


@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 8, 9])
def test_the_factor_of_squares_is_attained(tokens):
    """Above: the factor is no smaller. The property test of coefficients has it from the other side, for odd n too."""
    maps = two_columns(tokens, 0.25)
    for quantity in ("residual[frobenius,mean]", "residual[spectral,mean]"):
        expected = sharp_ratio(quantity, tokens, 1) * dobrushin(maps)
        torch.testing.assert_close(map_coefficient(maps, quantity), expected, rtol=2e-9, atol=0)
        x = torch.eye(tokens, dtype=torch.float64)[:, :1] - torch.eye(tokens, dtype=torch.float64)[:, 1:2]
        torch.testing.assert_close(ends(quantity, maps @ x)[0], expected * ends(quantity, x)[0])


@pytest.mark.parametrize(
    ("tokens", "factor"), [(2, 1.0), (3, 1.1547005383792515), (8, 2.0), (9, 2.1081851067789197)]
)
def test_the_factor_of_squares_by_trying_all_maps_that_matter(tokens, factor):
    """Rows at the two ends of an edge: by Krein and Milman the largest residual is at an extreme point of the maps."""
    one, two = (torch.eye(tokens, dtype=torch.float64)[k] for k in (0, 1))
    tried = [torch.stack([one] * k + [two] * (tokens - k)) for k in range(1, tokens)]  # tau is 1
    x = (one - two)[:, None]
    found = max(float(residual_norm(p @ x, norm="frobenius", center="mean")) for p in tried) / 2**0.5
    assert found == pytest.approx(factor, rel=1e-14)
    for quantity in ("residual[frobenius,mean]", "residual[spectral,mean]"):
        assert sharp_ratio(quantity, tokens, 1) == pytest.approx(factor, rel=1e-14)


@settings(max_examples=60 if SOAK else 2)  # brackets of a millionth take a second each
@given(st.integers(3, 6), st.integers(0, 2**16), st.floats(0.5, 40))
def test_in_the_plane_row_sums_shrink_by_the_dobrushin_coefficient(tokens, seed, sharpness):
    maps, x, _ = drawn(3, tokens, 2, seed, sharpness)
    after, before = (residual_bracket(one, norm="linf", tolerance=1e-6) for one in (maps @ x, x))
    assert sharp_ratio("residual[linf,best]", tokens, 2) == 1.0
    assert bool(
        (after.low <= dobrushin(maps) * before.high * (1 + 1e-12)).all()
    )  # certified ends, one rounding


def test_the_octahedron_attains_three_halves_in_row_sums():
    signs = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    x = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    maps = torch.cat([signs > 0, signs < 0], dim=1).double() / 3
    before, after = (residual_bracket(one, norm="linf", tolerance=1e-9) for one in (x, maps @ x))
    ratio = after.low / (dobrushin(maps) * before.high)
    assert ratio.item() == pytest.approx(
        sharp_ratio("residual[linf,best]", tokens=6, dim=3), rel=4e-9
    )  # brackets
    assert ratio.item() == pytest.approx(1.5, rel=4e-9)


@pytest.mark.parametrize("tokens", [2, 3, 7])
def test_the_mean_is_worst_for_one_token_apart(tokens):
    x = torch.eye(tokens, 1, dtype=torch.float64)
    for norm, best in (("l1", "median"), ("max", "midrange")):
        ratio = residual_norm(x, norm=norm, center="mean") / residual_norm(x, norm=norm, center=best)
        assert ratio.item() == pytest.approx(mean_ratio(tokens), rel=1e-15)
    bracket = residual_bracket(x, norm="linf", tolerance=1e-9)
    ratio = residual_norm(x, norm="linf", center="mean") / bracket.high
    assert ratio.item() == pytest.approx(mean_ratio(tokens), rel=2e-9)  # brackets


@given(st.integers(2, 8), st.integers(2, 8), st.integers(0, 2**16), st.floats(0.01, 50))
def test_rows_of_a_softmax_differ_by_no_more_than_the_tanh_of_their_logits(tokens, keys, seed, scale):
    g = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(40, tokens, keys, generator=g, dtype=torch.float64)
    delta = logit_oscillation(logits)
    loop = max(
        (logits[0, i] - logits[0, j]).max() - (logits[0, i] - logits[0, j]).min()
        for i in range(tokens)
        for j in range(tokens)
    )
    torch.testing.assert_close(delta[0], loop)
    tau = dobrushin(torch.softmax(logits, dim=-1))
    assert bool((tau <= variation_bound(delta) + 1e-15).all())


@pytest.mark.parametrize("delta", [1e-6, 0.5, 3.0, 30.0])
def test_two_keys_attain_the_variation_bound(delta):
    # p and q of two keys with the logits apart by half of delta on either side of equal
    logits = torch.tensor([[delta / 4, -delta / 4], [-delta / 4, delta / 4]], dtype=torch.float64)
    found = dobrushin(torch.softmax(logits, dim=-1))
    torch.testing.assert_close(logit_oscillation(logits).item(), delta)
    # 1e-9: entries near one half lose what they differ by to rounding
    torch.testing.assert_close(
        found, variation_bound(torch.tensor(delta, dtype=torch.float64)), rtol=1e-9, atol=0
    )


def test_a_quantity_that_attention_does_not_shrink_is_refused():
    with pytest.raises(UnknownNameError, match="unknown quantity that attention shrinks 'diameter'"):
        map_coefficient(torch.eye(3, dtype=torch.float64), "diameter")
