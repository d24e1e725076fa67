"""Axes of inputs that somebody states: taken at their word, unless the model shows something else."""

from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rankscope as rs
from kit.handwritten import Block, Gpt, causal, ids
from rankscope.errors import ConfigError, ShapeError
from rankscope.probe import probe
from rankscope.sources import batches_of_call, layout_of, tensor_batches, translate
from rankscope.sources.calls import Calls, given_calls

DIM, TEXTS, TOKENS = 8, 3, 7
NAMES = ("texts", "tokens", "dim")
ORDERS = [pytest.param(order, id=",".join(order)) for order in permutations(NAMES)]
RATIO = "residual_ratio[frobenius,mean]"


class Ordered(nn.Module):
    """Vectors with their axes in any order; what the blocks see is ``texts tokens dim``."""

    def __init__(self, order: tuple[str, ...], *blocks: nn.Module) -> None:
        super().__init__()
        self.places = tuple(order.index(name) for name in NAMES)
        self.layers = nn.ModuleList(blocks)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x.permute(self.places)
        for layer in self.layers:
            x = layer(x) if mask is None else layer(x, mask)
        return x


class Alone(nn.Module):
    """A block in which no token reads another one, so that moving texts shows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.self_attn = nn.LayerNorm(DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.self_attn(self.norm(x)).tanh()


class Series(nn.Module):
    """One number per token, ``(tokens, texts)``, or with an axis of one channel, ``(texts, 1, tokens)``."""

    def __init__(self, *, channels: bool) -> None:
        super().__init__()
        self.channels = channels
        self.stem, self.layers = nn.Linear(1, DIM), nn.ModuleList([Block(DIM, 2), Block(DIM, 2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.mT if self.channels else x.T[..., None])
        for layer in self.layers:
            x = layer(x)
        return x


class TokensFirst(nn.Module):
    """Ids ``(tokens, texts)``, and states with tokens before texts too."""

    def __init__(self, *, mixes: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(30, DIM)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(DIM, 2, 16) if mixes else Alone() for _ in range(2)
        )

    def states(self, ids: Tensor) -> list[Tensor]:
        found = [self.words(ids)]
        for layer in self.layers:
            found.append(layer(found[-1]))
        return found

    def forward(self, ids: Tensor) -> Tensor:
        return self.states(ids)[-1]


def made(model: nn.Module) -> nn.Module:
    """The model in float64, with weights that differ from zero so much that everything shows."""
    drawn = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data.copy_(0.4 * torch.randn(weight.shape, generator=drawn))
    return model.double().eval()


def vectors(texts: int = TEXTS, tokens: int = TOKENS, dim: int = DIM) -> Tensor:
    return torch.randn(texts, tokens, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def laid_out(x: Tensor, order: tuple[str, ...]) -> Tensor:
    return x.permute(tuple(NAMES.index(name) for name in order)).contiguous()


def read(model: nn.Module, inputs: Any = None, **options: Any) -> Calls:
    blocks = "layers" if hasattr(model, "layers") else None
    return batches_of_call(model, inputs, layout=layout_of(model, blocks=blocks), **options)


def fed(model: nn.Module, batch: rs.Batch) -> Any:
    args, kwargs = batch.arguments()
    with torch.no_grad():
        return model(*args, **kwargs)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (5, 5), (2, DIM), (1, 6)], ids=str)
def test_texts_lie_where_they_are_said_to(order: tuple[str, ...], shape: tuple[int, int]) -> None:
    model, x = made(Ordered(order, Block(DIM, 2), Block(DIM, 2))), vectors(*shape)
    calls = read(model, laid_out(x, order), axes=order, batch_size=2)
    axis = order.index("texts")
    assert calls.axes is not None
    assert (dict(calls.axes.inputs), calls.axes.how) == ({"": axis}, "stated")
    assert calls.axes.words == f"texts are axis {axis} of the inputs (as you said)"
    whole = made(Ordered(NAMES, *model.layers))(x).detach()
    parts = list(calls)
    assert [len(part) for part in parts] == [2] * (shape[0] // 2) + [1] * (shape[0] % 2)
    torch.testing.assert_close(torch.cat([fed(model, part) for part in parts]), whole)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (5, 5), (1, 6)], ids=str)
def test_a_statement_that_the_model_refutes_is_an_error(
    order: tuple[str, ...], shape: tuple[int, int]
) -> None:
    model, x = made(Ordered(order, Block(DIM, 2), Block(DIM, 2))), vectors(*shape)
    wrong = [{"texts": "tokens", "tokens": "texts"}.get(name, name) for name in order]
    said, true = wrong.index("texts"), order.index("texts")
    with pytest.raises(
        ShapeError,
        match=rf"^axes '{','.join(wrong)}' say that texts are axis {said} of the inputs, but they are axis {true}: "
        rf".*; say axes '{','.join(order)}', or leave the axes out$",
    ):
        read(model, laid_out(x, order), axes=",".join(wrong))


@pytest.mark.parametrize("texts_first", [True, False])
@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (5, 5)], ids=str)
def test_where_nothing_shows_the_statement_decides(texts_first: bool, shape: tuple[int, int]) -> None:
    model, x = made(Ordered(NAMES, Alone(), Alone())), laid_out(vectors(*shape), NAMES)
    assert read(model, x).axes.how == "assumed"
    calls = read(model, x, axes="texts,tokens,dim" if texts_first else "tokens,texts,dim", batch_size=100)
    assert (calls.axes.axis, calls.axes.how) == (0 if texts_first else 1, "stated")
    (batch,) = calls
    assert len(batch) == shape[0 if texts_first else 1]


@pytest.mark.parametrize("mixes", [True, False])
@pytest.mark.parametrize("shape", [(5, 5), (4, 6)], ids=str)
def test_a_probe_measures_the_texts_that_were_stated(mixes: bool, shape: tuple[int, int]) -> None:
    """Where no token reads another one and there are as many texts as tokens, only the statement tells them apart."""
    model = made(TokensFirst(mixes=mixes))
    given = ids(*shape, seed=3)
    layout = layout_of(model, blocks="layers")
    batches = batches_of_call(model, given, layout=layout, axes="tokens,texts", batch_size=3)
    table = probe(model, batches, name="own", layout=layout, spectra=False)
    with torch.no_grad():
        states = torch.stack(model.states(given))  # layers tokens texts dim
    expected = (states - states.mean(1, keepdim=True)).norm(dim=(1, 3)) / states.norm(dim=(1, 3))
    rows = table.frame.filter(site="block", definition=RATIO).sort("layer", "sample")
    torch.testing.assert_close(rows["value"].to_torch(), expected.flatten(), rtol=1e-9, atol=0)


def test_masks_are_matched_by_their_sizes() -> None:
    order = ("tokens", "texts", "dim")
    model, x = made(Ordered(order, Block(DIM, 2), Block(DIM, 2))), vectors()
    given = {"x": laid_out(x, order), "mask": causal(TOKENS)}
    calls = read(model, given, axes=order, batch_size=2)
    assert dict(calls.axes.inputs) == {"x": 1, "mask": None}
    whole = model(**given).detach()
    torch.testing.assert_close(torch.cat([fed(model, part) for part in calls]), whole)
    # As many texts as tokens: sizes say nothing of the mask, and the first text alone does.
    x = vectors(TOKENS, TOKENS)
    given |= {"x": laid_out(x, order)}
    assert dict(read(model, given, axes=order).axes.inputs) == {"x": 1, "mask": None}


def test_numbers_are_tokens_where_that_is_said() -> None:
    model, x = made(Series(channels=False)), vectors(TEXTS, TOKENS, 1)[..., 0]
    calls = read(model, x.T, axes="tokens,texts", batch_size=2)
    assert dict(calls.axes.inputs) == {"": 1}
    torch.testing.assert_close(torch.cat([fed(model, part) for part in calls]), model(x.T).detach())
    with pytest.raises(ShapeError, match="but they are axis 1"):
        read(model, x.T, axes="texts,tokens")
    model = made(Series(channels=True))
    calls = read(model, x[:, None], axes="texts,channels,tokens", batch_size=2)
    assert [len(part) for part in calls] == [2, 1]


def test_tokens_are_counted_by_the_blocks_where_channels_come_before_them() -> None:
    class Named(Ordered):
        def forward(self, inputs_embeds: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(inputs_embeds)

    for order in (("texts", "dim", "tokens"), ("dim", "texts", "tokens"), ("texts", "tokens", "dim")):
        model, x = made(Named(order, Block(DIM, 2), Block(DIM, 2))), vectors()
        given = {"inputs_embeds": laid_out(x, order)}
        table = probe(model, read(model, given, axes=order), name="own", spectra=False)
        assert table.frame["tokens"].unique().to_list() == [TOKENS]


def test_ids_of_several_codebooks() -> None:
    class Coded(TokensFirst):
        def forward(self, codes: Tensor) -> Tensor:  # (texts, codebooks, tokens)
            x = self.words(codes).sum(1).transpose(0, 1)
            for layer in self.layers:
                x = layer(x)
            return x

    model, codes = made(Coded()), ids(TEXTS, 4 * TOKENS).view(TEXTS, 4, TOKENS)
    calls = read(model, codes, axes="texts,dim,tokens", batch_size=2)
    assert dict(calls.axes.inputs) == {"": 0}
    parts = torch.cat([fed(model, part) for part in calls], dim=1)
    torch.testing.assert_close(parts, model(codes).detach())
    with pytest.raises(ShapeError, match=r"but they are axis 0: .*; say axes 'texts,dim,tokens'"):
        read(model, codes, axes="tokens,dim,texts")


def test_every_form_of_inputs_may_be_stated() -> None:
    model = made(TokensFirst())
    x = ids(TOKENS, TEXTS)
    with rs.record(model) as seen:
        model(x)
        model(x[:5, :2])
    plain = rs.Batch(inputs={"": x}, is_token=None, labels=("a", "b", "c"))
    for given in (x, x.numpy(), (x,), [x], {"ids": x}, iter([x]), lambda: x, plain, seen):
        calls = read(model, given, axes="tokens,texts")
        assert (calls.axes.axis, calls.axes.how) == (1, "stated")
        assert len(next(calls)) == TEXTS
        with pytest.raises(ShapeError, match="axes 'texts,tokens' say that texts are axis 0"):
            read(model, seen if given is seen else x, axes="texts,tokens")
    calls = read(model, call=lambda m: m(x), axes=("tokens", "texts"))
    assert calls.axes.how == "stated"
    (ready,) = given_calls(model, x, axes="tokens,texts").calls
    batch, axes = ready.located(model, layout_of(model))
    assert (len(batch), axes.how) == (TEXTS, "stated")
    assert ready.located(model, None)[1].axis == 1  # without blocks to look at, the statement is all there is
    (unstated,) = given_calls(model, x).calls
    assert unstated.located(model, None)[1].axis == 0


def test_calls_of_one_token_are_still_told_by_their_own_axis() -> None:
    model = made(Series(channels=True))
    with rs.record(model) as seen:
        model(torch.randn(2, 1, 6, dtype=torch.float64))
        model(torch.randn(2, 1, 1, dtype=torch.float64))
    calls = read(model, seen, axes="texts,channels,tokens")
    assert [tuple(one.inputs[""].shape) for one in calls] == [(2, 1, 6)]
    assert any("1 calls on one token" in note for note in calls.notes)


def test_one_text_without_an_axis_of_texts() -> None:
    class Lone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Block(DIM, 2), Block(DIM, 2)])

        def forward(self, *, states: Tensor) -> Tensor:
            states = states[None] if states.ndim == 2 else states
            for layer in self.layers:
                states = layer(states)
            return states

    model, x = made(Lone()), vectors()
    assert len(read(model, {"states": x[0]}).axes.inputs) == 1
    calls = read(model, {"states": x[0]}, axes="tokens,dim")
    assert calls.axes.words == "the inputs are one text (as you said)"
    assert [len(batch) for batch in calls] == [1]
    # Ids of one text get an axis of texts, where the model wants it.
    gpt, first = made(Gpt()), made(TokensFirst())
    for own, shape in ((gpt, (1, TOKENS)), (first, (TOKENS, 1))):
        (batch,) = read(own, ids(1, TOKENS)[0], axes="tokens")
        assert batch.inputs[""].shape == shape
    with pytest.raises(
        ShapeError, match=r"name no texts.* state of shape \(3, 7, 8\), with no axis of one text"
    ):
        read(gpt, ids(TEXTS, TOKENS), axes="tokens,dim")


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ("texts,words", "axes 'texts, words' cannot be read; expected tokens, with texts and dim"),
        ("texts", "expected tokens, with texts and dim"),
        ("tokens,tokens", "each once"),
        ("dim,tokens,channels", "each once"),
        ("layers,tokens,dim", "cannot be read"),
        ("", "cannot be read"),
        ([0, 1], "axes '0, 1' cannot be read"),
    ],
)
def test_names_that_cannot_be_read(axes: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        read(made(Gpt()), ids(2, 5), axes=axes)
    assert "\n" not in str(caught.value)


def test_statements_that_fit_nothing() -> None:
    gpt, encoder = made(Gpt()), made(Ordered(NAMES, Block(DIM, 2)))
    with pytest.raises(
        ShapeError, match=r"axes 'texts,tokens,dim' are 3, and no input .* the first \(2, 5\)"
    ):
        read(gpt, ids(2, 5), axes="texts,tokens,dim")
    with pytest.raises(ShapeError, match=r"are 3, and no input that holds tokens has as many"):
        read(encoder, vectors()[0], axes="texts,tokens,dim")  # one text got its axis of texts from us
    with pytest.raises(ShapeError, match=r"are 2, and no input .*idx \(5,\), mask \(5, 5\)"):
        read(gpt, {"idx": ids(1, 5)[0], "mask": causal(5)}, axes="texts,tokens")
    stated = rs.Batch(inputs={"": ids(2, 5)}, is_token=None, labels=("a", "b"), text_axes={"": 0})
    with pytest.raises(
        ConfigError, match=r"says itself where its texts lie .* leave out the axes 'tokens,texts'"
    ):
        read(gpt, stated, axes="tokens,texts")
    with pytest.raises(ShapeError, match=r"expected \(tokens, texts\) with at least two tokens"):
        read(made(TokensFirst(mixes=False)), ids(1, 5), axes="tokens,texts")


def test_texts_that_read_each_other_are_refused_whatever_is_said() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn, self.other = (
                nn.MultiheadAttention(DIM, 2, batch_first=first) for first in (True, False)
            )

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attn(x, x, x)[0]
            return x + self.other(x, x, x)[0]

    model = made(Ordered(NAMES, Both(), Both()))
    for axes in ("texts,tokens,dim", "tokens,texts,dim"):
        with pytest.raises(
            ShapeError, match=rf"axes '{axes}' are not what the model shows: .*one text at a time"
        ):
            batches_of_call(model, vectors(), layout=layout_of(model, blocks="layers"), axes=axes)


def test_a_tree_is_read_on_stated_inputs() -> None:
    model, x = made(TokensFirst()), ids(5, 5)
    (batch,) = read(model, x, axes="tokens,texts")
    tree = translate(model, batch)
    with torch.no_grad():
        state, context = tree.embed(batch)
        torch.testing.assert_close(
            tree.network(state, context), model(x).transpose(0, 1), rtol=1e-9, atol=1e-12
        )


def test_without_a_statement_all_is_as_before() -> None:
    (batch,) = tensor_batches(vectors(), made(Ordered(NAMES, Block(DIM, 2))))
    assert batch.text_axes == {"": 0}
