"""Blocks with the graph of one before them have its tree with weights of their own; all others are read anew."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rankscope as rs
from rankscope.network import Context
from rankscope.sources import Translation, recognition
from rankscope.sources.operations import Captured, captured
from rankscope.sources.recognise.block import Recognised, recognised, recognised_as
from rankscope.sources.recognise.twins import Place, signature

DIM = 12


class Block(nn.Module):
    """Every number that a block may keep elsewhere than in a parameter."""

    def __init__(
        self, *, eps: float = 1e-5, scale: float = 0.3, window: int = 4, is_gelu: bool = True
    ) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(DIM, eps=eps),
            nn.Linear(DIM, 3 * DIM),
            nn.Linear(DIM, DIM),
        )
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)
        self.scale, self.act = scale, F.gelu if is_gelu else F.silu
        distance = torch.arange(40)[:, None] - torch.arange(40)
        self.register_buffer("may", (distance >= 0) & (distance < window))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        tokens = x.shape[1]
        scores = (q @ k.mT * self.scale).masked_fill(~self.may[:tokens, :tokens], -torch.inf)
        x = x + self.out(scores.softmax(dim=-1) @ v)
        return x + self.down(self.act(self.up(x)))


class Stacked(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_numbers(module: nn.Module, seed: int) -> nn.Module:
    module.double().eval()
    for number, one in enumerate(module.parameters()):
        one.data = drawn(*one.shape, seed=100 * seed + number) / DIM**0.5
    return module


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Captured]:
    """The blocks that are searched, and not taken for twins."""
    found: list[Captured] = []

    def counted(one: Captured, **told: bool | str) -> Recognised:
        found.append(one)
        return recognised(one, **told)

    monkeypatch.setattr(recognition, "recognised", counted)
    return found


def translated(*blocks: nn.Module) -> tuple[Translation, nn.Module]:
    model = Stacked(*(with_numbers(block, seed) for seed, block in enumerate(blocks))).eval()
    with rs.record(model) as seen:
        model(drawn(2, 9, DIM, seed=7))
    return rs.translate(seen), model


def assert_same(tree: Translation, model: nn.Module) -> None:
    """On another number of texts and tokens, every block by itself; weights are those of the block."""
    x = drawn(3, 11, DIM, seed=8)
    for part, block in zip(tree.network.blocks, model.blocks, strict=True):
        torch.testing.assert_close(part(x, Context()), block(x), rtol=0, atol=1e-10)
        own = {one.untyped_storage().data_ptr() for one in block.parameters()}
        assert {one.untyped_storage().data_ptr() for one in part.parameters()} <= own


def test_equal_blocks_are_searched_once_and_have_their_own_weights(reads: list[Captured]) -> None:
    tree, model = translated(Block(), Block(), Block())
    assert len(reads) == 1
    assert_same(tree, model)


@pytest.mark.parametrize(
    "other",
    [
        lambda: Block(eps=1e-3),
        lambda: Block(scale=0.31),
        lambda: Block(window=3),
        lambda: Block(is_gelu=False),
    ],
    ids=["eps", "scale", "mask", "activation"],
)
def test_blocks_that_differ_in_anything_but_parameters_are_searched(
    other: Callable[[], nn.Module], reads: list[Captured]
) -> None:
    tree, model = translated(Block(), other(), Block())
    assert len(reads) == 2
    assert_same(tree, model)


class Gated(nn.Module):
    """A parameter that switches a branch off in the first block is none that may be left out in the second."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.block, self.map, self.is_on = Block(), nn.Linear(DIM, DIM), gate
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) + self.gate * self.map(x)


@pytest.mark.parametrize("gates", [(0.0, 1.0), (1.0, 0.0)])
def test_a_parameter_that_is_zero_in_one_block_alone(gates: tuple[float, float]) -> None:
    model = Stacked(*(with_numbers(Gated(gate), seed) for seed, gate in enumerate(gates))).eval()
    for block in model.blocks:
        block.gate.data.fill_(block.is_on)
    with rs.record(model) as seen:
        model(drawn(2, 9, DIM, seed=7))
    x = drawn(3, 11, DIM, seed=8)
    tree = rs.translate(seen)
    for part, block in zip(tree.network.blocks, model.blocks, strict=True):
        torch.testing.assert_close(part(x, Context()), block(x), rtol=0, atol=1e-10)


def test_a_tree_with_weights_at_wrong_places_is_not_taken() -> None:
    x = drawn(2, 9, DIM, seed=7)
    first, second = (captured(with_numbers(Block(), seed), (x,), {}) for seed in (1, 2))
    known = recognised(first, stream="0")
    assert known.places is not None
    assert recognised_as(known, second, stream="0") is not None
    named = [one.name if isinstance(one, Place) else "" for one in known.places]
    moved = [
        replace(one, name="norm.bias") if isinstance(one, Place) and one.name == "out.bias" else one
        for one in known.places
    ]
    assert "out.bias" in named
    assert recognised_as(replace(known, places=tuple(moved)), second, stream="0") is None


def test_states_may_differ_between_twins_and_other_arguments_may_not() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(DIM, DIM)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x + self.map(x) * mask

    block = with_numbers(Masked(), 1)
    mask = torch.ones(1, 9, 1, dtype=torch.float64)
    signs = [
        signature(captured(block, (drawn(2, 9, DIM, seed=seed), given), {}), "0")
        for seed, given in ((1, mask), (2, mask), (3, 2 * mask))
    ]
    assert signs[0] is not None
    assert [sign is not None and sign.is_same(signs[0], frozenset({"0"})) for sign in signs] == [
        True,
        True,
        False,
    ]
