"""What moves what: blocks that mix tokens or texts in hidden ways are told from those that do not."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankscope.sources.operations import Region, captured
from rankscope.sources.operations.influence import are_texts_alike, is_alike_everywhere, is_tokenwise, moved

TEXTS, TOKENS, DIM = 2, 5, 6
SHAPE = (TEXTS, TOKENS, DIM)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


WEIGHT, TABLE = draw(DIM, DIM, seed=1), draw(TOKENS, DIM, seed=2)


class Block(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def region_of(function: Callable[[Tensor], Tensor]) -> Region:
    graph = captured(Block(function), (draw(TEXTS, TOKENS, DIM),), {}).graph
    return Region(graph, (graph.inputs["0"],), graph.outputs[0])


def thresholded(x: Tensor) -> Tensor:
    """Attention whose weights are zero at most points."""
    return x + ((x @ x.mT - 60).relu() ** 2).tril(-1) @ x


def last_reads_first_if_small(x: Tensor) -> Tensor:
    small = (x[:, :1].abs().amax(-1, keepdim=True) < 0.05).to(x)
    return torch.cat([x[:, :-1], x[:, -1:] + small * x[:, :1]], 1)


MIXES = [
    thresholded,
    last_reads_first_if_small,
    lambda x: x.flip(1),
    lambda x: x.transpose(1, 2).reshape(TEXTS, TOKENS, DIM),
    lambda x: x.cumsum(1),
    lambda x: F.layer_norm(x, (TOKENS, DIM)),
    lambda x: x - x.mean(0, keepdim=True),
    lambda x: F.pad(x, (0, 0, 1, -1)) * 1e-6 + x,
    lambda x: x + x.amax(1, keepdim=True),
    lambda x: torch.cat([x[:1], x[1:] + 1e-7 * x[:1]]),
    lambda x: (x.int().sum(1, keepdim=True) > 100).to(x) + x,
]


@pytest.mark.parametrize("function", MIXES)
def test_mixing_is_seen(function: Callable[[Tensor], Tensor]) -> None:
    assert not is_tokenwise(function, SHAPE)
    region = region_of(function)
    assert not is_tokenwise(lambda x: region.replay(region.target, {region.roots[0]: x}), SHAPE)


ALONE = [
    lambda x: F.layer_norm(x, (DIM,)) @ WEIGHT,
    lambda x: F.gelu(x.flatten(0, 1) @ WEIGHT).view_as(x),
    lambda x: x * x.softmax(-1).amax(-1, keepdim=True),
    lambda x: torch.where(x > 20, x.round(), x),
]


@pytest.mark.parametrize("function", ALONE)
def test_tokens_that_stay_alone_and_are_treated_alike(function: Callable[[Tensor], Tensor]) -> None:
    assert is_tokenwise(function, SHAPE)
    assert is_alike_everywhere(function, SHAPE)


def test_a_table_by_position_is_tokenwise_but_not_alike() -> None:
    assert is_tokenwise(lambda x: x * TABLE, SHAPE)
    assert not is_alike_everywhere(lambda x: x * TABLE, SHAPE)


def test_what_fails_or_is_not_finite_is_no_map_of_tokens() -> None:
    assert not is_tokenwise(lambda x: x / 0, SHAPE)
    assert not is_tokenwise(lambda x: x @ x, SHAPE)
    assert not is_tokenwise(lambda x: x[x > 0], SHAPE)


def test_elements_that_move_in_every_node() -> None:
    region = region_of(lambda x: (x @ x.mT).tril() @ x)
    where = torch.zeros(TEXTS, TOKENS, 1, dtype=torch.bool)
    where[1, 2] = True
    effect = moved(region, region.roots[0], where, region.order)
    scores = next(node for node in region.order if node.kind == "tril")
    expected = torch.zeros(TEXTS, TOKENS, TOKENS, dtype=torch.bool)
    expected[1, 2, :3] = expected[1, 2:, 2] = True
    assert torch.equal(effect[scores], expected)
    assert torch.equal(effect[region.target].any(-1), torch.tensor([[False] * 5, [False] * 2 + [True] * 3]))


ALIKE = {
    "a sum over tokens": (lambda x: x.cumsum(dim=1), True),
    "a mean over texts": (lambda x: x - 1e-3 * x.mean(dim=0), False),
    "another factor for every text": (lambda x: x * torch.tensor([1.0, 1.001])[:, None, None], False),
    "texts in another order": (lambda x: x.flip(0), False),
    "a text that reads large ones": (lambda x: x + (x.abs().amax() > 25), False),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_texts_are_alike_if_none_reads_another_and_each_is_treated_as_the_others(kind: str) -> None:
    run, expected = ALIKE[kind]
    assert are_texts_alike(run, (2, 5, 8)) == expected
