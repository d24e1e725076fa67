"""Cancellations that the split pass once suffered from, each against arithmetic with many digits."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from mpmath import mp
from torch import Tensor
from torch.testing import assert_close

from kit.exact_specs import describe, plain
from kit.trees import Draws
from rankscope.masks import parse_mask
from rankscope.measures import find_measure
from rankscope.network import (
    ACTIVATIONS,
    Alibi,
    Attention,
    Chain,
    ClippedBuckets,
    Context,
    LayerNorm,
    Mlp,
    Network,
    Norm,
    RelativeBias,
    RMSNorm,
    Rotary,
    SeenBias,
    Softmax,
    Spec,
    Sphere,
    Values,
    build,
    gaussian_tokens,
    generators,
)
from rankscope.split import Split, log_measure, split_states
from rankscope.split.logits import split_logits
from rankscope.split.quotients import activation_quotient, expm1_ratio, log1p_ratio
from rankscope.split.rules import split_part
from rankscope.split.state import normalized, split_tokens
from reference.exact_network import _activated, log10_norm, relative_error, residuals

EYE = torch.eye(4, dtype=torch.float64)


def off(net: Network, x: Tensor, *, digits: int = 200) -> float:
    """Largest relative error of the residual matrix of any layer, cosines and biases of positions taken exactly."""
    exact = residuals(describe(net, len(x), tables="exact"), plain(x), digits)
    found = split_states(net, x)
    return max(
        relative_error(plain(split.residual), float(split.log_scale), true)
        for split, true in zip(found, exact, strict=True)
        if log10_norm(true) > -math.inf
    )


def test_zero_tokens_stay_zero_and_no_norm_lifts_them() -> None:
    """The command of the report: dead ReLU under a causal mask, RMS norm, 16 tokens of two channels."""
    spec = Spec.of(layers=6, heads=1, dim=2, variant="san+mlp", norm="rms", mask="causal")
    for_weights, for_tokens = generators(279)
    net, x = build(spec, for_weights), gaussian_tokens(16, 2, generator=for_tokens)
    ratio = find_measure("residual_ratio[composite,mean]")
    states = split_states(net, x)
    for state, ordinary in list(zip(states, net.states(x), strict=True))[2:]:
        found = log_measure(ratio, state)
        assert 0.6 < float(ratio(ordinary)) < 0.8, "far from collapse: the ordinary pass has all its digits"
        assert float(found.log.exp()) == pytest.approx(float(ratio(ordinary)), rel=1e-9)
        assert bool(found.resolved)
    assert bool((states[-1].tokens() == 0).all(dim=-1).any()), "some tokens are exactly zero to the end"


@pytest.mark.parametrize("norm", [RMSNorm(eps=1e-12), Sphere(), LayerNorm(eps=1e-12)])
def test_tokens_much_shorter_than_the_mean(norm: Norm) -> None:
    """A token of 1e-12 beside tokens of size one has all its digits, and a direction."""
    draw = Draws(0)
    x = draw(5, 4)
    x[1] *= 1e-12
    x[3] = 0.0
    up = draw(4, 4)
    net = Network([Chain([Mlp(up, EYE, activation="identity"), norm])])
    assert off(net, x) < 1e-13


@pytest.mark.parametrize("norm", [RMSNorm(eps=1e-6), Sphere(eps=1e-6), LayerNorm(eps=1e-6)])
@pytest.mark.parametrize("power", [-10, -40])
def test_a_residual_along_the_common_row(norm: Norm, power: int) -> None:
    """In one dimension (two for LayerNorm, which removes one) all tokens are multiples of one row.

    What a norm leaves of their difference is of the order of eps, a millionth of what it subtracts.
    """
    row = torch.tensor([3.0, -3.0] if isinstance(norm, LayerNorm) else [3.0], dtype=torch.float64)
    steps = torch.tensor([0.0, 1.0, 2.0, -3.0], dtype=torch.float64)
    assert off(Network([norm]), (1 + 2.0**power * steps)[:, None] * row) < 1e-14


def sink_part(position: Any = None, rule: Any = None, strength: float = 40.0) -> Attention:
    """Keys are the first channel, which all queries ask for; values are the other channels."""
    draw = Draws(3)
    key = torch.zeros(4, 4, dtype=torch.float64)
    key[0, 0] = 1.0
    bias = torch.tensor([2.0 * strength, 0.0, 0.0, 0.0], dtype=torch.float64)
    mixer = Softmax(0.1 * draw(4, 4), key, heads=1, query_bias=bias, position=position, rule=rule)
    return Attention(mixer, Values(draw(4, 4), EYE, heads=1))


@pytest.mark.parametrize("position", [None, Alibi(torch.tensor([0.3], dtype=torch.float64))])
@pytest.mark.parametrize("strength", [20.0, 60.0])
def test_two_equal_sinks(position: Any, strength: float) -> None:
    """All queries read two equal tokens: what is left, e^-strength, is right to its digits, not to 1e-17."""
    x = Draws(4)(5, 4)
    x[:, 0] = 0.0
    x[:2] = x[0].clone()
    x[:2, 0] = 1.0
    assert off(Network([sink_part(position, strength=strength)]), x) < 1e-12


@pytest.mark.parametrize("rule", ["causal", "prefix:2+window:1", "full"])
def test_a_common_row_of_a_million(rule: str) -> None:
    draw = Draws(5)
    part = Attention(
        Softmax(1e-3 * draw(4, 4), draw(4, 4), heads=2, rule=parse_mask(rule)),
        Values(draw(4, 4), EYE, heads=2),
    )
    assert off(Network([part]), 1e6 * draw(4) + draw(5, 4)) < 1e-9  # the tokens themselves hold ten digits


@pytest.mark.parametrize("speed", [1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("cap", [None, 1.0])
def test_slow_rotary_angles(speed: float, cap: float | None) -> None:
    """Near consensus maps differ by the angles alone, which cosines of size one cannot hold."""
    draw = Draws(6)
    rotary = Rotary(speed * torch.tensor([1.0, 0.3], dtype=torch.float64))
    part = Attention(
        Softmax(draw(4, 4), draw(4, 4), heads=1, position=rotary, softcap=cap),
        Values(draw(4, 4), EYE, heads=1),
    )
    assert (
        off(Network([part]), draw(4) + 1e-6 * draw(5, 4)) < 1e-9
    )  # tokens hold ten digits of their difference


def test_far_tokens_turn_by_the_angle_that_is_left() -> None:
    draw = Draws(7)
    rotary = Rotary(torch.tensor([1.1, 0.7], dtype=torch.float64))
    part = Attention(
        Softmax(draw(4, 4), draw(4, 4), heads=1, position=rotary), Values(draw(4, 4), EYE, heads=1)
    )
    x, places = draw(3, 4), torch.tensor([0, 40_000_003, 90_000_001])
    net = Network([part])
    exact = residuals(describe(net, 3, tables="exact", positions=places), plain(x), 60)
    split = split_states(net, x, Context(positions=places))[-1]
    assert relative_error(plain(split.residual), float(split.log_scale), exact[-1]) < 1e-13


@pytest.mark.parametrize("size", [2.0, 5.0, 9.0])
@pytest.mark.parametrize("near", [1.0, 1e-5])
def test_soft_caps_that_saturate(size: float, near: float) -> None:
    """A cap of one on logits of up to 160: tanh is one to the last digit, and differences are e^-320."""
    draw = Draws(8)
    part = Attention(Softmax(EYE, EYE, heads=1, softcap=1.0), Values(draw(4, 4), EYE, heads=1))
    row = size * torch.ones(4, dtype=torch.float64)
    # the exponent of what is left is twice the logit, whose rounding is 1e-16 of it; tokens hold 1e-16 / near
    assert off(Network([part]), row + near * draw(5, 4), digits=400) < 1e-15 * (1 + size**2) / near


@pytest.mark.parametrize("seed", range(12))
def test_soft_caps_of_logits_of_every_size(seed: int) -> None:
    """The four terms of a logit of 1e-6 to 200 each, on both sides of zero, under a cap of one.

    What is left beyond shared row and column is a difference of four numbers near one, and may be e^-400.
    """
    draw, cpu = Draws(seed), torch.Generator().manual_seed(seed)

    def term(*shape: int) -> Tensor:
        return draw(*shape) * 10 ** (8.3 * torch.rand(*shape, generator=cpu, dtype=torch.float64) - 6)

    both = term(4, 4) * (torch.rand(4, 4, generator=cpu) < 0.5)
    table = term(1, 1) + term(4, 1) + term(1, 4) + both
    nothing = torch.zeros(4, 4, dtype=torch.float64)
    mixer = Softmax(nothing, nothing, heads=1, position=SeenBias(table[None]), softcap=1.0)
    (found,) = split_logits(mixer, split_tokens(draw(4, 4)), Context(), None, None)
    with mp.workdps(500):
        capped = [[mp.tanh(mp.mpf(entry)) for entry in row] for row in table.tolist()]
        for key, value in enumerate(found.shared[0, 0].tolist()):
            true = capped[0][key] - capped[0][0]
            assert abs(value - true) <= 1e-13 * abs(true) + mp.mpf("1e-290")
        apart = [
            [capped[i][j] - capped[i][0] - capped[0][j] + capped[0][0] for j in range(4)] for i in range(4)
        ]
        largest = max(abs(entry) for row in apart for entry in row)
        scale = mp.exp(mp.mpf(float(found.log_scale)))
        # A unit of rounding of a logit of 200 is 200 units of what it leaves, e^-400.
        for row, wanted in zip(found.rest[0].tolist(), apart, strict=True):
            assert all(abs(scale * a - b) <= 1e-13 * largest for a, b in zip(row, wanted, strict=True))


def test_far_tokens_side_by_side_under_a_soft_cap() -> None:
    """Logits differ by 1e5 between far tokens, of which a cap leaves nothing, and by four between neighbours."""
    draw = Draws(11)
    slope = Alibi(torch.tensor([4.1], dtype=torch.float64))
    part = Attention(
        Softmax(draw(4, 4), draw(4, 4), heads=1, position=slope, softcap=2.0),
        Values(draw(4, 4), EYE, heads=1),
    )
    x, places = draw(4, 4), torch.tensor([0, 70_001, 70_002, 160_000])
    net = Network([part])
    exact = residuals(describe(net, 4, tables="exact", positions=places), plain(x), 60)
    split = split_states(net, x, Context(positions=places))[-1]
    assert relative_error(plain(split.residual), float(split.log_scale), exact[-1]) < 1e-14


def test_tables_that_are_linear_but_for_their_last_digits() -> None:
    """A bias that is linear in the distance, signed, adds the same to every row: what is left are rounded entries."""
    draw = Draws(12)
    table = 0.1 * torch.arange(-5, 6, dtype=torch.float64)[:, None]
    position = RelativeBias(table, ClippedBuckets(max_distance=5))
    part = Attention(Softmax(EYE, EYE, heads=1, position=position), Values(draw(4, 4), EYE, heads=1))
    row = draw(4)
    assert off(Network([part]), row + 2.0**-40 * draw(5, 4).round()) < 1e-12


SCALES = (1e-20, 1e-9, 1e-4, 0.03, 0.3, 30.0)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
@pytest.mark.parametrize("scale", SCALES)
def test_quotients_of_every_activation(name: str, scale: float) -> None:
    """Also in tails, across the kink, and for changes that are neither small nor large."""
    draw = Draws(9)
    at = torch.cat([3 * draw(16), 12 * draw(16), -30 * draw(8).abs(), torch.zeros(1, dtype=torch.float64)])
    mantissa = draw(len(at))
    size = torch.tensor(scale, dtype=torch.float64)
    found = activation_quotient(ACTIVATIONS[name], at, mantissa, size)
    for h, m, value in zip(at.tolist(), mantissa.tolist(), found.tolist(), strict=True):
        with mp.workdps(360 if name == "gelu_tanh" else 60):  # the reference subtracts tanh from one
            before, after = mp.mpf(h), mp.mpf(h) + mp.mpf(scale) * mp.mpf(m)
            exact = (_activated(name, after) - _activated(name, before)) / mp.mpf(scale)
            # A rounding of the argument h moves a tail by h units per unit of h; near a zero of the slope nothing is
            # relative to it, and so the rounding of the slope counts. Four units of each are allowed.
            slack = 4 * 2.0**-53 * (1 + abs(h) * (abs(h) + abs(float(after))))
            tail = max(abs(_activated(name, before)), abs(_activated(name, after)))
            mean = abs(mp.mpf(m)) * min(1, tail * (1 + abs(h)) / max(abs(before), abs(after), mp.mpf("1e-9")))
            limit = 20 * slack * (abs(exact) + mean)
            assert abs(value - exact) <= limit + mp.mpf("1e-290"), (h, m, value, float(exact))


@pytest.mark.parametrize("x", [1e-320, 5e-312, 1e-305, 1e-200, 0.0])
def test_ratios_of_numbers_with_few_digits(x: float) -> None:
    """log1p of a number below 1e-308 is rounded to a multiple of 5e-324: divided by it again, digits would be gone."""
    for ratio in (log1p_ratio, expm1_ratio):
        assert float(ratio(torch.tensor(x, dtype=torch.float64))) == 1.0


def test_squares_of_residuals_among_the_smallest_floats() -> None:
    """Residuals of e^-355 to e^-372: their squares, the scale of the logits, have few digits, and maps have all.

    So far down the map is exactly cubic: the residual matrix is the same, and its log three times what it was.
    """
    draw = Draws(10)
    part = Attention(Softmax(draw(4, 4), draw(4, 4), heads=1), Values(draw(4, 4), EYE, heads=1))
    zero = torch.tensor(0.0, dtype=torch.float64)
    start = normalized(Split(common=draw(4), residual=draw(3, 4), log_scale=zero))

    def after(log: float) -> Split:
        return split_part(part, replace(start, log_scale=zero + log), Context())

    reference = after(-300.0)
    for log in (-355.0, -360.0, -369.0, -372.0, -400.0):
        found = after(log)
        assert_close(found.residual, reference.residual, rtol=0, atol=1e-13)
        assert float(found.log_scale) - 3 * log == pytest.approx(
            float(reference.log_scale) + 900.0, abs=1e-11
        )
