"""Marginals of heads, sources and pairs against every path one by one."""

import pytest
import torch
from torch import Tensor

from kit.path_networks import HEADS, small_transformer
from kit.trees import DIM, Draws, attention, mlp, norm
from rankscope.network import Chain, Context, Network, Skip, Spec, Sum, build
from rankscope.pathways import Head, Source, attribute, marginals, pair_shares, spectrum
from reference import path_enumeration as loops


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_marginals_are_those_of_all_paths_one_by_one(placement: str) -> None:
    network, x, weights = small_transformer(placement, layers=3)
    terms = loops.every_term(x, weights, HEADS, placement)

    def wanted(chosen: list) -> Tensor:
        return torch.stack([term[3] for term in chosen]).sum(dim=0)

    found = marginals(network, x)
    assert found.heads == tuple(Head(layer, head) for layer in (1, 2, 3) for head in range(HEADS))
    for head, value in zip(found.heads, found.through, strict=True):
        passing = [term for term in terms if (head.layer, head.head) in term[1]]
        torch.testing.assert_close(value, wanted(passing), rtol=1e-10, atol=1e-12)
    for source, value in zip(found.sources, found.started, strict=True):
        name = source.name if source.layer is None else f"{source.name} {source.layer}"
        torch.testing.assert_close(value, wanted([t for t in terms if t[0] == name]), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.started.sum(dim=0), network(x), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_pairs_are_those_of_all_paths_one_by_one(placement: str) -> None:
    network, x, weights = small_transformer(placement, layers=3)
    terms = loops.every_term(x, weights, HEADS, placement)
    gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = pair_shares(network, x, toward=gradient)
    assert len(found) == 3 * HEADS**2
    for (first, second), value in found.items():
        both = {(first.layer, first.head), (second.layer, second.head)}
        passing = [term[3] for term in terms if both <= set(term[1])]
        torch.testing.assert_close(
            value, (torch.stack(passing).sum(0) * gradient).sum(), rtol=1e-10, atol=1e-12
        )


def test_blocks_with_several_attention_parts() -> None:
    draw = Draws(2)
    two = Chain([Skip(attention(draw)), norm("layer", draw), Skip(Chain([attention(draw), mlp(draw)]))])
    either = Skip(Sum([attention(draw), Chain([norm("rms", draw), attention(draw)])]), 0.7)
    network, x = Network([two, either, two]), draw(2, 6, DIM)
    context = Context(is_token=torch.tensor([[True] * 6, [True] * 4 + [False] * 2]))
    keep = context.is_token
    shares, every = attribute(network, x, context).heads, marginals(network, x, context)
    for head, value, share in zip(every.heads, every.through, every.read_heads().share, strict=True):
        alone = spectrum(network, x, context, through=[head]).total
        torch.testing.assert_close(value[keep], alone[keep], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(share, shares[head], rtol=1e-10, atol=1e-12)
    pairs = pair_shares(network, x, context)
    inside = (Head(1, 0), Head(1, 1, "attention.2"))
    apart = (Head(2, 1, "attention.2"), Head(3, 0))
    never = (Head(2, 0), Head(2, 0, "attention.2"))
    for pair in (inside, apart):
        reading = spectrum(network, x, context, through=pair).read()
        torch.testing.assert_close(pairs[pair], reading.share.sum(dim=0), rtol=1e-10, atol=1e-12)
    assert float(pairs[never].abs().max()) == 0  # no path takes two branches of a sum


@pytest.mark.parametrize("heads_at", [(), (1,), (2,), (1, 2), (0, 2)])
def test_blocks_without_heads_anywhere(heads_at: tuple[int, ...]) -> None:
    draw = Draws(5)
    blocks = [Skip(attention(draw) if k in heads_at else mlp(draw)) for k in range(3)]
    network, x = Network(blocks), draw(6, DIM)
    found, every = pair_shares(network, x), marginals(network, x)
    assert len(every.heads) == 2 * len(heads_at)
    torch.testing.assert_close(every.started.sum(dim=0), network(x), rtol=1e-11, atol=1e-12)
    assert len(found) == (4 if len(heads_at) == 2 else 0)
    for pair, value in found.items():
        reading = spectrum(network, x, through=pair).read()
        torch.testing.assert_close(value, reading.share.sum(dim=0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_shares_of_collapsed_outputs_add_up_within_their_floor(seed: int) -> None:
    """Without skips every path passes one head of every layer, and starts at the input: their shares add up to one."""
    generator = torch.Generator().manual_seed(seed)
    network = build(Spec(layers=3, heads=2, dim=8, variant="san"), generator)
    x = torch.randn(6, 8, generator=generator, dtype=torch.float64)
    output = network(x)
    left = (output - output.mean(dim=0)).norm() / output.norm()
    assert 1e-9 < left < 0.1
    floor = float(spectrum(network, x).read().share_floor.max())
    found = attribute(network, x)
    for layer in (1, 2, 3):
        heads = [float(share) for head, share in found.heads.items() if head.layer == layer]
        assert sum(heads) == pytest.approx(1, abs=floor * sum(map(abs, heads)))
    assert float(found.sources[Source("input")]) == pytest.approx(1, abs=floor)
    pairs = pair_shares(network, x)
    assert sum(
        float(share) for (first, second), share in pairs.items() if (first.layer, second.layer) == (1, 3)
    ) == (pytest.approx(1, abs=floor * sum(abs(float(share)) for share in pairs.values())))
