"""Statements say by name why they do not apply, and give no number then; every one is complete as an object."""

import pytest
import torch

from rankscope.bounds.facts import facts_of
from rankscope.bounds.theorems import THEOREMS
from rankscope.core.refs import PAPERS
from rankscope.measures import find_measure
from rankscope.network import (
    Attention,
    Chain,
    Context,
    Fixed,
    Network,
    Scale,
    Softmax,
    Spec,
    Sum,
    TokenMap,
    Values,
    build,
    gaussian_tokens,
    generators,
)
from rankscope.network.norms import Sphere


def network(**spec):
    for_weights, for_tokens = generators(3)
    net = build(Spec(**({"layers": 2, "heads": 2, "dim": 6} | spec)), for_weights)
    return net, gaussian_tokens(4, 6, generator=for_tokens)


def failing(name, net, x, context=None):
    facts = facts_of(net, x, context, brackets=False)
    theorem = THEOREMS[name]
    failed = [one.name for one in theorem.assumptions(facts) if not bool(one.holds.all())]
    if not theorem.covers(facts):
        assert theorem.log_bound(facts).tolist() == [torch.inf] * 3
        assert bool(theorem.is_vacuous(facts))
        assert not bool(theorem.holds(facts).any())
    return failed


def rebuilt(change):
    net, x = network()
    return Network([change(block) for block in net.blocks]), x


def with_mixer(**settings):
    def change(part):
        mixer = Softmax(part.mixer.query, part.mixer.key, heads=2, **settings)
        return Attention(mixer, part.values)

    return change


class Doubled(torch.nn.Module):
    def forward(self, x):
        return 2 * x


CASES = {
    "no skip connections": lambda: network(variant="san+skip"),
    "no norms": lambda: network(norm="layer"),
    "no mask": lambda: network(mask="causal"),
    "no positions in the logits": lambda: network(position="alibi:0.5"),
    "no scales": lambda: rebuilt(lambda part: Chain([part, Scale(0.5)])),
    "no parallel branches": lambda: rebuilt(lambda part: Sum([part, part])),
    "no token maps": lambda: rebuilt(lambda part: Chain([part, TokenMap(Doubled(), site="other")])),
    "softmax attention": lambda: rebuilt(
        lambda part: Attention(Fixed(torch.eye(4).double().expand(2, 4, 4)), part.values)
    ),
    "no norms of queries and keys": lambda: rebuilt(with_mixer(query_norm=Sphere())),
    "no soft-cap": lambda: rebuilt(with_mixer(softcap=5.0)),
    "blocks built as attention or attention, mlp": lambda: rebuilt(lambda part: Chain([part, part])),
    "MLPs with a Lipschitz factor": lambda: network(variant="san+mlp", gated=True, activation="silu"),
}


def test_squared_relu_has_no_lipschitz_factor():
    found = failing("dong-3.2-mlp", *network(variant="san+mlp", activation="relu2"))
    assert found == ["MLPs with a Lipschitz factor"]


@pytest.mark.parametrize("wanted", sorted(CASES))
@pytest.mark.parametrize("name", ["theorem-a[l2]", "theorem-b", "dong-3.2-mlp"])
def test_the_structure_that_is_not_covered_is_named(wanted, name):
    assert wanted in failing(name, *CASES[wanted]())


def test_the_first_failing_assumption_of_a_transformer():
    found = failing("dong-2.3", *network(variant="transformer", norm="layer", mask="causal"))
    assert found[:3] == ["no skip connections", "no norms", "no MLPs"]
    assert "no mask" in found


def test_heads_masks_and_skips_are_named():
    assert "one head" in failing("dong-2.2", *network())
    assert "one head" in failing("wu-masked", *network())
    assert failing("wu-masked", *network(heads=1, mask="blocks:2")) == ["a token that reaches all"]
    net, x = network(heads=1)
    mixed = Network(
        [net.blocks[0], build(Spec(layers=1, heads=1, dim=6, mask="causal"), generators(1)[0]).blocks[0]]
    )
    assert failing("wu-masked", mixed, x) == ["the same mask in every layer"]
    assert failing("dong-skip", *network(variant="san+skip", init="deepnorm")) == ["skips of scale one"]
    assert "no skip connections" in failing("wu-masked", *network(variant="san+skip", heads=1))


def test_the_sphere_asks_for_unit_tokens_orthogonal_values_and_no_obtuse_angle():
    net, x = network(heads=1, norm="sphere", values="orthogonal")
    unit = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    assert failing("sphere-orthogonal", net, x.abs()) == [
        "tokens of length one",
        "no two tokens at an obtuse angle",
    ]
    assert failing("sphere-orthogonal", net, unit) == ["no two tokens at an obtuse angle"]
    axes = torch.eye(4, 6, dtype=torch.float64)
    assert failing("sphere-orthogonal", net, axes) == []
    other, _ = network(heads=1, norm="sphere")
    assert failing("sphere-orthogonal", other, axes) == ["orthogonal values"]
    layer, _ = network(heads=1, norm="layer", values="orthogonal")
    assert "norms are projections to the sphere" in failing("sphere-orthogonal", layer, axes)


def test_the_logit_condition_and_gamma_are_numbers():
    net, x = network(heads=1)
    near, far = facts_of(net, 0.05 * x), facts_of(net, 50 * x)
    for facts, expected in ((near, True), (far, False)):
        logits, gamma = THEOREMS["dong-2.2"].assumptions(facts)[-2:]
        assert (logits.name, gamma.name) == ("logits below 1.256", "gamma large enough")
        assert (bool(logits.holds), bool(gamma.holds)) == (expected, expected)
        assert logits.limit.item() == pytest.approx(1.256431208626)
        assert (logits.value <= logits.limit).item() is expected


def test_batches_of_texts_and_padding_keep_their_shape():
    net, x = network(heads=1)
    batch = torch.stack([x, 2 * x, 3 * x])
    is_token = torch.tensor([[True] * 4, [True] * 3 + [False], [True] * 4])
    facts = facts_of(net, batch, Context(is_token=is_token))
    for theorem in THEOREMS.values():
        assert theorem.log_bound(facts).shape == (3, 3)
        assert theorem.holds(facts).shape == theorem.is_vacuous(facts).shape == (3,)
    alone = facts_of(net, 2 * x[:3])
    for name in ("dong-2.2", "theorem-a[l1]", "theorem-b", "wu-masked"):
        torch.testing.assert_close(THEOREMS[name].log_bound(facts)[:, 1], THEOREMS[name].log_bound(alone))


def test_equal_tokens_and_networks_without_blocks_have_bounds():
    net, x = network(heads=1)
    same = x[:1].expand(4, 6).contiguous()
    for name in ("dong-2.2", "theorem-a[l2]", "theorem-b", "wu-masked"):
        assert THEOREMS[name].log_bound(facts_of(net, same)).tolist() == [-torch.inf] * 3
    empty = facts_of(Network([]), x)
    for theorem in THEOREMS.values():
        assert theorem.log_bound(empty).shape == (1,)
        assert not bool(theorem.log_bound(empty).isnan().any())


def test_heads_that_do_nothing_leave_nothing():
    net, x = network(heads=1)
    mixer = net.blocks[0].mixer
    zero = torch.zeros(6, 6, dtype=torch.float64)
    silent = Network([Attention(mixer, Values(zero, zero, heads=1))])
    for name in ("dong-2.2", "theorem-a[l2]", "theorem-b", "wu-masked"):
        assert THEOREMS[name].log_bound(facts_of(silent, x))[1].item() == -torch.inf


@pytest.mark.parametrize("name", list(THEOREMS))
def test_every_statement_is_complete(name):
    theorem = THEOREMS[name]
    assert theorem.name == name
    assert theorem.title
    assert theorem.verdict
    assert theorem.ref.key in (*PAPERS, "rankscope")
    assert find_measure(theorem.quantity).definition == theorem.quantity
