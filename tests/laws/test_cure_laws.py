"""Laws of the rewrites that are meant as cures, on random trees with shared blocks and on networks as built."""

from itertools import combinations_with_replacement

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from kit.trees import DIM, MEMORY_DIM, Draws, networks
from rankscope.errors import ConfigError, UnknownNameError
from rankscope.masks import Causal
from rankscope.network import (
    Chain,
    Context,
    Network,
    Opaque,
    Scale,
    Skip,
    Spec,
    Sphere,
    Sum,
    build,
    equal_blocks,
    only_in,
    redrawn,
    with_branch_scale,
    with_deepnorm,
    with_layerscale,
    with_mask,
    with_placement,
    with_qk_norm,
    with_skip_scale,
    with_skips,
    with_temperature,
    with_unit_gains,
    without,
    without_biases,
)
from rankscope.network.cures import (
    bias_sites,
    equal_layers,
    has_gains,
    lacks_skip,
    unshared,
    with_pre_norm,
)

X = Draws(99)(5, DIM)
MEMORY = Context(memory=Draws(98)(4, MEMORY_DIM))
KNOWN = ("cross", "mixer", "gated", "linformer", "observed")

IDEMPOTENT = {
    "qk-norm": with_qk_norm,
    "skips": with_skips,
    "biases": lambda net: without_biases(net, ("attention", "mlp", "norm")),
    "gains": with_unit_gains,
}
CURES = {**IDEMPOTENT, "layerscale": lambda net: with_layerscale(net, 0.5)}


def same(a: Network, b: Network, atol: float = 0.0) -> None:
    for left, right in zip(a.states(X, MEMORY), b.states(X, MEMORY), strict=True):
        assert_close(left, right, rtol=0, atol=atol)


@settings(max_examples=40)
@given(networks(also=KNOWN), st.sampled_from(sorted(IDEMPOTENT)))
def test_a_second_time_changes_nothing(net: Network, name: str) -> None:
    cure = IDEMPOTENT[name]
    same(cure(cure(net)), cure(net))


@settings(max_examples=40)
@given(networks(also=("cross", "mixer")), st.sampled_from(sorted(set(CURES) - {"skips"})))
def test_they_commute_with_masks_and_temperatures(net: Network, name: str) -> None:
    cure = CURES[name]
    for other in (lambda net: with_mask(net, Causal()), lambda net: with_temperature(net, 2.0)):
        same(cure(other(net)), other(cure(net)))


@settings(max_examples=40)
@given(networks(also=KNOWN), st.sampled_from(sorted(CURES)))
def test_the_original_is_untouched_and_shared_blocks_stay_shared(net: Network, name: str) -> None:
    before, tree = net.states(X, MEMORY), repr(net)
    after = CURES[name](net).blocks
    assert repr(net) == tree
    for left, right in zip(before, net.states(X, MEMORY), strict=True):
        assert_close(left, right, rtol=0, atol=0)
    for i, j in combinations_with_replacement(range(len(after)), 2):
        if net.blocks[i] is net.blocks[j]:
            assert after[i] is after[j]


@settings(max_examples=30)
@given(networks(), st.integers(0, 2**16))
def test_drawn_again_shares_nothing_and_keeps_entries_and_singular_values(net: Network, seed: int) -> None:
    before = {name: held.clone() for name, held in net.named_parameters()}
    twin = redrawn(net, generator=torch.Generator().manual_seed(seed))
    for i, j in combinations_with_replacement(range(len(net.blocks)), 2):
        assert (net.blocks[i] is net.blocks[j]) == (twin.blocks[i] is twin.blocks[j])
    ours, theirs = dict(net.named_parameters()), dict(twin.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, held in ours.items():
        assert torch.equal(held, before[name])
        other = theirs[name]
        assert other is not held
        assert torch.equal(held.flatten().sort().values, other.flatten().sort().values)
        if held.ndim == 2:
            # an orthogonal change of rows and columns leaves singular values, up to rounding of the decomposition
            assert_close(torch.linalg.svdvals(held), torch.linalg.svdvals(other), rtol=1e-10, atol=1e-10)


def built(placement: str, **more: object) -> Network:
    spec = Spec.of(
        layers=3, heads=2, dim=DIM, norm="layer", placement=placement, variant="transformer", **more
    )
    return build(spec, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "parallel"])
def test_skips_come_back_where_they_were(placement: str) -> None:
    net = built(placement)
    bare = without(net, "skip")
    assert lacks_skip(bare) == [1, 2, 3]
    assert lacks_skip(net) == []
    same(with_skips(bare), net)
    same(with_skips(net), net)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_a_skip_comes_back_around_one_sublayer_alone(placement: str, which: int) -> None:
    net = built(placement)
    parts = list(net.blocks[0].parts)
    place = [number for number, part in enumerate(parts) if isinstance(part, Skip)][which]
    parts[place] = parts[place].inner
    bare = net.with_blocks([Chain(parts), *list(net.blocks)[1:]])
    assert lacks_skip(bare) == [1]
    same(with_skips(bare), net)


def test_a_skip_is_told_by_what_it_carries() -> None:
    net = built("pre")
    silent = with_skip_scale(net, 0.0)
    assert lacks_skip(silent) == [1, 2, 3]
    same(with_skips(silent), net)
    sums = net.with_blocks(
        [Chain([Sum([Chain(()), part.inner]) for part in block.parts]) for block in net.blocks]
    )
    assert lacks_skip(sums) == []
    assert with_skips(sums).blocks[0] is sums.blocks[0]


def test_scales_of_a_bare_branch_stay_in_it() -> None:
    for placement in ("pre", "sandwich"):
        net = with_branch_scale(built(placement), 0.25)
        same(with_skips(without(net, "skip")), net)


def test_norms_move_before_their_branch_where_they_can() -> None:
    net = built("post")
    same(with_pre_norm(net), with_placement(net, "pre"))
    odd = Chain([net.blocks[1].parts[0].inner, net.blocks[1].parts[1]])
    mixed = net.with_blocks([net.blocks[0], odd, net.blocks[2]])
    with pytest.raises(ConfigError, match="block 2"):
        with_placement(mixed, "pre")
    moved = with_pre_norm(mixed)
    assert moved.blocks[1] is odd
    same(moved, only_in(mixed, with_placement(net, "pre"), (1, 3)))
    with pytest.raises(ConfigError, match="outside of a skip"):
        with_pre_norm(net.with_blocks([odd, odd]))


def test_layerscale_starts_as_scaled_branches_do() -> None:
    net = built("pre")
    same(with_layerscale(net, 0.25), with_branch_scale(net, 0.25))
    scales = [part.value for part in with_layerscale(net, 0.25).modules() if isinstance(part, Scale)]
    assert {tuple(one.shape) for one in scales} == {(DIM,)}


def test_normed_queries_and_keys_make_logits_independent_of_their_size() -> None:
    net = built("pre")
    large = net.owned()
    for part in large.modules():
        if hasattr(part, "mixer"):
            part.mixer._parameters[
                "query"
            ].data *= 64.0  # a power of two, so that only eps tells the two apart
    assert not torch.allclose(net(X), large(X))
    assert_close(with_qk_norm(net)(X), with_qk_norm(large)(X), rtol=0, atol=1e-4)


def test_deepnorm_is_scaled_maps_and_skips() -> None:
    net = built("post")
    layers = len(net.blocks)
    by_hand = net.owned()
    for part in by_hand.modules():
        for holder, names in ((getattr(part, "values", None), ("value", "out")), (part, ("up", "down"))):
            for name in names:
                held = holder._parameters.get(name) if isinstance(holder, torch.nn.Module) else None
                if held is not None:
                    held.data *= (8 * layers) ** -0.25
    same(with_deepnorm(net), with_skip_scale(by_hand, (2 * layers) ** 0.25))
    with pytest.raises(ConfigError, match="post-norm"):
        with_deepnorm(built("pre"))
    with pytest.raises(ConfigError, match="carry 1"):
        with_deepnorm(with_skip_scale(net, 2.0))


def test_biases_and_gains_are_taken_out_where_they_are_asked_for() -> None:
    net = built("post").owned()
    assert bias_sites(net) == ()
    assert not has_gains(net)
    draw = Draws(5)
    for part in net.modules():
        if isinstance(part, torch.nn.Module) and hasattr(part, "values"):
            part.values.out_bias = torch.nn.Parameter(draw(DIM), requires_grad=False)
        if getattr(part, "bias", None) is not None and hasattr(part, "eps"):
            part.bias.data += 1.0
            part.weight.data *= 3.0
    assert bias_sites(net) == ("attention", "norm")
    assert has_gains(net)
    bare = without_biases(net, ("attention",))
    assert bias_sites(bare) == ("norm",)
    one, other = (tree.blocks[0].parts[0].inner for tree in (net, bare))
    assert other.mixer is one.mixer
    assert (
        without_biases(bare, ("attention",)).blocks[0].parts[0].inner is other
    )  # nothing was there to change
    assert bias_sites(without_biases(bare, ("norm",))) == ()
    assert not has_gains(with_unit_gains(net))
    with pytest.raises(UnknownNameError, match="did you mean 'mlp'"):
        without_biases(net, ("mpl",))


def test_copies_of_one_block_are_told_from_one_block() -> None:
    net = built("post")
    one = net.blocks[0]
    shared = net.with_blocks([one, one, one])
    copies = net.with_blocks([Network([one]).owned().blocks[0] for _ in range(3)])
    assert equal_blocks(net) == equal_blocks(shared) == ()
    assert equal_blocks(copies) == ((1, 2, 3),)
    assert equal_layers(shared)
    assert equal_layers(copies)
    assert not equal_layers(net)
    assert not equal_layers(net.with_blocks([one]))
    assert not equal_layers(Network([Sphere(), Sphere()]))
    assert equal_blocks(net.with_blocks([*copies.blocks, net.blocks[1]])) == ((1, 2, 3),)
    assert not equal_layers(net.with_blocks([*copies.blocks, net.blocks[1]]))
    last = copies.owned()
    next(iter(last.blocks[2].parameters())).data[-1, -1] += 1.0
    assert equal_blocks(last) == ((1, 2),)
    generator = torch.Generator().manual_seed(0)
    assert equal_blocks(redrawn(copies, generator=generator)) == ()
    assert equal_blocks(redrawn(unshared(shared), generator=generator)) == ()
    assert equal_blocks(unshared(shared)) == ((1, 2, 3),)
    same(unshared(shared), shared)
    apart = unshared(shared)
    assert apart.blocks[0] is one
    assert len({id(held) for held in apart.blocks.parameters()}) == 3 * len(list(one.parameters()))
    assert list(unshared(net).blocks) == list(net.blocks)
    half = net.with_blocks([Chain([*block.parts[:2], *one.parts[2:]]) for block in net.blocks])
    ids = [{id(held) for held in block.parameters()} for block in unshared(half).blocks]
    assert sum(map(len, ids)) == len(set.union(*ids))
    kept = redrawn(copies, generator=generator, keep_equal=True)
    assert equal_blocks(kept) == ((1, 2, 3),)
    assert not torch.allclose(kept(X), copies(X))


def test_what_is_run_as_it_is_cannot_be_drawn_again() -> None:
    odd = Opaque(torch.tanh, site="mlp", where="zoo.py:31", what="an operation without a rule")
    with pytest.raises(ConfigError, match="cannot be drawn again: an operation"):
        redrawn(Network([Skip(odd)]), generator=torch.Generator().manual_seed(0))
