"""Rewrites of a network, each against the same thing written by hand, and what they refuse."""

import math

import pytest
import torch
from torch.testing import assert_close

from kit.trees import DIM, Draws, attention, mlp, norm
from rankscope.errors import ConfigError, UnknownNameError
from rankscope.network import (
    Attention,
    Chain,
    Context,
    Mlp,
    Network,
    Part,
    Scale,
    Skip,
    Spec,
    Sum,
    TokenMap,
    build,
    mlp_as_activation,
    only_in,
    paper_variant,
    placement_of,
    variant,
    with_branch_scale,
    with_placement,
    with_skip_scale,
    with_temperature,
    without,
    without_attention_skip,
)

DRAW = Draws(1)
X = DRAW(5, DIM)
A, B, M = attention(DRAW), attention(DRAW), mlp(DRAW, activation="gelu")
N1, N2, N3, N4 = (norm(kind, DRAW) for kind in ("layer", "rms", "layer", "rms"))
GELU = TokenMap(torch.nn.GELU())


def network(placement: str, **fields: object) -> Network:
    given = {
        "layers": 3,
        "heads": 2,
        "dim": DIM,
        "norm": "layer",
        "placement": placement,
        "variant": "transformer",
    }
    return build(Spec.of(**given | fields), torch.Generator().manual_seed(3))


def same(net: Network, *expected: Part, atol: float = 0.0) -> None:
    for left, right in zip(net.states(X), Network(expected).states(X), strict=True):
        assert_close(left, right, rtol=0, atol=atol)


def test_only_the_named_blocks_change_also_where_one_block_is_called_often() -> None:
    shared = Chain([Skip(A), N1])
    net = Network([shared, shared, shared], N2)
    cut = without(net, "skip")
    mixed = only_in(net, cut, [2])
    same(mixed, shared, Chain([A, N1]), shared)
    assert mixed.blocks[0] is mixed.blocks[2] is shared
    assert mixed.final_norm is N2
    assert mixed.borrows
    same(only_in(net, cut, []), shared, shared, shared)
    same(only_in(net, cut, {1, 2, 3}), *cut.blocks)


@pytest.mark.parametrize(
    ("blocks", "message"), [([0], "block 0 was"), ([2, 4, 5], "block 4, 5 was"), ([-1], "block -1")]
)
def test_blocks_that_are_not_there(blocks: list[int], message: str) -> None:
    net = Network([A, B, A])
    with pytest.raises(ConfigError, match=f"{message}.*blocks 1 to 3"):
        only_in(net, net, blocks)
    with pytest.raises(ConfigError, match="3 blocks and the changed one 1"):
        only_in(net, Network([A]), [1])


@pytest.mark.parametrize("place", ["none", "rotary", "alibi", "relative", "transformer-xl"])
def test_temperature_divides_products_and_leaves_added_biases(place: str) -> None:
    part = attention(DRAW, place=place)
    mixer = part.mixer
    (hot,) = with_temperature(Network([part]), 1.7).blocks
    added = mixer.position.bias(mixer.queries_and_keys(X, Context())[0], Context(), mixer.scale)
    logits, kept = mixer.logits(X, Context()), added if place in ("alibi", "relative") else 0.0
    assert_close(hot.mixer.logits(X, Context()), (logits - kept) / 1.7 + kept, rtol=1e-12, atol=1e-12)
    assert hot.mixer._parameters["query"] is mixer._parameters["query"]
    assert mixer.scale == (DIM // 2) ** -0.5


def test_temperatures_multiply_and_must_be_positive() -> None:
    net = network("pre")
    states = with_temperature(with_temperature(net, 2.0), 0.5).states(X)
    for left, right in zip(states, net.states(X), strict=True):
        assert_close(left, right, rtol=0, atol=0)
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="positive number"):
            with_temperature(net, wrong)


def test_a_chain_of_one_part_is_rewritten_once() -> None:
    chained = Network([Chain([A]), Sum([Chain([Skip(A)])])])
    same(with_temperature(chained, 2.0), *with_temperature(Network([A, Skip(A)]), 2.0).blocks)
    same(with_branch_scale(chained, 0.5), A, Skip(Chain([A, Scale(0.5)])))


def test_branches_scaled_by_one_number_and_by_depth() -> None:
    block = Chain([Skip(Chain([N1, A])), Skip(Sum([M, B]), 0.5)])
    net = Network([block, block, block])
    scaled = with_branch_scale(net, 0.3)

    def expected(factor: float) -> Part:
        first = Skip(Chain([N1, A, Scale(factor)]))
        return Chain([first, Skip(Chain([Sum([M, B]), Scale(factor)]), 0.5)])

    same(scaled, *[expected(0.3)] * 3)
    assert scaled.blocks[0] is scaled.blocks[2]
    deep = with_branch_scale(net, lambda block: max(block, 2) ** -0.5)
    same(deep, expected(2**-0.5), expected(2**-0.5), expected(3**-0.5))
    assert deep.blocks[0] is deep.blocks[1]
    assert deep.blocks[0] is not deep.blocks[2]
    assert with_branch_scale(net, 1.0).blocks[0].parts[0].inner.parts[1] is A
    with pytest.raises(ConfigError, match="branch scale of block 2 is inf"):
        with_branch_scale(net, lambda block: math.inf if block == 2 else 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_scaled_copy_runs_in_the_dtype_of_the_network(dtype: torch.dtype) -> None:
    net = network("post").to(dtype)
    scaled = with_branch_scale(net, 0.5)
    assert {parameter.dtype for parameter in scaled.parameters()} == {dtype}
    assert scaled(X.to(dtype)).dtype == dtype


PRE = Chain([Skip(Chain([N1, A]), 0.7), Skip(Chain([N2, M]))])
POST = Chain([Skip(A, 0.7), N1, Skip(M), N2])
SANDWICH = Chain([Skip(Chain([N1, A, N3]), 0.7), Skip(Chain([N2, M, N4]))])
ONE_NORM = Skip(Chain([N1, Sum([A, M])]))


@pytest.mark.parametrize(
    ("block", "placement", "expected"),
    [
        (PRE, "post", POST),
        (POST, "pre", PRE),
        (PRE, "sandwich", Chain([Skip(Chain([N1, A, N1]), 0.7), Skip(Chain([N2, M, N2]))])),
        (POST, "sandwich", Chain([Skip(Chain([N1, A, N1]), 0.7), Skip(Chain([N2, M, N2]))])),
        (SANDWICH, "pre", PRE),
        (SANDWICH, "post", Chain([Skip(A, 0.7), N3, Skip(M), N4])),
        (SANDWICH, "sandwich", SANDWICH),
        (ONE_NORM, "post", Chain([Skip(Sum([A, M])), N1])),
        (ONE_NORM, "sandwich", Skip(Chain([N1, Sum([A, M]), N1]))),
        (Skip(Sum([Chain([N1, A]), Chain([N1, M])])), "post", Chain([Skip(Sum([A, M])), N1])),
        (
            Skip(Chain([Sum([Chain([N1, A]), Chain([N2, M])]), Scale(0.2)])),
            "sandwich",
            Skip(Chain([Sum([Chain([N1, A, N1]), Chain([N2, M, N2])]), Scale(0.2)])),
        ),
        (Skip(Chain([Sum([Chain([N1, A])]), Scale(0.2)])), "post", Chain([Skip(Chain([A, Scale(0.2)])), N1])),
        (Skip(Chain([A, N1])), "pre", Skip(Chain([N1, A]))),
        (Skip(Chain([N1, A, Scale(0.1)])), "sandwich", Skip(Chain([N1, A, N1, Scale(0.1)]))),
        (Skip(Chain([N1, A, N3, Scale(0.1)])), "post", Chain([Skip(Chain([A, Scale(0.1)])), N3])),
        (Chain([Skip(A), Skip(Chain([N2, M]))]), "post", Chain([Skip(A), Skip(M), N2])),
    ],
    ids=[
        *("pre-post", "post-pre", "pre-sandwich", "post-sandwich", "sandwich-pre", "sandwich-post", "stays"),
        *("parallel-post", "parallel-sandwich", "one-norm-twice", "branches-sandwich", "one-branch", "late"),
        *("scale-sandwich", "scale-post", "one-without"),
    ],
)
def test_norms_are_moved(block: Part, placement: str, expected: Part) -> None:
    moved = with_placement(Network([block, block]), placement)
    same(moved, expected, expected)
    assert moved.blocks[0] is moved.blocks[1]


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "parallel"])
@pytest.mark.parametrize("init", ["paper", "depth-scaled"])
def test_there_and_back_is_the_same_network(placement: str, init: str) -> None:
    net = network(placement) if init == "paper" else with_branch_scale(network(placement), lambda b: b**-0.5)
    own = placement_of(net)
    assert own == {"parallel": "pre"}.get(placement, placement)
    for other in ("pre", "post", "sandwich"):
        moved = with_placement(net, other)
        assert placement_of(moved) == other
        back = with_placement(moved, own)
        for left, right in zip(back.states(X), net.states(X), strict=True):
            assert_close(left, right, rtol=0, atol=1e-14)  # a sum may be added in another order


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Chain([A, N1]), "Attention outside of a skip"),
        (Chain([N1, Skip(A)]), "a LayerNorm that does not directly follow a skip"),
        (Chain([Skip(A), N1, N2]), "a RMSNorm that does not directly follow a skip"),
        (Chain([Skip(Chain([N1, A])), N2]), "norms inside a skip and after it"),
        (Skip(Chain([A, N1, M])), "a norm in the middle of a branch"),
        (Skip(Chain([N1, Sum([Chain([N2, A]), M])])), "a norm in the middle of a branch"),
        (Skip(Chain([N1, Skip(Chain([N2, A]))])), "a norm in the middle of a branch"),
        (Skip(Sum([Chain([N1, A]), Chain([N2, M])])), "branches with different norms"),
        (Skip(Sum([Chain([N1, A]), M])), "branches with different norms"),
    ],
)
def test_norms_that_cannot_be_moved_are_named(block: Part, message: str) -> None:
    with pytest.raises(ConfigError, match=f"block 2 cannot be moved: found {message}"):
        with_placement(Network([PRE, block]), "post")


def test_no_norms_and_unknown_placements() -> None:
    with pytest.raises(ConfigError, match="no norms to move"):
        with_placement(Network([Skip(A)]), "pre")
    with pytest.raises(UnknownNameError, match="did you mean 'sandwich'"):
        with_placement(Network([PRE]), "sandwhich")
    assert placement_of(Network([PRE, POST])) is None
    assert placement_of(Network([Skip(Chain([A, N1]))])) is None


def test_only_the_skips_of_attention_are_unwrapped() -> None:
    net = Network([POST, PRE, Skip(Sum([A, M])), Skip(Chain([N1, A, B])), Skip(Chain([A, GELU]))])
    same(
        without_attention_skip(net),
        Chain([A, N1, Skip(M), N2]),
        Chain([N1, A, Skip(Chain([N2, M]))]),
        *list(net.blocks)[2:],
    )


def test_an_mlp_cut_down_to_its_activation() -> None:
    net = Network([POST, POST])
    bare = mlp_as_activation(net)
    same(bare, *[Chain([Skip(A, 0.7), N1, Skip(GELU), N2])] * 2)
    assert bare.blocks[0] is bare.blocks[1]
    part = next(part for part in bare.modules() if isinstance(part, Mlp))
    assert part.up is part.down
    assert M.up_bias is not None
    other = mlp_as_activation(Network([M, mlp(DRAW)]))
    assert other.blocks[0].up is other.blocks[1].up
    for gated, message in (
        (mlp(DRAW, gated=True), "found a gated MLP"),
        (GELU, "found TokenMap at the site 'mlp'"),
    ):
        with pytest.raises(ConfigError, match=message):
            mlp_as_activation(Network([gated]))


@pytest.mark.parametrize("kind", ["bert", "albert", "xlnet"])
def test_variants_as_the_code_of_the_paper_has_them(kind: str) -> None:
    net = Network([POST, POST])
    attended = {"skip": Chain([Skip(A, 0.7), N1]), "none": Chain([A, N1])}
    no_mlp = Chain([Skip(GELU), N2]) if kind == "albert" else Chain(())
    expected = {
        "san": Chain([attended["none"], no_mlp]),
        "san+mlp": Chain([attended["none"], Skip(M), N2]),
        "san+skip": Chain([attended["skip"], no_mlp]),
        "transformer": POST,
    }
    for name, block in expected.items():
        same(paper_variant(net, name, kind), block, block)
    same(variant(net, "san+mlp"), *[Chain([A, N1, M, N2])] * 2)  # the clean one has no skip at all


def test_what_the_paper_does_not_define_is_refused() -> None:
    net = Network([POST])
    with pytest.raises(
        ConfigError, match=r"ablates bert, albert, xlnet and no other model, got 'llama'.*clean"
    ):
        paper_variant(net, "san", "llama")
    with pytest.raises(ConfigError, match=r"always keeps the norms.*use 'san\+mlp'"):
        paper_variant(net, "san+mlp-norm", "bert")
    with pytest.raises(UnknownNameError, match="did you mean 'san\\+skip'"):
        paper_variant(net, "san+skp", "bert")


def test_rewrites_share_weights_and_leave_the_original_alone() -> None:
    net = network("pre")
    before, tree = net.states(X), repr(net)
    owned = {id(parameter) for parameter in net.parameters()}
    for copied in (
        with_temperature(net, 2.0),
        with_placement(net, "sandwich"),
        without_attention_skip(net),
        only_in(net, with_skip_scale(net, 0.5), [1]),
    ):
        assert all(id(parameter) in owned for parameter in copied.parameters())
        with pytest.raises(ConfigError, match="shares its weights"):
            copied.to(torch.float32)
    scaled, bare = with_branch_scale(net, 0.5), mlp_as_activation(net)
    new = [parameter for parameter in scaled.parameters() if id(parameter) not in owned]
    assert [parameter.numel() for parameter in new] == [1] * 6
    (identity,) = [parameter for parameter in bare.parameters() if id(parameter) not in owned]
    assert_close(identity.detach(), torch.eye(DIM, dtype=torch.float64), rtol=0, atol=0)
    assert repr(net) == tree
    for left, right in zip(before, net.states(X), strict=True):
        assert_close(left, right, rtol=0, atol=0)
    assert all(isinstance(part.mixer.scale, float) for part in net.modules() if isinstance(part, Attention))
