"""Published orders and rates of layers, by slopes, eigenvalues and long runs that share no code with the engine."""

import math
import os

import mpmath
import pytest
import torch

from kit.layer_claims import EXACT, ORDERS, RATES
from rankscope.layers.find import find_layer
from reference import layer_loops as loops

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
SIZES = [(12, 6), (16, 8), (32, 16)] if SOAK else [(16, 8)]
DRAWS = 3 if SOAK else 1

SCALES = [1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5]
KNOWN = 3e-14
"""Slopes are taken between the two smallest scales at which a residual ratio is far above rounding."""


def made(name, tokens, dim, seed=0):
    kind = find_layer(name)
    generator = torch.Generator().manual_seed(seed)
    count = kind.tokens or tokens
    layer = kind.make(count, dim, generator)
    x = torch.randn(dim, generator=generator, dtype=torch.float64)
    r = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return layer, x, r


@pytest.mark.parametrize(("tokens", "dim"), SIZES, ids=str)
@pytest.mark.parametrize("name", ORDERS)
def test_orders(name, tokens, dim):
    for seed in range(DRAWS):
        layer, x, r = made(name, tokens, dim, seed)
        for unit, order in zip((False, True), ORDERS[name], strict=True):
            equal = loops.residual_ratio(layer(x.expand_as(r)), unit=unit)
            if order is None:
                assert equal > 0.01
                continue
            assert equal < 1e-14

            def near(scale, layer=layer, x=x, r=r, unit=unit):
                return loops.residual_ratio(layer(x + scale * r), unit=unit)

            if order == EXACT:
                assert near(SCALES[-1]) < 1e-14
            else:
                low, high = [scale for scale in SCALES if near(scale) > KNOWN][-1:-3:-1]
                assert loops.slope_between(near, high, low) == pytest.approx(order, abs=0.02)


@pytest.mark.parametrize("name", ["fourier", "token-mlp", "mamba", "rwkv", "gru", "long-convolution"])
def test_layers_that_keep_no_consensus(name):
    layer, x, r = made(name, 16, 8)
    y = layer(x.expand_as(r))
    assert loops.residual_ratio(y) > 0.01
    if name == "fourier":
        assert y[1:].norm() < 1e-14 * y[0].norm()  # the other tokens have no direction
    else:
        assert loops.residual_ratio(y, unit=True) > 0.01


@pytest.mark.parametrize("name", RATES)
def test_rates_are_second_eigenvalues_of_the_map_at_consensus(name):
    kind = find_layer(name)
    tokens = kind.tokens or 64
    generator = torch.Generator().manual_seed(0)
    maps = kind.maps(tokens, 4, generator)
    x = torch.randn(4, generator=generator, dtype=torch.float64).expand(tokens, 4)
    matrix = maps(x)[0]
    torch.testing.assert_close(matrix.sum(dim=-1), torch.ones(tokens, dtype=torch.float64))
    lower = bool((matrix.triu(1) == 0).all())  # eigenvalues of a triangular matrix are on its diagonal
    sizes = (matrix.diagonal() if lower else torch.linalg.eigvals(matrix)).abs().sort().values
    assert sizes[-1].item() == pytest.approx(1, abs=1e-9)
    assert sizes[-2].item() == pytest.approx(RATES[name], abs=1e-6)


def fall(layer, x, r, *, normed=False, layers=400, last=100):
    """Factor per layer of a small residual over the common row, over the last layers; renormalised after each."""
    # Not smaller: maps such as prefix:5+causal enlarge rounding by 1e7 before they shrink it.
    small, logs = 1e-4, list[float]()
    r = r - r.mean(dim=0)
    r = r / r.norm()
    for _ in range(layers):
        tokens = x + small * r
        y = layer(tokens / tokens.norm(dim=-1, keepdim=True) if normed else tokens)
        y = y / y.norm(dim=-1, keepdim=True) if normed else y
        mean = y.mean(dim=0)
        left = y - mean
        logs.append(math.log(float(left.norm() / small / (mean.norm() / x.norm()))))
        x, r = (x.norm() / mean.norm() * mean if not normed else mean), left / left.norm()
    return math.exp(sum(logs[-last:]) / last)


FALLS = list(RATES) if SOAK else [name for name in RATES if "@" not in name or name.startswith("gat@")]


@pytest.mark.parametrize("name", FALLS)
def test_a_small_residual_falls_by_the_rate(name):
    assert fall(*made(name, 64, 4)) == pytest.approx(RATES[name], abs=1e-3)


def test_the_symmetric_layer_keeps_directions_alone_and_has_two_rates():
    """Irregular graphs: the map has the spectrum of the random walk, its rows divided by their sums another one."""
    layer, x, r = made("gcn@karate", 34, 4)
    matrix = find_layer("gcn@karate").maps(34, 4, torch.Generator())(x)[0]
    sizes = torch.linalg.eigvalsh(matrix).abs().sort().values
    assert (sizes[-2] / sizes[-1]).item() == pytest.approx(0.896142, abs=1e-6)
    rows = torch.linalg.eigvals(matrix / matrix.sum(dim=-1, keepdim=True)).abs().sort().values
    assert rows[-2].item() == pytest.approx(0.939342, abs=1e-6)
    assert fall(layer, x / x.norm(), r, normed=True) == pytest.approx(0.939342, abs=1e-3)


def test_two_groups_that_never_meet_do_not_fall():
    """Even and odd tokens under dilated:2:2, with a difference between the groups alone."""
    layer, x, _ = made("mask:dilated:2:2", 64, 4)
    groups = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(32)[:, None] * torch.ones(
        4, dtype=torch.float64
    )
    assert fall(layer, x, groups, layers=120) == pytest.approx(1, abs=1e-9)


# Rows in 120 digits: the weights of the row, its formula written again, and slopes at scales that floats cannot reach.
# The formula has to give what the row gives in floats, so that what is found of one holds for the other.


def _rows(logits, weigh):
    return mpmath.matrix([weigh([logits[i, j] for j in range(logits.cols)], i) for i in range(logits.rows)])


def _softmax(logits):
    weights = logits.apply(mpmath.exp)
    return _rows(weights, lambda row, i: [one / sum(row) for one in row])


def _off_by_one(logits):
    weights = logits.apply(mpmath.exp)
    return _rows(weights, lambda row, i: [one / (1 + sum(row)) for one in row])


def _causal(logits):
    weights = logits.apply(mpmath.exp)
    return _rows(weights, lambda row, i: [one / sum(row[: i + 1]) * (j <= i) for j, one in enumerate(row)])


def _sigmoid(logits):
    return logits.apply(lambda one: 1 / (1 + mpmath.exp(mpmath.log(logits.cols) - one)))


def _nystrom(logits):
    """Every token is its own landmark: the inverse is what it takes six rounds to come near."""
    between, eye = _softmax(logits), mpmath.eye(logits.rows)
    columns = max(mpmath.fsum(between[:, j]) for j in range(logits.cols))
    found = between.T / columns
    for _ in range(6):
        near = between * found
        found = found * (13 * eye - near * (15 * eye - near * (7 * eye - near))) / 4
    return between * found * between


@pytest.mark.parametrize(
    ("name", "weigh", "orders"),
    [
        ("softmax", _softmax, (3, 3)),
        ("off-by-one", _off_by_one, (1, 3)),
        ("sigmoid", _sigmoid, (1, 3)),
        ("causal", _causal, (1, 1)),
        ("nystrom", _nystrom, (3, 7)),
    ],
)
def test_orders_in_many_digits(name, weigh, orders):
    tokens, dim = 4, 3
    layer, x, r = made(name, tokens, dim)
    generator = torch.Generator().manual_seed(0)
    query, key = (
        torch.randn(dim, dim, generator=generator, dtype=torch.float64) / dim**0.5 for _ in range(2)
    )
    value = (
        torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q for _ in range(2)
    )
    with mpmath.workdps(120):
        query, key, into, out = (mpmath.matrix(one.tolist()) for one in (query, key, *value))

        def run(scale):
            state = mpmath.matrix(
                [[x[c].item() + scale * mpmath.mpf(row[c].item()) for c in range(dim)] for row in r]
            )
            products = (state * query) * (state * key).T / mpmath.sqrt(dim)
            return weigh(products) * state * into * out

        def ratio(state, unit):
            rows = [[state[i, c] for c in range(dim)] for i in range(tokens)]
            if unit:
                rows = [[one / mpmath.norm(row) for one in row] for row in rows]
            mean = [sum(column) / tokens for column in zip(*rows, strict=True)]
            left = [one - centre for row in rows for one, centre in zip(row, mean, strict=True)]
            return mpmath.norm(left) / mpmath.norm([one for row in rows for one in row])

        ours = torch.tensor(
            [[float(one) for one in row] for row in run(mpmath.mpf(1)).tolist()], dtype=torch.float64
        )
        torch.testing.assert_close(layer(x + r), ours, rtol=1e-12, atol=1e-13)
        small, smaller = run(mpmath.mpf("1e-8")), run(mpmath.mpf("1e-10"))
        for unit, order in zip((False, True), orders, strict=True):
            slope = mpmath.log(ratio(small, unit) / ratio(smaller, unit)) / mpmath.log(100)
            assert float(slope) == pytest.approx(order, abs=1e-6)
