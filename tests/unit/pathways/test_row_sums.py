"""Paths through maps whose rows do not sum to one: with maps held the network is affine whatever they sum to."""

from itertools import product

import pytest
import torch
from torch.testing import assert_close

from kit.trees import (
    DIM,
    MEMORY_DIM,
    MIXERS,
    Draws,
    gated,
    mixer,
    mlp,
    norm,
    sequence,
    value_residual,
    values,
)
from rankscope.network import Attention, Chain, Context, Network, Skip
from rankscope.pathways import attribute, spectrum, top_paths, without_heads
from rankscope.pathways.path import uncrossed

X = Draws(21)(5, DIM)


def network(name: str) -> Network:
    """Two blocks with value biases, which a map multiplies by the sums of its rows."""
    draw = Draws(20)
    blocks = [
        Chain([Skip(Attention(mixer(draw, name), values(draw))), norm("rms", draw), Skip(mlp(draw))])
        for _ in range(2)
    ]
    return Network(blocks, norm("layer", draw))


@pytest.mark.parametrize("name", [*MIXERS, "linformer"])
def test_the_sum_over_lengths_is_the_forward(name: str) -> None:
    net = network(name)
    found = spectrum(net, X)
    assert_close(found.total, net(X), rtol=1e-11, atol=1e-12)
    shares = torch.stack(list(attribute(net, X).sources.values())).sum(dim=0)
    assert_close(shares, torch.ones_like(shares), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ["sinks", "retention"])
def test_heads_of_an_attribution_carry_their_value_biases(name: str) -> None:
    """One attention alone: what its heads are given is what the output loses without them, exactly."""
    draw = Draws(22)
    net = Network([Attention(mixer(draw, name), values(draw))])
    # the loss in the direction of the output itself, which is what shares are of
    output = net(X)
    shares = attribute(net, X).heads
    for head in range(2):
        lost = output - without_heads(net, [(1, head)])(X)
        along = float((lost * _residual(output)).sum() / _residual(output).square().sum())
        assert float(next(share for one, share in shares.items() if one.head == head)) == pytest.approx(along)


def _residual(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(dim=-2, keepdim=True)


@pytest.mark.parametrize("name", ["off-by-one", "differential"])
def test_the_strongest_path_is_the_strongest_of_all(name: str) -> None:
    """Two attentions without MLPs and norms: every path by itself, one product after the other."""
    draw = Draws(24)
    parts = [Attention(mixer(draw, name), values(draw)) for _ in range(2)]
    net = Network([Skip(part) for part in parts])
    found = top_paths(net, X, count=1).paths[0]
    states, sizes = net.states(X), {}
    for choice in product([None, 0, 1], repeat=2):
        y = X
        for part, state, head in zip(parts, states, choice, strict=False):
            if head is not None:
                own = slice(4 * head, 4 * head + 4)
                y = part.mixer(state, Context())[head] @ y @ part.values.value[:, own] @ part.values.out[own]
        sizes[choice] = float((y - y.mean(dim=-2, keepdim=True)).norm())
    best = max(sizes, key=sizes.__getitem__)
    assert found.path.heads == best
    assert found.residual == pytest.approx(sizes[best])


def test_gates_and_sequence_maps_are_sources() -> None:
    draw = Draws(23)
    net = Network([Chain([Skip(gated(draw)), Skip(sequence())]), Skip(value_residual(draw))])
    context = Context(memory=draw(5, MEMORY_DIM))
    found = spectrum(net, X, context)
    assert_close(found.total, net(X, context), rtol=1e-11, atol=1e-12)
    assert [one.what for one in uncrossed(net)] == [
        "gated attention",
        "running_mean",
        "attention with values of the first layer",
    ]
