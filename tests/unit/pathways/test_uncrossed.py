"""What no path crosses: regions run as they are, and attention to a memory, are sources whatever is asked of MLPs."""

import pytest
import torch
from torch.testing import assert_close

from kit.trees import DIM, MEMORY_DIM, WHERE, Draws, attention, cross, mlp, observed, opaque, running_mean
from rankscope.errors import NotUnderstood
from rankscope.network import Chain, Context, LayerNorm, Network, Observed, Skip
from rankscope.pathways import (
    Path,
    Source,
    attribute,
    counts_of,
    run_path,
    spectrum,
    top_paths,
    without_heads,
)
from rankscope.pathways.path import Uncrossed, uncrossed

DRAW = Draws(0)
X, CONTEXT = DRAW(5, DIM), Context(memory=DRAW(4, MEMORY_DIM))
OPAQUE = f"opaque ssm ({WHERE})"


def network() -> Network:
    """A block of attention, a region run as it is, attention to a memory and an MLP, then one of observed maps."""
    draw = Draws(1)
    first = Chain([Skip(attention(draw)), Skip(opaque()), Skip(cross(draw)), Skip(mlp(draw))])
    return Network([first, Skip(observed(draw))])


@pytest.mark.parametrize("mlps", ["through", "source"])
def test_their_output_is_a_source_by_its_own_name(mlps: str) -> None:
    net = network()
    found = spectrum(net, X, CONTEXT, mlps=mlps)
    assert_close(found.total, net(X, CONTEXT), rtol=1e-12, atol=1e-12)
    sources = attribute(net, X, CONTEXT, mlps=mlps).sources
    assert {source.name for source in sources} >= {"input", OPAQUE, "cross"}
    assert sources[Source(OPAQUE, 1)].abs() > 0
    total = torch.stack(list(sources.values())).sum()
    assert_close(total, torch.ones_like(total), rtol=1e-10, atol=0)


def test_what_starts_at_a_region_is_what_it_puts_out_carried_on() -> None:
    """By hand: what a running mean puts out, by the skip and through both heads of the attention behind it."""
    net = Network([Skip(opaque()), Skip(attention(Draws(2)))])
    started = attribute(net, X, toward=lambda y: (y * X).sum()).sources[Source(OPAQUE, 1)]
    mixer, held = net.blocks[1].inner.mixer, net.blocks[1].inner.values
    state = X + running_mean(X)
    maps, value = mixer(state, Context()), running_mean(X) @ held.value
    mixed = torch.cat([maps[head] @ value[:, 4 * head : 4 * head + 4] for head in range(2)], dim=-1)
    assert_close(started, ((running_mean(X) + mixed @ held.out) * X).sum())


def test_no_path_crosses_a_region_that_nothing_passes_by() -> None:
    net = Network([attention(Draws(3)), opaque(), Skip(attention(Draws(4)))])
    sources = attribute(net, X).sources
    assert float(sources[Source("input")]) == 0
    found = spectrum(net, X)
    assert_close(found.total, net(X), rtol=1e-12, atol=1e-12)


def test_paths_are_counted_as_without_them() -> None:
    net = network()
    bare = Network([Chain([Skip(attention(Draws(1))), Skip(mlp(Draws(1)))]), Skip(attention(Draws(1)))])
    assert counts_of(net) == counts_of(bare)
    assert len(top_paths(net, X, CONTEXT, count=3).paths) == 3


def test_one_path_is_run_with_them_in_their_places() -> None:
    net = network()
    none = run_path(net, X, Path((None, None)), CONTEXT, mode="isolated")
    rest = Chain([Skip(opaque()), net.blocks[0].parts[2], net.blocks[0].parts[3]])
    assert_close(none, rest(X, CONTEXT), rtol=1e-12, atol=1e-12)
    cut = without_heads(net, [(1, 0)])
    assert cut(X, CONTEXT).shape == X.shape


@pytest.mark.parametrize("part", [opaque(), cross(Draws(5))], ids=["Opaque", "CrossAttention"])
def test_the_published_code_has_no_such_part(part) -> None:
    net = Network([Chain([Skip(attention(Draws(5))), Skip(part)])])
    with pytest.raises(NotUnderstood, match=f"{type(part).__name__}; the published code has no such part"):
        run_path(net, X, Path((0,)), CONTEXT, mode="official")


def test_observed_maps_are_held_as_any_others() -> None:
    draw = Draws(6)
    net = Network([Skip(observed(draw)), Chain([LayerNorm(eps=1e-5), observed(draw)])])
    found = spectrum(net, X)
    assert_close(found.total, net(X), rtol=1e-12, atol=1e-12)
    assert len(found.terms) == 3, "paths of 0, 1 and 2 heads"
    assert isinstance(net.blocks[0].inner.mixer, Observed)


def test_they_are_listed_with_the_line_of_the_user() -> None:
    assert uncrossed(network()) == [
        Uncrossed(layer=1, site="ssm", what="a running mean", where=WHERE),
        Uncrossed(layer=1, site="cross", what="attention to a memory", where=None),
    ]
