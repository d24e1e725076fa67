"""Specs are validated at birth; random networks are what their names say."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from rankscope.bounds.forecast_spec import outline_of
from rankscope.errors import ConfigError, MaskError, UnknownNameError
from rankscope.network import (
    Alibi,
    Chain,
    Network,
    QueryKey,
    Scale,
    Skip,
    Spec,
    Sum,
    build,
    gaussian_tokens,
    generators,
    stack,
)
from rankscope.network.mixers.named import MIXERS

SMALL = {"layers": 3, "heads": 4, "dim": 16, "variant": "transformer"}


def network(**fields: object) -> Network:
    return build(Spec(**{**SMALL, **fields}), torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"heads": 3}, ConfigError, "heads=3 does not divide dim=16; choose heads among 1, 2, 4, 8"),
        ({"layers": 0}, ConfigError, "layers=0: input should be greater than or equal to 1"),
        ({"key_heads": 3}, ConfigError, "key_heads=3 does not divide heads=4"),
        ({"norm": "layr"}, UnknownNameError, "unknown norm 'layr'; did you mean 'layer'"),
        ({"placement": "front"}, UnknownNameError, "unknown placement 'front'"),
        ({"variant": "sam"}, UnknownNameError, "did you mean 'san'"),
        ({"init": "xavir"}, UnknownNameError, "did you mean 'xavier'"),
        ({"activation": "rleu"}, UnknownNameError, "did you mean 'relu'"),
        ({"position": "rotory"}, UnknownNameError, "did you mean 'rotary'"),
        ({"position": "alibi:-1"}, ConfigError, "does not read as alibi"),
        ({"position": "none:3"}, ConfigError, "does not read as none"),
        ({"position": "rotary:x"}, ConfigError, "does not read as rotary"),
        ({"mask": "window:-1"}, MaskError, "at least"),
        ({"mask": "widow:1"}, UnknownNameError, "did you mean 'window'"),
        ({"laiers": 3}, UnknownNameError, "unknown field of Spec 'laiers'; did you mean 'layers'"),
        ({"init": "orthogonal", "values": "identity"}, ConfigError, "means orthogonal values"),
    ],
)
def test_a_wrong_spec_says_what_would_work(fields: dict[str, object], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        Spec(**{**SMALL, **fields})


def test_every_complaint_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"layers=0: .*; dim=-1: .*"):
        Spec(layers=0, heads=1, dim=-1)


def test_a_spec_is_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        Spec(**SMALL).layers = 4


def test_rotary_needs_an_even_head() -> None:
    with pytest.raises(ConfigError, match="pairs of channels"):
        network(heads=16, position="rotary")


@pytest.mark.parametrize(
    ("placement", "shape"),
    [
        ("post", Chain),
        ("pre", Chain),
        ("sandwich", Chain),
        ("parallel", Skip),
    ],
)
def test_placements_are_nesting(placement: str, shape: type) -> None:
    net = network(placement=placement, norm="layer")
    block = net.blocks[0]
    assert isinstance(block, shape)
    names = [[type(part).__name__ for part in child.modules()][:1] for child in block.children()]
    assert names
    if placement == "post":
        assert [type(part).__name__ for part in block.parts] == ["Skip", "LayerNorm", "Skip", "LayerNorm"]
        assert net.final_norm is None
    else:
        assert type(net.final_norm).__name__ == "LayerNorm"
    if placement == "sandwich":
        assert [type(part).__name__ for part in block.parts[0].inner.parts] == [
            "LayerNorm",
            "Attention",
            "LayerNorm",
        ]
    if placement == "pre":
        assert [type(part).__name__ for part in block.parts[1].inner.parts] == ["LayerNorm", "Mlp"]
    if placement == "parallel":
        assert isinstance(block.inner, Sum)


def test_paper_weights_have_variance_one_over_fan_in() -> None:
    net = build(Spec(layers=1, heads=2, dim=256, variant="transformer"), torch.Generator().manual_seed(0))
    attention, mlp = net.blocks[0].parts[0].inner, net.blocks[0].parts[1].inner
    weights = (
        attention.mixer.query,
        attention.mixer.key,
        attention.values.value,
        attention.values.out,
        mlp.up,
        mlp.down,
    )
    for weight in weights:
        # 256 x 256 entries: the sample variance is within 2% of the true one at four sigma
        assert_close(
            weight.var() * weight.shape[-2], torch.tensor(1.0, dtype=torch.float64), rtol=0.025, atol=0
        )


@pytest.mark.parametrize("fields", [{"init": "orthogonal"}, {"values": "orthogonal"}])
def test_orthogonal_values_sum_to_an_orthogonal_map(fields: dict[str, str]) -> None:
    total = network(**fields).blocks[0].parts[0].inner.values.value_out().sum(dim=-3)
    assert_close(total @ total.mT, torch.eye(16, dtype=torch.float64))


def test_identity_values_sum_to_the_identity() -> None:
    total = network(values="identity").blocks[0].parts[0].inner.values.value_out().sum(dim=-3)
    assert_close(total, torch.eye(16, dtype=torch.float64))


def test_rezero_is_the_identity_at_the_start() -> None:
    x = torch.randn(5, 16, dtype=torch.float64)
    assert_close(network(init="rezero")(x), x, rtol=0, atol=0)


def test_layerscale_and_deepnorm_scale_as_published() -> None:
    scales = [part.value for part in network(init="layerscale").modules() if isinstance(part, Scale)]
    assert len(scales) == 6
    assert all(scale.shape == (16,) and bool((scale == 0.1).all()) for scale in scales)
    deep = [part.value for part in network(init="layerscale", layers=20).modules() if isinstance(part, Scale)]
    assert bool((deep[0] == 1e-5).all())
    net, plain = network(init="deepnorm"), network(init="xavier")
    assert {part.scale for part in net.modules() if isinstance(part, Skip)} == {6**0.25}
    ratio = net.blocks[0].parts[1].inner.up / plain.blocks[0].parts[1].inner.up
    assert_close(ratio, torch.full_like(ratio, 24**-0.25))
    same = net.blocks[0].parts[0].inner.mixer.query
    assert_close(same, plain.blocks[0].parts[0].inner.mixer.query, rtol=0, atol=0)


def test_scaled_init_divides_the_branch_outputs() -> None:
    ratio = (
        network(init="scaled").blocks[0].parts[0].inner.values.out
        / network().blocks[0].parts[0].inner.values.out
    )
    assert_close(ratio, torch.full_like(ratio, 6**-0.5))


def test_a_deeper_network_begins_with_the_shallower_one() -> None:
    x = torch.randn(5, 16, dtype=torch.float64)
    assert_close(network(layers=5).states(x)[3], network().states(x)[3], rtol=0, atol=0)


def test_grouped_heads_and_gates_are_built() -> None:
    net = network(key_heads=2, gated=True, activation="silu")
    attention, mlp = net.blocks[0].parts[0].inner, net.blocks[0].parts[1].inner
    assert attention.mixer.key.shape == (16, 8)
    assert attention.values.value.shape == (16, 8)
    assert mlp.gate.shape == (16, 64)
    assert net(torch.randn(5, 16, dtype=torch.float64)).shape == (5, 16)
    with pytest.raises(ConfigError, match="orthogonal values need"):
        network(key_heads=2, values="orthogonal")


def test_one_slope_in_every_head() -> None:
    rule = network(position="alibi:0.5").blocks[0].parts[0].inner.mixer.position
    assert isinstance(rule, Alibi)
    assert rule.slopes.tolist() == [0.5] * 4


@given(st.integers(0, 2**40))
def test_weights_and_tokens_of_a_seed_are_independent_and_repeatable(seed: int) -> None:
    (weights, tokens), (again, _) = generators(seed), generators(seed)
    first = torch.randn(8, generator=weights)
    assert_close(first, torch.randn(8, generator=again), rtol=0, atol=0)
    assert not torch.allclose(first, torch.randn(8, generator=tokens))


def test_tokens_need_a_size() -> None:
    with pytest.raises(ConfigError, match="tokens=0"):
        gaussian_tokens(0, 4, generator=torch.Generator())


@pytest.mark.parametrize("name", MIXERS)
def test_random_networks_have_the_mixer_that_was_asked_for(name: str) -> None:
    spec = Spec(layers=2, heads=2, dim=8, key_heads=1, mask="causal", mixer=name)
    nets = [build(spec, torch.Generator().manual_seed(seed)) for seed in range(2)]
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    states = stack(nets).states(x)[-1]
    for seed, net in enumerate(nets):
        torch.testing.assert_close(states[seed], net.states(x[seed])[-1], rtol=1e-12, atol=1e-12)
        upper = net.trace(x[seed], maps=True).maps[1, "attention"].triu(1)
        assert not upper.any(), "the mask of the spec is laid"


def test_mixers_of_a_seed_share_their_draws() -> None:
    """The first layer's queries are those of softmax, whatever is made of them."""
    made = {
        name: build(Spec(layers=1, heads=2, dim=8, mixer=name), torch.Generator().manual_seed(0))
        for name in MIXERS
    }
    query = made["softmax"].blocks[0].mixer.query
    for net in made.values():
        held = [one.query for one in net.modules() if isinstance(one, QueryKey)]
        assert all(torch.equal(one, query) for one in held[:1])
        assert torch.equal(net.blocks[0].values.out, made["softmax"].blocks[0].values.out)


def test_a_mixer_that_does_not_exist_or_does_not_fit_is_one_line() -> None:
    with pytest.raises(UnknownNameError, match="unknown mixer 'softmx'; did you mean 'softmax'"):
        Spec(layers=1, heads=1, dim=8, mixer="softmx")
    spec = Spec(layers=1, heads=1, dim=8, mixer="linear", position="alibi")
    with pytest.raises(ConfigError, match="linear attention has no logits"):
        build(spec, torch.Generator().manual_seed(0))
    with pytest.raises(
        ConfigError, match="mixer='sigmoid': the covariance of tokens is known behind softmax"
    ):
        outline_of(Spec(layers=1, heads=1, dim=8, mixer="sigmoid"), tokens=4)
