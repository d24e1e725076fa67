"""Small language models as people write them, to be trained for a few steps."""

import torch
from torch import Tensor, nn

from rankscope.sources.batch import Batch, batch_of_texts

VOCABULARY = 23


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        texts, tokens, dim = x.shape
        q, k, v = (
            part.view(texts, tokens, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        att = (q @ k.transpose(-2, -1)) * (dim // self.heads) ** -0.5
        att = att.masked_fill(torch.triu(torch.ones(tokens, tokens, dtype=torch.bool), 1), float("-inf"))
        att = att.softmax(dim=-1)
        return self.proj((att @ v).transpose(1, 2).reshape(texts, tokens, dim))


class PostBlock(nn.Module):
    """The norm around the sum."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attn = Attention(dim, 2)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.ff(x))


class NamedBlock(PostBlock):
    """Branches have names of their own."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.attn(x)
        x = self.norm1(h + x)
        f = self.ff(x)
        return self.norm2(x + f)


class TwoLineBlock(PostBlock):
    """The norm stands on the next line."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        x = self.norm1(x)
        x = x + self.ff(x)
        x = self.norm2(x)
        return x  # noqa: RET504 - as people write it


class PreBlock(PostBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.ff(self.norm2(x))


class BareBlock(PostBlock):
    """No skips."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(x)
        x = self.norm1(x)
        x = self.ff(x)
        return self.norm2(x)


class LoopBlock(PostBlock):
    """Names that no line gives to a module."""

    def forward(self, x: Tensor) -> Tensor:
        for part, norm in ((self.attn, self.norm1), (self.ff, self.norm2)):
            x = norm(x + part(x))
        return x


class SmallLM(nn.Module):
    """Embeddings, blocks, a head; reads ids and puts out a score for each entry of the vocabulary."""

    def __init__(self, block: type[PostBlock] = PostBlock, layers: int = 2, dim: int = 16) -> None:
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, dim)
        self.blocks = nn.ModuleList(block(dim) for _ in range(layers))
        self.head = nn.Linear(dim, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def small_lm(block: type[PostBlock] = PostBlock, layers: int = 2, *, seed: int = 0) -> SmallLM:
    """The model in float64, so that tests need no tolerance for anything but sums."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return SmallLM(block, layers).double().eval()


def id_batch(texts: int = 3, tokens: int = 7, *, seed: int = 0) -> Batch:
    ids = torch.randint(VOCABULARY, (texts, tokens), generator=torch.Generator().manual_seed(seed))
    return batch_of_texts({"ids": ids}, is_token=None, labels=tuple(map(str, range(texts))))
