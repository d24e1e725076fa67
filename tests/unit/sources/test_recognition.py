"""Trees that are read from a run: how far they hold, what they know besides the tokens, and what is said of them."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rankscope as rs
from kit.own_models import TEXTS, TOKENS, built, given
from kit.translation_decoders import CASES as DECODERS
from kit.translations import CASES as ENCODERS
from rankscope.errors import NotTranslated, RankscopeError, ShapeError
from rankscope.network import Attention, Rotary, Softmax
from rankscope.sources import Batch, Translation, translate
from rankscope.sources.tree_report import tree_report
from snapshots import small_model

translating = import_module("rankscope.sources.translate")  # the package has a function of that name
CASES = ENCODERS | DECODERS

DIM = 12


def seen_of(model: nn.Module, *args: object, **kwargs: object) -> rs.Seen:
    with rs.record(model) as seen:
        model(*args, **kwargs)
    return seen


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def nano() -> Translation:
    model = built("nano")
    with rs.record(model) as seen:
        given("nano", TEXTS, TOKENS, seed=1).call(model)
    return rs.translate(seen)


# how far a tree holds


def test_a_tree_is_limited_to_what_it_was_compared_on_until_more_is_shown(nano: Translation) -> None:
    found = nano.recognition
    assert found is not None
    assert (found.longest, found.shape, found.fails_at) == (128, None, None)
    assert (
        nano.network.longest == found.longest
    )  # the blocks are given tokens alone, and were called with so many
    with pytest.raises(ShapeError, match="seen to hold up to 128 tokens"):
        nano.network(drawn(1, 129, DIM))


class Windowed(nn.Module):
    """Reads the nearest ``width`` keys alone; a text of up to ``width`` tokens does not show it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        place = torch.arange(x.shape[1])
        distance = place[:, None] - place
        may = (distance >= 0) & (distance < self.width)
        scores = (q @ k.mT / DIM**0.5).masked_fill(~may, -torch.inf)
        return x + self.out(scores.softmax(dim=-1) @ v)


class Stacked(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, *rest: object) -> Tensor:
        for block in self.blocks:
            x = block(x, *rest)
        return x


def test_a_window_that_the_call_does_not_show_is_seen_on_longer_texts() -> None:
    torch.manual_seed(0)
    model = Stacked(Windowed(20), Windowed(20)).double().eval()
    found = rs.translate(seen_of(model, drawn(2, 8, DIM)))
    (mixer, _) = (part.mixer for part in found.network.modules() if isinstance(part, Attention))
    assert isinstance(mixer, Softmax)
    assert str(mixer.rule) == "causal-window:19"


class Doubling(nn.Module):
    """Another temperature for long texts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, heat: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scale = 2.0 if x.shape[1] > 30 else 1.0
        return x + self.out((scale * q @ k.mT / DIM**0.5 + heat).softmax(dim=-1) @ v)


def test_a_branch_on_length_leaves_a_tree_with_a_limit() -> None:
    torch.manual_seed(0)
    model = Stacked(Doubling()).double().eval()
    found = rs.translate(seen_of(model, drawn(2, 8, DIM), torch.zeros(1, dtype=torch.float64)))
    assert found.recognition is not None
    assert found.recognition.fails_at is not None
    assert found.recognition.fails_at > 30
    assert 8 <= found.recognition.longest <= 30
    longer = seen_of(model, drawn(2, 31, DIM), torch.zeros(1, dtype=torch.float64))
    with pytest.raises(NotTranslated, match="differs"):
        found.embed(longer.batches[0])


# what is known besides the tokens


class Padded(nn.Module):
    """A mask of padding that is true on tokens, or on padding, under a name that says nothing."""

    def __init__(self, *, on_tokens: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True)
        self.layers = nn.ModuleList([layer])
        self.on_tokens = on_tokens

    def forward(self, x: Tensor, what: Tensor | None = None) -> Tensor:
        is_padding = None if what is None else ~what if self.on_tokens else what
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=is_padding)
        return x


@pytest.mark.parametrize("on_tokens", [True, False])
def test_padding_is_read_the_way_round_that_the_model_reads_it(on_tokens: bool) -> None:
    torch.manual_seed(0)
    model = Padded(on_tokens=on_tokens).double().eval()
    is_token = torch.ones(3, 8, dtype=torch.bool)
    is_token[1, 5:] = False
    what = is_token if on_tokens else ~is_token
    seen = seen_of(model, drawn(3, 8, DIM), what=what)
    found = rs.translate(seen)
    _, context = found.embed(seen.batches[0])
    assert context.is_token is not None
    assert torch.equal(context.is_token, is_token)
    later = rs.translate(seen_of(model, drawn(3, 8, DIM)))  # the mask is new to this tree
    _, context = later.embed(seen.batches[0])
    assert context.is_token is not None
    assert torch.equal(context.is_token, is_token)


def test_a_mask_between_tokens_that_changes_is_refused() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True)
    model = Stacked(layer).double().eval()
    causal = torch.ones(7, 7, dtype=torch.bool).triu(1)
    seen = seen_of(model, drawn(2, 7, DIM), causal)
    found = rs.translate(seen)
    other = seen_of(model, drawn(2, 7, DIM), causal.mT)
    with pytest.raises(NotTranslated, match="differs"):
        found.embed(other.batches[0])


# what is said


class Capped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.second, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 20), nn.Linear(20, DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = q @ k.mT / DIM**0.5
        x = x + self.out(scores.clamp(max=50).softmax(dim=-1) @ v)
        return x + self.down(F.gelu(self.up(self.second(x))))


def test_what_is_not_recognised_is_named_with_the_line_of_the_user() -> None:
    torch.manual_seed(0)
    model = Stacked(Capped()).double().eval()
    lines = tree_report(seen_of(model, drawn(2, 7, DIM))).lines
    (unread,) = (line for line in lines if line.startswith("  not recognised: "))
    assert "test_recognition.py:" in unread
    assert "scores.clamp(max=50)" in unread
    assert any("Mlp: gelu, width 20" in line for line in lines)
    assert any("scan and ablate work, so do paths of one text" in line for line in lines)


def test_a_tree_is_told_block_by_block(nano: Translation) -> None:
    lines = tree_report(nano.model, replace(given_batch(), labels=())).lines
    assert lines[0] == "blocks 1 to 2, 100% of their weights:"
    assert "    Attention: 2 heads, causal, scale 0.4082" in lines
    assert lines[-1].endswith("seen to hold up to 128 tokens, longer texts are compared first")


def given_batch() -> Batch:
    (ids,) = given("nano", TEXTS, TOKENS, seed=1).args
    return Batch(inputs={"": ids}, is_token=None, labels=())


def test_a_part_in_training_mode_inside_a_model_at_rest_is_refused() -> None:
    model = Stacked(nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True)).double().eval()
    model.blocks[0].dropout.train()
    with pytest.raises(RankscopeError, match=r"'blocks\.0\.dropout' inside its blocks is in training mode"):
        rs.translate(seen_of(model, drawn(2, 7, DIM)))


# tables in float32


class Turning(nn.Module):
    """Two blocks whose queries and keys turn by tables made in float32: a buffer, made on the way, or handed on."""

    def __init__(self, tables: str) -> None:
        super().__init__()
        self.tables, self.embedding = tables, nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(TurningBlock(self.angles(32)) for _ in range(2))

    @staticmethod
    def angles(tokens: int) -> Tensor:
        return torch.arange(tokens).float()[:, None] * 100.0 ** -(torch.arange(0, 8, 2).float() / 8).repeat(2)

    def forward(self, ids: Tensor) -> Tensor:
        x, angles = self.embedding(ids), self.angles(ids.shape[1])
        given = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x) if self.tables == "buffers" else block(x, given)
        return x


class TurningBlock(nn.Module):
    def __init__(self, angles: Tensor) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.RMSNorm(16, eps=1e-5), nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor] | None = None) -> Tensor:
        texts, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(texts, tokens, 3, 2, 8).permute(2, 0, 3, 1, 4)
        cos, sin = (self.cos[:tokens], self.sin[:tokens]) if tables is None else tables
        q, k = (one * cos + torch.cat([-one[..., 4:], one[..., :4]], -1) * sin for one in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("tables", ["buffers", "arguments"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_angles_are_read_with_all_their_digits_from_tables_of_any_dtype(
    tables: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = Turning(tables).to(dtype).eval()
    with rs.record(model) as seen:
        model(torch.randint(20, (3, 11), generator=torch.Generator().manual_seed(0)))
    network = rs.translate(seen).network
    turns = [one for one in network.modules() if isinstance(one, Rotary)]
    if tables == "buffers" and dtype == torch.bfloat16:  # three digits tell no angles: maps as they run
        assert not turns
        return
    meant = 100.0 ** -(torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    assert len(turns) == 2
    for one in turns:
        torch.testing.assert_close(one.frequencies, meant, rtol=1e-6, atol=0)


class MaskedByIds(nn.Module):
    """An encoder that makes its mask of padding from its ids, or makes none."""

    def __init__(self, pad: int | None) -> None:
        super().__init__()
        self.pad, self.embedding, self.positions = pad, nn.Embedding(20, DIM), nn.Embedding(64, DIM)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True) for _ in range(2)
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, src_key_padding_mask=None if self.pad is None else ids.eq(self.pad))
        return x


@pytest.mark.parametrize("is_seen", [True, False], ids=["padding was seen", "none was seen"])
@pytest.mark.parametrize("pad", [0, 7, None])
def test_padding_that_a_model_makes_of_ids_is_found(pad: int | None, is_seen: bool) -> None:
    torch.manual_seed(0)
    model = MaskedByIds(pad).double().eval()
    ids = torch.randint(10, 20, (3, 11), generator=torch.Generator().manual_seed(0))
    other = torch.randint(10, 20, (2, 8), generator=torch.Generator().manual_seed(1))
    for texts in (ids, other) if is_seen else (other,):
        texts[0, 5:] = texts[1, :2] = pad or 0
    found = rs.translate(seen_of(model, ids))
    told = found.recognition.knowledge.padding
    assert (None if told is None else told.off) == (pad if is_seen or not pad else None)
    batch = Batch(inputs={"": other}, is_token=None, labels=())
    if pad == 7 and not is_seen:
        with pytest.raises(NotTranslated):
            found.embed(batch)
        return
    x, context = found.embed(batch)
    kept = other != (-1 if pad is None else pad)
    ours, theirs = found.network(x, context)[kept], model(other)[kept]
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_one_text_with_an_id_of_zero_is_not_padding_in_a_causal_model() -> None:
    """After the end of a text, causal attention leaves out anything: one text padded there shows nothing."""
    for first in (0, 5):
        tokens = torch.tensor([[first, 7, 0, 11, 3, 0]])
        read = translate(small_model.model, Batch(inputs={"ids": tokens}, is_token=None, labels=()))
        assert read.proof.worst < 1e-12
        assert read.embed(Batch(inputs={"ids": tokens}, is_token=None, labels=()))[1].is_token is None
