"""Single terms against all routes by definition, and the product of maps along a path."""

import pytest
import torch

from kit.top_trees import BLOCKS, DIM, TOKENS, plain, small
from kit.trees import Draws
from rankscope.errors import ConfigError
from rankscope.network import Context, Network, Spec, build, gaussian_tokens
from rankscope.pathways.drawing import every_path
from rankscope.pathways.freeze import freeze
from rankscope.pathways.path import Path
from rankscope.pathways.term import mixing, path_term
from reference import path_terms as loops


@pytest.mark.parametrize("name", BLOCKS)
def test_every_term_is_the_sum_of_its_routes(name: str) -> None:
    network, x = small(name)
    held, output = loops.hold(plain(network), x)
    torch.testing.assert_close(network(x), output, rtol=1e-12, atol=1e-13)
    terms = loops.every_term(held, x)
    assert set(terms) == {path.heads for path in every_path(network)}
    frozen = freeze(network, x)
    for heads, wanted in list(terms.items())[::11]:
        torch.testing.assert_close(path_term(frozen, None, Path(heads)), wanted, rtol=1e-11, atol=1e-13)


def test_a_term_may_be_asked_of_a_network_at_once() -> None:
    network, x = small("pre-norm")
    path = Path((1, None, 2, None))
    before = path_term(network, x, path, final_norm=False)
    torch.testing.assert_close(before, path_term(freeze(network, x, final_norm=False), None, path))
    assert (before - path_term(network, x, path)).abs().max() > 1e-3
    assert path_term(network, x, path, dtype=torch.float32).dtype == torch.float32


def along(network: Network, path: Path, product: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for block, head in zip(network.blocks, path.heads, strict=True):
        x = x @ block.values.value_out()[head]
    return product @ x


def test_maps_multiply_with_the_last_layer_on_the_left() -> None:
    network, x = small("san")
    frozen = freeze(network, x)
    path = Path((0, 2, 1, 0))
    wanted = path_term(frozen, None, path)
    torch.testing.assert_close(along(network, path, mixing(frozen, path), x), wanted, rtol=1e-11, atol=1e-13)
    states = network.states(x)
    maps = [
        block.mixer(state, Context())[head]
        for block, state, head in zip(network.blocks, states, path.heads, strict=False)
    ]
    reversed_order = maps[0] @ maps[1] @ maps[2] @ maps[3]
    off = (along(network, path, reversed_order, x) - wanted).norm() / wanted.norm()
    assert off > 0.01, "the product in the wrong order is another matrix"


@pytest.mark.parametrize("name", ["san+skip", "post-norm", "two side by side"])
def test_products_of_maps_are_row_stochastic(name: str) -> None:
    network, x = small(name)
    frozen = freeze(network, x)
    for path in list(every_path(network))[::7]:
        product = mixing(frozen, path)
        assert product.min() >= 0
        torch.testing.assert_close(product.sum(dim=-1), torch.ones(TOKENS, dtype=torch.float64))
    nothing = Path((None,) * len(frozen.sites))
    torch.testing.assert_close(mixing(frozen, nothing), torch.eye(TOKENS, dtype=torch.float64))


def test_products_of_real_tokens_are_row_stochastic_beside_padding() -> None:
    network = build(Spec(layers=3, heads=2, dim=DIM, variant="san+skip"), torch.Generator().manual_seed(0))
    is_token = torch.tensor([[True, True, True, False], [True, True, True, True]])
    frozen = freeze(network, Draws(1)(2, 4, DIM), Context(is_token=is_token))
    product = mixing(frozen, Path((1, 0, 1)))
    assert product.shape == (2, 4, 4)
    torch.testing.assert_close(product.sum(dim=-1)[is_token], torch.ones(7, dtype=torch.float64))
    assert product[0, :3, 3].abs().max() == 0, "real tokens read no padding"


def test_a_path_that_is_none_is_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    network = build(Spec(layers=2, heads=2, dim=4), generator)
    x = gaussian_tokens(3, 4, generator=generator)
    with pytest.raises(ConfigError, match="no path -"):
        path_term(network, x, Path((None, 0)))
    with pytest.raises(ConfigError, match="no such head"):
        mixing(freeze(network, x), Path((0, 2)))
    with pytest.raises(ConfigError, match="3 steps"):
        mixing(freeze(network, x), Path((0, 1, 1)))
