"""Surgery laws on random trees with shared blocks, and what each cut does to each kind of block."""

from itertools import combinations, combinations_with_replacement

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from kit.trees import DIM, MEMORY_DIM, Draws, attention, cross, mlp, networks, norm, observed, opaque
from rankscope.errors import ConfigError, NotUnderstood, UnknownNameError
from rankscope.masks import Causal, Full, parse_mask
from rankscope.network import (
    Attention,
    Chain,
    Context,
    Mlp,
    Network,
    Norm,
    Opaque,
    Part,
    Scale,
    Skip,
    Spec,
    Sum,
    TokenMap,
    build,
    gaussian_tokens,
    only_in,
    variant,
    with_branch_scale,
    with_mask,
    with_placement,
    with_skip_scale,
    with_temperature,
    without,
    without_attention_skip,
)

CUTS = {
    "skip": lambda net: without(net, "skip"),
    "mlp": lambda net: without(net, "mlp"),
    "norm": lambda net: without(net, "norm"),
    "mask": lambda net: with_mask(net, Causal()),
    "half": lambda net: with_skip_scale(net, 0.5),
}
REWRITES = {
    "temperature": lambda net: with_temperature(net, 2.0),
    "branch": lambda net: with_branch_scale(net, 0.5),
    "attention skip": without_attention_skip,
}
X = Draws(99)(5, DIM)
MEMORY = Context(memory=Draws(98)(4, MEMORY_DIM))
EVERY = ("opaque", "tokenwise", "observed", "cross", "mixer", "linformer", "gated", "sequence")
MASKED = ("tokenwise", "cross", "mixer", "gated")
"""What takes another mask: nothing that mixes tokens in a way that is not known."""


def same(a: Network, b: Network) -> None:
    for left, right in zip(a.states(X, MEMORY), b.states(X, MEMORY), strict=True):
        assert_close(left, right, rtol=0, atol=0)


@settings(max_examples=100)
@given(networks(also=MASKED), st.sampled_from(sorted(CUTS)), st.sampled_from(sorted(CUTS)))
def test_each_cut_is_idempotent_and_any_two_commute(net: Network, first: str, second: str) -> None:
    a, b = CUTS[first], CUTS[second]
    if {first, second} != {"skip", "half"}:  # two scales of one skip: the later one holds
        same(a(b(net)), b(a(net)))
    same(a(a(net)), a(net))


UNMASKED = sorted(CUTS.keys() - {"mask"})


@given(networks(also=EVERY), st.sampled_from(UNMASKED), st.sampled_from(UNMASKED))
def test_so_do_cuts_of_trees_with_regions_run_as_they_are(net: Network, first: str, second: str) -> None:
    a, b = CUTS[first], CUTS[second]
    if {first, second} != {"skip", "half"}:
        same(a(b(net)), b(a(net)))
    same(a(a(net)), a(net))


@given(networks(also=MASKED), st.sampled_from(sorted(REWRITES)), st.sampled_from(["norm", "mask", "half"]))
def test_rewrites_commute_with_cuts_that_leave_skips_and_mlps_where_they_are(
    net: Network, first: str, second: str
) -> None:
    a, b = REWRITES[first], CUTS[second]
    same(a(b(net)), b(a(net)))


@given(networks(also=MASKED), st.sampled_from(sorted(CUTS)))
def test_temperature_commutes_with_every_cut(net: Network, cut: str) -> None:
    hot = REWRITES["temperature"]
    same(hot(CUTS[cut](net)), CUTS[cut](hot(net)))


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_rewrites_commute_on_networks_as_they_are_built(placement: str) -> None:
    spec = Spec.of(layers=2, heads=2, dim=DIM, norm="layer", placement=placement, variant="transformer")
    net = build(spec, torch.Generator().manual_seed(0))
    rewrites = {**REWRITES, **CUTS} | {"moved": lambda net: with_placement(net, "post")}
    # what is scaled or moved at a skip needs the skip, and two scales of one skip do not add up
    needs_skips = {"branch", "half", "moved"}
    for first, second in combinations(sorted(rewrites), 2):
        pair = {first, second}
        if (pair & {"skip", "attention skip"} and pair & needs_skips) or pair == {"norm", "moved"}:
            continue
        a, b = rewrites[first], rewrites[second]
        for left, right in zip(a(b(net)).states(X), b(a(net)).states(X), strict=True):
            assert_close(left, right, rtol=0, atol=1e-14)


@given(networks(also=EVERY))
def test_an_attention_without_skip_stays_without(net: Network) -> None:
    once = without_attention_skip(net)
    same(without_attention_skip(once), once)


@given(networks(), st.sets(st.integers(1, 4)))
def test_only_the_named_calls_change(net: Network, chosen: set[int]) -> None:
    blocks = {number for number in chosen if number <= len(net.blocks)}
    cut = without(net, "skip")
    mixed = only_in(net, cut, blocks)
    for number, block in enumerate(mixed.blocks, start=1):
        assert block is (cut if number in blocks else net).blocks[number - 1]


@given(networks(also=EVERY))
def test_no_skip_is_skip_scale_zero(net: Network) -> None:
    same(without(net, "skip"), with_skip_scale(net, 0.0))


@given(networks(also=MASKED))
def test_the_original_is_untouched_and_its_weights_are_shared(net: Network) -> None:
    before, tree = net.states(X, MEMORY), repr(net)
    owned = {id(parameter) for parameter in net.parameters()}
    for name, cut in {**CUTS, **REWRITES}.items():
        copied = cut(net)
        new = [parameter for parameter in copied.parameters() if id(parameter) not in owned]
        assert all(parameter.numel() == 1 for parameter in new) if name == "branch" else not new
    assert repr(net) == tree
    for left, right in zip(before, net.states(X, MEMORY), strict=True):
        assert_close(left, right, rtol=0, atol=0)


@given(networks(also=MASKED), st.sampled_from(sorted({**CUTS, **REWRITES})))
def test_shared_blocks_stay_shared(net: Network, cut: str) -> None:
    after = {**CUTS, **REWRITES}[cut](net).blocks
    for i, j in combinations_with_replacement(range(len(after)), 2):
        if net.blocks[i] is net.blocks[j]:
            assert after[i] is after[j]


@given(networks(also=EVERY))
def test_nothing_of_what_was_cut_is_left(net: Network) -> None:
    assert not any(isinstance(part, Skip) for part in without(net, "skip").blocks.modules())
    for part in without(net, "mlp").blocks.modules():
        assert not isinstance(part, Mlp)
        assert not (isinstance(part, Opaque) and part.site == "mlp")
    streams = (part for part in without(net, "norm").blocks.modules() if isinstance(part, Chain | Sum))
    assert not any(isinstance(child, Norm) for part in streams for child in part.parts)


DRAW = Draws(1)
A, M, N1, N2 = attention(DRAW), mlp(DRAW), norm("layer", DRAW), norm("rms", DRAW)
GELU = TokenMap(torch.nn.GELU())
C, SSM, WHOLE = cross(DRAW), opaque(), opaque("mlp")


@pytest.mark.parametrize(
    ("block", "what", "expected"),
    [
        (Chain([Skip(Chain([N1, A])), Skip(Chain([N2, M]))]), "mlp", Skip(Chain([N1, A]))),
        (Chain([Skip(A), N1, Skip(M), N2]), "mlp", Chain([Skip(A), N1])),
        (Skip(Sum([Chain([N1, A]), Chain([N2, M])])), "mlp", Skip(Chain([N1, A]))),
        (Chain([Skip(Chain([N1, A, N2])), Skip(Chain([N1, M, N2]))]), "mlp", Skip(Chain([N1, A, N2]))),
        (Chain([Skip(A), N1, Skip(M), N2]), "skip", Chain([A, N1, M, N2])),
        (Chain([Skip(A), N1, Skip(M), N2]), "norm", Chain([Skip(A), Skip(M)])),
        (Chain([Skip(M), N1]), "mlp", Chain([])),
        (Skip(Sum([M, M])), "mlp", Chain([])),
        (Chain([Skip(A), Skip(GELU)]), "mlp", Skip(A)),
        (Chain([Skip(M, 0.5), Skip(A), Skip(M, 0.5), N1]), "mlp", Skip(A)),
        (
            Chain([Skip(Chain([A, Scale(0.1)])), Skip(Chain([M, Scale(0.1)]))]),
            "mlp",
            Skip(Chain([A, Scale(0.1)])),
        ),
        (Sum([N1, A]), "norm", Skip(A)),
        (Chain([Skip(A), Skip(Chain([N1, C])), Skip(M)]), "mlp", Chain([Skip(A), Skip(Chain([N1, C]))])),
        (Skip(Sum([Chain([N1, C]), M])), "mlp", Skip(Chain([N1, C]))),
        (Chain([Skip(Chain([N1, SSM])), Skip(M)]), "mlp", Skip(Chain([N1, SSM]))),
        (Chain([Skip(Chain([SSM, M])), N1]), "mlp", Chain([Skip(SSM), N1])),
        (Chain([Skip(A), Skip(Chain([N1, WHOLE]))]), "mlp", Skip(A)),
        (Chain([Skip(C), N1, Skip(SSM), N2]), "skip", Chain([C, N1, SSM, N2])),
    ],
    ids=[
        *("pre", "post", "parallel", "sandwich", "post-skip", "post-norm", "only-mlp", "two-mlps"),
        *("token-map", "macaron", "layerscale", "norm-branch", "decoder", "parallel-cross"),
        *("state-space", "region-and-mlp", "opaque-mlp", "opaque-skips"),
    ],
)
def test_what_a_cut_leaves(block: torch.nn.Module, what: str, expected: torch.nn.Module) -> None:
    cut = without(Network([block]), what)
    assert_close(cut.states(X, MEMORY)[-1], expected(X, MEMORY), rtol=0, atol=1e-15)


def test_final_norm_and_query_norms_stay() -> None:
    net = Network([attention(DRAW, qk_norm=True)], norm("layer", DRAW))
    cut = without(net, "norm")
    assert_close(cut(X), net(X), rtol=0, atol=0)


def test_variants_name_what_is_there() -> None:
    spec = Spec(layers=3, heads=2, dim=8, norm="layer", placement="pre", variant="transformer")
    net = build(spec, torch.Generator().manual_seed(0))
    kinds = {
        name: {type(part).__name__ for part in variant(net, name).blocks.modules()}
        & {"Skip", "Mlp", "LayerNorm"}
        for name in ("san", "san+mlp", "san+skip", "transformer", "san-norm", "transformer-norm")
    }
    assert kinds == {
        "san": {"LayerNorm"},
        "san+mlp": {"LayerNorm", "Mlp"},
        "san+skip": {"LayerNorm", "Skip"},
        "transformer": {"LayerNorm", "Mlp", "Skip"},
        "san-norm": set(),
        "transformer-norm": {"Mlp", "Skip"},
    }
    x = gaussian_tokens(4, 8, generator=torch.Generator().manual_seed(1))
    same_as_spec = build(spec.model_copy(update={"variant": "san"}), torch.Generator().manual_seed(0))
    assert_close(variant(net, "san")(x), same_as_spec(x), rtol=0, atol=0)


def test_another_mask_changes_every_mixer_and_only_the_copy() -> None:
    net = Network([attention(DRAW), attention(DRAW, rule="window:1")])
    other = with_mask(net, parse_mask("causal"))
    rules = [part.mixer.rule for part in other.modules() if isinstance(part, Attention)]
    assert rules == [Causal(), Causal()]
    assert net.blocks[0].mixer.rule == Full()


def test_unknown_cuts_and_variants_are_suggested() -> None:
    net = Network([A])
    with pytest.raises(UnknownNameError, match="did you mean 'skip'"):
        without(net, "skips")
    with pytest.raises(UnknownNameError, match="did you mean 'san\\+skip'"):
        variant(net, "san+skp")


def test_a_cut_copy_refuses_to_be_cast_because_that_would_cast_the_original() -> None:
    net = build(Spec(layers=2, heads=2, dim=8, variant="transformer"), torch.Generator().manual_seed(0))
    cut = without(net, "skip")
    with pytest.raises(ConfigError, match="shares its weights"):
        cut.to(torch.float32)
    own = cut.owned().to(torch.float32)
    assert own(X.float()).dtype == torch.float32
    assert net(X).dtype == cut(X).dtype == torch.float64
    assert net.to(torch.float32)(X.float()).dtype == torch.float32


def test_a_container_of_an_unknown_kind_is_refused_by_name() -> None:
    class Twice(Part):
        def __init__(self, inner: Part) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor, context: Context) -> torch.Tensor:
            return self.inner(self.inner(x, context), context)

    with pytest.raises(NotUnderstood, match="surgery has no rule for the part Twice"):
        without(Network([Twice(Skip(A))]), "skip")


def test_what_mixes_tokens_in_an_unknown_way_takes_no_mask() -> None:
    with pytest.raises(ConfigError, match=r"cannot take the mask causal: a running mean at zoo.py:31"):
        with_mask(Network([Skip(SSM)]), Causal())
    with pytest.raises(ConfigError, match=r"observed maps cannot take the mask causal.*a clamp at zoo.py:31"):
        with_mask(Network([Skip(observed(DRAW))]), Causal())


def test_another_mask_leaves_the_memory_alone_and_another_temperature_does_not() -> None:
    net = Network([Skip(C)])
    same(with_mask(net, Causal()), net)
    hot = with_temperature(net, 2.0)
    assert hot.blocks[0].inner.mixer.scale == C.mixer.scale / 2
    assert not torch.allclose(hot(X, MEMORY), net(X, MEMORY))
