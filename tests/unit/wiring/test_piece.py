"""What a block reads, found by moving tokens, is what its mask says; axes and lines are found whatever they are."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kit.wired import layerdicts
from rankscope.wiring import laws
from rankscope.wiring.culprits import declared_line
from rankscope.wiring.fresh import is_fresh
from rankscope.wiring.piece import Piece, Place, spread_over
from rankscope.wiring.subject import _most


class Masked(nn.Module):
    """One head of attention under a mask, then a map of every token."""

    def __init__(self, may: Tensor, tokens_first: bool) -> None:
        super().__init__()
        self.may, self.tokens_first = may, tokens_first
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1) if self.tokens_first else x
        q, k, v = self.qkv(x).chunk(3, -1)
        maps = (q @ k.mT).masked_fill(~self.may, -torch.inf).softmax(-1)
        x = x + self.out(maps @ v)
        return x.transpose(0, 1) if self.tokens_first else x


def piece_of(module: nn.Module, x: Tensor) -> Piece:
    passes: list[float] = []
    place = Place("blocks", 1, "blocks.0", None)
    return Piece(
        module=module, args=(x,), kwargs={}, stream="0", place=place, count=passes.append, clearly=1e-4
    )


@settings(max_examples=15)
@given(data=st.data(), tokens=st.integers(2, 6), texts=st.integers(1, 3), tokens_first=st.booleans())
def test_readers_are_those_of_the_mask(data: Any, tokens: int, texts: int, tokens_first: bool) -> None:
    bits = data.draw(st.lists(st.booleans(), min_size=tokens**2, max_size=tokens**2))
    may = torch.tensor(bits).view(tokens, tokens) | torch.eye(tokens, dtype=torch.bool)
    torch.manual_seed(0)
    shape = (tokens, texts, 6) if tokens_first else (texts, tokens, 6)
    piece = piece_of(Masked(may, tokens_first), torch.randn(shape))
    assert piece.is_usable
    text_axis = 1 if tokens_first else 0
    found = piece.readers(text_axis)
    assert sorted(found) == list(range(tokens))
    for token, rows in found.items():
        assert torch.equal(rows, may[:, token])  # row p moves with token t exactly if p may read t
    assert not piece.mixes(text_axis)
    mixes = bool((may & ~torch.eye(tokens, dtype=torch.bool))[:, [0, -1]].any())
    assert piece.mixes(1 - text_axis) == mixes


def test_tokens_are_spread_over_a_text() -> None:
    for many in (1, 3, 8, 9, 50, 512):
        found = spread_over(many, 8)
        assert found == sorted(set(found))
        assert found[0] == 0
        assert found[-1] == many - 1
        assert len(found) <= 8


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.register_buffer("table", torch.zeros(3))
        self.parts = nn.ModuleDict({"inner": nn.Linear(2, 2)})


def test_lines_that_declare() -> None:
    model = Holder()
    for path, code in (
        ("first.layers.1.linear1.weight", "self.first = nn.TransformerEncoder("),
        ("table", 'self.register_buffer("table"'),
        ("parts.inner.weight", 'nn.ModuleDict({"inner"'),
    ):
        line = declared_line(model, path)
        assert line is not None
        assert code in line.code
        assert line.file == __file__
    assert declared_line(nn.TransformerEncoderLayer(8, 2), "linear1") is None


def test_fresh_models() -> None:
    model = nn.TransformerEncoderLayer(8, 2)
    assert is_fresh(model)
    with torch.no_grad():
        model.norm1.weight[0] = 1.1
    assert not is_fresh(model)


def test_of_a_large_model_fewer_tokens_are_looked_at() -> None:
    small, large = nn.Linear(4, 4), nn.Linear(4, 4)
    large.weight = nn.Parameter(torch.empty(110_000_000, device="meta"))
    assert _most(small) == (4, 48)
    assert _most(large) == (3, 15)


def test_parts_of_a_whole_read_the_batch_that_is_marked() -> None:
    found = laws(layerdicts.build(), layerdicts.batch(), only=["padding"])
    assert (found["padding"].state, found["padding"].what) == ("holds", "padding")
