"""The engine on rows of the atlas: the published orders, rates and falls."""

import math
from collections.abc import Iterable

import pytest
import torch

from kit.layer_claims import ORDERS, RATES
from rankscope.layers.facts import layer_facts
from rankscope.layers.find import find_layer

FEW = (
    "softmax",
    "causal",
    "off-by-one",
    "linformer",
    "value-residual",
    "retention-unnormalised",
    "gat@complete",
)
FEW_RATES = ("retention", "mask:prefix:5+causal", "mask:longformer:2:1", "mask:dilated:2:2", "gat@karate")


def few_first(names: Iterable[str], few: Iterable[str]):
    """All of them; those that are not among the few are slow."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.slow) for name in names]


def facts_of(name, tokens, dim, *, depth, around="bare"):
    kind = find_layer(name)
    count = kind.tokens or tokens
    generator = torch.Generator().manual_seed(0)
    return layer_facts(kind.make(count, dim, generator), tokens=count, dim=dim, depth=depth, around=around)


@pytest.mark.parametrize("name", few_first(ORDERS, FEW))
def test_orders(name):
    found = facts_of(name, 16, 8, depth=False)
    residual, direction = ORDERS[name]
    assert found.consensus == ("directions" if residual is None else "kept")
    for value, expected in ((found.residual_order, residual), (found.direction_order, direction)):
        if expected is None or math.isinf(expected):
            assert value == expected
        else:
            assert value == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("name", ["softmax", "linear", "off-by-one", "linformer-means"])
def test_a_skip_makes_both_orders_one(name):
    found = facts_of(name, 16, 8, depth=False, around="skip")
    assert (found.residual_order, found.direction_order) == pytest.approx((1, 1), abs=0.02)


@pytest.mark.parametrize("name", few_first(RATES, FEW_RATES))
def test_rates_and_falls(name):
    found = facts_of(name, 64, 4, depth=True)
    assert found.rate == pytest.approx(RATES[name], abs=1e-6)
    assert found.fall == pytest.approx(RATES[name], abs=1e-3)


def test_a_symmetric_layer_on_an_irregular_graph_has_two_rates():
    found = facts_of("gcn@karate", 34, 4, depth=False)
    assert found.consensus == "directions"
    assert found.rate == pytest.approx(0.896142, abs=1e-6)
    assert found.rate_normed == pytest.approx(0.939342, abs=1e-6)


@pytest.mark.parametrize("name", ["fourier", "token-mlp"])
def test_no_consensus_is_no_order(name):
    found = facts_of(name, 16, 8, depth=False)
    assert found.consensus == "none"
    assert found.residual_order is None
    assert found.rate is None


@pytest.mark.parametrize("name", few_first(["gru", "mamba", "rwkv"], ["rwkv"]))
def test_recurrent_layers_are_read_from_the_middle(name):
    found = facts_of(name, 64, 4, depth=False)
    assert found.consensus == "none"
    assert found.consensus_gap > 0.01
    assert found.from_token == 32
    assert found.residual_order == pytest.approx(1, abs=0.02)
    assert 0 < found.rate < 1


@pytest.mark.parametrize("graph", ["karate", "path:20", "star:10", "barbell:5"])
def test_the_symmetric_layer_has_the_spectrum_of_the_other_and_keeps_directions_alone(graph):
    found = facts_of(f"gcn@{graph}", 34, 4, depth=True)
    assert (found.consensus, found.direction_order) == ("directions", pytest.approx(1, abs=0.02))
    assert found.rate == pytest.approx(RATES[f"gat@{graph}"], abs=1e-6)
    assert found.fall == pytest.approx(RATES[f"gat@{graph}"], abs=1e-3)


def test_the_measured_fall_with_tokens_at_one_length_is_the_other_rate():
    layer = find_layer("gcn@karate").make(34, 4, torch.Generator().manual_seed(0))
    found = layer_facts(lambda x: layer(x) / layer(x).norm(dim=-1, keepdim=True), tokens=34, dim=4)
    assert found.consensus == "kept"
    assert found.fall == pytest.approx(0.939342, abs=1e-3)
