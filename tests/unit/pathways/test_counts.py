"""Exact numbers of paths: against all routes walked one by one, closed forms and the published means."""

import math
import time
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kit.path_trees import described, heads, layered
from kit.trees import Draws, mlp, networks, norm
from rankscope.errors import ConfigError, NotUnderstood, UnknownNameError
from rankscope.network import (
    Chain,
    Network,
    Part,
    Scale,
    Skip,
    Spec,
    Sum,
    TokenMap,
    build,
    generators,
    without,
)
from rankscope.pathways.counts import ARCHITECTURES, counts_of, length_distribution, path_counts
from reference.path_choices import TooManyError, choices, tally

DRAW = Draws(0)

MEANS = {
    "DistilBert": (12, 6, 5.54),
    "MobileBert": (4, 12, 9.60),
    "BERT-base/ViT-B": (12, 12, 11.08),
    "BERT-large/ViT-L": (16, 24, 22.59),
    "ViT-H": (16, 32, 30.12),
    "T5-3B": (32, 24, 23.27),
    "T5-11B": (128, 24, 23.81),
    "GPT-3": (96, 96, 95.01),
    "DeiT-T": (3, 12, 9.00),
}
"""Heads, layers and mean path length L H / (H + 1) of the models in the figure of path lengths of the paper."""


@given(network=networks(), mlps=st.booleans())
def test_any_tree_has_as_many_paths_as_routes_with_different_heads(network: Network, mlps: bool) -> None:
    tree, _ = described(network)
    try:
        expected = tally(choices(tree, mlps=mlps))
    except TooManyError:
        assume(False)
    if mlps:
        assert counts_of(network, mlps=True) == expected
        return
    counts = counts_of(network)
    assert {(k, 0): count for k, count in enumerate(counts) if count} == expected
    assert len(counts) == 1 + max((k for k, _ in expected), default=0)


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=12))
def test_layers_multiply(layers: list[tuple[int, bool]]) -> None:
    counts = path_counts([h for h, _ in layers], skip=[s for _, s in layers])
    assert len(counts) == len(layers) + 1
    for z in (1, 2, -3):
        assert sum(c * z**k for k, c in enumerate(counts)) == math.prod(s + h * z for h, s in layers)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.booleans())
def test_networks_count_as_their_heads_say(counts: list[int], skips: bool) -> None:
    network = layered(counts) if skips else without(layered(counts), "skip")
    assert counts_of(network) == path_counts(counts, skip=skips)


@pytest.mark.parametrize("name", list(MEANS))
def test_the_architectures_of_the_paper(name: str) -> None:
    heads_each, layers, mean = MEANS[name]
    found = ARCHITECTURES[name]
    assert (found.heads, found.layers) == (heads_each, layers)
    lengths = found.lengths()
    assert round(lengths.mean, 2) == mean
    assert lengths.total == (1 + heads_each) ** layers
    assert lengths.counts == tuple(math.comb(layers, k) * heads_each**k for k in range(layers + 1))


def test_there_are_no_other_architectures() -> None:
    assert sorted(ARCHITECTURES) == sorted(MEANS)
    with pytest.raises(UnknownNameError, match="did you mean 'DeiT-T'"):
        ARCHITECTURES["DeiT"]


def test_bert_base_is_counted_exactly() -> None:
    lengths = length_distribution(
        counts_of(
            build(Spec(layers=12, heads=12, dim=24, variant="transformer", norm="layer"), generators(0)[0])
        )
    )
    assert lengths.total == 23298085122481 == 13**12
    assert lengths.counts == path_counts([12] * 12)
    assert lengths.mean == 144 / 13
    assert round(lengths.mean, 4) == 11.0769
    assert lengths.std == pytest.approx(math.sqrt(12 * 12 / 13 / 13))
    assert f"{lengths.at_most(3):.1e}" == "1.7e-08"


def test_shares_are_exact_where_floats_would_not_be() -> None:
    lengths = length_distribution(path_counts([96] * 400))
    assert sum(lengths.fractions) == 1
    assert lengths.fractions[0] == Fraction(1, 97**400)
    assert sum(lengths.shares) == pytest.approx(1.0)
    assert lengths.shares[0] == 0.0  # 97^-400 is below the smallest float
    assert lengths.mean == pytest.approx(400 * 96 / 97)
    assert lengths.std == pytest.approx(math.sqrt(400 * 96) / 97)
    assert [lengths.at_most(k) for k in (-1, 400, 1000)] == [0.0, 1.0, 1.0]


SECTIONS = {
    "two attentions beside each other": (Skip(Sum([heads(2), heads(3)])), (1, 5), {(0, 0): 1, (1, 0): 5}),
    "two in a block": (Chain([Skip(heads(2)), Skip(heads(3))]), (1, 5, 6), None),
    "one skip around two": (Skip(Chain([heads(2), heads(3)])), (1, 0, 6), None),
    "parallel": (Skip(Sum([heads(2), mlp(DRAW)])), (1, 2), {(0, 0): 1, (0, 1): 1, (1, 0): 2}),
    "skips beside each other": (
        Sum([Skip(heads(2)), Skip(mlp(DRAW))]),
        (1, 2),
        {(0, 0): 1, (0, 1): 1, (1, 0): 2},
    ),
    "a closed skip": (Skip(heads(2), 0.0), (0, 2), None),
    "a skip scaled by a tensor of zeros": (Skip(heads(2), torch.zeros(2)), (1, 2), None),
    "an empty sum": (Sum([]), (0,), {}),
    "nothing": (Chain([]), (1,), {(0, 0): 1}),
    "an MLP": (mlp(DRAW), (1,), {(0, 1): 1}),
    "a skip around an MLP": (Skip(mlp(DRAW)), (1,), {(0, 0): 1, (0, 1): 1}),
    "a token map that is an MLP": (TokenMap(torch.nn.Tanh()), (1,), {(0, 1): 1}),
    "a token map of another name": (TokenMap(torch.nn.Tanh(), site="gate"), (1,), {(0, 1): 1}),
    "norm and scale": (Chain([norm("rms", DRAW), Scale(2.0)]), (1,), {(0, 0): 1}),
}


@pytest.mark.parametrize("name", list(SECTIONS))
def test_parts_by_hand(name: str) -> None:
    part, counts, with_mlps = SECTIONS[name]
    assert counts_of(part) == counts
    if with_mlps is not None:
        assert counts_of(part, mlps=True) == with_mlps


def test_heads_and_mlps_are_two_axes() -> None:
    network = build(Spec(layers=5, heads=4, dim=8, variant="transformer", norm="layer"), generators(0)[0])
    found = counts_of(network, mlps=True)
    expected = {(k, m): math.comb(5, k) * 4**k * math.comb(5, m) for k in range(6) for m in range(6)}
    assert found == expected


def test_a_thousand_layers_are_counted_at_once() -> None:
    block = Chain([Skip(heads(12)), Skip(mlp(DRAW))])
    started = time.process_time()
    counts = path_counts([12] * 1000)
    assert counts_of(Network([block] * 1000)) == counts
    assert time.process_time() - started < 5  # about 0.7 s on one core; term by term it would never end
    assert sum(counts) == 13**1000


def test_unknown_parts_are_refused_by_name() -> None:
    class Unknown(Part):
        pass

    with pytest.raises(NotUnderstood, match="paths has no rule for the part Unknown"):
        counts_of(Network([Unknown()]))


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True])
def test_heads_that_cannot_be(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"layer 2 has .* heads; give a whole number of at least 1"):
        path_counts([3, wrong])  # type: ignore[list-item]


def test_bad_questions_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 answers about skips were given for 2 layers"):
        path_counts([1, 2], skip=[True, True, False])
    for counts in ([], [0, 0], [1, -1], [0.5, 0.5]):
        with pytest.raises(ConfigError, match="exact numbers of paths"):
            length_distribution(counts)
