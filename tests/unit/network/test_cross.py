"""Cross-attention: against loops over tokens of the memory, padding of the memory, and what is refused."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kit.trees import DIM, HEADS, MEMORY_DIM, Draws, attention, cross, values
from rankscope.errors import ConfigError, MaskError, ShapeError
from rankscope.masks import Causal
from rankscope.network import Context, CrossAttention, Network, Skip, Softmax, TransformerXL
from reference import network_loops as loops

TOKENS, MEMORY = 5, 4
MEMORIES = {
    "right": [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]],
    "left": [[0, 1, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]],
    "between": [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 0, 1]],
}


def by_loops(part: CrossAttention, x: Tensor, memory: Tensor, **rules: object) -> Tensor:
    mixer, held = part.mixer, part.values
    weights = {
        "query": mixer.query,
        "key": mixer.key,
        "value": held.value,
        "out": held.out,
        "query_bias": mixer.query_bias,
        "key_bias": mixer.key_bias,
        "value_bias": held.value_bias,
        "out_bias": held.out_bias,
    }
    found = loops.attention(
        x.numpy(),
        memory=memory.numpy(),
        heads=mixer.heads,
        groups=mixer.key_heads,
        allowed=np.ones((len(x), len(memory)), dtype=bool),
        **{name: weight.detach().numpy() for name, weight in weights.items()},
        **rules,
    )
    return torch.from_numpy(found)


@pytest.mark.parametrize("groups", [1, HEADS])
def test_queries_are_of_the_tokens_and_keys_and_values_of_the_memory(groups: int) -> None:
    draw = Draws(1)
    part, x, memory = cross(draw, groups=groups), draw(TOKENS, DIM), draw(MEMORY, MEMORY_DIM)
    assert_close(part(x, Context(memory=memory)), by_loops(part, x, memory))


def test_a_norm_may_stand_before_the_memory() -> None:
    draw = Draws(2)
    part, x, memory = cross(draw, normed=True), draw(TOKENS, DIM), draw(MEMORY, MEMORY_DIM)
    norm = part.memory_norm
    gain, bias = (one.detach().numpy() for one in (norm.weight, norm.bias))
    rows = np.stack([loops.layer_norm(row, gain, bias, norm.eps) for row in memory.numpy()])
    assert_close(part(x, Context(memory=memory)), by_loops(part, x, torch.from_numpy(rows)))


@pytest.mark.parametrize("place", ["alibi", "relative"])
def test_biases_go_by_the_distance_from_the_place_in_the_memory(place: str) -> None:
    draw = Draws(3)
    part, x, memory = cross(draw, place=place), draw(TOKENS, DIM), draw(MEMORY, MEMORY_DIM)
    rule = part.mixer.position

    def bias(head: int, i: int, j: int, query: np.ndarray) -> float:
        if place == "alibi":
            return -float(rule.slopes[head]) * abs(i - j)
        return float(rule.table[loops.t5_bucket(i, j, count=8, max_distance=6), head])

    assert_close(part(x, Context(memory=memory)), by_loops(part, x, memory, bias=bias))


@pytest.mark.parametrize("padding", list(MEMORIES))
@pytest.mark.parametrize("place", ["none", "alibi", "relative"])
def test_padding_of_the_memory_is_not_read(padding: str, place: str) -> None:
    """A padded batch equals its texts one by one, each with the tokens that its memory really has."""
    draw, real = Draws(4), torch.tensor(MEMORIES[padding]).bool()
    net = Network([Skip(cross(draw, place=place))])
    x, memory = draw(3, TOKENS, DIM), draw(3, MEMORY, MEMORY_DIM)
    together = Context(memory=memory, memory_is_token=real)
    for row, found in enumerate(net(x, together)):
        assert_close(found, net(x[row], Context(memory=memory[row][real[row]])))
        assert_close(found, net(x[row], together.of_text(row)))
    assert not torch.allclose(net(x, together), net(x, Context(memory=memory))), (
        "or the padding would not matter"
    )


def test_the_maps_are_those_of_tokens_to_memory() -> None:
    draw, real = Draws(5), torch.tensor(MEMORIES["between"]).bool()
    net = Network([Skip(attention(draw)), Skip(cross(draw))])
    x, context = draw(3, TOKENS, DIM), Context(memory=draw(3, MEMORY, MEMORY_DIM), memory_is_token=real)
    trace = net.trace(x, context, sites=["cross"], maps=True)
    maps = trace.maps[2, "cross"]
    assert maps.shape == (3, HEADS, TOKENS, MEMORY)
    assert_close(maps.sum(dim=-1), torch.ones(3, HEADS, TOKENS, dtype=torch.float64))
    assert bool((maps[~real[:, None, None, :].expand(maps.shape)] == 0).all())
    assert_close(trace.sites[2, "cross"], trace.states[2] - trace.states[1])
    part = net.blocks[1].inner
    each = part.head_outputs(trace.states[1], context)
    assert_close(each.sum(dim=-3) + part.values.out_bias, trace.sites[2, "cross"])


def test_one_memory_serves_several_texts_and_comes_in_any_dtype() -> None:
    draw = Draws(6)
    net, x, memory = Network([cross(draw)]), draw(3, TOKENS, DIM), draw(MEMORY, MEMORY_DIM)
    assert_close(net(x, Context(memory=memory)), net(x, Context(memory=memory.expand(3, -1, -1))))
    single = Context(memory=memory.float())
    assert_close(net(x, single), net(x, Context(memory=memory.float().double())))


# ---------------------------------------------------------------------------------------------- refusals

WRONG = {
    "no memory": (Context(), "reads a memory and the context has none; give Context\\(memory=...\\)"),
    "its padding alone": (Context(memory_is_token=torch.ones(4).bool()), "there is no memory; give both"),
    "other channels": (Context(memory=torch.ones(4, 5)), "the memory has 5 channels, .* 'cross' reads 6"),
    "other texts": (Context(memory=torch.ones(2, 4, 6)), "give one memory per text"),
    "whole numbers": (Context(memory=torch.ones(4, 6).long()), "expected a floating-point memory"),
    "nothing in it": (Context(memory=torch.ones(0, 6)), "with at least one token"),
    "padding of other length": (
        Context(memory=torch.ones(4, 6), memory_is_token=torch.ones(3).bool()),
        "one entry per token of the memory",
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_memory_that_does_not_fit_is_refused(name: str) -> None:
    context, words = WRONG[name]
    draw = Draws(7)
    with pytest.raises(ShapeError, match=words):
        Network([cross(draw)])(draw(3, TOKENS, DIM), context)


def test_a_memory_of_nothing_but_padding_is_refused() -> None:
    draw, real = Draws(8), torch.tensor([[1, 1], [0, 0]]).bool()
    with pytest.raises(MaskError, match="memory of a text of the batch has no token"):
        Network([cross(draw)])(
            draw(2, TOKENS, DIM), Context(memory=draw(2, 2, MEMORY_DIM), memory_is_token=real)
        )


def test_what_cross_attention_cannot_be_made_of() -> None:
    draw = Draws(9)
    query, key = draw(DIM, DIM), draw(MEMORY_DIM, DIM)
    reads = values(draw, reads=MEMORY_DIM)
    with pytest.raises(ConfigError, match="the mixer has 4 heads and the values 2"):
        CrossAttention(Softmax(query, key, heads=4), reads)
    with pytest.raises(ConfigError, match="got the mask causal"):
        CrossAttention(Softmax(query, key, heads=HEADS, rule=Causal()), reads)
    with pytest.raises(ConfigError, match="a memory of 6 channels and values one of 8"):
        CrossAttention(Softmax(query, key, heads=HEADS), values(draw))
    rule = TransformerXL(draw(DIM, DIM), draw(HEADS, DIM // HEADS))
    with pytest.raises(ConfigError, match="biases by distance, got TransformerXL"):
        CrossAttention(Softmax(query, key, heads=HEADS, position=rule), reads)
