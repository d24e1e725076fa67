"""Paths drawn with equal probability and listed in order, against all routes walked one by one."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from kit.path_trees import described, heads, layered
from kit.trees import Draws, mlp, networks, norm
from rankscope.errors import ConfigError
from rankscope.network import Chain, Network, Skip, Sum, without
from rankscope.pathways.counts import counts_of
from rankscope.pathways.drawing import _uniform, draw_paths, every_path, require_path
from rankscope.pathways.path import Path, sites
from reference.path_choices import TooManyError, as_paths, choices

DRAW = Draws(0)


def brute(network: Network) -> list[Path]:
    tree, names = described(network)
    try:
        return [Path(row) for row in as_paths(choices(tree), names)]
    except TooManyError:
        assume(False)
        raise


@given(networks())
def test_all_paths_are_listed_in_order(network: Network) -> None:
    expected = brute(network)
    assert list(every_path(network)) == expected
    for length, count in enumerate(counts_of(network)):
        if count:
            of_length = [path for path in expected if path.length == length]
            assert list(every_path(network, length)) == of_length


@given(networks(), st.integers(0, 2**16))
def test_every_drawn_path_exists(network: Network, seed: int) -> None:
    expected = set(brute(network))
    generator = torch.Generator().manual_seed(seed)
    for length, count in enumerate(counts_of(network)):
        if count:
            drawn = draw_paths(network, length, 5, generator=generator)
            assert set(drawn) <= expected
            assert all(path.length == length for path in drawn)


@given(networks(most=2), st.integers(0, 2**16))
def test_a_path_is_required_exactly_where_there_is_one(network: Network, seed: int) -> None:
    expected, source = set(brute(network)), random.Random(seed)  # noqa: S311 - no secrets
    places = sites(network)
    tried = [Path(tuple(source.choice([None, *range(place.heads)]) for place in places)) for _ in range(20)]
    for path in [*tried, *expected]:
        if path in expected:
            require_path(network, path)
        else:
            with pytest.raises(ConfigError, match="the network has no path"):
                require_path(network, path)


def parallel_attentions() -> Network:
    """Two attentions that are added, in every layer, once beside an MLP with its own norms."""
    first = Skip(Sum([heads(2), heads(3)]))
    second = Chain(
        [Skip(Sum([Chain([norm("layer", DRAW), heads(1)]), mlp(DRAW), heads(2)])), norm("rms", DRAW)]
    )
    return Network([first, second, Skip(heads(2))])


def two_in_a_block() -> Network:
    """Blocks of two attentions, one of them without a way past its pair."""
    block = Chain([Skip(heads(2)), Skip(mlp(DRAW)), Skip(heads(3))])
    return Network([block, Skip(Chain([heads(2), Skip(heads(2))]))])


NETWORKS: dict[str, tuple[Callable[[], Network], int]] = {
    "equal heads": (lambda: layered([2, 2, 2, 2]), 2),
    "unequal heads": (lambda: layered([1, 3, 2, 5]), 2),
    "a sum of two attentions": (parallel_attentions, 2),
    "two attentions in a block": (two_in_a_block, 3),
    "no skips": (lambda: without(layered([3, 1, 4]), "skip"), 3),
}


def chi_square(drawn: list[Path], expected: list[Path]) -> float:
    """p-value of the drawn paths if all expected ones are equally probable."""
    found = Counter(drawn)
    assert set(found) <= set(expected)
    return float(stats.chisquare([found[path] for path in expected]).pvalue)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_all_paths_of_a_length_are_equally_probable(name: str, generator: torch.Generator) -> None:
    make, length = NETWORKS[name]
    network = make()
    expected = [path for path in brute(network) if path.length == length]
    assert len(expected) > 10
    drawn = draw_paths(network, length, 100 * len(expected), generator=generator)
    assert chi_square(drawn, expected) > 1e-3


def test_the_test_notices_layers_drawn_before_heads() -> None:
    """The published code picks layers first and then heads, which is uniform only if all layers have as many."""
    counts, length, source = [1, 3, 2, 5], 2, random.Random(0)  # noqa: S311 - no secrets
    drawn = []
    for _ in range(100 * 41):
        layers = source.sample(range(4), length)
        drawn.append(Path(tuple(source.randrange(h) if i in layers else None for i, h in enumerate(counts))))
    expected = [path for path in brute(layered(counts)) if path.length == length]
    assert chi_square(drawn, expected) < 1e-12


def test_long_paths_beyond_any_machine_integer(generator: torch.Generator) -> None:
    network = layered([12] * 40)
    assert counts_of(network)[37] > 2**140
    drawn = draw_paths(network, 37, 400, generator=generator)
    assert len(set(drawn)) == 400
    # each of the 40 layers is skipped with probability 3 / 40, each head of it taken with equal probability
    skipped = [sum(path.heads[layer] is None for path in drawn) for layer in range(40)]
    assert stats.chisquare(skipped).pvalue > 1e-3
    taken = Counter(head for path in drawn for head in path.heads if head is not None)
    assert stats.chisquare([taken[head] for head in range(12)]).pvalue > 1e-3


@pytest.mark.parametrize("total", [1, 2, 3, 2**32, 2**32 + 1, 3 * 2**62, 13**40])
def test_numbers_below_a_total_are_uniform(total: int, generator: torch.Generator) -> None:
    numbers = [_uniform(total, generator) for _ in range(2000)]
    assert all(0 <= number < total for number in numbers)
    bins = min(total, 16)
    found = Counter(number * bins // total for number in numbers)
    assert stats.chisquare([found[b] for b in range(bins)]).pvalue > 1e-3 or bins == 1


def test_the_same_seed_draws_the_same_paths() -> None:
    network = layered([4] * 8)
    one, other, third = (
        draw_paths(network, 4, 20, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert one == other
    assert one != third


def test_a_thousand_layers_can_be_listed_and_drawn(generator: torch.Generator) -> None:
    network = Network([Skip(heads(2))] * 1000)
    assert sum(1 for _ in every_path(network, 1)) == 2000
    assert [path.length for path in draw_paths(network, 600, 2, generator=generator)] == [600, 600]


def test_a_network_without_attention_has_one_path(generator: torch.Generator) -> None:
    network = Network([Skip(mlp(DRAW)), norm("layer", DRAW)])
    assert list(every_path(network)) == [Path(())] == draw_paths(network, 0, 1, generator=generator)


@pytest.mark.parametrize(
    ("network", "length", "words"),
    [
        (layered([2, 2]), 3, "no path has length 3; its paths have length 0 to 2"),
        (layered([2, 2]), -1, "no path has length -1; its paths have length 0 to 2"),
        (without(layered([2, 2]), "skip"), 1, "no path has length 1; all its paths have length 2"),
        (Network([Skip(Chain([heads(2), heads(2)]))] * 2), 1, "its paths have length 0, 2 or 4"),
        (Network([Sum([])]), 0, "the network has no paths at all"),
    ],
)
def test_a_length_without_paths_is_refused(
    network: Network, length: int, words: str, generator: torch.Generator
) -> None:
    with pytest.raises(ConfigError, match=words):
        draw_paths(network, length, 1, generator=generator)
    with pytest.raises(ConfigError, match=words):
        every_path(network, length)


def test_bad_requests_are_refused(generator: torch.Generator) -> None:
    network = layered([2, 2])
    with pytest.raises(ConfigError, match="0 paths were asked for"):
        draw_paths(network, 1, 0, generator=generator)
    with pytest.raises(ConfigError, match="has 3 steps, but the network has 2"):
        require_path(network, Path((None, 1, 1)))
    with pytest.raises(ConfigError, match="layer 2, head 2: there is no such head"):
        require_path(network, Path((None, 2)))
    with pytest.raises(ConfigError, match=r"no route through layer 2 takes 0\.0 there"):
        require_path(Network([Skip(heads(2)), Sum([heads(1), heads(1)])]), Path((None, 0, 0)))
