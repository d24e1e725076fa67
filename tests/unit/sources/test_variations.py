"""Which axes count tokens is found by cutting; other batches of a call are what they are said to be."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from kit.models import DIM, HEADS, VOCABULARY
from rankscope.sources.axes import located
from rankscope.sources.batch import Batch
from rankscope.sources.family import Stack
from rankscope.sources.layout import layout_of
from rankscope.sources.plain_run import plain_run
from rankscope.sources.variations import (
    Marks,
    TokenAxes,
    counting_inputs,
    lengthened,
    marks_of,
    padded,
    reversed_positions,
    shortened,
    token_axes,
    with_texts,
)

TEXTS, TOKENS = 2, 7


class Model(nn.Module):
    """Ids and positions to states, with a token of its own before them; a mask between tokens and one of padding."""

    def __init__(self, *, own_token: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 48, batch_first=True)
        self.table, self.places = nn.Embedding(VOCABULARY, DIM), nn.Embedding(20, DIM)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.own = nn.Parameter(torch.randn(1, 1, DIM)) if own_token else None

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        style: Tensor | None = None,
        mask: Tensor | None = None,
        padding: Tensor | None = None,
    ) -> Tensor:
        x = self.table(ids) + self.places(positions)
        x = x if style is None else x + style
        if self.own is not None:
            x = torch.cat([self.own.expand(len(x), -1, -1), x], dim=1)
        return self.layers(x, mask=mask, src_key_padding_mask=padding)


def call(*, tokens: int = TOKENS, **more: Tensor) -> Batch:
    ids = torch.randint(VOCABULARY, (TEXTS, tokens), generator=torch.Generator().manual_seed(0))
    inputs = {"ids": ids, "positions": torch.arange(tokens).expand(TEXTS, -1)} | more
    return Batch(inputs=inputs, is_token=None, labels=())


def counted(model: nn.Module, batch: Batch) -> tuple[Stack, Batch, TokenAxes]:
    layout = layout_of(model)
    batch, _ = located(model, layout, batch)
    found = token_axes(model, layout.stacks[0], batch)
    assert found is not None
    return layout.stacks[0], batch, found


def causal(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).triu(1)


def test_all_axes_that_count_tokens_are_found_together() -> None:
    model = Model().eval()
    batch = call(mask=causal(TOKENS), padding=torch.zeros(TEXTS, TOKENS, dtype=torch.bool))
    _, _, found = counted(model, batch)
    assert found.axes == {"ids": (1,), "positions": (1,), "mask": (0, 1), "padding": (1,)}
    assert (found.size, found.rows) == (TOKENS, TOKENS)


def test_channels_as_many_as_tokens_are_no_tokens() -> None:
    _, _, found = counted(Model().eval(), call(tokens=DIM // 2, style=torch.randn(DIM)))
    assert "style" not in found.axes
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, HEADS, 48, batch_first=True), 1).eval()
    square = Batch(inputs={"": torch.randn(TEXTS, DIM, DIM)}, is_token=None, labels=())
    assert counted(model, square)[2].axes == {"": (1,)}


def test_tokens_of_the_models_own_are_counted_apart() -> None:
    model = Model(own_token=True).eval()
    stack, batch, found = counted(model, call())
    assert (found.size, found.rows) == (TOKENS, TOKENS + 1)
    cut = shortened(batch, found, 4)
    assert cut.inputs["ids"].shape == (TEXTS, 3)
    assert plain_run(model, stack, cut).states[-1].shape[1] == 4


def test_what_cannot_be_cut_has_no_axes() -> None:
    class Fixed(Model):
        def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
            return super().forward(ids.view(TEXTS, TOKENS), positions.view(TEXTS, TOKENS))

    model = Fixed().eval()
    layout = layout_of(model)
    batch = replace(call(), labels=("a", "b"), text_axes={"ids": 0, "positions": 0})
    assert token_axes(model, layout.stacks[0], batch) is None


def test_a_longer_batch_draws_tokens_counts_on_and_continues_the_mask() -> None:
    model = Model().eval()
    stack, batch, found = counted(model, call(mask=causal(TOKENS)))
    longer = lengthened(batch, found, 15)
    assert longer is not None
    assert torch.equal(longer.inputs["ids"][:, :TOKENS], batch.inputs["ids"])
    assert torch.equal(longer.inputs["positions"], torch.arange(15).expand(TEXTS, -1))
    assert torch.equal(longer.inputs["mask"], causal(15))
    assert set(longer.inputs["ids"].unique().tolist()) <= set(batch.inputs["ids"].unique().tolist())
    assert plain_run(model, stack, longer).states[-1].shape[1] == 15


@pytest.mark.parametrize(
    ("mask", "continues"),
    [
        (torch.zeros(8, 8), True),
        (torch.full((8, 8), -torch.inf).triu(1), True),
        (torch.ones(8, 8).triu(-1).tril(1) - 1.0, True),  # a window
        (torch.ones(8, 8).triu(-6).tril(6) - 1.0, False),  # it may end where the batch ends
        (torch.block_diag(torch.ones(4, 4), torch.ones(4, 4)) - 1.0, False),
    ],
    ids=["empty", "causal", "window", "wide window", "blocks"],
)
def test_a_mask_goes_on_only_where_it_can_be_shown_how(mask: Tensor, continues: bool) -> None:
    batch = Batch(inputs={"x": torch.randn(2, 8, 4), "mask": mask}, is_token=None, labels=())
    found = TokenAxes(axes={"x": (1,), "mask": (0, 1)}, size=8, rows=8)
    longer = lengthened(batch, found, 12)
    assert (longer is not None) == continues
    if longer is not None:
        assert torch.equal(longer.inputs["mask"][:8, :8], mask)
        assert torch.equal(longer.inputs["mask"][4:, 4:], mask)


def test_more_texts_are_not_the_same_texts_again() -> None:
    _, batch, found = counted(Model().eval(), call())
    more = with_texts(batch, found, 3)
    assert more is not None
    ids = more.inputs["ids"]
    assert ids.shape == (3, TOKENS)
    assert len({tuple(row.tolist()) for row in ids}) == 3
    assert torch.equal(more.inputs["positions"], torch.arange(TOKENS).expand(3, -1))


def test_marks_of_padding_are_told_both_ways_round() -> None:
    padding = torch.zeros(TEXTS, TOKENS, dtype=torch.bool)
    _, batch, found = counted(Model().eval(), call(padding=padding))
    first, second = marks_of(batch, found)
    assert first == Marks("padding", 0.0, 1.0)
    assert second == Marks("padding", 1.0, 0.0)
    with_some = padded(batch, first)
    is_token = first.is_token(with_some)
    assert is_token is not None
    assert (~is_token).sum(dim=1).tolist() == [1, 1]
    assert not bool(is_token[0, -1])
    assert not bool(is_token[1, 0])


def test_positions_are_inputs_that_count() -> None:
    _, batch, found = counted(Model().eval(), call())
    assert counting_inputs(batch, found) == ["positions"]
    turned = reversed_positions(batch, found, "positions").inputs["positions"]
    assert turned[0].tolist() == list(range(TOKENS))[::-1]
