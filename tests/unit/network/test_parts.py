"""Every part against loops over tokens, heads and keys that share no code with it."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from kit.trees import DIM, HEADS, Draws, attention, mlp, norm, values
from rankscope.errors import ConfigError, ShapeError, UnknownNameError
from rankscope.masks import Causal, Full, parse_mask
from rankscope.network import (
    ACTIVATIONS,
    Attention,
    Chain,
    ClippedBuckets,
    Context,
    Fixed,
    LayerNorm,
    Mlp,
    RelativeBias,
    Scale,
    SeenDistances,
    Skip,
    Softmax,
    Sphere,
    Sum,
    TokenMap,
    TransformerXL,
    Uniform,
    Values,
)
from reference import network_loops as loops

TOKENS, WIDTH = 7, DIM // HEADS


def plain(parameter: torch.Tensor | None) -> np.ndarray:
    assert parameter is not None
    return parameter.detach().numpy()


def by_loops(part: Attention, x: torch.Tensor, **rules: object) -> torch.Tensor:
    mixer, held = part.mixer, part.values
    assert isinstance(mixer, Softmax)
    return torch.from_numpy(
        loops.attention(
            x.numpy(),
            query=plain(mixer.query),
            key=plain(mixer.key),
            value=plain(held.value),
            out=plain(held.out),
            heads=mixer.heads,
            groups=mixer.key_heads,
            allowed=mixer.rule.matrix(len(x)),
            query_bias=plain(mixer.query_bias),
            key_bias=plain(mixer.key_bias),
            value_bias=plain(held.value_bias),
            out_bias=plain(held.out_bias),
            **rules,
        )
    )


def position_rule(name: str, part: Attention) -> dict[str, object]:
    rule = part.mixer.position
    if name in ("rotary", "interleaved"):
        settings = {
            "base": 100.0 if name == "rotary" else 10_000.0,
            "fraction": 0.5 if name == "rotary" else 1.0,
        }
        return {"turn": lambda v, i: loops.rotary(v, i, **settings, interleaved=name == "interleaved")}
    if name == "alibi":
        slopes = plain(rule.slopes)
        return {"bias": lambda h, i, j, q: -slopes[h] * abs(i - j)}
    if name == "relative":
        table = plain(rule.table)
        return {"bias": lambda h, i, j, q: table[loops.t5_bucket(i, j, count=8, max_distance=6), h]}
    if name == "transformer-xl":
        projection, shift = plain(rule.projection), plain(rule.shift)

        def bias(h: int, i: int, j: int, q: np.ndarray) -> float:
            k = loops.sinusoid(i - j, DIM) @ projection[:, h * WIDTH : (h + 1) * WIDTH]
            return float((q + shift[h]) @ k) / WIDTH**0.5

        return {"bias": bias}
    return {}


@pytest.mark.parametrize("place", ["none", "rotary", "interleaved", "alibi", "relative", "transformer-xl"])
@pytest.mark.parametrize("rule", ["full", "causal", "window:1", "bigbird:1:1:1"])
@pytest.mark.parametrize("groups", [1, HEADS])
def test_attention_equals_the_loop(place: str, rule: str, groups: int) -> None:
    draw = Draws(3)
    part, x = attention(draw, rule=rule, place=place, groups=groups), draw(TOKENS, DIM)
    assert_close(part(x, Context()), by_loops(part, x, **position_rule(place, part)))


def test_query_key_norm_and_softcap_equal_the_loop() -> None:
    draw = Draws(4)
    part, x = attention(draw, qk_norm=True, softcap=1.5), draw(TOKENS, DIM)
    rms, layer = part.mixer.query_norm, part.mixer.key_norm
    expected = by_loops(
        part,
        x,
        norm_query=lambda v: loops.rms_norm(v, 1 + plain(rms.weight), rms.eps),
        norm_key=lambda v: loops.layer_norm(v, plain(layer.weight), plain(layer.bias), layer.eps),
        softcap=1.5,
    )
    assert_close(part(x, Context()), expected)


def test_a_norm_over_all_heads_sees_the_whole_projection() -> None:
    draw = Draws(5)
    query, key, x = draw(DIM, DIM), draw(DIM, DIM), draw(TOKENS, DIM)
    whole = LayerNorm(eps=0.0)
    mixer = Softmax(query, key, heads=HEADS, query_norm=whole, normed="all")
    by_hand = torch.nn.functional.layer_norm(x @ query, (DIM,), eps=0.0)
    assert_close(
        mixer.queries_and_keys(x, Context())[0], by_hand.unflatten(-1, (HEADS, WIDTH)).transpose(0, 1)
    )


@pytest.mark.parametrize("groups", [1, HEADS])
def test_concatenated_heads_equal_the_sum_over_heads(groups: int) -> None:
    draw = Draws(6)
    part, x = attention(draw, groups=groups, rule="causal"), draw(3, TOKENS, DIM)
    whole = part(x, Context())
    heads = part.head_outputs(x, Context())
    assert_close(whole, heads.sum(dim=-3) + part.values.out_bias)
    maps, bias = part.mixer(x, Context()), part.values.bias()
    assert_close(whole, torch.einsum("bhij,bjd,hde->bie", maps, x, part.values.value_out()) + bias)


def test_value_bias_passes_through_because_maps_sum_to_one() -> None:
    draw = Draws(7)
    held = values(draw)
    x = torch.zeros(TOKENS, DIM, dtype=torch.float64)
    part = Attention(Uniform(heads=HEADS, rule=Causal()), held)
    assert_close(part(x, Context()), held.bias().expand(TOKENS, DIM))


@pytest.mark.parametrize("name", list(ACTIVATIONS))
@pytest.mark.parametrize("gated", [False, True])
def test_mlp_equals_the_loop(name: str, gated: bool) -> None:
    draw = Draws(8)
    part, x = mlp(draw, activation=name, gated=gated), draw(TOKENS, DIM)
    gate = (x @ part.gate + part.gate_bias).numpy() if gated else [None] * TOKENS
    rows = [
        loops.mlp(
            v.numpy(),
            **{"up": plain(part.up), "down": plain(part.down), "up_bias": plain(part.up_bias)},
            **{"down_bias": plain(part.down_bias), "name": name, "gates": gates},
        )
        for v, gates in zip(x, gate, strict=True)
    ]
    assert_close(part(x, Context()), torch.tensor(np.array(rows)))


def test_norms_equal_the_loop() -> None:
    draw = Draws(9)
    x = draw(TOKENS, DIM)
    layer, rms = norm("layer", draw), norm("rms", draw)
    rows = [loops.layer_norm(v.numpy(), plain(layer.weight), plain(layer.bias), layer.eps) for v in x]
    assert_close(layer(x, Context()), torch.tensor(np.array(rows)))
    rows = [loops.rms_norm(v.numpy(), 1 + plain(rms.weight), rms.eps) for v in x]
    assert_close(rms(x, Context()), torch.tensor(np.array(rows)))
    assert_close(Sphere()(x, Context()), x / x.norm(dim=-1, keepdim=True))


def test_a_zero_token_stays_zero_on_the_sphere() -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    assert_close(Sphere()(x, Context()), torch.tensor([[0.0, 0.0], [0.6, 0.8]], dtype=torch.float64))


def test_containers() -> None:
    draw = Draws(10)
    x, twice, thrice = draw(TOKENS, DIM), Scale(2.0), Scale(3.0)
    assert_close(Chain([twice, thrice])(x, Context()), 6 * x)
    assert_close(Chain([])(x, Context()), x)
    assert_close(Sum([twice, thrice])(x, Context()), 5 * x)
    assert_close(Sum([])(x, Context()), 0 * x)
    assert_close(Skip(twice)(x, Context()), 3 * x)
    assert_close(Skip(twice, 0.5)(x, Context()), 2.5 * x)
    vector = draw(DIM)
    assert_close(Skip(twice, vector)(x, Context()), 2 * x + x * vector)
    assert_close(Scale(vector)(x, Context()), x * vector)
    assert_close(TokenMap(torch.nn.Tanh())(x, Context()), x.tanh())


def test_uniform_and_fixed_mixers_give_stochastic_maps() -> None:
    x = Draws(11)(2, TOKENS, DIM)
    maps = Uniform(heads=3, rule=parse_mask("causal"))(x, Context())
    assert maps.shape == (2, 3, TOKENS, TOKENS)
    assert_close(maps[1, 2, 3], torch.tensor([0.25] * 4 + [0.0] * 3, dtype=torch.float64))
    given = torch.softmax(Draws(12)(2, TOKENS, TOKENS), dim=-1)
    assert_close(Fixed(given)(x, Context())[1], given)


def test_fixed_maps_refuse_what_they_cannot_do() -> None:
    given = torch.full((1, 3, 3), 1 / 3, dtype=torch.float64)
    with pytest.raises(ShapeError, match="exactly 3 tokens"):
        Fixed(given)(Draws(0)(4, DIM), Context())
    with pytest.raises(ShapeError, match="with padding"):
        Fixed(given)(Draws(0)(3, DIM), Context(is_token=torch.tensor([True, True, False])))
    with pytest.raises(ShapeError, match="row sums miss one by up to 2"):
        Fixed(torch.ones(1, 3, 3, dtype=torch.float64))
    with pytest.raises(ConfigError, match="cannot take the mask causal"):
        Fixed(given).with_rule(Causal())
    assert Fixed(given).with_rule(Full()).rule == Full()


def test_clipped_buckets_read_the_table_by_distance() -> None:
    table = torch.arange(5, dtype=torch.float64).unsqueeze(-1)
    rule = RelativeBias(table, ClippedBuckets(max_distance=2))
    bias = rule.bias(torch.zeros(1, 4, 2, dtype=torch.float64), Context(), 1.0)
    assert bias[0].tolist() == [[2, 1, 0, 0], [3, 2, 1, 0], [4, 3, 2, 1], [4, 4, 3, 2]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Softmax(torch.ones(4, 6), torch.ones(4, 6), heads=4), "heads must divide the width"),
        (lambda: Softmax(torch.ones(4, 4), torch.ones(4, 4), heads=4, key_heads=3), "key heads the heads"),
        (lambda: Values(torch.ones(4, 4), torch.ones(6, 4), heads=2), "rows must be heads times"),
        (
            lambda: Attention(Uniform(heads=2), Values(torch.ones(4, 4), torch.ones(4, 4), heads=4)),
            "mixer has 2 heads and the values 4",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_an_unknown_activation_is_suggested() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gelu'"):
        Mlp(torch.ones(2, 2), torch.ones(2, 2), activation="gelo")


def test_transformer_xl_is_cached_by_nobody() -> None:
    """Its logits depend on the queries, so two texts in one context must not share them."""
    draw = Draws(13)
    rule = TransformerXL(draw(DIM, DIM), draw(HEADS, WIDTH))
    context = Context()
    first, second = (rule.bias(draw(HEADS, TOKENS, WIDTH), context, 1.0) for _ in range(2))
    assert not torch.allclose(first, second)


def test_a_bias_that_was_seen_is_added_and_no_other_text_is_run() -> None:
    draw = Draws(20)
    part, x = attention(draw, place="seen"), draw(3, 5, DIM)
    table = part.mixer.position.table
    for text, row in enumerate(x):
        expected = by_loops(part, row, bias=lambda head, i, j, q: float(table[head, i, j]))
        assert_close(part(x, Context())[text], expected)
    everything = Context(is_token=torch.ones(3, 5).bool())
    assert_close(part(x, everything), part(x, Context()))
    with pytest.raises(ShapeError, match="seen for texts of 5 tokens without padding, got 4 positions;"):
        part(x[:, :4], Context())
    padded = everything.is_token.clone()
    padded[0, -1] = False
    with pytest.raises(ShapeError, match="got 5 positions with padding"):
        part(x, Context(is_token=padded))


def test_no_distance_is_read_that_was_not_seen() -> None:
    draw = Draws(21)
    rule = RelativeBias(draw(9, HEADS), SeenDistances(4))
    query = draw(HEADS, 5, WIDTH)
    found = rule.bias(query, Context(), 1.0)
    assert_close(found[:, 4, 0], rule.table[8])
    assert_close(found[:, 0, 4], rule.table[0])
    with pytest.raises(ShapeError, match="seen up to 4 and is asked for 5; use texts of at most 5 tokens"):
        rule.bias(draw(HEADS, 6, WIDTH), Context(), 1.0)
