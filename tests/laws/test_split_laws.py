"""The split pass against the ordinary one: on random trees, padded batches and stacked seeds."""

from collections.abc import Iterable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from kit.trees import DIM, Draws, in_range, networks, paddings
from rankscope.network import Context, Network, Spec, build, stack
from rankscope.split import Split, split_states

EPS = torch.finfo(torch.float64).eps


def residual(x: Tensor) -> Tensor:
    return x - x.mean(dim=-2, keepdim=True)


def agrees(split: Split, before: Iterable[Tensor], x: Tensor) -> None:
    """``|split - forward| <= 1e-9 |forward| + 64 eps ||X||_F``, entry by entry, in the residual and the mean.

    ``||X||_F`` is the largest of what entered this block or one before it, in either pass, and what leaves it:
    branches may cancel to zero inside, in one pass to what rounding left, and later blocks carry that on.
    """
    size = torch.stack([torch.linalg.matrix_norm(one) for one in (*before, x)]).amax(dim=0)
    for found, expected in (
        (split.scale * split.residual, residual(x)),
        (split.common.unsqueeze(-2), x.mean(dim=-2, keepdim=True)),
    ):
        off, allowed = (found - expected).abs(), 1e-9 * expected.abs() + 64 * EPS * size[..., None, None]
        assert bool((off <= allowed).all()), (
            f"{float(off.max()):.1e} off, {float((off / allowed).max()):.1f} x"
        )


@settings(max_examples=150)
@given(
    networks(also=("split-mixer",)),
    st.integers(2, 6),
    st.integers(0, 2**16),
    st.sampled_from([1.0, 1e-3, 1e-9, 30.0]),
)
def test_split_equals_forward_on_random_trees(net: Network, tokens: int, seed: int, spread: float) -> None:
    draw = Draws(seed)
    x = draw(DIM) + spread * draw(tokens, DIM)
    assume(in_range(net, x))
    states, splits = net.states(x), split_states(net, x)
    entered = [x]
    for split, state in zip(splits, states, strict=True):
        agrees(split, entered, state)
        entered += [state, split.tokens()]


@given(networks(also=("split-mixer",)), paddings(), st.integers(0, 2**16))
def test_a_padded_batch_equals_its_texts_one_by_one(net: Network, is_token: Tensor, seed: int) -> None:
    x = Draws(seed)(3, 6, DIM)
    assume(in_range(net, x))
    batch = split_states(net, x, Context(is_token=is_token))
    for text in range(3):
        keep = is_token[text]
        for layer, single in enumerate(split_states(net, x[text][keep])):
            found = batch[layer].scale[text] * batch[layer].residual[text][keep]
            size = 1e-13 * float(torch.linalg.matrix_norm(single.tokens()))
            assert_close(found, single.scale * single.residual, rtol=1e-10, atol=size)
            assert_close(batch[layer].common[text], single.common, rtol=1e-10, atol=size)
            assert bool((batch[layer].residual[text][~keep] == 0).all())


@pytest.mark.parametrize("rule", ["full", "causal", "window:1"])
@pytest.mark.parametrize("position", ["none", "alibi:0.5", "rotary", "relative", "transformer-xl"])
def test_a_batch_of_seeds_equals_single_runs(rule: str, position: str) -> None:
    spec = Spec(layers=4, heads=2, dim=8, mask=rule, position=position)
    nets = [build(spec, torch.Generator().manual_seed(seed)) for seed in range(3)]
    x = Draws(0)(3, 5, 8)
    batch = split_states(stack(nets), x)
    for seed, net in enumerate(nets):
        for layer, single in enumerate(split_states(net, x[seed])):
            assert_close(batch[layer].log_scale[seed], single.log_scale, rtol=1e-10, atol=1e-10)
            # summation order differs, and every layer that cubes the residual triples the relative difference
            assert_close(batch[layer].residual[seed], single.residual, rtol=1e-10, atol=1e-12)


def test_seeds_with_several_padded_texts_each() -> None:
    spec = Spec(
        layers=2, heads=2, dim=8, position="alibi", norm="rms", placement="pre", variant="transformer"
    )
    nets = [build(spec, torch.Generator().manual_seed(seed)) for seed in range(2)]
    x, is_token = Draws(0)(2, 3, 6, 8), torch.ones(2, 3, 6, dtype=torch.bool)
    is_token[1, 2, :2] = False
    batch = split_states(stack([stack([net]) for net in nets]), x, Context(is_token=is_token))[-1]
    for seed in range(2):
        for text in range(3):
            keep = is_token[seed, text]
            single = split_states(nets[seed], x[seed, text][keep])[-1]
            assert_close(batch.residual[seed, text][keep], single.residual, rtol=1e-9, atol=1e-11)
            assert_close(batch.log_scale[seed, text], single.log_scale)


def test_the_tree_runs_in_its_own_dtype_and_the_split_in_float64() -> None:
    spec = Spec(layers=3, heads=2, dim=8, norm="layer", variant="transformer", position="rotary")
    net, x = (
        build(spec, torch.Generator().manual_seed(0)).to(torch.bfloat16),
        Draws(1)(5, 8).to(torch.bfloat16),
    )
    before = [parameter.clone() for parameter in net.parameters()]
    states = split_states(net, x)
    assert states[-1].residual.dtype == torch.float64
    wide = split_states(build(spec, torch.Generator().manual_seed(0)).to(torch.bfloat16).double(), x.double())
    assert_close(states[-1].log_scale, wide[-1].log_scale, rtol=0, atol=0)
    assert all(torch.equal(old, new) for old, new in zip(before, net.parameters(), strict=True))
