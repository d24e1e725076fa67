"""Heads taken out of the network itself, and plans that rank them by their paths."""

import pytest
import torch

from kit.path_networks import small_transformer
from kit.trees import DIM, Draws, attention, mlp, norm
from rankscope.errors import ConfigError
from rankscope.network import Attention, Chain, Context, Network, Skip, Sum, Values
from rankscope.pathways import Head, freeze, marginals, pruning_plan, spectrum, without_heads


def test_a_network_without_heads_is_the_network_with_their_output_rows_zero() -> None:
    network, x, _ = small_transformer("pre", layers=3)
    pruned = without_heads(network, [(2, 0), (2, 2), (3, 1)])
    rows = {2: [*range(2), *range(4, 6)], 3: [2, 3]}
    blocks = list(network.owned().blocks)
    for layer, gone in rows.items():
        part = next(p for p in blocks[layer - 1].modules() if isinstance(p, Values))
        part.out.data[gone] = 0
    torch.testing.assert_close(pruned(x), Network(blocks)(x), rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(network(x), small_transformer("pre", layers=3)[0](x), rtol=0, atol=0)


def test_pruned_maps_are_recomputed_but_where_nothing_follows_the_frozen_answer_is_exact() -> None:
    network, x, _ = small_transformer("pre", layers=3)
    last = without_heads(network, [(3, 1)])
    frozen = spectrum(network, x, avoid=[(3, 1)]).total
    assert float((last(x) - frozen).norm()) > 1e-3  # the MLP of the last block sees another input
    only = Network([*list(network.blocks)[:2], Skip(attention(Draws(1), dim=6, heads=2))])
    torch.testing.assert_close(
        without_heads(only, [(3, 1)])(x), spectrum(only, x, avoid=[(3, 1)]).total, rtol=1e-12, atol=1e-13
    )


def test_sites_of_one_block_and_shared_parts_are_told_apart() -> None:
    draw = Draws(2)
    shared = attention(draw)
    network, x = Network([Chain([Skip(shared), Skip(Sum([shared, mlp(draw)]))])]), draw(5, DIM)
    one = without_heads(network, [Head(1, 0, "attention.2")])
    values = shared.values
    cut = Values(
        values.value,
        torch.cat([torch.zeros_like(values.out[:4]), values.out[4:]]),
        heads=2,
        value_bias=values.value_bias,
        out_bias=values.out_bias,
    )
    half = Attention(shared.mixer, cut)
    wanted = Network(
        [Chain([Skip(shared), Skip(Sum([half, list(network.blocks[0].parts[1].inner.parts)[1]]))])]
    )
    torch.testing.assert_close(one(x), wanted(x), rtol=1e-13, atol=1e-14)
    with pytest.raises(ConfigError, match="there is no such head"):
        without_heads(network, [Head(1, 0, "attention.3")])


def test_scores_are_what_the_output_loses_and_curves_end_where_all_heads_are_gone() -> None:
    network, x, _ = small_transformer("post", layers=3)
    plan = pruning_plan(network, x, generator=torch.Generator().manual_seed(0), draws=3)
    every = marginals(network, x)
    for head, lost in zip(every.heads, every.through, strict=True):
        assert plan.scores[head] == pytest.approx(float(lost.norm() / network(x).norm()), rel=1e-10)
    assert [curve.method for curve in plan.curves] == ["paths", "magnitude", "random"]
    ends = {curve.lost[-1] for curve in plan.curves}
    assert max(ends) - min(ends) < 1e-12  # nothing is left, in whatever order
    for curve in plan.curves:
        assert curve.removed[0] == 0
        assert curve.lost[0] == pytest.approx(0, abs=1e-14)
        assert curve.removed[-1] == 9
    order = plan.curves[0].order
    assert list(order) == sorted(order, key=plan.scores.__getitem__)
    direct = without_heads(network, order[:4])(x)
    at = plan.curves[0].removed.index(4)
    assert plan.curves[0].lost[at] == pytest.approx(
        float((direct - network(x)).norm() / network(x).norm()), rel=1e-10
    )


def test_useless_heads_go_first_and_a_loss_of_the_user_decides() -> None:
    draw = Draws(5)
    parts = [attention(draw) for _ in range(3)]
    parts[1].values.out.data[:4] *= 1e-3  # head 0 of layer 2 hardly speaks
    network = Network([Chain([Skip(Chain([norm("layer", draw), part])), Skip(mlp(draw))]) for part in parts])
    x, context = draw(2, 6, DIM), Context(is_token=torch.tensor([[True] * 6, [True] * 3 + [False] * 3]))
    generator = torch.Generator().manual_seed(1)
    plan = pruning_plan(network, x, context, generator=generator)
    assert plan.curves[0].order[0] == Head(2, 0)
    target = draw(2, 6, DIM)

    def loss(output: torch.Tensor) -> torch.Tensor:
        return (output - target)[context.is_token].square().mean()

    by_loss = pruning_plan(network, x, context, loss=loss, generator=generator)
    frozen = freeze(network, x, context)
    gone = spectrum(network, x, context, avoid=[(1, 1)]).total
    assert by_loss.scores[Head(1, 1)] == pytest.approx(float(loss(gone) - loss(frozen.output)), rel=1e-9)
    assert by_loss.of == "loss"
    assert by_loss.summary()["scores"][0]["score"] == min(by_loss.scores.values())


def test_bad_plans_are_refused() -> None:
    network, x, _ = small_transformer("post", layers=1)
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(ConfigError, match="the loss must return one number"):
        pruning_plan(network, x, loss=lambda y: y, generator=generator)
    with pytest.raises(ConfigError, match="draws=0"):
        pruning_plan(network, x, draws=0, generator=generator)
    with pytest.raises(ConfigError, match="no heads"):
        pruning_plan(Network([mlp(Draws(0))]), Draws(0)(4, DIM), generator=generator)
