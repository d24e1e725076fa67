"""The decomposition adds up on every tree, equals one made by hand, and goes on below the rounding of states."""

import math
import os

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kit.planted import Start, large_values, skip_scale, without_skips
from kit.trees import DIM, MEMORY_DIM, Draws, gated, mlp, networks, norm, paddings, values
from rankscope.errors import NotUnderstood
from rankscope.findings.mechanism import GROUPS
from rankscope.measures import evaluate, find_measure
from rankscope.mechanism import Decomposition, decompose, moves, start
from rankscope.mechanism.pieces import Flow, Walker, branch
from rankscope.mechanism.states import measured, of_tokens, plus
from rankscope.mechanism.trace import Added
from rankscope.network import (
    Attention,
    Chain,
    Context,
    LinearSums,
    Mixer,
    Network,
    Opaque,
    Part,
    Scale,
    Sigmoid,
    SinkSoftmax,
    Skip,
    Softmax,
    Sum,
    TokenMap,
    stack,
    without,
)
from rankscope.network.parts import around
from reference import mechanism_loops

RATIO = find_measure("residual_ratio[frobenius,mean,unit]")
EVERY = ("opaque", "tokenwise", "observed", "cross", "mixer", "linformer", "gated", "sequence")
MANY = 400 if os.environ.get("RANKSCOPE_SOAK") else 24
EXACT = 1e-10


def taken(
    network: Network,
    x: Tensor,
    context: Context | None = None,
    *,
    keep: Tensor | None = None,
    is_split: bool = False,
) -> Decomposition:
    context = Context() if context is None else context
    with torch.no_grad():
        entering = measured(start(network, x, context, is_split=is_split), keep)
        steps = moves(network, x, context, keep=keep, is_split=is_split)
        return decompose(steps, entering, len(network.blocks), is_split=is_split)


def is_seen(found: Decomposition, text: int) -> bool:
    """Whether floats tell the tokens of a text apart in every state, with ten digits to spare."""
    return float(found.lowest[text]) > math.log(1e-6) and not bool(found.cancelled[text])


# ------------------------------------------------------------------------------------------------------------- laws


@settings(max_examples=MANY)
@given(networks(also=EVERY), st.integers(3, 6), st.integers(0, 2**16))
def test_contributions_add_up_on_every_tree_and_ends_are_what_is_measured(
    net: Network, tokens: int, seed: int
) -> None:
    draw = Draws(seed)
    x, context = draw(DIM) + draw(2, tokens, DIM), Context(memory=draw(tokens, MEMORY_DIM))
    states = net.states(x, context)
    assume(all(bool((state.abs() < 1e60).all()) for state in states))
    found = taken(net, x, context)
    for text in range(2):
        if not is_seen(found, text):
            continue
        assert float(found.error[text]) < EXACT
        for layer, state in enumerate(states):
            value = evaluate(RATIO, state[text], layer=layer, dtype=torch.float64)
            if bool(value.resolved):
                assert float(found.layers[layer][text]) == pytest.approx(float(value.value.log()), abs=1e-8)


@settings(max_examples=MANY // 2)
@given(networks(also=("mixer", "sequence")), paddings(), st.integers(0, 2**16))
def test_a_padded_batch_equals_its_texts_one_by_one(net: Network, is_token: Tensor, seed: int) -> None:
    x = Draws(seed)(3, 6, DIM)
    assume(all(bool((state.abs() < 1e60).all()) for state in net.states(x, Context(is_token=is_token))))
    batch = taken(net, x, Context(is_token=is_token))
    for text in range(3):
        single = taken(net, x[text][is_token[text]].unsqueeze(0))
        if not is_seen(single, 0) or not is_seen(batch, text):
            continue
        for key in batch.rows.keys() | single.rows.keys():
            ours, alone = (
                float(one.rows[key][place]) if key in one.rows else 0.0
                for one, place in ((batch, text), (single, 0))
            )
            # contributions of one sum may be large and cancel, so rounding is relative to the largest of them
            size = 1 + max(abs(float(value[text])) for value in batch.rows.values())
            assert ours == pytest.approx(alone, abs=1e-7 * size), key


def test_a_batch_of_seeds_equals_single_runs() -> None:
    starts = [Start(placement="post", layers=3, dim=8, heads=2, seed=seed) for seed in range(3)]
    nets, x = [one.network() for one in starts], Draws(0)(3, 5, 8)
    batch = taken(stack(nets), x)
    for seed, net in enumerate(nets):
        single = taken(net, x[seed])
        for key, value in single.rows.items():
            assert float(batch.rows[key][seed]) == pytest.approx(float(value), abs=1e-10), key


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "parallel", "none"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_the_split_pass_gives_the_same_where_both_can_see(placement: str, kind: str) -> None:
    one = Start(
        placement=placement, layers=3, dim=8, heads=2, groups=1, norm=kind, gated=True, activation="silu"
    )
    x = one.tokens(6)
    plain, split = taken(one.network(), x), taken(one.network(), x, is_split=True)
    for key in plain.rows:
        torch.testing.assert_close(plain.rows[key], split.rows[key], rtol=1e-8, atol=1e-10)


def test_a_collapse_far_below_rounding_adds_up_and_has_the_cause_that_it_has() -> None:
    one = Start(placement="post", layers=5, dim=8, heads=2, mask="full")
    found = taken(without_skips(one.network(), None), one.tokens(8), is_split=True)
    assert bool((found.last < math.log(1e-40)).all())
    assert bool((found.error < EXACT).all())
    assert bool((found.group("no-skip") < 0.9 * (found.last - found.first)).all())
    # branches answer to what they would read: the stream that nobody shrinks stays far from collapse
    assert bool((found.free > math.log(0.2)).all())


# ---------------------------------------------------------------------------------------------------- against loops


def test_pieces_of_attention_are_those_of_the_formula() -> None:
    draw = Draws(5)
    for name in ("softmax", "sinks", "sigmoid", "linear-sums"):
        held = values(draw, groups=1, heads=1)
        part = Attention(_one_head(draw, name), held)
        h = draw(5, DIM)
        flow = branch(part, Flow(state=of_tokens(h, None)), Walker(context=Context(), is_split=False))
        expected = mechanism_loops.attention_pieces(
            h.numpy(),
            part.mixer(h, Context())[0].numpy(),
            *(one.detach().numpy() for one in (held.value, held.out, held.value_bias, held.out_bias)),
        )
        found = {one.name: one.state.tokens().numpy() for one in flow.pieces or ()}
        for piece, matrix in expected.items():
            if piece in found:
                np.testing.assert_allclose(found[piece], matrix, rtol=0, atol=1e-12)
            else:
                np.testing.assert_allclose(matrix, 0, atol=1e-12)
        np.testing.assert_allclose(
            sum(found.values()), part(h, Context()).detach().numpy(), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("core", ["attention", "mlp"])
def test_the_answer_to_the_bias_of_a_norm_is_a_piece_of_its_own(core: str) -> None:
    draw = Draws(6)
    first, held = norm("layer", draw), values(draw, groups=1, heads=1)
    part: Part = Attention(_one_head(draw, "softmax"), held) if core == "attention" else mlp(draw)
    x = draw(5, DIM)
    flow = branch(
        Chain([first, part]), Flow(state=of_tokens(x, None)), Walker(context=Context(), is_split=False)
    )
    found = {one.name: one.state.tokens()[0] for one in flow.pieces or ()}
    mean, bias = first(x).mean(dim=0, keepdim=True), first.bias.unsqueeze(0)
    if core == "attention":
        wanted = {"norm-bias": bias @ held.value @ held.out, "common": (mean - bias) @ held.value @ held.out}
    else:
        zero, at, whole = (part(row, Context()) for row in (torch.zeros_like(bias), bias, mean))
        wanted = {"bias": zero, "norm-bias": at - zero, "common": whole - at}
    for name, row in wanted.items():
        torch.testing.assert_close(found[name], row[0], rtol=0, atol=1e-12)


def _one_head(draw: Draws, name: str) -> Mixer:
    kinds = {"softmax": Softmax, "sinks": SinkSoftmax, "sigmoid": Sigmoid, "linear-sums": LinearSums}
    return kinds[name](draw(DIM, DIM) * DIM**-0.5, draw(DIM, DIM) * DIM**-0.5, heads=1)


def test_a_stream_without_norms_equals_one_taken_apart_by_hand() -> None:
    """With whole skips and no norm on the way the free stream is the real one, so the design does nothing."""
    draw = Draws(8)
    blocks: list[Part] = [
        Skip(Attention(_one_head(draw, "softmax"), values(draw, groups=1, heads=1))),
        Skip(mlp(draw)),
        Skip(Attention(_one_head(draw, "softmax"), values(draw, groups=1, heads=1))),
    ]
    x, branches = draw(6, DIM), []
    state = x
    for block in blocks:
        part = block.inner
        if isinstance(part, Attention):
            held = part.values
            pieces = mechanism_loops.attention_pieces(
                state.numpy(),
                part.mixer(state, Context())[0].numpy(),
                *(one.detach().numpy() for one in (held.value, held.out, held.value_bias, held.out_bias)),
            )
            pieces = {f"attention {name}": one for name, one in pieces.items() if name != "row-sums"}
        else:
            zero = part(torch.zeros_like(state), Context())
            mean = part(state.mean(dim=0).expand_as(state), Context())
            whole = part(state, Context())
            pieces = {"mlp bias": zero, "mlp common": mean - zero, "mlp answer": whole - mean}
            pieces = {name: one.detach().numpy() for name, one in pieces.items()}
        branches.append(pieces)
        state = block(state, Context())
    expected = mechanism_loops.pre_norm_fall(x.numpy(), branches)
    found = taken(Network(blocks), x)
    size = sum(
        value
        for name, value in expected.items()
        if name not in ("lengths", "same-direction") and "bias" not in name
    )
    hand = {
        "lengths": expected["lengths"],
        "same-direction": expected["same-direction"],
        "attention-bias": expected["attention bias"],
        "mlp-bias": expected["mlp bias"],
        "branch-size": size,
    }
    for group in GROUPS:
        assert float(found.group(group)) == pytest.approx(hand.get(group, 0.0), abs=1e-9), group


# ------------------------------------------------------------------------------------------------- shapes of blocks


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "parallel", "none"])
def test_steps_replay_the_network_and_pieces_make_the_sum(placement: str) -> None:
    one = Start(placement=placement, layers=2, dim=8, heads=2)
    net, x = one.network(), one.tokens(5)
    *_, last = steps = list(moves(net, x, Context()))
    torch.testing.assert_close(last.y.tokens(), net(x), rtol=0, atol=1e-12)
    for step in steps:
        if isinstance(step, Added):
            total = plus([*([step.own] if step.own else []), *(piece.state for piece in step.pieces)])
            torch.testing.assert_close(total.tokens(), step.y.tokens(), rtol=0, atol=1e-11)
    assert sum(isinstance(step, Added) for step in steps) == (2 if placement == "parallel" else 4)


def test_a_skip_is_found_however_it_is_written() -> None:
    part, nothing = mlp(Draws(1)), Chain(())
    for written, scales in (
        (Skip(part), [1.0]),
        (Sum([nothing, part]), [1.0]),
        (Skip(Skip(part, 0.5)), [1.0, 0.5]),
        (Chain([Sum([part, Skip(nothing, 2.0)])]), [2.0, 1.0]),
        (part, []),
        (Chain([part, part]), []),
    ):
        found, rest = around(written)
        assert found == scales
        x = Draws(2)(4, DIM)
        whole = sum((scale * x for scale in found), rest(x, Context()))
        torch.testing.assert_close(whole, written(x, Context()), rtol=1e-12, atol=1e-12)


def test_what_belongs_to_whom() -> None:
    """One planted term each: a scale on the stream, a norm in a branch, a region run as it is, a gate."""
    draw = Draws(3)
    x = draw(4, DIM)
    shrunk = taken(Network([Chain([Scale(0.1), Skip(Chain([norm("layer", draw), mlp(draw)]))])]), x)
    assert float(shrunk.group("skip-scale").abs()) > 0.01
    assert float(shrunk.group("norm-rescale").abs()) == 0.0
    biased = norm("layer", draw)
    inside = taken(Network([Skip(Chain([mlp(draw), biased]))]), x)
    assert float(inside.group("norm-direct").abs()) > 1e-3
    shifted = Opaque(lambda y: y + 3.0, site="mlp", where="here", what="a shift", tokenwise=True)
    assert float(taken(Network([Skip(shifted)]), x).group("mlp-bias")) < -0.1
    assert float(taken(Network([Skip(TokenMap(torch.nn.Tanh()))]), x).group("mlp-bias")) == 0.0
    assert float(taken(Network([Skip(gated(draw))]), x).group("attention-bias").abs()) > 1e-3


def test_norms_and_short_skips_share_what_becomes_of_the_stream() -> None:
    one = Start(placement="post", layers=6, dim=16, heads=2, mask="full", seed=4)
    network = skip_scale(0.5)(large_values(6.0)(one.network(), None), None)
    found = taken(network, one.tokens(8))
    later = [value for (group, block, _), value in found.rows.items() if group == "skip-scale" and block > 3]
    assert bool((torch.stack(later).sum(dim=0) < -0.1).all())
    assert bool((found.group("norm-rescale") < -0.2).all())


def test_a_part_without_a_split_rule_is_refused_by_the_split_pass_alone() -> None:
    net, x = Network([Skip(TokenMap(torch.nn.Tanh()))]), Draws(1)(4, DIM)
    taken(net, x)
    with pytest.raises(NotUnderstood, match="split has no rule for the part TokenMap"):
        taken(net, x, is_split=True)


def test_without_a_skip_all_of_the_design_is_the_missing_skip() -> None:
    one = Start(placement="post", layers=2, dim=8, heads=2)
    found = taken(without(one.network(), "skip"), one.tokens(6))
    assert {group for (group, _, _), value in found.rows.items() if float(value.abs().max()) > 0.2} <= {
        "no-skip",
        "norm-direct",
        "branch-size",
        "same-direction",
        "mlp-bias",
    }
    assert bool((found.group("no-skip") < -0.2).all())
