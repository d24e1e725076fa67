"""Mixers, gates and maps of tokens to tokens: against loops that share no code, at the edges, and stacked."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from kit.trees import (
    DIM,
    HEADS,
    MEMORY_DIM,
    MIXERS,
    RULES,
    Draws,
    attention,
    gated,
    mixer,
    paddings,
    running_mean,
    sequence,
    value_residual,
    values,
)
from rankscope.errors import ConfigError, MaskError, ModelError, ShapeError
from rankscope.masks import ExplicitMask, parse_mask
from rankscope.network import (
    Attention,
    Chain,
    Context,
    Differential,
    Entmax,
    GatedAttention,
    Gaussian,
    HeadGate,
    Linear,
    LinearSums,
    Linformer,
    Mixer,
    Network,
    QueryKey,
    Retention,
    SequenceMap,
    Sigmoid,
    SinkSoftmax,
    Skip,
    Softmax,
    ValueResidual,
    Values,
    cosine,
    stack,
    with_mask,
    with_temperature,
)
from rankscope.network.mixers.entmax import entmax
from reference import mixer_loops as loops

ALL = (*MIXERS, "linformer")
TOKENS, WIDTH = 6, DIM // HEADS


def plain(parameter: Tensor | None) -> np.ndarray:
    assert parameter is not None
    return parameter.detach().numpy()


def dots(scale: float, readable: list[int], q: np.ndarray, keys: dict[int, np.ndarray]) -> dict[int, float]:
    return {j: scale * float(q @ keys[j]) for j in readable}


def row_of(one: Mixer, x: np.ndarray) -> Callable[..., dict[int, float]]:
    """What each mixer gives the keys of one query, from its definition."""
    scale = getattr(one, "scale", 1.0)
    match one:
        case SinkSoftmax():
            return lambda h, i, read, q, keys: loops.sink(dots(scale, read, q, keys), float(one.sinks[h]))
        case Sigmoid():
            return lambda h, i, read, q, keys: loops.sigmoid(dots(scale, read, q, keys), len(x))
        case Softmax():  # cosine: the scale is one over the temperature

            def unit(v: np.ndarray) -> np.ndarray:
                return v / math.sqrt(loops.distance(v, 0 * v))

            return lambda h, i, read, q, keys: loops.softmax(
                {j: float(unit(q) @ unit(keys[j])) / 0.5 for j in read}
            )
        case Gaussian():
            return lambda h, i, read, q, keys: loops.softmax(
                {j: -scale / 2 * loops.distance(q, keys[j]) for j in read}
            )
        case Entmax():
            chosen = loops.sparsemax if one.alpha == 2.0 else loops.entmax15
            return lambda h, i, read, q, keys: chosen(dots(scale, read, q, keys))
        case Linear() | LinearSums():

            def weights(h: int, i: int, read: list[int], q: np.ndarray, keys: dict) -> dict[int, float]:
                found = {j: float(loops.features(q) @ loops.features(keys[j])) for j in read}
                whole = sum(found.values()) if isinstance(one, Linear) else 1 / scale
                return {j: weight / whole for j, weight in found.items()}

            return weights
        case Retention():
            return lambda h, i, read, q, keys: {
                j: a * float(one.decay[h]) ** abs(i - j) for j, a in dots(scale, read, q, keys).items()
            }
        case Linformer():
            into, out = plain(one.press_keys)[:, : len(x)], plain(one.press_values)[:, : len(x)]
            return lambda h, i, read, q, keys: loops.pressed(q, keys, into, out, scale)
    raise TypeError(type(one))


def by_loops(one: Mixer, x: Tensor, row: Callable[..., dict[int, float]] | None = None) -> Tensor:
    if isinstance(one, Differential):
        both = [by_loops(half, x, softmax_row(half)) for half in (one.first, one.second)]
        return both[0] - one.factor[:, None, None] * both[1]
    if isinstance(one, HeadGate):
        opened = 1 / (1 + torch.exp(-(x @ one.gate + one.bias)))
        return opened.T[:, :, None] * by_loops(one.inner, x, softmax_row(one.inner))
    assert isinstance(one, QueryKey)
    found = loops.maps(
        x.numpy(),
        query=plain(one.query),
        key=plain(one.key),
        query_bias=plain(one.query_bias),
        key_bias=plain(one.key_bias),
        heads=one.heads,
        groups=one.key_heads,
        allowed=one.rule.matrix(len(x)),
        row=row_of(one, x.numpy()) if row is None else row,
    )
    return torch.from_numpy(found)


def softmax_row(one: Mixer) -> Callable[..., dict[int, float]]:
    assert isinstance(one, Softmax)
    return lambda h, i, read, q, keys: loops.softmax(dots(one.scale, read, q, keys))


@pytest.mark.parametrize("groups", [1, HEADS])
@pytest.mark.parametrize("rule", ["full", "causal", "window:1"])
@pytest.mark.parametrize("name", ALL)
def test_every_mixer_is_what_its_definition_says(name: str, rule: str, groups: int) -> None:
    draw = Draws(3)
    one = mixer(draw, name, rule="full" if name == "linformer" else rule, groups=groups)
    x = 2 * draw(TOKENS, DIM)
    assert_close(one(x, Context()), by_loops(one, x), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ALL)
def test_whether_rows_sum_to_one_is_told(name: str) -> None:
    draw = Draws(5)
    one, x = mixer(draw, name, rule="full" if name == "linformer" else "causal"), draw(TOKENS, DIM)
    sums = one(x, Context()).sum(dim=-1)
    assert one.rows_sum_to_one == bool(((sums - 1).abs() < 1e-12).all())


def test_sinks_take_what_rows_leave() -> None:
    """Off-by-one is a zero sink; a sink far below the logits is softmax, one far above leaves nothing."""
    draw = Draws(7)
    x, weights = draw(TOKENS, DIM), {"query": draw(DIM, DIM), "key": draw(DIM, DIM), "heads": HEADS}
    softmax = Softmax(**weights)(x, Context())
    zero = SinkSoftmax(**weights)(x, Context())
    assert bool((zero.sum(dim=-1) < 1).all())
    assert_close(zero / zero.sum(dim=-1, keepdim=True), softmax)
    assert_close(SinkSoftmax(**weights, sinks=torch.full((HEADS,), -1e4).double())(x, Context()), softmax)
    assert not SinkSoftmax(**weights, sinks=torch.full((HEADS,), 1e4).double())(x, Context()).any()


def test_the_bias_of_sigmoid_counts_tokens_and_no_padding() -> None:
    one, x = mixer(Draws(1), "sigmoid"), Draws(2)(TOKENS, DIM)
    keep = torch.tensor([True, False, True, True, False, True])
    assert_close(one(x, Context(is_token=keep))[:, keep][:, :, keep], one(x[keep], Context()))
    zero = torch.zeros(DIM, DIM, dtype=torch.float64)
    alike = Sigmoid(zero, zero, heads=1)(x, Context())
    assert_close(alike, torch.full_like(alike, 1 / (TOKENS + 1)))


def test_sparsemax_has_exact_zeros_and_tends_to_softmax() -> None:
    logits = torch.tensor([[3.0, 0.0, -2.0, -torch.inf]], dtype=torch.float64)
    assert entmax(logits, 2.0).tolist() == [[1.0, 0.0, 0.0, 0.0]]
    assert_close(entmax(logits[:, :3], 1.0005), torch.softmax(logits[:, :3], dim=-1), rtol=0, atol=1e-3)


@given(st.integers(0, 2**16), st.sampled_from([1.2, 1.5, 1.9, 2.0]), st.sampled_from([1e-8, 1.0, 50.0]))
def test_entmax_solves_its_own_equation(seed: int, alpha: float, size: float) -> None:
    """Rows sum to one, entries are not negative, order is kept, and one more on all logits changes nothing."""
    logits = size * Draws(seed)(3, 7)
    found = entmax(logits, alpha)
    assert_close(found.sum(dim=-1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-12)
    assert bool((found >= 0).all())
    order = logits.argsort(dim=-1)
    assert bool((found.gather(-1, order).diff(dim=-1) >= 0).all())
    assert_close(entmax(logits + 1.0, alpha), found, rtol=0, atol=1e-12 * (1 + size))


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_entmax_has_the_gradient_of_its_threshold(alpha: float) -> None:
    logits = Draws(4)(2, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: entmax(a, alpha), (logits,))


@pytest.mark.parametrize("name", ALL)
def test_seeds_of_a_mixer_run_as_one(name: str) -> None:
    nets = [Network([Attention(mixer(Draws(seed), name), values(Draws(seed)))]) for seed in range(3)]
    for texts in (False, True):
        x = Draws(9)(3, 2, 5, DIM) if texts else Draws(9)(3, 5, DIM)
        states = stack(nets, texts=texts)(x)
        for seed, net in enumerate(nets):
            assert_close(states[seed], net(x[seed]), rtol=1e-12, atol=1e-13)


def test_a_mask_with_an_empty_row_is_one_line() -> None:
    for name in MIXERS:
        with pytest.raises(MaskError, match="has nothing to attend to") as caught:
            mixer(Draws(0), name).with_rule(ExplicitMask([[True, False], [False, False]]))(
                Draws(1)(2, DIM), Context()
            )
        assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------- gates and values


@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_gate_stands_before_or_behind_the_output_map(place: str) -> None:
    draw = Draws(11)
    part, x = gated(draw, place=place, rule="causal"), draw(TOKENS, DIM)
    held, opened = part.values, 1 / (1 + torch.exp(-(x @ part.gate + part.gate_bias)))
    maps, wanted = part.mixer(x, Context()), torch.zeros(TOKENS, DIM, dtype=torch.float64)
    for i in range(TOKENS):
        mixed = torch.cat([maps[h, i] @ (x @ held.value[:, 2 * h : 2 * h + 2]) for h in range(HEADS)])
        wanted[i] = (
            ((mixed * opened[i]) @ held.out + held.out_bias)
            if place == "before"
            else ((mixed @ held.out + held.out_bias) * opened[i])
        )
    assert_close(part(x, Context()), wanted)


def test_a_gate_per_head_is_a_gate_with_equal_channels() -> None:
    """``HeadGate`` multiplies rows of the map, ``GatedAttention`` channels of the mixed values: here the same."""
    draw = Draws(12)
    part, x = attention(draw), draw(TOKENS, DIM)
    gate, bias = draw(DIM, HEADS), draw(HEADS)
    wide = GatedAttention(
        part.mixer,
        part.values,
        gate.repeat_interleave(WIDTH, dim=1),
        gate_bias=bias.repeat_interleave(WIDTH),
    )
    narrow = Attention(HeadGate(part.mixer, gate, bias), part.values)
    assert_close(narrow(x, Context()), wide(x, Context()))


@given(paddings(), st.integers(0, 2**10))
def test_values_of_the_first_layer_are_read_by_place(is_token: Tensor, seed: int) -> None:
    draw = Draws(seed)
    part, x, memory = value_residual(draw, rule="causal", groups=1), draw(3, 6, DIM), draw(3, 6, MEMORY_DIM)
    batch = part(x, Context(is_token=is_token, memory=memory))
    for text, keep in enumerate(is_token):
        own = memory[text][keep]
        alone = part(x[text][keep], Context(memory=own))
        assert_close(batch[text][keep], alone)
        maps = part.mixer(x[text][keep], Context())
        early = own @ part.first  # one value head for both heads
        plain_part = Attention(part.mixer, part.values)(x[text][keep], Context())
        added = torch.cat([maps[h] @ early for h in range(HEADS)], dim=-1) @ part.values.out
        assert_close(alone, plain_part + added)


# ------------------------------------------------------------------------------------------- sequence maps


def test_a_sequence_map_runs_texts_of_any_length() -> None:
    torch.manual_seed(0)
    layer = torch.nn.GRU(DIM, DIM, batch_first=True).double()
    net = Network([Skip(SequenceMap(layer)), Chain([SequenceMap(running_mean)])])
    for tokens in (1, 3, 7):
        x = Draws(tokens)(2, tokens, DIM)
        assert_close(net(x), running_mean(x + layer(x)[0]))
    names = {name for name, _ in net.named_parameters()}
    assert "blocks.0.inner.run.weight_ih_l0" in names, "its weights are weights of the network"


def test_what_is_no_map_of_tokens_to_tokens_is_one_line() -> None:
    x = Draws(0)(3, DIM)
    for run, error, said in (
        (lambda x: x[..., :-1], ShapeError, "a part of a network keeps the shape"),
        (lambda x: x.mean(dim=-2), ShapeError, "keeps the shape"),
        (lambda x: "no", ShapeError, "a function gave str; expected a tensor"),
        (lambda x: x.float(), ShapeError, "turns float64 into float32; give dtype=torch.float32"),
        (lambda x, y: x, ModelError, "a function failed on float64 tokens of shape \\(1, 3, 8\\)"),
    ):
        with pytest.raises(error, match=said) as caught:
            SequenceMap(run)(x, Context())
        assert "\n" not in str(caught.value)
    single = SequenceMap(torch.nn.Linear(DIM, DIM), dtype=torch.float32)
    assert single(x, Context()).dtype == torch.float64


def test_a_sequence_map_takes_no_mask() -> None:
    with pytest.raises(ConfigError, match="cannot take the mask causal: running_mean"):
        with_mask(Network([sequence()]), parse_mask("causal"))


# ------------------------------------------------------------------------------------------- what cannot be


def test_temperature_divides_products_and_leaves_sinks() -> None:
    draw = Draws(13)
    part, x = Attention(mixer(draw, "sinks", place="alibi"), values(draw)), draw(TOKENS, DIM)
    hot = with_temperature(Network([part]), 2.0).blocks[0]
    logits = hot.mixer.logits(x, Context()) - part.mixer.position.bias(x, Context(), 1.0)
    assert_close(2 * logits, part.mixer.logits(x, Context()) - part.mixer.position.bias(x, Context(), 1.0))
    assert hot.mixer.sinks is part.mixer.sinks


EYE = torch.eye(DIM, dtype=torch.float64)
ASKED = {"query": EYE, "key": EYE, "heads": 2}
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "sinks": (
        lambda: SinkSoftmax(**ASKED, sinks=torch.zeros(3)),
        "sinks have shape .3,. and the mixer 2 heads",
    ),
    "alpha": (lambda: Entmax(**ASKED, alpha=1.0), "alpha=1.0 is not above 1 and at most 2"),
    "decay": (lambda: Retention(**ASKED, decay=torch.tensor([0.5, 1.5])), "decay must be 2 numbers above 0"),
    "temperature": (lambda: cosine(**ASKED, temperature=0.0), "must be a positive number, got 0.0"),
    "scale": (lambda: cosine(**ASKED, scale=2.0), "has its own scale; give temperature"),
    "cap": (lambda: Gaussian(**ASKED, softcap=2.0), "takes no soft-cap"),
    "linear": (lambda: Linear(**ASKED, softcap=2.0), "has no logits to cap"),
    "retention": (lambda: Retention(**ASKED, decay=torch.ones(2), softcap=1.0), "no logits to cap"),
    "press": (lambda: Linformer(**ASKED, press_keys=EYE[0]), "both must be"),
    "pressed": (
        lambda: Linformer(**ASKED, press_keys=EYE, rule=parse_mask("causal")),
        "cannot take the mask causal; use full",
    ),
    "halves": (
        lambda: Differential(Softmax(EYE, EYE, heads=2), Softmax(EYE, EYE, heads=1), torch.ones(2)),
        "2 and 1 heads",
    ),
    "factor": (
        lambda: Differential(Softmax(EYE, EYE, heads=2), Softmax(EYE, EYE, heads=2), torch.ones(3)),
        "give one number per head",
    ),
    "gate": (lambda: HeadGate(Softmax(EYE, EYE, heads=2), EYE), "a gate per head of 2 heads is"),
    "channels": (
        lambda: GatedAttention(Softmax(EYE, EYE, heads=2), Values(EYE, EYE, heads=2), EYE[:, :3]),
        "one column for each of 8 channels",
    ),
    "first": (
        lambda: ValueResidual(Softmax(EYE, EYE, heads=2), Values(EYE, EYE, heads=2), EYE[:, :3]),
        "have width 3 and those of this one 8",
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_what_does_not_fit_is_one_line(name: str) -> None:
    make, said = WRONG[name]
    with pytest.raises(ConfigError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_texts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="texts of at most 9 tokens, got 10"):
        mixer(Draws(0), "linformer")(Draws(0)(10, DIM), Context())
    part = value_residual(Draws(0))
    for context, found in (
        (Context(), "has none"),
        (Context(memory=Draws(0)(4, MEMORY_DIM)), "one of shape .4, 6."),
    ):
        with pytest.raises(ShapeError, match=found):
            part(Draws(0)(5, DIM), context)


def test_every_rule_can_be_laid_on_every_mixer() -> None:
    x = Draws(1)(5, DIM)
    for name in MIXERS:
        for rule in RULES:
            found = mixer(Draws(0), name).with_rule(parse_mask(rule))(x, Context())
            assert_close(found, mixer(Draws(0), name, rule=rule)(x, Context()))
            assert not found[:, ~torch.from_numpy(parse_mask(rule).matrix(5))].any()
