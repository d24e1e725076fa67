"""A padded batch equals its texts one by one; a batch of seeds equals single runs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from kit.trees import DIM, MEMORY_DIM, RULES, Draws, attention, mlp, networks, norm, paddings
from rankscope.errors import ConfigError, MaskError
from rankscope.masks import ExplicitMask
from rankscope.network import (
    INITS,
    Attention,
    Chain,
    Context,
    Network,
    Skip,
    Softmax,
    Spec,
    Uniform,
    build,
    stack,
    with_mask,
)
from rankscope.network.seeds import batches, seeds_per_chunk

TOLERANCE = {"rtol": 1e-11, "atol": 1e-12}  # summation order differs between batch and single runs


PADDED = ("tokenwise", "cross", "mixer", "linformer", "gated", "sequence")
"""What is the same on a padded text, besides attention, norms and MLPs."""


@given(networks(also=PADDED), paddings(), paddings(), st.integers(0, 2**16))
def test_a_padded_batch_equals_its_texts_one_by_one(
    net: Network, is_token: torch.Tensor, real: torch.Tensor, seed: int
) -> None:
    draw = Draws(seed)
    x, context = (
        draw(3, 6, DIM),
        Context(is_token=is_token, memory=draw(3, 6, MEMORY_DIM), memory_is_token=real),
    )
    batch = net.trace(x, context, sites=["attention", "mlp"], maps=True)
    for text in range(3):
        keep, alone = is_token[text], Context(memory=context.memory[text][real[text]])
        single = net.trace(x[text][keep], alone, sites=["attention", "mlp"], maps=True)
        for layer, state in enumerate(single.states):
            assert_close(batch.states[layer][text][keep], state, **TOLERANCE)
        assert single.sites.keys() == batch.sites.keys()
        for key, output in single.sites.items():
            assert_close(batch.sites[key].expand(3, 6, DIM)[text][keep], output, **TOLERANCE)
        for key, maps in single.maps.items():
            of_text = batch.maps[key].expand(3, -1, -1, -1)[text]
            read = real[text] if key[1].startswith("cross") else keep
            assert_close(of_text[:, keep][:, :, read], maps, **TOLERANCE)


@given(networks(also=PADDED), paddings(), paddings())
def test_what_stands_on_padding_does_not_matter(
    net: Network, is_token: torch.Tensor, real: torch.Tensor
) -> None:
    x, memory = Draws(5)(3, 6, DIM), Draws(6)(3, 6, MEMORY_DIM)
    other, others = (
        torch.where(kept[..., None], one, 7.0 + one.flip(0)) for kept, one in ((is_token, x), (real, memory))
    )
    a = net.states(x, Context(is_token=is_token, memory=memory, memory_is_token=real))[-1]
    b = net.states(other, Context(is_token=is_token, memory=others, memory_is_token=real))[-1]
    assert_close(a[is_token], b[is_token], **TOLERANCE)


def test_positions_of_the_caller_win() -> None:
    draw = Draws(2)
    net, x = Network([attention(draw, place="rotary")]), draw(4, DIM)
    shifted = net.states(x, Context(positions=torch.arange(4) + 9))[-1]
    stretched = net.states(x, Context(positions=3 * torch.arange(4)))[-1]
    assert_close(shifted, net.states(x)[-1])
    assert not torch.allclose(stretched, net.states(x)[-1])


@pytest.mark.parametrize("init", list(INITS))
@pytest.mark.parametrize("position", ["none", "rotary", "alibi:0.5", "alibi", "relative", "transformer-xl"])
def test_a_batch_of_seeds_equals_single_runs(init: str, position: str) -> None:
    spec = Spec(layers=3, heads=2, dim=8, norm="layer", variant="transformer", init=init, position=position)
    nets = [build(spec, torch.Generator().manual_seed(seed)) for seed in range(4)]
    x = Draws(0)(4, 5, 8)
    states = stack(nets).states(x)
    for seed, net in enumerate(nets):
        for layer, state in enumerate(net.states(x[seed])):
            assert_close(states[layer][seed], state, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_seeds_with_several_texts_each(rule: str) -> None:
    """Parameters carry ``seeds 1``, tokens ``seeds texts tokens dim``: every product broadcasts."""
    spec = Spec(layers=2, heads=2, dim=8, norm="rms", variant="transformer", placement="pre", mask=rule)
    nets = [build(spec, torch.Generator().manual_seed(seed)) for seed in range(3)]
    both = stack([stack([net]) for net in nets])
    x = Draws(0)(3, 5, 6, 8)
    is_token = torch.ones(3, 5, 6, dtype=torch.bool)
    is_token[1, 2, :3] = False
    states = both.states(x, Context(is_token=is_token))[-1]
    for seed in range(3):
        for text in range(5):
            keep = is_token[seed, text]
            assert_close(states[seed, text][keep], nets[seed].states(x[seed, text][keep])[-1], **TOLERANCE)


def test_relative_bias_with_seeds_and_padding() -> None:
    spec = Spec(layers=1, heads=2, dim=8, position="relative")
    nets = [build(spec, torch.Generator().manual_seed(seed)) for seed in range(2)]
    x, is_token = Draws(0)(2, 6, 8), torch.tensor([[True] * 6, [False, True, True, True, True, False]])
    states = stack(nets).states(x, Context(is_token=is_token))[-1]
    for seed, net in enumerate(nets):
        assert_close(states[seed][is_token[seed]], net.states(x[seed][is_token[seed]])[-1], **TOLERANCE)


def test_chunks_of_seeds_do_not_change_a_seed() -> None:
    spec = Spec(layers=2, heads=4, dim=64)
    assert 1 <= seeds_per_chunk(spec, 32) < 40
    many = {
        s: x
        for batch in batches(spec, tokens=32, seeds=range(40))
        for s, x in zip(batch.seeds, batch.x, strict=True)
    }
    (alone,) = batches(spec, tokens=32, seeds=[17])
    assert_close(many[17], alone.x[0], rtol=0, atol=0)


def test_only_like_trees_can_be_stacked() -> None:
    nets = [build(Spec(layers=k, heads=2, dim=8), torch.Generator().manual_seed(0)) for k in (1, 2)]
    with pytest.raises(ConfigError, match="same tree"):
        stack(nets)
    with pytest.raises(ConfigError, match="at least one"):
        stack([])


def test_a_shared_block_is_stacked_once() -> None:
    draws = [Draws(seed) for seed in range(3)]
    nets = []
    for draw in draws:
        block = Chain([Skip(attention(draw)), norm("layer", draw), Skip(mlp(draw))])
        nets.append(Network([block, block]))
    stacked, x = stack(nets), Draws(7)(3, 5, DIM)
    assert stacked.blocks[0] is stacked.blocks[1]
    for seed, net in enumerate(nets):
        assert_close(stacked(x)[seed], net(x[seed]), **TOLERANCE)


def test_texts_without_tokens_and_masks_of_another_size_are_refused() -> None:
    rule = ExplicitMask([[False, True, True], [True, False, True], [True, True, False]])
    net = Network([Attention(Uniform(heads=2), attention(Draws(0)).values)])
    with pytest.raises(MaskError, match="3"):
        with_mask(net, rule).states(Draws(0)(3, DIM), Context(is_token=torch.tensor([True, False, False])))
    with pytest.raises(MaskError, match="no token that is not padding"):
        net.states(Draws(0)(3, DIM), Context(is_token=torch.tensor([False, False, False])))


@pytest.mark.parametrize("count", [2, 3, 5], ids=["seeds==heads", "seeds", "seeds==tokens"])
@pytest.mark.parametrize("texts", [False, True])
def test_random_trees_can_be_stacked(count: int, texts: bool) -> None:
    """Every part that a tree can hold, query and key norms too, with as many seeds as heads or tokens."""
    nets = []
    for seed in range(count):
        draw = Draws(seed)
        grouped = attention(draw, rule="window:1", place="relative", groups=1, qk_norm=True, softcap=2.0)
        parts = [
            Skip(attention(draw, place="alibi", qk_norm=True), draw(DIM)),
            norm("rms", draw),
            mlp(draw, gated=True),
        ]
        turned = attention(draw, place="rotary", qk_norm=True)
        nets.append(
            Network([Chain([*parts, grouped]), Chain([turned, attention(draw, place="transformer-xl")])])
        )
    x = Draws(9)(count, 2, 5, DIM) if texts else Draws(9)(count, 5, DIM)
    states = stack(nets, texts=texts).states(x)
    for seed, net in enumerate(nets):
        for layer, state in enumerate(net.states(x[seed])):
            assert_close(states[layer][seed], state, rtol=1e-12, atol=1e-12)


def test_tied_weights_are_stacked_together() -> None:
    nets = []
    for seed in range(3):
        draw = Draws(seed)
        part = attention(draw)
        tied = Attention(Softmax(part.mixer.query, part.mixer.query, heads=2), part.values)
        nets.append(Network([part, tied]))
    x = Draws(9)(3, 5, DIM)
    for seed, net in enumerate(nets):
        assert_close(stack(nets)(x)[seed], net(x[seed]), **TOLERANCE)


def test_settings_must_agree_to_be_stacked() -> None:
    def made(**fields: object) -> Network:
        return build(Spec(layers=1, heads=2, dim=8, **fields), torch.Generator().manual_seed(0))

    for one, other in (
        ({"mask": "full"}, {"mask": "causal"}),
        ({"position": "rotary:100"}, {"position": "rotary"}),
        ({"variant": "transformer", "activation": "relu"}, {"variant": "transformer", "activation": "gelu"}),
        ({"mlp_width": 8, "variant": "transformer"}, {"mlp_width": 9, "variant": "transformer"}),
    ):
        with pytest.raises(ConfigError, match="same tree"):
            stack([made(**one), made(**other)])
