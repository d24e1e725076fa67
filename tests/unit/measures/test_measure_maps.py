"""Attention maps: what is refused, and how the coefficients relate."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankscope.errors import ShapeError, UnknownNameError
from rankscope.measures import (
    MEASURES,
    attention_entropy,
    dobrushin,
    doeblin,
    residual_bracket,
    residual_norm,
    sink_share,
    spectral_gap,
)

ROUNDING = 1e-14  # entries are at most one, sums have at most seven terms
MAPS = [measure for measure in MEASURES.values() if measure.kind == "map"]


def random_map(tokens, keys, seed, sharpness=3.0):
    g = torch.Generator().manual_seed(seed)
    return torch.softmax(sharpness * torch.randn(tokens, keys, generator=g, dtype=torch.float64), dim=-1)


@given(st.integers(2, 7), st.integers(2, 7), st.integers(0, 2**16))
def test_dobrushin_against_its_relatives(tokens, keys, seed):
    a = random_map(tokens, keys, seed)
    tau = dobrushin(a)
    assert tau <= doeblin(a) + ROUNDING
    rho, kappa = residual_bracket(a, norm="linf"), residual_norm(a, norm="l1", center="median")
    assert tau <= rho.high + ROUNDING
    assert rho.low <= 2 * (1 - 1 / tokens) * tau + ROUNDING
    assert kappa <= (tokens // 2) * tau + ROUNDING
    assert residual_norm(a, norm="spectral", center="mean") <= (tokens / 2) ** 0.5 * tau + ROUNDING


@given(st.integers(2, 6), st.integers(0, 2**16))
def test_products_of_maps_contract_by_the_product(tokens, seed):
    a, b = random_map(tokens, tokens, seed), random_map(tokens, tokens, seed + 1)
    assert dobrushin(a @ b) <= dobrushin(a) * dobrushin(b) + ROUNDING
    # Every other eigenvalue is at most tau; eigenvalues of a map that is not symmetric lose some digits.
    assert spectral_gap(a) >= 1 - dobrushin(a) - 1e-9


def test_known_maps():
    uniform, identity = torch.full((4, 4), 0.25), torch.eye(4)
    assert dobrushin(uniform).item() == doeblin(uniform).item() == 0.0
    assert dobrushin(identity).item() == doeblin(identity).item() == 1.0
    assert spectral_gap(uniform).item() == pytest.approx(1.0, abs=1e-15)
    assert spectral_gap(identity).item() == 0.0
    assert sink_share(identity).item() == 0.25
    assert attention_entropy(identity, unit="mean").item() == 0.0
    assert attention_entropy(uniform, unit="mean").item() == pytest.approx(1.3862943611198906, rel=1e-15)
    causal = torch.ones(12, 12, dtype=torch.float64).tril()
    causal = causal / causal.sum(dim=-1, keepdim=True)
    assert spectral_gap(causal).item() == pytest.approx(0.5, rel=1e-15)  # eigenvalues 1, 1/2, 1/3, ...


def test_a_causal_map_has_a_small_floor_for_its_gap():
    causal = torch.ones(64, 64, dtype=torch.float64).tril()
    causal = causal / causal.sum(dim=-1, keepdim=True)
    assert MEASURES["spectral_gap[map]"].floor(causal, 1e-14) < 1e-12


def test_maps_need_not_be_square():
    a = random_map(3, 5, 0)
    for measure in MAPS:
        if measure.is_square:
            with pytest.raises(ShapeError, match=r"expected square maps .* got shape \(3, 5\)"):
                measure(a)
        else:
            assert measure(a).isfinite()


@pytest.mark.parametrize("measure", MAPS, ids=str)
def test_rows_that_are_not_probabilities_are_refused(measure):
    with pytest.raises(ShapeError, match=r"rows miss 1 by up to 1\.0e-03 \(allowed 4e-15\)"):
        measure(torch.eye(3, dtype=torch.float64) * 0.999)
    with pytest.raises(ShapeError, match=r"an entry is -5\.0e-01"):
        measure(torch.tensor([[1.5, -0.5], [0.5, 0.5]]))
    with pytest.raises(ShapeError, match="NaN"):
        measure(torch.full((2, 2), torch.nan))
    with pytest.raises(ShapeError, match="int64"):
        measure(torch.eye(2, dtype=torch.int64))


def test_one_key_has_no_normalized_entropy():
    assert attention_entropy(torch.ones(3, 1), unit="mean").item() == 0.0
    assert attention_entropy(torch.ones(3, 1), unit="normalized").isnan()


def test_wrong_unit():
    with pytest.raises(UnknownNameError, match="unknown unit of entropy 'bits'"):
        attention_entropy(torch.eye(2), unit="bits")
