"""Known answers of the split pass, and how it refuses."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch.testing import assert_close

from kit.trees import DIM, Draws, attention, values
from rankscope.errors import ConfigError, NotUnderstood, NumericalError, ShapeError
from rankscope.masks import parse_mask
from rankscope.measures import find_measure, residual_norm
from rankscope.network import (
    ACTIVATIONS,
    Attention,
    Chain,
    Context,
    Fixed,
    Network,
    RMSNorm,
    Skip,
    Softmax,
    Spec,
    Sphere,
    TokenMap,
    Uniform,
    Values,
    build,
    gaussian_tokens,
)
from rankscope.network.seeds import batches
from rankscope.split import log_measure, log_residual, split_states, split_tokens
from rankscope.split.quotients import activation_quotient

CUBIC = Spec(layers=12, heads=2, dim=32)


def test_two_tokens_in_one_dimension_follow_the_closed_form() -> None:
    """X = +-a/2 with W_QK = k and W_V = 1: exactly a' = a tanh(k a^2 / 4), and its logarithm at any depth."""
    a, k, layers = 1.3, 0.7, 30
    one = torch.ones(1, 1, dtype=torch.float64)
    part = Attention(Softmax(k * one, one, heads=1, scale=1.0), Values(one, one, heads=1))
    x = torch.tensor([[a / 2], [-a / 2]], dtype=torch.float64)
    published = [0.3736440273, 0.0091269523, 1.33050159e-7, 4.1217746e-22]
    log_a = math.log(a)
    for layer, state in enumerate(split_states(Network([part] * layers), x)[1:]):
        square = math.exp(2 * log_a) * k / 4
        ratio = math.log(math.tanh(square)) if square > 1e-4 else 2 * log_a + math.log(k / 4) - square**2 / 3
        log_a += ratio
        found = float(state.log_scale) + math.log(
            math.sqrt(2)
        )  # the Frobenius residual of +-a/2 is a / sqrt 2
        assert found == pytest.approx(log_a, rel=1e-13)
        if layer < 4:
            assert math.exp(found) == pytest.approx(published[layer], rel=1e-8)


def test_pure_attention_cubes_its_residual_for_every_seed() -> None:
    (batch,) = batches(CUBIC, tokens=16, seeds=range(40))
    logs = torch.stack([state.log_scale for state in split_states(batch.network, batch.x)])
    assert float(logs[12].max()) < -50_000 * math.log(10)
    for layer in (10, 11):
        assert float((logs[layer + 1] / logs[layer] - 3).abs().max()) < 5e-4


@pytest.mark.slow
def test_a_thousand_layers_of_a_linear_network() -> None:
    spec = Spec(layers=1000, heads=2, dim=16, mask="causal", values="orthogonal", init="small")
    (batch,) = batches(spec, tokens=12, seeds=[0])
    last = split_states(batch.network, batch.x, error=False)[-1]
    # the factor is 1/2 per layer in the end; transients cost a few dozen layers
    assert -1000 * math.log(2) < float(last.log_scale) < -900 * math.log(2)


def test_equal_tokens_stay_equal_and_have_no_residual() -> None:
    net = build(
        Spec(layers=3, heads=2, dim=8, variant="transformer", norm="layer"), torch.Generator().manual_seed(0)
    )
    x = Draws(0)(8).expand(5, 8)
    for split, state in zip(split_states(net, x), net.states(x), strict=True):
        assert float(split.log_scale) == -math.inf
        assert bool((split.residual == 0).all())
        assert_close(split.common, state[0])


def test_uniform_mixing_collapses_in_one_layer_exactly() -> None:
    part = Attention(Uniform(heads=2), values(Draws(0)))
    states = split_states(Network([part, part]), Draws(1)(5, DIM))
    assert float(states[1].log_scale) == -math.inf
    skipped = split_states(Network([Skip(part)]), Draws(1)(5, DIM))
    assert_close(skipped[1].log_scale, skipped[0].log_scale)


def test_fixed_maps_with_almost_equal_rows_keep_their_difference() -> None:
    rows = torch.full((1, 4, 4), 0.25, dtype=torch.float64)
    rows[0, 0, 0] += 2.0**-40
    rows[0, 0, 1] -= 2.0**-40
    x = Draws(2)(4, DIM)
    split = split_states(
        Network([Attention(Fixed(rows), Values(torch.eye(DIM).double(), torch.eye(DIM).double(), heads=1))]),
        x,
    )
    moved = 2.0**-40 * (x[0] - x[1])
    expected = torch.stack([0.75 * moved, -0.25 * moved, -0.25 * moved, -0.25 * moved])
    assert_close(split[1].scale * split[1].residual, expected, rtol=1e-13, atol=1e-30)


def test_a_silent_position_rule_stays_cubic() -> None:
    draw = Draws(3)
    plain = attention(draw)
    x = draw(5, DIM)
    from rankscope.network import Alibi, LogBuckets, RelativeBias

    for rule in (
        Alibi(torch.zeros(2, dtype=torch.float64)),
        RelativeBias(torch.full((8, 2), 0.3, dtype=torch.float64), LogBuckets(count=8)),
    ):
        mixer = Softmax(
            plain.mixer.query, plain.mixer.key, heads=2, query_bias=plain.mixer.query_bias, position=rule
        )
        bare = Softmax(plain.mixer.query, plain.mixer.key, heads=2, query_bias=plain.mixer.query_bias)
        one, other = (split_states(Network([Attention(m, plain.values)] * 6), x)[-1] for m in (mixer, bare))
        assert float(one.log_scale) < -200
        assert_close(one.log_scale, other.log_scale, rtol=1e-10, atol=0)


def test_keys_that_all_queries_share_need_not_be_all_keys(tmp_path: object) -> None:
    from rankscope.masks import ExplicitMask
    from rankscope.network import with_mask

    draw = Draws(4)
    allowed = [[True, True, True, False, False]] * 5
    net = with_mask(Network([attention(draw)] * 5), ExplicitMask(allowed))
    logs = [float(state.log_scale) for state in split_states(net, draw(5, DIM))]
    assert logs[-1] < 2.5 * logs[-2] < 0, "one set of keys for all queries: cubic"


@pytest.mark.parametrize("norm", ["l1", "linf", "composite", "frobenius", "spectral", "max"])
@pytest.mark.parametrize("center", ["mean", "median", "midrange", "linf", "best"])
def test_log_residual_is_the_log_of_the_measure(norm: str, center: str) -> None:
    x = Draws(5)(2, 6, DIM)
    found = log_residual(split_tokens(x), norm=norm, center=center)
    assert_close(split_tokens(x).log_residual(norm=norm, center=center), found, rtol=0, atol=0)
    value = residual_norm(x, norm=norm, center=center)
    value = value.high if isinstance(value, tuple) else value
    # a center of linf, and a bracket, may stop elsewhere for another scaling: within one percent
    loose = center == "linf" or (center == "best" and norm in ("linf", "composite"))
    assert_close(found.exp(), value, rtol=0.02 if loose else 1e-12, atol=0)


def test_ratios_and_diameters_come_from_the_split_too() -> None:
    x, is_token = Draws(6)(2, 6, DIM), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    state = split_tokens(x, is_token)
    for name in ("residual_ratio[composite,mean]", "diameter[l2]", "residual[composite,best]"):
        measure = find_measure(name)
        found = log_measure(measure, state)
        for text in range(2):
            value = measure(x[text][is_token[text]])
            value = value.high if isinstance(value, tuple) else value
            assert_close(found.log[text].exp(), value, rtol=0.02 if "best" in name else 1e-12, atol=0)
    with pytest.raises(ConfigError, match=r"cosine.* cannot be read off a split state"):
        log_measure(find_measure("cosine"), state)
    with pytest.raises(ConfigError, match="unit"):
        log_measure(find_measure("residual_ratio[composite,mean,unit]"), state)


def test_one_huge_token_is_followed() -> None:
    draw = Draws(7)
    x = draw(5, DIM)
    x[2] *= 1e6
    net = Network([Chain([RMSNorm(eps=1e-6), attention(draw)]), attention(draw)])
    for split, state in zip(split_states(net, x), net.states(x), strict=True):
        expected = state - state.mean(dim=0)
        assert_close(split.scale * split.residual, expected, rtol=1e-9, atol=1e-12 * float(state.norm()))


@pytest.mark.parametrize("size", [30.0, 300.0])
def test_logits_that_overflow_exp_are_no_trouble(size: float) -> None:
    draw = Draws(8)
    net, x = (
        Network([attention(draw), attention(draw, rule="causal"), Skip(attention(draw), 0.3)]),
        size * draw(5, DIM),
    )
    assert float(net.blocks[0].mixer.logits(x, Context()).max()) > (700 if size == 300 else 50)
    for split, state in zip(split_states(net, x), net.states(x), strict=True):
        expected = state - state.mean(dim=0)
        assert_close(split.scale * split.residual, expected, rtol=1e-9, atol=1e-11 * float(state.norm()))


def test_what_cannot_be_done_is_refused_by_name() -> None:
    x = Draws(9)(5, DIM)
    with pytest.raises(NotUnderstood, match="split has no rule for the part TokenMap"):
        split_states(Network([TokenMap(torch.nn.Dropout(0.5))]), x)
    with pytest.raises(NumericalError, match="after layer 1 is beyond the range of float64"):
        split_states(Network([attention(Draws(10))]), 1e200 * x)
    with pytest.raises(ShapeError, match="NaN or infinity"):
        split_states(Network([Sphere()]), torch.full((2, 3), torch.nan, dtype=torch.float64))
    with pytest.raises(ShapeError, match="floating-point"):
        split_states(Network([Sphere()]), torch.ones(2, 3, dtype=torch.int64))


def test_a_token_that_is_zero_on_the_sphere() -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, -1.0]], dtype=torch.float64)
    split = split_states(Network([Sphere()]), x)[1]
    expected = Sphere()(x)
    assert_close(split.tokens(), expected)


def test_masks_that_leave_short_texts_alone_are_told_apart_text_by_text() -> None:
    """window:3 allows everything in a text of four tokens and not in one of six."""
    draw = Draws(11)
    net = Network([attention(draw, rule="window:3")] * 4)
    x, is_token = draw(2, 6, DIM), torch.tensor([[True] * 4 + [False] * 2, [True] * 6])
    last = split_states(net, x, Context(is_token=is_token))[-1]
    assert float(last.log_scale[0]) < -40 < -10 < float(last.log_scale[1])


def test_parse_and_spec_reach_the_split() -> None:
    net = build(Spec(layers=2, heads=2, dim=8, mask="prefix:1+causal"), torch.Generator().manual_seed(0))
    x = gaussian_tokens(6, 8, generator=torch.Generator().manual_seed(1))
    assert parse_mask("prefix:1+causal").matrix(6).any()
    assert len(split_states(net, x)) == 3


def _exact_relu2(h: Fraction) -> Fraction:
    return max(h, Fraction(0)) ** 2


def _exact_leaky_relu(h: Fraction) -> Fraction:
    return max(h, Fraction(0.01) * h)


@pytest.mark.parametrize(("name", "fn"), [("relu2", _exact_relu2), ("leaky_relu", _exact_leaky_relu)])
@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e-9, 1e-3, 1.0, 30.0])
def test_the_quotient_of_bent_activations_keeps_its_digits(
    scale: float, name: str, fn: Callable[[Fraction], Fraction]
) -> None:
    at, mantissa = torch.meshgrid(
        torch.tensor([-2.0, -1e-3, 0.0, 1e-9, 0.3, 5.0]), torch.tensor([-1.0, -1e-6, 0.0, 0.7]), indexing="ij"
    )
    at, mantissa, size = at.double(), mantissa.double(), torch.tensor(scale, dtype=torch.float64)
    found = activation_quotient(ACTIVATIONS[name], at, mantissa, size)
    for one, m, got in zip(at.flatten(), mantissa.flatten(), found.flatten(), strict=True):
        h, s = Fraction(float(one)), Fraction(scale)
        exact = (fn(h + s * Fraction(float(m))) - fn(h)) / s
        assert float(got) == pytest.approx(float(exact), rel=1e-13, abs=1e-300)
