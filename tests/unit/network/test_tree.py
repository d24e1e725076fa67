"""States, traces and contexts."""

import pytest
import torch
from torch.testing import assert_close

from kit.trees import DIM, Draws, attention, mlp, norm
from rankscope.errors import ShapeError, UnknownNameError
from rankscope.network import Chain, Context, Network, Skip, Sum

DRAW = Draws(0)
BLOCK = Chain([Skip(attention(DRAW)), norm("layer", DRAW), Skip(mlp(DRAW))])
X = DRAW(5, DIM)


def test_states_chain_the_blocks_and_end_before_the_final_norm() -> None:
    last = norm("rms", DRAW)
    net = Network([BLOCK, BLOCK], last)
    states = net.states(X)
    assert len(states) == 3
    assert_close(states[1], BLOCK(X, Context()))
    assert_close(states[2], BLOCK(states[1], Context()))
    assert_close(net(X), last(states[2]))
    trace = net.trace(X)
    assert_close(trace.final, net(X))
    assert not trace.sites
    assert not trace.maps


def test_a_site_is_the_output_of_its_part_and_maps_are_the_mixers() -> None:
    trace = Network([BLOCK, BLOCK]).trace(X, sites=["attention", "mlp"], maps=True)
    inner = BLOCK.parts[0].inner
    for layer in (1, 2):
        before = trace.states[layer - 1]
        assert_close(trace.sites[layer, "attention"], inner(before, Context()))
        assert_close(trace.maps[layer, "attention"], inner.mixer(before, Context()))
        after = before + trace.sites[layer, "attention"]
        assert_close(BLOCK.parts[1](after) + trace.sites[layer, "mlp"], trace.states[layer])


def test_two_parts_of_one_name_keep_both_outputs() -> None:
    one, two = attention(DRAW), attention(DRAW)
    trace = Network([Sum([one, two])]).trace(X, sites=["attention"], maps=True)
    assert set(trace.sites) == set(trace.maps) == {(1, "attention"), (1, "attention.2")}
    assert_close(trace.sites[1, "attention.2"], two(X, Context()))


def test_a_trace_leaves_no_hooks_behind_even_after_an_error() -> None:
    net = Network([BLOCK])
    with pytest.raises(RuntimeError):
        net.trace(DRAW(5, DIM + 1), sites=["attention"], maps=True)
    net.trace(X, sites=["attention"], maps=True)
    assert not any(module._forward_hooks for module in net.modules())


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3), "got float32 of shape"),
        (torch.zeros(0, 4), "at least one token"),
        (torch.zeros(3, 4, dtype=torch.int64), "got int64"),
    ],
)
def test_what_is_not_a_token_matrix_is_refused(x: torch.Tensor, message: str) -> None:
    with pytest.raises(Exception, match=message):
        Network([BLOCK]).checked(x, None)


def test_contexts_must_fit_the_tokens() -> None:
    net = Network([BLOCK])
    with pytest.raises(ShapeError, match="is_token has shape"):
        net.states(X, Context(is_token=torch.ones(4, dtype=torch.bool)))
    with pytest.raises(ShapeError, match="positions has shape"):
        net.states(X, Context(positions=torch.arange(3)))


def test_a_context_may_serve_texts_of_different_lengths() -> None:
    net, context = Network([attention(DRAW, rule="causal", place="rotary")]), Context()
    for tokens in (5, 3):
        assert_close(net.states(X[:tokens], context)[-1], net.states(X[:tokens])[-1])


def test_sites_must_be_known() -> None:
    net = Network([BLOCK])
    with pytest.raises(UnknownNameError, match="did you mean 'attention'"):
        net.trace(X, sites=["atention"])
    with pytest.raises(ShapeError, match="one name; give a list"):
        net.trace(X, sites="attention")
    assert not Network([norm("layer", DRAW)]).trace(X, sites=["mlp"]).sites


def test_tokens_of_another_dtype_are_refused_in_words() -> None:
    with pytest.raises(ShapeError, match="tokens are float32 and the network is float64"):
        Network([BLOCK]).states(X.float())


def test_rotary_angles_stay_exact_in_a_network_of_low_precision() -> None:
    part = attention(DRAW, place="rotary")
    before = part.mixer.position.frequencies.clone()
    Network([part]).to(torch.bfloat16)
    assert torch.equal(part.mixer.position.frequencies, before)


def test_what_a_context_keeps_does_not_outlive_a_change_of_weights() -> None:
    for place in ("alibi", "relative", "transformer-xl", "rotary"):
        net, context = Network([attention(DRAW, place=place)]), Context()
        before = net.states(X, context)[-1]
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(1.5)
        assert not torch.allclose(net.states(X, context)[-1], before)
        assert_close(net.states(X, context)[-1], net.states(X)[-1])
