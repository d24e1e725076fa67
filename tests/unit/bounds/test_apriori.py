"""A-priori statements: sharp where they should be, true for random and hostile networks, silent with a reason."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.bounds.apriori import Region, effect
from rankscope.bounds.apriori_layers import apriori
from rankscope.bounds.apriori_norms import Norms, head_norms
from rankscope.bounds.logs import log_difference, log_sum, log_tanh, lowered, raised
from rankscope.core.operator_norms import product_bound
from rankscope.errors import ConfigError, NotUnderstood
from rankscope.network import (
    Attention,
    Chain,
    Context,
    Fixed,
    LayerNorm,
    Mlp,
    Network,
    RMSNorm,
    Scale,
    Skip,
    Softmax,
    Spec,
    Sphere,
    Sum,
    TokenMap,
    Uniform,
    Values,
    build,
    gaussian_tokens,
    generators,
    stack,
)
from reference import apriori_loops as loops


def head(k: float = 0.7, w: float = 1.0) -> Attention:
    """One head on one channel."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return Attention(Softmax(k * one, one, heads=1), Values(w * one, one, heads=1))


def drawn(seed: int = 0, **options: object) -> Network:
    spec = Spec.of(**{"layers": 3, "heads": 2, "dim": 8} | options)
    return build(spec, generators(seed)[0])


def test_log_tanh_has_all_digits() -> None:
    logs = [*np.linspace(-12, 5, 400), -1e6, -745.5]
    found = log_tanh(torch.tensor(logs, dtype=torch.float64)).tolist()
    with mpmath.workdps(400):
        for log, value in zip(logs, found, strict=True):
            exact = mpmath.log(mpmath.tanh(mpmath.exp(mpmath.mpf(log))))
            # large arguments: the relative rounding of the argument is multiplied by it
            assert abs(value - exact) <= 5e-16 * max(1, 2 * mpmath.exp(log)) * abs(exact)
    assert log_tanh(torch.tensor([-torch.inf, torch.inf])).tolist() == [-math.inf, 0.0]


@given(st.floats(-50, 50), st.floats(-50, 50))
def test_logarithms_are_rounded_to_the_safe_side(a: float, b: float) -> None:
    left, right = torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
    with mpmath.workdps(60):
        total = mpmath.log(mpmath.exp(a) + mpmath.exp(b))
        assert float(log_sum(left, right)) >= total
        found = float(log_difference(left, right))
        if found > -math.inf:
            assert found <= mpmath.log(mpmath.exp(a) - mpmath.exp(b))
        else:
            assert a <= b + 1e-13 * (1 + abs(a))
    assert lowered(left) < left < raised(left)


def test_two_tokens_on_a_line_attain_theorem_a() -> None:
    network = Network([head()] * 5)
    a = 1.3
    for statement in apriori(network, spread=1.3).layers:
        a = a * math.tanh(0.7 * a * a / 4)
        # norms are one billionth up, and each layer triples that
        assert float(statement.upper) == pytest.approx(math.log(a), rel=1e-7)
        assert float(statement.upper) >= math.log(a)
    assert f"{a:.6e}"[:4] == "1.22"


def test_attention_alone_follows_the_loops() -> None:
    network = drawn(seed=3, layers=4)
    x = gaussian_tokens(6, 8, generator=torch.Generator().manual_seed(0)) * 0.05
    bound = loops.spread(x.numpy())
    found = apriori(network, spread=bound)
    for block, statement in zip(network.blocks, found.layers, strict=True):
        mixer, values = block.mixer, block.values
        heads = []
        for h in range(2):
            part = slice(4 * h, 4 * h + 4)
            logits = (mixer.query[:, part] @ mixer.key[:, part].T / 2).numpy()
            heads.append((logits, (values.value[:, part] @ values.out[part]).numpy()))
        bound = loops.theorem_a(heads, bound)
        assert float(statement.upper) == pytest.approx(math.log(bound), abs=1e-6)  # margins of 1e-9, tripled
        assert float(statement.upper) >= math.log(bound)


def test_biases_change_nothing() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) / 2

    query, key, value, out = (draw(6, 6) for _ in range(4))
    plain = Attention(Softmax(query, key, heads=2), Values(value, out, heads=2))
    biased = Attention(
        Softmax(query, key, heads=2, query_bias=draw(6), key_bias=draw(6)),
        Values(value, out, heads=2, value_bias=draw(6), out_bias=draw(6)),
    )
    for spread, size in ((0.3, None), (1.0, 2.0)):
        (first,), (second,) = (
            apriori(Network([p]), spread=spread, size=size).layers for p in (plain, biased)
        )
        assert first.upper == second.upper
        x = 0.5 + draw(5, 6)
        x = x * spread / loops.spread(x.numpy())
        assert loops.spread(biased(x, Context()).detach().numpy()) <= float(second.upper.exp())
        region = effect(biased, Region.of(spread, float(x.norm(dim=-1).max()) * (1 + 1e-12)), Norms(6)).after
        assert float(biased(x, Context()).norm(dim=-1).max()) <= float(region.size.exp())


SETTINGS = st.fixed_dictionaries(
    {
        "variant": st.sampled_from(["san", "san+skip", "san+mlp", "transformer"]),
        "norm": st.sampled_from(["none", "none", "layer", "rms", "sphere"]),
        "placement": st.sampled_from(["post", "pre", "sandwich", "parallel"]),
        "init": st.sampled_from(["paper", "small", "layerscale", "deepnorm", "scaled"]),
        "mask": st.sampled_from(["full", "full", "causal", "window:1"]),
        "activation": st.sampled_from(["relu", "gelu", "silu", "tanh"]),
        "gated": st.booleans(),
        "position": st.sampled_from(["none", "none", "rotary", "alibi:0.5"]),
        "key_heads": st.sampled_from([None, 1]),
    }
)


@settings(max_examples=25)  # each looks at six statements of two layers
@given(SETTINGS, st.integers(0, 10_000), st.floats(-6, 2), st.integers(2, 5))
def test_no_input_breaks_a_statement(
    options: dict[str, object], seed: int, log_size: float, tokens: int
) -> None:
    network = drawn(seed=seed, layers=2, **options)
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(8, generator=generator, dtype=torch.float64)
    x = common + math.exp(log_size) * torch.randn(tokens, 8, generator=generator, dtype=torch.float64)
    before, longest = loops.spread(x.numpy()), float(x.norm(dim=-1).max())
    given_both = apriori(network, spread=before, size=longest * (1 + 1e-12))
    every = apriori(network)
    states = [state.numpy() for state in network.states(x)]
    spreads = [loops.spread(state) for state in states]
    for layer in range(1, len(states)):
        one, all_inputs = given_both.layers[layer - 1], every.layers[layer - 1]
        floor = 1e-12 * float(
            np.abs(states[layer]).max() + np.abs(states[layer - 1]).max()
        )  # rounding of the pass
        for low, high, base in (
            (one.lower, one.upper, 1.0),
            (all_inputs.gain_lower, all_inputs.gain_upper, spreads[layer - 1]),
            (all_inputs.total_lower, all_inputs.total_upper, spreads[0]),
        ):
            assert math.exp(float(low)) * base <= spreads[layer] + floor
            assert spreads[layer] <= float(torch.exp(high)) * base + floor
        if spreads[layer - 1] < math.exp(min(float(one.critical), 700.0)) and spreads[layer - 1] > 1e-6:
            assert spreads[layer] < spreads[layer - 1] + floor


@pytest.mark.parametrize(
    ("init", "value"), [("rezero", 0.0), ("rezero", 0.02), ("layerscale", 0.05), ("deepnorm", None)]
)
def test_scaled_branches_keep_every_input_apart(init: str, value: float | None) -> None:
    network = drawn(layers=4, variant="transformer", init=init)
    if value is not None:
        for part in network.modules():
            if isinstance(part, Scale):
                part.value.data.fill_(value)
    found = apriori(network)
    assert all(torch.isfinite(one.total_lower) for one in found.layers)
    assert all(one.no_lower == () for one in found.layers)
    tokens = torch.randn(400, 2, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for scale in (1e-3, 1.0, 30.0):
        states = network.states(tokens * scale)
        spreads = [(state[:, 0] - state[:, 1]).norm(dim=-1) for state in states]
        for one, after in zip(found.layers, spreads[1:], strict=True):
            assert (after >= spreads[0] * one.total_lower.exp() * (1 - 1e-12)).all()


def test_a_hostile_input_does_not_break_the_lower_bound() -> None:
    """Gradient descent on the spread that is left, over inputs of two tokens."""
    network = drawn(seed=2, layers=1, variant="san+skip", heads=1, init="layerscale")
    bound = float(apriori(network).layers[0].gain_lower.exp())
    assert 0 < bound < 1
    x = torch.randn(
        64, 2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.05)
    for _ in range(80):
        after = network.states(x)[1]
        ratio = (after[:, 0] - after[:, 1]).norm(dim=-1) / (x[:, 0] - x[:, 1]).norm(dim=-1)
        optimizer.zero_grad()
        ratio.sum().backward()
        optimizer.step()
    least = float(ratio.detach().min())
    assert bound <= least
    assert least < bound + 0.5 * (1 - bound)  # and the bound is not idle


def test_what_stands_in_the_way_is_named() -> None:
    (alone,) = apriori(Network([head()])).layers[0].no_lower
    assert "skip around attention" in alone.name
    (large,) = apriori(Network([Skip(head(w=3.0))])).layers[0].no_lower
    assert (large.name, float(large.value)) == ("attention branch smaller than its skip", pytest.approx(3.0))
    masked = drawn(mask="causal", layers=1)
    assert "mask causal" in apriori(masked).layers[0].no_upper[0].says
    turned = drawn(position="rotary", layers=1)
    assert "Rotary" in apriori(turned).layers[0].no_upper[0].says
    normed = apriori(drawn(layers=1, variant="transformer", norm="layer", init="deepnorm"))
    assert any("LayerNorm" in why.name for why in normed.layers[0].no_lower)
    sphere = apriori(drawn(layers=1, norm="sphere"))
    assert any("eps above zero" in why.name for why in sphere.layers[0].no_upper)


@pytest.mark.parametrize("name", ["softcap", "query_norm"])
def test_capped_and_normed_logits_are_not_taken_for_plain_ones(name: str) -> None:
    eye = torch.eye(4, dtype=torch.float64)
    options = {"softcap": 5.0} if name == "softcap" else {"query_norm": RMSNorm(eps=1e-6)}
    part = Attention(Softmax(eye, eye, heads=1, **options), Values(eye, eye, heads=1))
    (statement,) = apriori(Network([part]), spread=0.1).layers
    assert float(statement.upper) == pytest.approx(math.log(0.1), abs=1e-8)
    assert len(statement.no_upper) == 1


def test_a_gated_mlp_needs_bounded_tokens() -> None:
    network = drawn(layers=1, variant="san+mlp", gated=True, activation="silu")
    (unbounded,) = apriori(network, spread=1.0).layers
    assert float(unbounded.upper) == math.inf
    assert "gated mlp" in unbounded.no_upper[0].name
    (bounded,) = apriori(network, spread=1.0, size=2.0).layers
    assert math.isfinite(float(bounded.upper))
    assert float(apriori(network, spread=1.0, size=4.0).layers[0].upper) > float(bounded.upper)


def test_a_norm_bounds_what_leaves_it_whatever_enters() -> None:
    gain = torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64)
    norms = Norms(3)
    for part, limit in (
        (LayerNorm(gain, eps=1e-5), 4 * math.sqrt(3)),
        (RMSNorm(gain, eps=1e-5), 4 * math.sqrt(3)),
        (Sphere(gain), 4.0),
    ):
        after = effect(part, Region.of(), norms).after
        assert float(after.high) == pytest.approx(math.log(limit), abs=1e-8)
        assert limit <= float(after.high.exp())
        small = effect(part, Region.of(1e-4), norms).after.high
        steepest = math.inf if isinstance(part, Sphere) else 2e-4 / math.sqrt(1e-5)
        assert float(small.exp()) == pytest.approx(min(limit, steepest), rel=1e-8)


def test_sums_scales_and_fixed_maps() -> None:
    eye = torch.eye(3, dtype=torch.float64)
    maps = torch.tensor([[[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]], dtype=torch.float64)
    fixed = Attention(Fixed(maps), Values(eye, 2 * eye, heads=1))
    block = Sum([Scale(torch.tensor([3.0, -4.0, 5.0])), fixed, Chain(())])
    found = effect(block, Region.of(2.0), Norms(3))
    tau = 0.25
    assert float(found.upper.exp()) == pytest.approx(5 + 2 * tau + 1)
    assert float(found.lower.exp()) == pytest.approx(3 - 2 * tau - 1)
    assert float(found.after.low.exp()) == pytest.approx(2 * (3 - 2 * tau - 1))
    empty = effect(Sum(()), Region.of(2.0), Norms(3))
    assert float(empty.upper) == -math.inf
    uniform = Attention(Uniform(heads=1), Values(eye, eye, heads=1))
    assert float(effect(uniform, Region.of(), Norms(3)).after.high) == -math.inf
    assert float(effect(Scale(0.0), Region.of(), Norms(3)).upper) == -math.inf


def test_the_critical_spread_is_where_theorem_a_gains_one() -> None:
    network = drawn(seed=4, layers=2)
    found = apriori(network)
    for block, statement in zip(network.blocks, found.layers, strict=True):
        d = float(statement.critical.exp())
        heads = [
            ((block.mixer.query[:, p] @ block.mixer.key[:, p].T / 2).numpy(),
             (block.values.value[:, p] @ block.values.out[p]).numpy())
            for p in (slice(0, 4), slice(4, 8))
        ]  # fmt: skip
        assert loops.theorem_a(heads, d) <= d
        assert loops.theorem_a(heads, d * (1 + 1e-7)) > d
    assert float(found.critical) == pytest.approx(min(float(one.critical) for one in found.layers), abs=1e-9)
    assert float(apriori(Network([head(w=0.9)])).critical) == math.inf
    assert float(apriori(Network([Skip(head(w=0.9))])).critical) == -math.inf


def test_layers_until_a_target() -> None:
    found = apriori(Network([head()] * 6), spread=1.3)
    assert [found.layers_until(target) for target in (1.0, 1e-2, 1e-8, 1e-60, 1e-150)] == [1, 2, 4, 5, 6]
    assert apriori(Network([Skip(head())]), spread=1.3).layers_until(1e-3) is None
    with pytest.raises(ConfigError, match="must be above zero"):
        found.layers_until(0.0)


def test_an_mlp_must_make_up_for_attention() -> None:
    up = torch.eye(1, dtype=torch.float64)
    block = Chain(
        [head(), Mlp(3 * up, 2 * up, activation="gelu", up_bias=torch.ones(1, dtype=torch.float64))]
    )
    found = apriori(Network([block, block]), spread=0.5)
    shrink = math.tanh(0.7 * 0.25 / 4)
    for layer, one in enumerate(found.mlps, start=1):
        assert float(one.lipschitz.exp()) == pytest.approx(6 * 1.1289041451851548, rel=1e-8)
        assert float(one.needed.exp()) == pytest.approx(1 / shrink, rel=1e-8)
        assert float(one.sensitivity.exp()) == pytest.approx(shrink**-layer, rel=1e-8)
        assert not bool(one.is_enough)
    assert apriori(Network([block])).mlps == ()


def test_norms_of_products_are_never_too_small() -> None:
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(5, 9, 4, generator=generator, dtype=torch.float64)
    right = torch.randn(5, 4, 9, generator=generator, dtype=torch.float64)
    exact = torch.linalg.matrix_norm(left @ right, ord=2)
    assert (product_bound(left, right) >= exact).all()
    torch.testing.assert_close(product_bound(left, right), exact, rtol=1e-8, atol=0)
    cancels = (
        torch.tensor([[1e8, 1.0]], dtype=torch.float64),
        torch.tensor([[1.0], [-1e8]], dtype=torch.float64),
    )
    assert float(product_bound(*cancels)) >= 0.0


def test_a_stack_of_seeds_equals_single_networks() -> None:
    spec = Spec(
        layers=2, heads=2, dim=8, variant="transformer", norm="layer", placement="pre", init="layerscale"
    )
    singles = [build(spec, generators(seed)[0]) for seed in range(3)]
    whole = apriori(stack(singles), spread=0.2)
    for seed, network in enumerate(singles):
        own = apriori(network, spread=0.2)
        for joint, one in zip(whole.layers, own.layers, strict=True):
            for name in ("gain_lower", "gain_upper", "lower", "upper", "critical"):
                torch.testing.assert_close(
                    getattr(joint, name)[seed], getattr(one, name), rtol=1e-12, atol=1e-12
                )


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(ConfigError, match="spread=0"):
        apriori(Network([head()]), spread=0)
    with pytest.raises(ConfigError, match="size=inf"):
        apriori(Network([head()]), size=math.inf)
    with pytest.raises(ConfigError, match="cannot be spread=3 apart"):
        apriori(Network([head()]), spread=3.0, size=1.0)
    with pytest.raises(NotUnderstood, match="TokenMap"):
        apriori(Network([TokenMap(torch.nn.Identity())]))


@pytest.mark.parametrize("gated", [False, True])
def test_an_activation_without_a_largest_slope_is_refused(gated: bool) -> None:
    with pytest.raises(NotUnderstood, match="Mlp; its activation relu2 has no largest slope"):
        apriori(drawn(layers=1, variant="san+mlp", gated=gated, activation="relu2"))


def test_no_gradients_and_no_changes() -> None:
    network = drawn(layers=1)
    held = [parameter.clone() for parameter in network.parameters()]
    statement = apriori(network, spread=1.0).layers[0]
    assert not statement.upper.requires_grad
    for before, after in zip(held, network.parameters(), strict=True):
        torch.testing.assert_close(before, after, rtol=0, atol=0)
    assert network(torch.zeros(2, 8, dtype=torch.float64), Context()).shape == (2, 8)


def test_stored_maps_that_are_all_but_equal_are_not_taken_for_equal() -> None:
    """Rows that differ by one unit of rounding differ: dividing by their sums in floats may hide it."""
    third = 1 / 3
    maps = torch.tensor(
        [[[third] * 3, [math.nextafter(third, 1.0), third, third], [third] * 3]], dtype=torch.float64
    )
    rows = [[Fraction(entry) for entry in row] for row in maps[0].tolist()]
    shares = [[entry / sum(row) for entry in row] for row in rows]
    exact = (
        max(sum(abs(a - b) for a, b in zip(one, two, strict=True)) for one in shares for two in shares) / 2
    )
    eye = torch.eye(2, dtype=torch.float64)
    found = apriori(Network([Attention(Fixed(maps), Values(eye, eye, heads=1))])).layers[0]
    assert exact > 0
    assert float(found.gain_upper) >= math.log(exact)


def test_biases_that_cancel_in_floats_are_not_taken_for_zero() -> None:
    eye = torch.eye(1, dtype=torch.float64)
    bias = torch.tensor([-0.1 * 0.1], dtype=torch.float64)
    values = Values(
        eye, 0.1 * eye, heads=1, value_bias=torch.tensor([0.1], dtype=torch.float64), out_bias=bias
    )
    exact = abs(Fraction(0.1) * Fraction(0.1) + Fraction(float(bias)))
    assert exact > 0
    assert float(head_norms(Attention(Uniform(heads=1), values)).bias) >= math.log(exact)
