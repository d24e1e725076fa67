"""Certificates against ball arithmetic; first the ball arithmetic itself, against floats and against digits."""

import os
import subprocess
import sys
from math import exp, inf, log
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from kit.certify_networks import INPUTS, batch, recipe, refuted, truth
from kit.exact_specs import describe, plain
from kit.trees import DIM, HEADS, POSITIONS, RULES, Draws, attention, mlp, networks, norm, values
from rankscope.bounds.certify import certify
from rankscope.bounds.enclosure import exactly
from rankscope.bounds.map_rules import enclosed_maps
from rankscope.measures import find_measure
from rankscope.network import (
    ACTIVATIONS,
    Attention,
    Chain,
    Context,
    Fixed,
    LayerNorm,
    Network,
    Norm,
    Part,
    RMSNorm,
    Scale,
    Skip,
    Softmax,
    Sphere,
    Sum,
    Values,
)
from reference import ball_network as balls
from reference import exact_network as exact

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
TOKENS = 5


def described(network: Network, tokens: int) -> list[balls.Part]:
    return describe(network, tokens, tables="exact")


def agree(network: Network, x: Tensor) -> None:
    """Balls are far smaller than rounding, floats lie near them, and so do all residuals of the floats."""
    found = balls.enclosed(described(network, len(x)), plain(x), bits=300)
    for layer, state in zip(found, network.states(x), strict=True):
        middle = torch.tensor(balls.middle(layer.state), dtype=torch.float64)
        size = max(1.0, float(middle.abs().max()))
        assert balls.widest(layer.state) < 1e-40 * size
        assert_close(state, middle, rtol=0, atol=1e-12 * size)  # about 5000 units of rounding
        for name, ball in layer.residuals.items():
            measured = find_measure(name)(state)
            low, high = (exp(end) for end in balls.log_ends(ball))
            assert low - 1e-11 * size <= float(measured) <= high + 1e-11 * size  # sums over all entries


@settings(max_examples=15)
@given(networks(), st.integers(2, 6), st.integers(0, 2**16))
def test_random_trees_lie_in_their_balls(network: Network, tokens: int, seed: int) -> None:
    agree(network, Draws(seed)(tokens, DIM))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("place", POSITIONS)
def test_every_position_rule_and_mask(place: str, rule: str) -> None:
    draw = Draws(1)
    network = Network([attention(draw, place=place, rule=rule, groups=groups) for groups in (1, HEADS)])
    agree(network, draw(TOKENS, DIM))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_every_activation(name: str, gated: bool) -> None:
    draw = Draws(2)
    agree(Network([mlp(draw, activation=name, gated=gated)]), 3 * draw(TOKENS, DIM))


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm, Sphere])
def test_every_norm_on_tokens_and_on_queries(kind: type[Norm], eps: float) -> None:
    draw = Draws(3)
    x = draw(TOKENS, DIM)
    if kind is Sphere:
        x[0] = 0.0  # has no direction and stays where it is
    agree(Network([kind(eps=eps), kind(draw(DIM), draw(DIM), eps=eps, offset=1.0)]), x)
    for normed, width in (("head", 3), ("all", 3 * HEADS)):
        query_norm, key_norm = (kind(draw(width), draw(width), eps=1e-3, offset=0.5) for _ in range(2))
        mixer = Softmax(
            draw(DIM, 3 * HEADS),
            draw(DIM, 3 * HEADS),
            heads=HEADS,
            query_norm=query_norm,
            key_norm=key_norm,
            normed=normed,
            scale=0.3,
            softcap=2.0,
        )
        agree(Network([Attention(mixer, values(draw))]), draw(TOKENS, DIM))


def test_inner_nodes_and_fixed_maps() -> None:
    draw = Draws(4)
    maps = Fixed(torch.softmax(draw(HEADS, TOKENS, TOKENS), dim=-1))
    branches: list[Part] = [Attention(maps, values(draw)), Scale(draw(DIM)), Scale(-0.3), Chain([])]
    agree(Network([Skip(Sum(branches), draw(DIM)), Skip(Sum([]), 0.3), Sum([])]), draw(TOKENS, DIM))


def line(layers: int) -> Network:
    """Two tokens +-a/2 on a line with query times key 0.7: the spread becomes a tanh(0.7 a^2 / 4)."""
    one = torch.ones(1, 1, dtype=torch.float64)
    block = Attention(Softmax(0.7 * one, one, heads=1, scale=1.0), Values(one, one, heads=1))
    return Network([block] * layers)


def test_balls_are_raised_until_a_residual_of_1e_60_has_its_digits() -> None:
    pair = [[-0.65], [0.65]]
    found = balls.sharp(described(line(5), 2), pair, digits=12)
    digits = exact.residuals(described(line(5), 2), pair, digits=200)
    assert exact.log10_norm(digits[-1]) < -60
    for layer, residual in zip(found, digits, strict=True):
        low, high = balls.log_ends(layer.residuals[balls.FROBENIUS])
        assert high - low < 1e-11
        assert low <= exact.log10_norm(residual) * log(10) + 1e-12 * abs(low)
        assert exact.log10_norm(residual) * log(10) - 1e-12 * abs(low) <= high


def test_equal_tokens_leave_a_ball_around_zero() -> None:
    draw = Draws(5)
    x = draw(1, DIM).expand(TOKENS, DIM)
    network = Network([Chain([attention(draw), norm("layer", draw), mlp(draw, activation="gelu")])])
    found = balls.sharp(described(network, TOKENS), plain(x), most=800)
    for ball in found[1].residuals.values():
        low, high = balls.log_ends(ball)
        assert low == -inf
        assert high < -400


@pytest.mark.parametrize("size", [1e-150, 1.0, 1e6, 1e150])
def test_balls_know_no_overflow(size: float) -> None:
    draw = Draws(6)
    network = Network(
        [Skip(attention(draw)), mlp(draw, activation="silu"), mlp(draw, activation="gelu_tanh")]
    )
    found = balls.sharp(described(network, TOKENS), plain(size * draw(TOKENS, DIM)))
    assert all(ball.is_finite() for layer in found for ball in layer.residuals.values())


def test_logs_and_distances_are_rounded_outwards() -> None:
    with balls.ctx.workprec(200):
        third = balls.arb(1) / 3
    low, high = balls.log_ends(third)
    assert low <= log(1 / 3) <= high
    assert high - low < 1e-15
    assert balls.log_ends(balls.arb(0)) == (-inf, -inf)
    near, far = balls.distance([[third, balls.arb(1)]], [[1 / 3, 1.0]])
    assert near <= 2.0**-54 / 3 <= far
    assert near > 0


def test_the_reference_imports_neither_torch_nor_rankscope() -> None:
    code = "import sys, reference.ball_network; assert not {'torch', 'rankscope'} & set(sys.modules)"
    tests = Path(balls.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], cwd=tests, check=True)  # noqa: S603 - our own interpreter


def enclosing(network: Network, x: Tensor) -> None:
    """Every bound holds for the ball of every layer, and no exact token is farther from the floats than was said."""
    certificate = certify(network, x)
    exact = truth(network, x)
    assert not refuted(certificate, exact)
    for layer, enclosed, state in zip(certificate.layers, exact, network.states(x), strict=True):
        nearest, _ = balls.distance(enclosed.state, plain(state))
        assert layer.error is not None
        assert nearest <= float(layer.error), f"layer {layer.layer}"


@settings(max_examples=15)
@given(networks(), st.integers(2, 6), st.integers(0, 2**16), st.sampled_from([1e-8, 1e-2, 1.0, 30.0, 1e4]))
def test_certificates_of_random_trees_enclose_the_truth(
    network: Network, tokens: int, seed: int, size: float
) -> None:
    draw = Draws(seed)
    enclosing(network, draw(1, DIM) + size * draw(tokens, DIM))


@pytest.mark.parametrize("seed", range(30 if SOAK else 12))
def test_certificates_of_random_networks_enclose_the_truth(seed: int) -> None:
    of = batch(recipe(5000 + seed, 2 * len(INPUTS)))
    enclosing(*of.one(seed % of.recipe.count))


def test_the_rounding_of_many_tokens_is_counted() -> None:
    draw = Draws(8)
    blocks = [Chain([norm("layer", draw), attention(draw)]), Skip(mlp(draw, activation="gelu"))]
    enclosing(Network(blocks), 100 + draw(40, DIM))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_weights_of_fewer_digits_are_the_numbers_they_are(stored: torch.dtype) -> None:
    draw = Draws(9)
    network = Network([Skip(attention(draw)), Chain([norm("rms", draw), mlp(draw, activation="silu")])]).to(
        stored
    )
    x = draw(TOKENS, DIM).to(stored)
    certificate = certify(network, x)
    assert not refuted(certificate, truth(network, x))
    same = certify(network.double(), x.double())
    assert_close(certificate.layers[-1].upper, same.layers[-1].upper, rtol=0, atol=0)


@pytest.mark.parametrize("layers", [1, 3, 6])
def test_a_residual_far_below_the_smallest_float_is_enclosed(layers: int) -> None:
    """The a-priori bound of two tokens on a line is attained, at any depth."""
    pair = torch.tensor([[-0.65], [0.65]], dtype=torch.float64)
    enclosing(line(layers), pair)
    last = certify(line(layers), pair).layers[-1]
    low, high = balls.log_ends(balls.sharp(described(line(layers), 2), plain(pair))[-1].residuals[balls.L2])
    assert (
        low <= float(last.upper[balls.L2]) <= high + 1e-7 * 3**layers
    )  # a margin of 1e-9 triples in every layer


@pytest.mark.parametrize("place", POSITIONS)
@pytest.mark.parametrize("size", [0.1, 3.0, 100.0])
def test_rows_of_attention_maps_are_as_near_as_said(place: str, size: float) -> None:
    draw = Draws(7)
    for rule, settings_ in (("full", {}), ("causal", {"qk_norm": True}), ("window:1", {"softcap": 2.0})):
        part, x = attention(draw, place=place, rule=rule, **settings_), size * draw(TOKENS, DIM)
        found = enclosed_maps(part.mixer, exactly(x), Context())
        exact = balls.enclosed(described(Network([part]), TOKENS), plain(x), bits=300)[1].maps[0]
        for head, rows in enumerate(exact):
            for i, row in enumerate(rows):
                computed = found.maps[head, i].tolist()
                apart = sum(
                    balls.distance([[entry]], [[number]])[0]
                    for entry, number in zip(row, computed, strict=True)
                )
                assert apart <= float(found.radius[head, i]) * sum(computed)
