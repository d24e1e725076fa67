"""The same attention written in many ways: heads, chunks, products, groups, factors, positions, masks, padding."""

import math
from collections.abc import Callable

import pytest
import torch
from test_read_attention import (
    DIM,
    HEADS,
    TOKENS,
    Attending,
    assert_same,
    drawn,
    parts,
    read,
    states,
    the_part,
)
from torch import Tensor, nn
from torch.nn import functional as F

from rankscope.errors import ShapeError
from rankscope.masks import (
    Blocks,
    Causal,
    Dilated,
    ExplicitMask,
    Longformer,
    MaskRule,
    Prefix,
    Strided,
    Window,
)
from rankscope.network import Attention, Context, RelativeBias, Rotary, SeenBias, Softmax

WIDTH = DIM // HEADS


class HeadModules(nn.Module):
    """A module per head."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.ModuleList(nn.Linear(DIM, WIDTH) for _ in "qkv") for _ in range(HEADS))
        self.o = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        every = []
        for q, k, v in self.heads:
            every.append((q(x) @ k(x).mT).softmax(-1) @ v(x))
        found: Tensor = self.o(torch.cat(every, -1))
        return found


class TextLoop(Attending):
    def forward(self, x: Tensor) -> Tensor:
        return self.joined(torch.cat([self.mixed(text[None]) for text in x]))

    def mixed(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.logits(q, k).softmax(-1) @ v


class Chunks(Attending):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(torch.cat([self.logits(part, k).softmax(-1) @ v for part in q.split(3, 2)], 2))


class Written(Attending):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        mixed = torch.empty_like(q)
        for start in range(0, x.shape[1], 3):
            mixed[:, :, start : start + 3] = self.logits(q[:, :, start : start + 3], k).softmax(-1) @ v
        return self.joined(mixed)


class ThreeFactors(Attending):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        out = self.o.weight.T.unflatten(0, (HEADS, WIDTH))
        return torch.einsum("bhij,bhjd,hde->bie", self.logits(q, k).softmax(-1), v, out)


class NoOutput(Attending):
    def joined(self, mixed: Tensor) -> Tensor:
        return mixed.transpose(1, 2).flatten(2)


class Wider(Attending):
    """Heads padded with zeros to a width that a kernel likes."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (F.pad(one, (0, 4)) for one in self.split(x))
        return self.joined(F.scaled_dot_product_attention(q, k, v, scale=0.5)[..., :WIDTH])


class Turned(Attending):
    """Softmax over the last axis but one, and the map as right factor."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined((v.mT @ (k @ q.mT / 2).softmax(-2)).mT)


class Summed(Attending):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        maps = ((q.unsqueeze(3) * k.unsqueeze(2)).sum(-1) / 2).softmax(-1)
        return self.joined((maps.unsqueeze(-1) * v.unsqueeze(2)).sum(3))


class DividedLast(Attending):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        logits = self.logits(q, k)
        weights = (logits - logits.amax(-1, keepdim=True)).exp()
        return self.joined((weights @ v) / weights.sum(-1, keepdim=True))


class HeadsLast(Attending):
    """Channels of a head lie apart from each other."""

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (f(x).unflatten(-1, (WIDTH, HEADS)).permute(0, 3, 1, 2) for f in (self.q, self.k, self.v))
        return q, k, v


class Reversed(Attending):
    """The output map has its heads in another order."""

    def joined(self, mixed: Tensor) -> Tensor:
        return super().joined(mixed.flip(1))


class Temperatures(Attending):
    def __init__(self) -> None:
        super().__init__()
        self.by_head, self.by_channel = nn.Parameter(torch.ones(HEADS, 1, 1)), nn.Parameter(torch.ones(WIDTH))

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * self.by_channel) @ (0.3 * k).mT * self.by_head.exp()


class Added(Attending):
    """Constants on queries and values behind their maps, a factor per head on what is mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.size = (
            nn.Parameter(torch.ones(HEADS, 1, WIDTH)),
            nn.Parameter(torch.ones(HEADS, 1, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(self.logits(q + self.shift, k).softmax(-1) @ (v + self.shift) * self.size)


class Tiled(Attending):
    """Heads 0, 1, 2 of one group of keys, which are laid out by ``repeat`` and not side by side."""

    def __init__(self) -> None:
        super().__init__(groups=1)
        self.q, self.o = nn.Linear(DIM, 4 * WIDTH), nn.Linear(4 * WIDTH, DIM)
        self.k, self.v = nn.Linear(DIM, 2 * WIDTH), nn.Linear(DIM, 2 * WIDTH)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)


class NormedOverAll(Attending):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(DIM), nn.RMSNorm(DIM, eps=1e-6)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maps = (self.first(self.q(x)), self.second(self.k(x)), self.v(x))
        q, k, v = (one.unflatten(-1, (-1, WIDTH)).transpose(1, 2) for one in maps)
        return q, k, v


class Flat(Attending):
    """Tokens of all texts in one axis."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, DIM)
        q, k, v = (f(rows).view(*x.shape[:2], HEADS, WIDTH).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = (self.logits(q, k).softmax(-1) @ v).transpose(1, 2).reshape(-1, DIM)
        found: Tensor = self.o(mixed).view(x.shape)
        return found


SPELLED: list[type[nn.Module]] = [
    *(
        HeadModules,
        TextLoop,
        Chunks,
        Written,
        ThreeFactors,
        NoOutput,
        Wider,
        Turned,
        Summed,
        HeadsLast,
        Reversed,
    ),
    *(Temperatures, DividedLast, Added, Tiled, NormedOverAll, Flat),
]


@pytest.mark.parametrize("kind", SPELLED, ids=lambda kind: kind.__name__)
def test_one_attention_in_many_spellings(kind: type[nn.Module]) -> None:
    block = drawn(kind())
    part = the_part(read(block, states()))
    other = states(texts=3, tokens=9, seed=5)
    assert_same(part(other, Context()), block(other))


def test_heads_with_an_output_map_each_are_parts_of_their_own() -> None:
    class Block(Attending):
        def __init__(self) -> None:
            super().__init__()
            self.outs = nn.ModuleList(nn.Linear(WIDTH, DIM, bias=False) for _ in range(HEADS))

        def joined(self, mixed: Tensor) -> Tensor:
            first, *others = (out(mixed[:, head]) for head, out in enumerate(self.outs))
            for other in others:
                first = first + other
            return first

    block = drawn(Block())
    found = parts(read(block, states()))
    other = states(seed=5)
    assert len(found) == HEADS
    assert_same(torch.stack([part(other, Context()) for part in found]).sum(0), block(other))


def _rotated(x: Tensor, shift: int = 0) -> Tensor:
    width = x.shape[-1]
    frequency = 100.0 ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
    angle = torch.outer(torch.arange(shift, shift + x.shape[-2], dtype=x.dtype), frequency)
    cos, sin = (torch.cat([one, one], -1) for one in (angle.cos(), angle.sin()))
    return x * cos + torch.cat([-x[..., width // 2 :], x[..., : width // 2]], -1) * sin


def _complex(x: Tensor) -> Tensor:
    width = x.shape[-1]
    frequency = 100.0 ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
    angle = torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), frequency)
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
        torch.ones_like(angle), angle
    )
    return torch.view_as_real(turned).flatten(-2)


TURNS: dict[str, Callable[[Tensor], Tensor]] = {
    "halves": _rotated,
    "later": lambda x: _rotated(x, shift=5),
    "neighbours": _complex,
    "first": lambda x: torch.cat([_rotated(x[..., :2]), x[..., 2:]], -1),
    "last": lambda x: torch.cat([x[..., :2], _rotated(x[..., 2:])], -1),
    "gain": lambda x: torch.cat([1.3 * _rotated(x[..., :2]), x[..., 2:]], -1),
    "times": lambda x: 1.3 * _rotated(x),
}


@pytest.mark.parametrize("turn", TURNS)
def test_turns_by_position(turn: str) -> None:
    class Block(Attending):
        def logits(self, q: Tensor, k: Tensor) -> Tensor:
            return TURNS[turn](q) @ TURNS[turn](k).mT / 2

    block = drawn(Block())
    part = the_part(read(block, states()))
    assert isinstance(part.mixer, Softmax)
    assert isinstance(part.mixer.position, Rotary)
    other = states(texts=3, tokens=40, seed=5)
    assert_same(part(other, Context()), block(other))


def test_a_table_in_float32_gives_the_frequencies_that_are_meant() -> None:
    class Block(Attending):
        def __init__(self) -> None:
            super().__init__()
            angle = torch.outer(torch.arange(TOKENS), torch.tensor([1.0, 0.1, 1.0, 0.1]))
            self.register_buffer("cos", angle.cos())
            self.register_buffer("sin", angle.sin())

        def turned(self, x: Tensor) -> Tensor:
            return x * self.cos + torch.cat([-x[..., 2:], x[..., :2]], -1) * self.sin

        def logits(self, q: Tensor, k: Tensor) -> Tensor:
            return self.turned(q) @ self.turned(k).mT / 2

    part = the_part(read(drawn(Block()), states()))
    assert isinstance(part.mixer, Softmax)
    assert isinstance(part.mixer.position, Rotary)
    meant = torch.tensor([1.0, 0.1], dtype=torch.float64)
    assert float((part.mixer.position.frequencies - meant).abs().max()) < 1e-8


class ByDistance(Attending):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(41, HEADS))

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        place = torch.arange(q.shape[-2])
        return q @ k.mT + self.table[place[:, None] - place + 20].permute(2, 0, 1)


class ByPlace(Attending):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(HEADS, 20, 20))

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT + self.table[:, : q.shape[-2], : q.shape[-2]]


@pytest.mark.parametrize(("kind", "position"), [(ByDistance, RelativeBias), (ByPlace, SeenBias)])
def test_biases_hold_for_the_length_that_was_seen(kind: type[Attending], position: type[nn.Module]) -> None:
    block = drawn(kind())
    part = the_part(read(block, states()))
    assert isinstance(part.mixer, Softmax)
    assert type(part.mixer.position) is position
    other = states(texts=3, seed=5)
    assert_same(part(other, Context()), block(other))
    with pytest.raises(ShapeError):
        part(states(tokens=TOKENS + 1), Context())


def test_two_tokens_tell_no_rule_of_positions() -> None:
    class Turning(Attending):
        def logits(self, q: Tensor, k: Tensor) -> Tensor:
            return _rotated(q) @ _rotated(k).mT

    class Falling(Attending):
        def logits(self, q: Tensor, k: Tensor) -> Tensor:
            place = torch.arange(q.shape[-2])
            return q @ k.mT - (place[:, None] - place).abs().sqrt()

    region = read(drawn(Turning()), states(tokens=2))
    assert "2 tokens do not tell how" in region.notes[0].what
    part = the_part(read(drawn(Falling()), states(tokens=2)))
    with pytest.raises(ShapeError):
        part(states(tokens=3), Context())


RULES: list[MaskRule] = [
    *(
        Window(width=2),
        Prefix(keys=2),
        Prefix(keys=3) + Causal(),
        Dilated(width=2, step=2),
        Strided(stride=3),
    ),
    *(Blocks(count=3), Longformer(width=1, global_tokens=2)),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_patterns_become_the_rule_they_are(rule: MaskRule) -> None:
    class Block(Attending):
        def logits(self, q: Tensor, k: Tensor) -> Tensor:
            allowed = torch.tensor(rule.matrix(q.shape[-2]).tolist())
            return torch.where(allowed, super().logits(q, k), -torch.inf)

    block = drawn(Block())
    part = the_part(read(block, states(tokens=9)))
    assert part.mixer.rule == rule
    other = states(tokens=12, seed=5)
    assert_same(part(other, Context()), block(other))


def test_rules_that_fit_as_well_are_listed() -> None:
    class Block(Attending):
        def logits(self, q: Tensor, k: Tensor) -> Tensor:
            return super().logits(q, k).masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), -torch.inf)

    region = read(drawn(Block()), states())
    (known,) = (one for one in region.known.values() if isinstance(one.part, Attention))
    assert [rule.text for rule in known.rules[:2]] == ["causal", f"causal-window:{TOKENS - 1}"]
    assert isinstance(known.rules[-1], ExplicitMask)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_is_taken_apart_from_the_rule(side: str, causal: bool) -> None:
    class Block(Attending):
        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            q, k, v = self.split(x)
            logits = self.logits(q, k).masked_fill(padding[:, None, None], -1e30)
            if causal:
                logits = logits.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -1e30)
            return self.joined(logits.softmax(-1) @ v)

    block = drawn(Block())
    padding = torch.zeros(3, TOKENS, dtype=torch.bool)
    padding[1, slice(0, 3) if side == "left" else slice(4, None)] = True
    part = the_part(read(block, states(texts=3), padding=padding))
    assert (part.mixer.rule == Causal()) == causal
    other = states(texts=3, seed=5)
    ours, theirs = part(other, Context(is_token=~padding)), block(other, padding)
    assert_same(ours[~padding], theirs[~padding])


def test_no_text_without_padding() -> None:
    class Block(Attending):
        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            q, k, v = self.split(x)
            low = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)
            logits = self.logits(q, k) + low.masked_fill(padding[:, None, None], -math.inf)
            return self.joined(logits.softmax(-1) @ v)

    block = drawn(Block())
    padding = torch.zeros(2, TOKENS, dtype=torch.bool)
    padding[0, 4:] = padding[1, 6:] = True
    part = the_part(read(block, states(), padding=padding))
    assert part.mixer.rule == Causal()


def test_heads_with_masks_of_their_own_keep_their_maps() -> None:
    class Block(Attending):
        def logits(self, q: Tensor, k: Tensor) -> Tensor:
            low = torch.zeros(HEADS, TOKENS, TOKENS)
            low[0] = torch.full((TOKENS, TOKENS), -torch.inf).triu(1)
            return super().logits(q, k) + low

    region = read(drawn(Block()), states())
    assert [note.what for note in region.notes] == ["heads have different masks"]
    (part,) = parts(region)
    assert not isinstance(part.mixer, Softmax)
