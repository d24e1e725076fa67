"""Blame: against blocks written out by hand, adding up exactly, down to the floor and below it, and in words."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kit.trees import DIM, Draws, attention, mlp, networks, norm, paddings
from rankscope.errors import ConfigError, NotUnderstood, ShapeError
from rankscope.findings.blame import Headline
from rankscope.measures import evaluate, find_measure
from rankscope.network import (
    Attention,
    Chain,
    Context,
    LayerNorm,
    Mlp,
    Network,
    RMSNorm,
    Scale,
    Skip,
    Spec,
    Sum,
    TokenMap,
    build,
    without_attention_skip,
)
from rankscope.network.stages import stages
from rankscope.split import split_states
from rankscope.studies.blame import blame, log_error, shapley, sum_changes
from reference import blame_loops, network_loops

ZERO = np.zeros(64)


def network(placement: str, **fields: object) -> Network:
    spec = Spec.of(
        **{
            "layers": 3,
            "heads": 2,
            "dim": 8,
            "norm": "layer",
            "placement": placement,
            "variant": "transformer",
        }
        | fields
    )
    return build(spec, torch.Generator().manual_seed(3))


def by_hand(part: torch.nn.Module) -> blame_loops.Map:
    """A leaf of a built network as a map of numpy matrices."""
    if isinstance(part, Attention):
        mixer, held = part.mixer, part.values
        return partial(
            network_loops.attention,
            query=mixer.query.numpy(),
            key=mixer.key.numpy(),
            value=held.value.numpy(),
            out=held.out.numpy(),
            heads=2,
            groups=2,
            allowed=np.ones((16, 16), dtype=bool),
            **dict.fromkeys(("query_bias", "key_bias", "value_bias", "out_bias"), ZERO[:8]),
        )
    if isinstance(part, Mlp):
        weights = {
            "up": part.up.numpy(),
            "down": part.down.numpy(),
            "up_bias": ZERO[:32],
            "down_bias": ZERO[:8],
        }
        return lambda x: np.stack([network_loops.mlp(v, **weights, name="relu", gates=None) for v in x])
    if isinstance(part, LayerNorm):
        gain, bias = part.weight.numpy(), part.bias.numpy()
        return lambda x: np.stack([network_loops.layer_norm(v, gain, bias, part.eps) for v in x])
    assert isinstance(part, RMSNorm)
    return lambda x: np.stack([network_loops.rms_norm(v, part.weight.numpy(), part.eps) for v in x])


@pytest.mark.parametrize("norm_name", ["layer", "rms"])
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "parallel"])
@pytest.mark.parametrize("split", [False, True])
def test_blame_is_that_of_blocks_written_out_by_hand(placement: str, norm_name: str, split: bool) -> None:
    net, x = network(placement, norm=norm_name), Draws(5)(6, 8)
    found = blame(net, x, split=split)
    state = x.numpy()
    for number, block in enumerate(net.blocks, start=1):
        kinds = (Attention, Mlp, LayerNorm, RMSNorm)
        parts = [part for part in block.modules() if isinstance(part, kinds)]
        norms = [by_hand(part) for part in parts if isinstance(part, LayerNorm | RMSNorm)]
        one, two = (by_hand(next(p for p in parts if isinstance(p, kind))) for kind in (Attention, Mlp))
        expected, state = getattr(blame_loops, placement)(state, norms, one, two)
        own = [change for change in found.changes if change.block == number]
        assert [change.name for change in own] == [name for name, _ in expected]
        assert [change.stage for change in own] == list(range(1, len(own) + 1))
        for change, (_, value) in zip(own, expected, strict=True):
            assert change.values[0] == pytest.approx(
                value, abs=1e-11
            )  # ten roundings of order-one logarithms
    whole = blame_loops.log_ratio(state) - blame_loops.log_ratio(x.numpy())
    assert found.totals[0] == pytest.approx(whole, abs=1e-11)


@settings(max_examples=30)
@given(networks(most=2), paddings(), st.integers(0, 2**16), st.booleans())
def test_changes_add_up_and_there_is_no_nan(net: Network, is_token: Tensor, seed: int, split: bool) -> None:
    x = Draws(seed)(3, 6, DIM)
    found = blame(net, x, Context(is_token=is_token), split=split)
    for text in range(3):
        values = [change.values[text] for change in found.changes]
        assert all(value is None or math.isfinite(value) for value in values)
        if None not in values:
            size = max([1.0, *map(abs, values)])
            assert math.fsum(values) == pytest.approx(found.totals[text], abs=1e-12 * size)
    for change in found.changes:
        for value, floor, resolved in zip(change.values, change.floors, change.resolved, strict=True):
            assert not resolved or (value is not None and floor is not None)


@settings(max_examples=12)
@given(networks(most=2), paddings(), st.integers(0, 2**16))
def test_a_padded_batch_equals_its_texts_one_by_one(net: Network, is_token: Tensor, seed: int) -> None:
    x = Draws(seed)(3, 6, DIM)
    batch = blame(net, x, Context(is_token=is_token))
    for text in range(3):
        alone = blame(net, x[text][is_token[text]])
        for one, many in zip(alone.changes, batch.changes, strict=True):
            assert one.name == many.name
            if one.resolved[0] and many.resolved[text]:
                allowed = 1e-9 + 2 * (one.floors[0] + many.floors[text])
                assert one.values[0] == pytest.approx(many.values[text], abs=allowed)


def test_shapley_values_of_three_branches_by_all_orders() -> None:
    draw = Draws(2)
    branches = [attention(draw), Chain([norm("layer", draw), mlp(draw)]), Scale(draw(DIM))]
    net, x = Network([Skip(Sum(branches))]), draw(5, DIM)
    outputs = [branch(x, Context()).numpy() for branch in branches]

    def value(team: frozenset[int]) -> float:
        return blame_loops.log_ratio(
            sum((outputs[i] for i in team), np.zeros((5, DIM))) if team else x.numpy()
        )

    expected = blame_loops.shapley(value, 3)
    for split in (False, True):
        found = blame(net, x, split=split).changes
        assert [change.name for change in found] == ["attention", "mlp", "scale", "skip"]
        assert [change.values[0] for change in found[:3]] == pytest.approx(expected, abs=1e-12)
        assert [change.stage for change in found] == [1, 2, 3, 4]


@given(st.integers(1, 4), st.integers(0, 2**16))
def test_shapley_values_share_out_everything_by_all_orders(count: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    table = {
        frozenset(i for i in range(count) if mask >> i & 1): generator.normal() for mask in range(2**count)
    }
    found = shapley(lambda team: torch.tensor(table[frozenset(team)], dtype=torch.float64), count)
    expected = blame_loops.shapley(table.__getitem__, count)
    assert [float(share) for share in found] == pytest.approx(expected, abs=1e-12)
    whole = table[frozenset(range(count))] - table[frozenset()]
    assert math.fsum(map(float, found)) == pytest.approx(whole, abs=1e-12)


def test_the_split_pass_goes_on_where_floats_end() -> None:
    net, x = build(Spec(layers=8, heads=2, dim=8), torch.Generator().manual_seed(0)), Draws(1)(6, 8)
    ordinary, split = blame(net, x), blame(net, x, split=True)
    shallow = [change.resolved[0] for change in ordinary.changes]
    assert shallow[0]
    assert not shallow[-1]
    assert all(change.resolved[0] for change in split.changes)
    first, *_, last = split_states(net, x)
    ends = [float(s.log_residual(norm="frobenius", center="mean")) for s in (first, last)]
    sizes = [float(torch.linalg.matrix_norm(s.tokens()).log()) for s in (first, last)]
    assert split.totals[0] == pytest.approx(ends[1] - sizes[1] - ends[0] + sizes[0], rel=1e-12)
    assert split.totals[0] < -1000
    for one, other in zip(ordinary.changes, split.changes, strict=True):
        if one.resolved[0]:
            assert one.values[0] == pytest.approx(other.values[0], abs=2 * one.floors[0])


@pytest.mark.parametrize("split", [False, True])
def test_equal_tokens_and_zero_states_are_null(split: bool) -> None:
    draw = Draws(0)
    equal = draw(1, DIM).expand(4, DIM).clone()
    found = blame(Network([attention(draw), mlp(draw)]), equal, split=split)
    assert [change.resolved for change in found.changes] == [(False,), (False,)]
    assert found.totals == (None,)
    assert (
        "in every text some step cannot be told from rounding"
        in sum_changes(found, Headline.unchanged()).words
    )
    vanished = blame(Network([Scale(0.0), attention(draw)]), draw(4, DIM), split=split)
    assert [change.values for change in vanished.changes] == [(None,), (None,)]
    empty = blame(Network([Sum(())]), draw(4, DIM), split=split)
    assert [(c.name, c.values, c.resolved) for c in empty.changes] == [("sum", (None,), (False,))]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_change_is_unknown_if_either_end_is(dtype: torch.dtype) -> None:
    spec = Spec(layers=4, heads=2, dim=8, norm="layer", variant="san+skip")
    net = without_attention_skip(build(spec, torch.Generator().manual_seed(0)).to(dtype))
    net = net.with_blocks([*net.blocks, Scale(torch.ones(1, dtype=dtype)), TokenMap(Apart())])
    x = Draws(1)(6, 8).to(dtype)
    found = iter(blame(net, x).changes)
    measure, seen = find_measure("residual_ratio[frobenius,mean]"), set()
    before = evaluate(measure, x, layer=0, dtype=dtype)
    for number, block in enumerate(net.blocks, start=1):
        for stage in stages(block, x, Context()):
            after = evaluate(measure, stage.state, layer=number, dtype=dtype)
            ends = (bool(before.resolved), bool(after.resolved))
            change = next(found)
            assert change.known == (all(ends),)
            if all(ends):
                floor = sum(-math.log(1 - float(one.floor / one.value)) for one in (before, after))
                assert change.floors[0] == pytest.approx(floor, rel=1e-9)
            seen.add(ends)
            x, before = stage.state, after
    assert seen == {(True, True), (True, False), (False, False), (False, True)}


def test_the_error_of_a_logarithm_holds_down_to_the_floor() -> None:
    """A number v that rounding f may move lies between v - f and v + f; so does its logarithm."""
    shares = torch.tensor([0.0, 1e-9, 0.1, 0.5, 0.999], dtype=torch.float64)
    for share, error in zip(shares.tolist(), log_error(shares).tolist(), strict=True):
        ends = abs(math.log1p(-share)), math.log1p(share)
        assert error == pytest.approx(max(ends), rel=1e-12)
    assert log_error(torch.tensor([1.0, 2.0, math.inf, math.nan])).tolist() == [math.inf] * 4
    tokens = (
        torch.eye(2, DIM, dtype=torch.float64) * 0.9e-15 + 1.0
    )  # a ratio of 4.5e-16, an eighth of its floor
    change = blame(Network([Scale(2.0)]), tokens).changes[0]
    assert (change.known, change.floors) == ((False,), (None,))


class Apart(torch.nn.Module):
    """Pulls tokens apart again, each by itself, by a multiple of its place."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.arange(x.shape[-2], dtype=x.dtype).unsqueeze(-1)


def test_only_the_measured_tokens_count_but_all_of_them_run() -> None:
    net, x = network("post"), Draws(4)(2, 6, 8)
    measured = torch.tensor([[True, True, True, True, False, False], [False, True, True, True, True, True]])
    for split in (False, True):
        found = blame(net, x, is_token=measured, split=split)
        last = net.states(x)[-1]
        for text in range(2):
            ends = [blame_loops.log_ratio(state[text][measured[text]].numpy()) for state in (x, last)]
            assert found.totals[text] == pytest.approx(ends[1] - ends[0], abs=1e-11)


def test_a_few_tokens_deep_below_the_residual_of_all_are_unresolved() -> None:
    x = torch.ones(5, DIM, dtype=torch.float64)
    x[0] += Draws(6)(DIM)
    x[1, 0] += 2.0**-52
    found = blame(
        Network([Scale(0.5)]), x, is_token=torch.tensor([False, True, True, True, True]), split=True
    )
    assert found.changes[0].values == pytest.approx((0.0,), abs=1.0)
    assert found.changes[0].resolved == (False,)


def test_what_cannot_be_asked_is_refused() -> None:
    draw = Draws(0)
    net, x = Network([Skip(TokenMap(torch.nn.Tanh()))]), draw(4, DIM)
    assert [change.kind for change in blame(net, x).changes] == ["mlp", "skip"]
    with pytest.raises(NotUnderstood, match="split has no rule for the part TokenMap"):
        blame(net, x, split=True)
    with pytest.raises(ConfigError, match="a sum of 11 branches"):
        blame(Network([Sum([Scale(1.0)] * 11)]), x)
    padding = torch.tensor([True, True, True, False])
    with pytest.raises(ShapeError, match="padding to be measured"):
        blame(net, x, Context(is_token=padding), is_token=torch.ones(4, dtype=torch.bool))
    with pytest.raises(ShapeError, match="at least 2 tokens"):
        blame(net, x, is_token=torch.tensor([True, False, False, False]))
