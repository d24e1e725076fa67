"""Attention in many spellings: what is read of a block against a plain call of the block's own attention."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankscope.errors import ShapeError
from rankscope.masks import Causal, CausalWindow, Full, MaskRule
from rankscope.network import (
    Alibi,
    Attention,
    Context,
    CrossAttention,
    NoPosition,
    Observed,
    Part,
    Rotary,
    SinkSoftmax,
    Softmax,
)
from rankscope.sources.operations import Region
from rankscope.sources.operations.captured import captured
from rankscope.sources.recognise import attention
from rankscope.sources.recognise.attention import find_attention, softmax_mixer
from rankscope.sources.recognise.linear import find_linears
from rankscope.sources.recognise.norms import find_norms

TEXTS, TOKENS, DIM, HEADS = 2, 7, 12, 3


def states(texts: int = TEXTS, tokens: int = TOKENS, dim: int = DIM, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(texts, tokens, dim, generator=generator, dtype=torch.float64)


def drawn(module: nn.Module) -> nn.Module:
    """A module in float64 and at rest whose weights are all random."""
    module = module.double().eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for weight in module.parameters():
        weight.data = torch.randn(weight.shape, generator=generator, dtype=torch.float64) * 0.4
    return module


def read(
    block: nn.Module, *args: Any, tokens_first: bool = False, roots: tuple[str, ...] = ("0",), **kwargs: Any
) -> Region:
    """The region of one call of a block, everything read that can be."""
    call = captured(block, args, kwargs)
    graph = call.graph
    region = Region(graph, tuple(graph.inputs[name] for name in roots), graph.outputs[0])
    find_linears(region)
    find_norms(region)
    find_attention(region, tokens_first=tokens_first, own=call.own)
    return region


def parts(region: Region) -> list[Part]:
    return [one.part for one in region.known.values() if isinstance(one.part, Attention | CrossAttention)]


def the_part(region: Region) -> Attention:
    (part,) = parts(region)
    assert not region.notes
    assert isinstance(part, Attention)
    assert isinstance(part.mixer, Softmax)
    return part


def assert_same(ours: Tensor, theirs: Tensor, near: float = 1e-12) -> None:
    assert float((ours - theirs).abs().max()) <= near * float(theirs.abs().max())


class Attending(nn.Module):
    """Attention with a map each for queries, keys, values and output; a subclass says how they are put together."""

    def __init__(self, groups: int = HEADS, bias: bool = True) -> None:
        super().__init__()
        self.width, self.groups = DIM // HEADS, groups
        self.q, self.o = nn.Linear(DIM, DIM, bias=bias), nn.Linear(DIM, DIM, bias=bias)
        self.k, self.v = (nn.Linear(DIM, groups * self.width, bias=bias) for _ in range(2))

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (f(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = (one.repeat_interleave(HEADS // self.groups, dim=1) for one in (k, v))
        return q, k, v

    def joined(self, mixed: Tensor) -> Tensor:
        found: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return found

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / math.sqrt(self.width)

    def maps(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(self.maps(self.logits(q, k)) @ v)


SPELLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "function": lambda a: F.softmax(a, dim=-1),
    "log": lambda a: a.log_softmax(-1).exp(),
    "exp": lambda a: a.exp() / a.exp().sum(-1, keepdim=True),
    "largest": lambda a: (
        (a - a.amax(-1, keepdim=True)).exp() / (a - a.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)
    ),
    "logsumexp": lambda a: (a - a.logsumexp(-1, keepdim=True)).exp(),
    "axis": lambda a: a.mT.softmax(-2).mT,
    "reciprocal": lambda a: a.exp() * a.exp().sum(-1).unsqueeze(-1).reciprocal(),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_softmax_in_every_spelling(spelling: str) -> None:
    class Block(Attending):
        def maps(self, logits: Tensor) -> Tensor:
            return SPELLINGS[spelling](logits)

    block = drawn(Block())
    part = the_part(read(block, states()))
    other = states(texts=3, tokens=9, seed=5)
    assert_same(part(other, Context()), block(other))
    assert part.mixer.scale == pytest.approx(0.5, rel=1e-15)


def _causal(a: Tensor, low: float) -> Tensor:
    return a.masked_fill(torch.ones(a.shape[-2:], dtype=torch.bool).triu(1), low)


def _window(a: Tensor) -> Tensor:
    place = torch.arange(a.shape[-1])
    distance = place[:, None] - place
    return a + torch.where((distance >= 0) & (distance < 3), 0.0, -1e9)


MASKS: dict[str, tuple[Callable[[Tensor], Tensor], MaskRule]] = {
    "none": (lambda a: a, Full()),
    "infinite": (lambda a: _causal(a, -torch.inf), Causal()),
    "large": (lambda a: _causal(a, -1e9), Causal()),
    "smallest": (lambda a: _causal(a, torch.finfo(torch.float32).min), Causal()),
    "moderate": (lambda a: a - 10000.0 * torch.ones(a.shape[-2:]).triu(1), Causal()),
    "full_like": (lambda a: a + torch.full_like(a, -torch.inf).triu(1), Causal()),
    "window": (_window, CausalWindow(width=2)),
}


@pytest.mark.parametrize("mask", MASKS)
def test_masks_become_rules(mask: str) -> None:
    laid, rule = MASKS[mask]

    class Block(Attending):
        def maps(self, logits: Tensor) -> Tensor:
            return laid(logits).softmax(-1)

    block = drawn(Block())
    part = the_part(read(block, states()))
    assert part.mixer.rule == rule
    other = states(texts=3, tokens=9, seed=5)
    assert_same(part(other, Context()), block(other))


class Rotating(Attending):
    """Grouped keys, rotary positions on part of the channels, a norm of queries and keys, a soft-cap."""

    def __init__(self) -> None:
        super().__init__(groups=1, bias=False)
        self.norm = nn.RMSNorm(self.width, eps=1e-5)

    def turned(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[-2], dtype=x.dtype) * 0.7
        a, b, rest = x[..., 0], x[..., 1], x[..., 2:]
        turned = torch.stack([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
        return torch.cat([turned, rest], -1)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = (self.turned(self.norm(one)) for one in (q, k))
        return 4.0 * torch.tanh(q @ k.mT * 0.3 / 4.0)


def test_groups_turns_norms_and_soft_cap() -> None:
    block = drawn(Rotating())
    part = the_part(read(block, states()))
    mixer = part.mixer
    assert isinstance(mixer, Softmax)
    assert isinstance(mixer.position, Rotary)
    assert (mixer.key_heads, mixer.softcap) == (1, 4.0)
    assert mixer.query_norm is not None
    assert mixer.query_norm.eps == 1e-5
    other = states(texts=3, tokens=20, seed=5)
    assert_same(part(other, Context()), block(other))


def test_weights_are_those_of_the_model() -> None:
    block = drawn(Attending())
    part = the_part(read(block, states()))
    held = {one.untyped_storage().data_ptr() for one in block.parameters()}
    assert {one.untyped_storage().data_ptr() for one in part.parameters()} == held


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("tokens_first", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_encoder_layer_of_torch(norm_first: bool, tokens_first: bool, masked: bool) -> None:
    layer = drawn(
        nn.TransformerEncoderLayer(DIM, HEADS, 16, norm_first=norm_first, batch_first=not tokens_first)
    )
    x = states()
    mask = nn.Transformer.generate_square_subsequent_mask(TOKENS, dtype=torch.float64) if masked else None
    laid = x.transpose(0, 1) if tokens_first else x
    part = the_part(read(layer, laid, src_mask=mask, tokens_first=tokens_first))
    assert part.mixer.rule == (Causal() if masked else Full())
    other = states(seed=8)
    turned = other.transpose(0, 1) if tokens_first else other
    theirs = layer.self_attn(turned, turned, turned, attn_mask=mask, need_weights=False)[0]
    assert_same(part(other, Context()), theirs.transpose(0, 1) if tokens_first else theirs)


def test_cross_attention_of_torch() -> None:
    layer = drawn(nn.TransformerDecoderLayer(DIM, HEADS, 16, batch_first=True))
    own, cross = parts(read(layer, states(), states(tokens=5, seed=2), roots=("0", "1")))
    assert isinstance(own, Attention)
    assert isinstance(cross, CrossAttention)
    x, memory = states(tokens=4, seed=3), states(tokens=6, seed=4)
    theirs = layer.multihead_attn(x, memory, memory, need_weights=False)[0]
    assert_same(cross(x, Context(memory=memory)), theirs)


def test_alibi() -> None:
    class Block(Attending):
        def logits(self, q: Tensor, k: Tensor) -> Tensor:
            place = torch.arange(q.shape[-2], dtype=q.dtype)
            slopes = torch.tensor([0.5, 0.25, 0.125], dtype=q.dtype)
            return q @ k.mT - slopes[:, None, None] * (place[:, None] - place).abs()

    block = drawn(Block())
    part = the_part(read(block, states()))
    assert isinstance(part.mixer, Softmax)
    assert isinstance(part.mixer.position, Alibi)
    other = states(texts=3, tokens=9, seed=5)
    assert_same(part(other, Context()), block(other))


def test_one_number_for_all_axes() -> None:
    """Texts, tokens, heads and width are all four: only cause and effect tell them apart."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.o = nn.Linear(4, 12), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).reshape(4, 4, 4, 3, 1).permute(3, 0, 2, 1, 4)
            found: Tensor = self.o((_causal(q @ k.mT, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2))
            return found

    block = drawn(Block())
    x = states(texts=4, tokens=4, dim=4)
    part = the_part(read(block, x))
    assert (part.mixer.heads, part.mixer.rule) == (4, Causal())
    assert isinstance(part.mixer, Softmax)
    assert isinstance(part.mixer.position, NoPosition)
    other = states(texts=4, tokens=4, dim=4, seed=3)
    assert_same(part(other, Context()), block(other))


class Clamped(Attending):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k).clamp(max=50)


class OverQueries(Attending):
    def maps(self, logits: Tensor) -> Tensor:
        return logits.softmax(-2)


class Renormalised(Attending):
    def maps(self, logits: Tensor) -> Tensor:
        maps = logits.softmax(-1)
        return maps / maps.sum(-2, keepdim=True)


class Talking(Attending):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(HEADS, HEADS, bias=False)

    def maps(self, logits: Tensor) -> Tensor:
        found: Tensor = self.mix(logits.softmax(-1).movedim(1, -1)).movedim(-1, 1)
        return found


class Gated(Attending):
    def joined(self, mixed: Tensor) -> Tensor:
        return super().joined(mixed * mixed.sigmoid())


class Dropping(Attending):
    def maps(self, logits: Tensor) -> Tensor:
        return F.dropout(logits.softmax(-1), 0.1, training=True)


class Longer(Attending):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        place = torch.arange(1, q.shape[-2] + 1, dtype=q.dtype)
        return super().logits(q, k) * place.log1p()[:, None]


class TwoSinks(Attending):
    def maps(self, logits: Tensor) -> Tensor:
        return F.pad(logits, (1, 1)).softmax(-1)[..., 1:-1]


class SinkByPlace(Attending):
    def maps(self, logits: Tensor) -> Tensor:
        level = torch.arange(logits.shape[-2], dtype=logits.dtype)[:, None].expand(*logits.shape[:-1], 1)
        return torch.cat([logits, level], -1).softmax(-1)[..., :-1]


class LosingKeys(Attending):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(self.logits(q, k).softmax(-1)[..., 1:] @ v[..., 1:, :])


class Masking(Attending):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k).masked_fill((k.sum(-1) < -2)[:, :, None], -1e9)


class Whole(Attending):
    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().split(x)
        return q, k.long().double(), v


class Mixing(Attending):
    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().split(x)
        return q, k.flip(0), v


class Swapped(Attending):
    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().split(x)
        return q, k, v.flip(2)


REFUSED: dict[type[Attending], str] = {
    OverQueries: "the next product sums over another axis",
    Renormalised: "changed by `sum` after softmax",
    Talking: "after softmax",
    Gated: "passes `sigmoid`",
    Dropping: "`dropout`",
    TwoSinks: "lose or repeat keys",
    SinkByPlace: "the sink of attention differs from token to token",
    LosingKeys: "lose keys before they mix",
    Mixing: "depend on the other texts",
}
STRANGE: dict[type[Attending], str] = {
    Clamped: "`clamp`",
    Longer: "differ from token to token",
    Masking: "`masked_fill`",
    Whole: "`_to_copy`",
    Swapped: "values of other tokens than its keys",
}


SINKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "zero": lambda a, s: F.pad(a, (1, 0)).softmax(-1)[..., 1:],
    "learned": lambda a, s: torch.cat([a, s.expand(*a.shape[:-1], 1)], -1).softmax(-1)[..., :-1],
    "before the keys": lambda a, s: torch.cat([s.expand(*a.shape[:-1], 1), a], -1).softmax(-1)[..., 1:],
    "of a causal mask": lambda a, s: torch.cat(
        [_causal(a, -torch.inf), s.expand(*a.shape[:-1], 1)], -1
    ).softmax(-1)[..., :-1],
    "largest taken out": lambda a, s: _less_largest(torch.cat([a, s.expand(*a.shape[:-1], 1)], -1)),
}


def _less_largest(logits: Tensor) -> Tensor:
    return (logits - logits.max(dim=-1, keepdim=True).values).softmax(-1)[..., :-1]


@pytest.mark.parametrize("spelling", SINKS)
def test_a_sink_beside_the_keys_is_read(spelling: str) -> None:
    class Block(Attending):
        def __init__(self) -> None:
            super().__init__()
            self.sinks = nn.Parameter(torch.empty(HEADS, 1, 1))

        def maps(self, logits: Tensor) -> Tensor:
            return SINKS[spelling](logits, self.sinks)

    block = drawn(Block())
    (part,) = parts(region := read(block, states()))
    assert not region.notes
    assert isinstance(part, Attention)
    assert isinstance(part.mixer, SinkSoftmax)
    wanted = torch.zeros(HEADS).double() if spelling == "zero" else block.sinks.flatten()
    torch.testing.assert_close(part.mixer.sinks.data, wanted.data)
    other = states(texts=3, tokens=9, seed=5)
    assert_same(part(other, Context()), block(other))


def assert_told(region: Region, what: str) -> None:
    """A note says what stands there, with a line of this file."""
    assert any(what in note.what for note in region.notes), [note.what for note in region.notes]
    assert {note.line.file for note in region.notes if note.line is not None} == {__file__}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_is_no_attention_of_the_tree_is_refused_with_its_line(kind: type[Attending]) -> None:
    region = read(drawn(kind()), states())
    assert not parts(region)
    assert_told(region, REFUSED[kind])


@pytest.mark.parametrize("kind", STRANGE, ids=lambda kind: kind.__name__)
def test_strange_logits_leave_the_maps_as_they_run(kind: type[Attending]) -> None:
    block = drawn(kind())
    region = read(block, states())
    assert_told(region, STRANGE[kind])
    (part,) = parts(region)
    assert isinstance(part, Attention)
    assert isinstance(part.mixer, Observed)
    other = 40 * states(seed=4)  # the clamp is reached
    assert_same(part(other, Context()), block(other))
    with pytest.raises(ShapeError, match="was seen for texts of 7 tokens"):
        part(states(tokens=8), Context())


class ByNorm(nn.Module):
    """A norm before attention, whose mask is made of the state before the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(DIM), Attending()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attention.split(self.norm(x))
        logits = (q @ k.mT).masked_fill((x[..., 0] == 0)[:, None, None], -torch.inf)
        return x + self.attention.joined(logits.softmax(-1) @ v)


def test_maps_that_read_another_state_are_refused() -> None:
    region = read(drawn(ByNorm()), states())
    assert not parts(region)
    assert_told(region, "`masked_fill`")


def test_one_token_tells_nothing() -> None:
    region = read(drawn(Attending()), states(tokens=1))
    assert not parts(region)
    assert "one token alone" in region.notes[0].what


def test_cross_attention_norms_and_padding_of_the_memory() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.cross = nn.LayerNorm(DIM), Attending()

        def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
            read = self.norm(memory)
            q, k, v = self.cross.split(x)[0], *self.cross.split(read)[1:]
            return self.cross.joined(
                self.cross.logits(q, k).masked_fill(padding[:, None, None], -1e30).softmax(-1) @ v
            )

    block = drawn(Block())
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    region = read(block, states(), states(tokens=5, seed=2), padding=padding, roots=("0", "1"))
    assert not region.notes
    (part,) = parts(region)
    assert isinstance(part, CrossAttention)
    x, memory = states(tokens=4, seed=3), states(tokens=5, seed=4)
    context = Context(memory=memory, memory_is_token=~padding)
    assert_same(part(x, context), block(x, memory, padding))


def test_maps_that_read_padding_of_these_texts_are_refused() -> None:
    class Block(Clamped):
        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            q, k, v = self.split(x)
            return self.joined(self.logits(q, k).masked_fill(padding[:, None, None], -1e30).softmax(-1) @ v)

    padding = torch.zeros(TEXTS, TOKENS, dtype=torch.bool)
    assert len(parts(read(drawn(Block()), states(), padding=padding))) == 1
    padding[1, 5:] = True
    assert not parts(read(drawn(Block()), states(), padding=padding))


@pytest.mark.parametrize("fault", ["scale", "rule", "eps", "rows"])
def test_a_part_that_is_read_wrongly_does_not_enter(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any, **kwargs: Any) -> tuple[Softmax, bool]:
        mixer, is_single = softmax_mixer(*args, **kwargs)
        if fault == "scale":
            mixer.scale *= 1.01
        elif fault == "rule":
            mixer.rule = Full() if mixer.rule == Causal() else Causal()
        elif fault == "eps" and mixer.query_norm is not None:
            mixer.query_norm.eps *= 10
        else:
            swapped = torch.cat(
                [mixer.query[:, :2].flip(1), mixer.query[:, 2:]], 1
            )  # two columns of one head
            mixer.register_parameter("query", nn.Parameter(swapped, requires_grad=False))
        return mixer, is_single

    monkeypatch.setattr(attention, "softmax_mixer", wrong)
    region = read(drawn(Rotating()), states())
    assert not any(isinstance(part.mixer, Softmax) for part in parts(region))
    assert "attention as it was read is off by" in region.notes[0].what


def test_one_text_is_enough() -> None:
    block = drawn(Attending())
    part = the_part(read(block, states(texts=1)))
    other = states(texts=3, tokens=9, seed=5)
    assert_same(part(other, Context()), block(other))
