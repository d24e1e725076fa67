"""Three small models as people write them, cut into steps, so that a test can change any one of them.

A fault is a class with some of the steps; put before a block or a model among its bases, it changes what these do.
All computed in float64 unless said otherwise; every matrix is large enough for attention to be far from uniform.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DIM, HEADS, VOCABULARY, LONGEST = 12, 2, 50, 96
TEXTS, TOKENS = 2, 9
"""What is captured, unless a test says otherwise."""

PADDING_ID = 0
LARGE, SMALL = (40, 45), (45, 50)
"""Ids whose rows are thirty times as large, and a hundredth, as others; captured texts have none of them."""


class Block(nn.Module):
    """Attention and MLP in steps. ``keep`` is True where a token is no padding; None where there is no such input."""

    is_causal = True

    def enter(self, x: Tensor) -> Tensor:
        return x

    def leave(self, x: Tensor) -> Tensor:
        return x

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        return norm(x)

    def heads(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        raise NotImplementedError

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / math.sqrt(q.shape[-1])

    def allowed(self, scores: Tensor, h: Tensor, keep: Tensor | None) -> Tensor:
        """True where a query may read a key: ``texts heads tokens tokens``, or what is expanded to it."""
        count = scores.shape[-1]
        may = torch.ones(count, count, dtype=torch.bool, device=scores.device)
        may = may.tril() if self.is_causal else may
        return may if keep is None else may & keep[:, None, None, :]

    def maps(self, scores: Tensor, may: Tensor) -> Tensor:
        return scores.masked_fill(~may, torch.finfo(scores.dtype).min).softmax(dim=-1)

    def mixed(self, maps: Tensor, v: Tensor) -> Tensor:
        return maps @ v

    def attended(self, h: Tensor, keep: Tensor | None) -> Tensor:
        q, k, v = self.heads(h)
        scores = self.scores(q, k)
        maps = self.maps(scores, self.allowed(scores, h, keep))
        return self.out(self.mixed(maps, v).transpose(1, 2).flatten(2))

    def fed(self, h: Tensor) -> Tensor:
        raise NotImplementedError

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + branch

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.enter(x)
        x = self.joined(x, self.attended(self.normed(x, self.norm1), keep))
        return self.leave(self.joined(x, self.fed(self.normed(x, self.norm2))))


def split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class NanoBlock(Block):
    """As in nanoGPT: LayerNorm before, one map for queries, keys and values, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 20), nn.Linear(20, DIM)

    def heads(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (split(part, HEADS) for part in self.qkv(h).split(DIM, dim=-1))
        return q, k, v

    def fed(self, h: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(h)))


class EncoderBlock(Block):
    """As in the first transformer: every token reads every token, LayerNorm behind the skips, ReLU."""

    is_causal = False

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.up, self.down = nn.Linear(DIM, 20), nn.Linear(20, DIM)

    def heads(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return split(self.q(h), HEADS), split(self.k(h), HEADS), split(self.v(h), HEADS)

    def fed(self, h: Tensor) -> Tensor:
        return self.down(self.up(h).relu())

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.enter(x)
        x = self.normed(self.joined(x, self.attended(x, keep)), self.norm1)
        return self.leave(self.normed(self.joined(x, self.fed(x)), self.norm2))


class LlamaBlock(Block):
    """As in Llama: RMSNorm before, rotary positions, two queries to a key, a gated MLP."""

    heads_of_keys, width = 2, 4

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM, eps=1e-5), nn.RMSNorm(DIM, eps=1e-5)
        self.q, self.out = nn.Linear(DIM, 16, bias=False), nn.Linear(16, DIM, bias=False)
        self.k, self.v = nn.Linear(DIM, 8, bias=False), nn.Linear(DIM, 8, bias=False)
        self.gate, self.up, self.down = nn.Linear(DIM, 20), nn.Linear(DIM, 20), nn.Linear(20, DIM)

    def angles(self, tokens: int, like: Tensor) -> Tensor:
        turns = 100.0 ** (-torch.arange(0, self.width, 2, device=like.device).to(like) / self.width)
        return torch.outer(torch.arange(tokens, device=like.device).to(like), turns)

    def turned(self, x: Tensor) -> Tensor:
        angles = self.angles(x.shape[-2], x)
        one, two = x.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)

    def heads(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = split(self.q(h), 4), split(self.k(h), 2), split(self.v(h), 2)
        q, k = self.turned(q), self.turned(k)
        return q, k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)

    def fed(self, h: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    """What leads to the blocks, the blocks, and a norm."""

    def __init__(self, block: type[Block], layers: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(layers))
        self.norm = nn.LayerNorm(DIM)

    def through(self, x: Tensor, keep: Tensor | None) -> Tensor:
        for block in self.blocks:
            x = block(x) if keep is None else block(x, keep)
        return x


class Nano(Model):
    """Ids and learned positions; knows no padding."""

    def __init__(self, block: type[Block], layers: int = 2) -> None:
        super().__init__(block, layers)
        self.wte, self.wpe = nn.Embedding(VOCABULARY, DIM), nn.Embedding(LONGEST, DIM)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        return self.norm(self.through(x, None)) @ self.wte.weight.T


class Encoder(Model):
    """Features as they come, and a mask of padding as torch has it: True on padding."""

    def forward(self, src: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        keep = None if src_key_padding_mask is None else ~src_key_padding_mask
        return self.norm(self.through(src, keep))


class Llama(Model):
    """Ids and a mask as transformers has it: one on tokens."""

    def __init__(self, block: type[Block], layers: int = 2) -> None:
        super().__init__(block, layers)
        self.embed = nn.Embedding(VOCABULARY, DIM, padding_idx=PADDING_ID)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.norm(self.through(self.embed(input_ids), attention_mask.bool()))}


KINDS: dict[str, tuple[type[Model], type[Block]]] = {
    "nano": (Nano, NanoBlock),
    "encoder": (Encoder, EncoderBlock),
    "llama": (Llama, LlamaBlock),
}


def built(
    kind: str, fault: type | None = None, *, dtype: torch.dtype = torch.float64, layers: int = 2
) -> Model:
    """A model of a kind with a fault planted in its blocks, or in what calls them; its weights do not depend on it."""
    model, block = KINDS[kind]
    if fault is not None and getattr(fault, "of_the_model", False):
        model = type(fault.__name__ + model.__name__, (fault, model), {})
    elif fault is not None:
        block = type(fault.__name__ + block.__name__, (fault, block), {})
    made = model(block, layers).to(dtype).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
            is_gain = "norm" in name and name.endswith("weight")
            parameter.copy_(0.5 * drawn if parameter.ndim > 1 else 0.3 * drawn + is_gain)
        for table in (module for module in made.modules() if isinstance(module, nn.Embedding)):
            if len(table.weight) == VOCABULARY:
                table.weight[slice(*LARGE)] *= 30
                table.weight[slice(*SMALL)] *= 0.01
            if table.padding_idx is not None:
                table.weight[table.padding_idx] = 0.0
    return made


@dataclass(frozen=True)
class Given:
    """Arguments of one call, and which of its tokens are no padding."""

    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]
    keep: Tensor

    def call(self, model: nn.Module) -> Any:
        """The model's output on copies: some models write into what they are given."""
        kwargs = {name: value.clone() for name, value in self.kwargs.items()}
        return model(*(value.clone() for value in self.args), **kwargs)


def given(
    kind: str,
    texts: int,
    tokens: int,
    *,
    seed: int,
    ids: tuple[int, int] = (1, LARGE[0]),
    size: float = 1.0,
    padded: str = "",
    dtype: torch.dtype = torch.float64,
) -> Given:
    """Arguments of a call of a kind of model.

    Args:
        ids: the range that ids are drawn from.
        size: what features are multiplied by.
        padded: ``right`` or ``left`` for padding of the last text; ``encoder`` gets a mask in these cases alone.
    """
    generator = torch.Generator().manual_seed(seed)
    keep = torch.ones(texts, tokens, dtype=torch.bool)
    if padded:
        cut = tokens // 3
        keep[-1, slice(tokens - cut, None) if padded == "right" else slice(cut)] = False
    if kind == "encoder":
        x = size * torch.randn(texts, tokens, DIM, generator=generator, dtype=torch.float64).to(dtype)
        return Given((x,), {"src_key_padding_mask": ~keep} if padded else {}, keep)
    drawn = torch.randint(*ids, (texts, tokens), generator=generator)
    if kind == "nano":
        return Given((drawn,), {}, keep)
    return Given((), {"input_ids": drawn.masked_fill(~keep, PADDING_ID), "attention_mask": keep.long()}, keep)


def tried(kind: str, dtype: torch.dtype = torch.float64) -> Iterator[tuple[str, Given]]:
    """Calls that are unlike the captured one, each with its name."""
    every = {"dtype": dtype}
    yield "other texts", given(kind, TEXTS, TOKENS, seed=21, **every)
    yield "other texts, as many tokens in all", given(kind, 3, 6, seed=22, **every)
    yield "one text, longer", given(kind, 1, 40, seed=23, **every)
    yield "five texts, tokens as many as channels", given(kind, 5, DIM, seed=24, **every)
    yield "very long", given(kind, 2, 72, seed=25, **every)
    yield "one token", given(kind, 2, 1, seed=26, **every)
    yield "two tokens", given(kind, 2, 2, seed=27, **every)
    yield "large", given(kind, TEXTS, TOKENS, seed=28, ids=LARGE, size=30.0, **every)
    yield "large and longer", given(kind, 3, 20, seed=29, ids=LARGE, size=30.0, **every)
    yield "small", given(kind, TEXTS, TOKENS, seed=30, ids=SMALL, size=0.01, **every)
    yield "all ids", given(kind, 4, 15, seed=31, ids=(0, VOCABULARY), **every)
    if kind == "encoder":
        zeros = given(kind, 3, TOKENS, seed=32, **every)
        zeros.args[0][1:, 5:] = 0.0
        yield "rows of zeros", zeros
    if kind != "nano":
        yield "padded on the right", given(kind, 3, 11, seed=33, padded="right", **every)
        yield "padded on the left", given(kind, 3, 7, seed=34, padded="left", **every)


def states_by_hand(model: Model, call: Given) -> list[Tensor]:
    """What enters the first block and what leaves each, by plain hooks on a plain run."""
    states: list[Tensor] = []

    def entering(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        if not states:
            states.append(args[0].detach().clone())

    def leaving(_: nn.Module, args: object, output: Tensor) -> None:
        states.append(output.detach().clone())

    handles = [model.blocks[0].register_forward_pre_hook(entering)]
    handles += [block.register_forward_hook(leaving) for block in dict.fromkeys(model.blocks)]
    try:
        with torch.no_grad():
            call.call(model)
    finally:
        for handle in handles:
            handle.remove()
    return states
