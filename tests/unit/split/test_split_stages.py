"""Split states step by step: the block itself at the end, and the ordinary steps wherever those can be resolved."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from kit.trees import DIM, Draws, networks
from rankscope.errors import NotUnderstood
from rankscope.network import Context, Network, Skip, Spec, TokenMap, build, stages
from rankscope.split import split_stages, split_states, split_tokens
from rankscope.split.rules import split_part


@settings(max_examples=60)
@given(networks(), st.integers(0, 2**16), st.sampled_from([1.0, 1e-9, 1e-30]))
def test_the_last_state_is_that_of_the_block_bit_for_bit(net: Network, seed: int, spread: float) -> None:
    draw = Draws(seed)
    state = split_tokens(spread * draw(5, DIM))
    for block in net.blocks:
        found, whole = split_stages(block, state, Context()), split_part(block, state, Context())
        last = found[-1].state if found else state
        for name in ("common", "residual", "log_scale"):
            assert_close(getattr(last, name), getattr(whole, name), rtol=0, atol=0, equal_nan=True)
        state = whole


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "parallel"])
def test_steps_agree_with_the_ordinary_ones(placement: str) -> None:
    spec = Spec.of(
        layers=2, heads=2, dim=8, norm="layer", placement=placement, variant="transformer", activation="gelu"
    )
    net, x = build(spec, torch.Generator().manual_seed(0)), Draws(1)(2, 6, 8)
    state = split_tokens(x)
    for block in net.blocks:
        ordinary, split = stages(block, x, Context()), split_stages(block, state, Context())
        assert [one.name for one in ordinary] == [one.name for one in split]
        assert [one.part for one in ordinary] == [one.part for one in split]
        for one, other in zip(ordinary, split, strict=True):
            assert_close(other.state.tokens(), one.state, rtol=1e-10, atol=1e-12)
            for branch, branch_split in zip(one.branches, other.branches, strict=True):
                assert_close(branch_split.tokens(), branch, rtol=1e-10, atol=1e-12)
        x, state = ordinary[-1].state, split[-1].state


def test_a_deep_run_by_steps_is_the_split_run() -> None:
    net, x = build(Spec(layers=9, heads=2, dim=8), torch.Generator().manual_seed(0)), Draws(1)(6, 8)
    state = split_tokens(x)
    for block, whole in zip(net.blocks, split_states(net, x)[1:], strict=True):
        state = split_stages(block, state, Context())[-1].state
        assert_close(state.log_scale, whole.log_scale, rtol=1e-12, atol=0)
    assert float(state.log_scale) < -1000


def test_an_unknown_part_is_refused_by_name() -> None:
    with pytest.raises(NotUnderstood, match="split has no rule for the part TokenMap"):
        split_stages(Skip(TokenMap(torch.nn.Tanh())), split_tokens(Draws(0)(4, DIM)), Context())
