"""nn.MultiheadAttention in blocks of one's own; the model makes the causal mask and takes one of padding."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, mask=None, padding=None):
        h = self.norm1(x)
        a, _ = self.attn(h, h, h, attn_mask=mask, key_padding_mask=padding, need_weights=False)
        x = x + a
        return x + self.mlp(self.norm2(x))


class Reader(nn.Module):
    def __init__(self, vocabulary=30, dim=16, layers=4):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.place = nn.Parameter(0.1 * torch.randn(1, 40, dim))
        self.blocks = nn.ModuleList(Block(dim, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids, key_padding_mask=None):
        t = ids.shape[1]
        x = self.embed(ids) + self.place[:, :t]
        for number, block in enumerate(self.blocks):  # noqa: B007 - a fault will ask for it
            x = block(x, None, key_padding_mask)
        return self.norm(x)


def build():
    torch.manual_seed(3)
    return Reader()


def batch():
    ids = torch.randint(30, (3, 8), generator=torch.Generator().manual_seed(4))
    return {"ids": ids, "key_padding_mask": torch.arange(8) >= torch.tensor([[8], [6], [8]])}
