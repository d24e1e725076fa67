"""Small transformers as people write them, with calls that take more than one tensor."""

from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Pre-norm attention and MLP; ``mask`` is true where a query may read a key."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.heads = heads

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        texts, tokens, dim = x.shape
        q, k, v = (
            self.qkv(self.before(x))
            .view(texts, tokens, 3, self.heads, dim // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        logits = q @ k.mT / (dim // self.heads) ** 0.5
        if mask is not None:
            logits = logits.masked_fill(~mask, float("-inf"))
        x = x + self.out((logits.softmax(-1) @ v).transpose(1, 2).reshape(texts, tokens, dim))
        return x + self.mlp(self.between(x))


class Gpt(nn.Module):
    """Ids in, logits and perhaps a loss out, with a mask that the caller makes."""

    def __init__(self, vocabulary: int = 30, dim: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.positions = nn.Embedding(40, dim)  # before the words, as people do
        self.words = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList([Block(dim, 2) for _ in range(layers)])
        self.last = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary)
        self.dropout = nn.Dropout(0.2)

    def forward(
        self, idx: Tensor, targets: Tensor | None = None, *, mask: Tensor | None = None, flag: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        x = self.dropout(self.words(idx) + self.positions(torch.arange(idx.shape[1])))
        for block in self.blocks:
            x = block(x, mask)
        logits = self.head(self.last(x)) * (2.0 if flag is True else 1.0)
        loss = None if targets is None else nn.functional.cross_entropy(logits.mT, targets)
        return logits, loss

    @torch.no_grad()
    def grow(self, idx: Tensor, more: int) -> Tensor:
        """Text after text, without a cache."""
        for _ in range(more):
            idx = torch.cat([idx, self(idx)[0][:, -1:].argmax(-1)], dim=1)
        return idx


class Nested(nn.Module):
    """One argument that holds everything: ``{"tokens": ..., "more": {"mask": ...}, "name": ...}``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Gpt()

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(batch["name"], str)
        logits, _ = self.inner(batch["tokens"], mask=batch["more"]["mask"])
        return {"logits": logits, "name": batch["name"]}


def causal(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


def ids(texts: int, tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(30, (texts, tokens), generator=torch.Generator().manual_seed(seed))
