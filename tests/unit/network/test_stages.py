"""A block step by step: names in order of execution, states that chain, and the block itself at the end."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from kit.trees import DIM, Draws, attention, mlp, networks, norm, paddings
from rankscope.errors import NotUnderstood
from rankscope.network import Chain, Context, Network, Part, Scale, Skip, Spec, Sum, TokenMap, build, stages
from rankscope.network.stages import branch_label, kind_of, stage_name

DRAW = Draws(3)
X = DRAW(5, DIM)


@settings(max_examples=100)
@given(networks(), paddings(), st.integers(0, 2**16))
def test_the_last_state_is_the_block_bit_for_bit(net: Network, is_token: Tensor, seed: int) -> None:
    x, context = Draws(seed)(3, 6, DIM), Context(is_token=is_token)
    for block in net.blocks:
        found = stages(block, x, context)
        after = block(x, context)
        assert_close(found[-1].state if found else x, after, rtol=0, atol=0, equal_nan=True)
        x = after


@given(networks(most=1), st.integers(0, 2**16))
def test_every_step_is_its_part_on_the_state_before(net: Network, seed: int) -> None:
    before = x = Draws(seed)(5, DIM)
    for stage in stages(net.blocks[0], x, Context()):
        if stage.name not in ("skip", "sum"):
            assert_close(stage.state, stage.part(before, Context()), rtol=0, atol=0)
        if stage.branches:
            assert_close(stage.state, torch.stack(stage.branches).sum(dim=0))
        before = stage.state


@pytest.mark.parametrize(
    ("placement", "names"),
    [
        ("pre", "norm attention skip norm mlp skip"),
        ("post", "attention skip norm mlp skip norm"),
        ("sandwich", "norm attention norm skip norm mlp norm skip"),
        ("parallel", "sum skip"),
    ],
)
def test_order_of_execution(placement: str, names: str) -> None:
    spec = Spec.of(layers=1, heads=2, dim=DIM, norm="rms", placement=placement, variant="transformer")
    block = build(spec, torch.Generator().manual_seed(0)).blocks[0]
    assert [stage.name for stage in stages(block, X, Context())] == names.split()


def test_the_skip_adds_to_what_its_branch_put_out() -> None:
    inner, scale = mlp(DRAW), DRAW(DIM)
    first, last = stages(Skip(inner, scale), X, Context())
    assert_close(first.state, inner(X, Context()), rtol=0, atol=0)
    assert_close(last.state, scale * X + first.state, rtol=0, atol=1e-15)
    assert isinstance(last.part, Skip)
    (alone,) = stages(Skip(Chain(())), X, Context())
    assert_close(alone.state, 2 * X, rtol=0, atol=0)


def test_names_kinds_and_labels() -> None:
    gelu = TokenMap(torch.nn.GELU(), site="router")
    named = attention(DRAW)
    named.site = "self"
    assert [stage_name(part) for part in (named, gelu, Sum(()))] == ["self", "router", "sum"]
    assert [kind_of(part) for part in (named, gelu, TokenMap(torch.nn.GELU()))] == ["attention", "map", "mlp"]
    branches = {
        "self": Chain([norm("layer", DRAW), named]),
        "norm": norm("layer", DRAW),
        "skip": Chain(()),
        "self+mlp": Chain([Skip(named), Skip(mlp(DRAW))]),
        "scale+router": Chain([Scale(2.0), gelu, Scale(1.0)]),
    }
    assert [branch_label(part, stage_name) for part in branches.values()] == list(branches)
    assert branch_label(branches["self+mlp"], kind_of) == "attention+mlp"


def test_an_empty_block_has_no_steps_and_an_empty_sum_is_zero() -> None:
    assert stages(Chain(()), X, Context()) == []
    (only,) = stages(Sum(()), X, Context())
    assert (only.name, only.branches) == ("sum", ())
    assert not bool(only.state.any())


def test_an_unknown_part_is_refused_by_name() -> None:
    class Twice(Part):
        def forward(self, x: Tensor, context: Context) -> Tensor:
            return 2 * x

    with pytest.raises(NotUnderstood, match="stages has no rule for the part Twice"):
        stages(Chain([Skip(Twice())]), X, Context())
