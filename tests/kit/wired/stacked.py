"""A language model whose layers are a method, and whose weights stand in lists."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class StackedLM(nn.Module):
    """All weights of a kind in one list; layers are a method."""

    def __init__(self, vocab=56, dim=24, heads=3, depth=4):
        super().__init__()
        self.heads, self.depth = heads, depth
        self.emb = nn.Embedding(vocab, dim)
        self.ln_a = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.ln_m = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.wqkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(depth))
        self.wout = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.w1 = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(depth))
        self.w2 = nn.ModuleList(nn.Linear(3 * dim, dim) for _ in range(depth))
        self.ln_out = nn.LayerNorm(dim)
        self.unembed = nn.Linear(dim, vocab)

    def positions(self, n, dim):
        t = torch.arange(n).float().unsqueeze(1)
        f = torch.exp(-torch.arange(0, dim, 2).float() / dim * 9.2)
        return torch.cat([torch.sin(t * f), torch.cos(t * f)], dim=1)

    def attend(self, x, i):
        b, n, d = x.shape
        q, k, v = self.wqkv[i](x).chunk(3, -1)
        q = q.reshape(b, n, self.heads, -1).transpose(1, 2)
        k = k.reshape(b, n, self.heads, -1).transpose(1, 2)
        v = v.reshape(b, n, self.heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(b, n, d)
        return self.wout[i](y)

    def feed(self, x, i):
        return self.w2[i](F.relu(self.w1[i](x)))

    def forward(self, ids):
        x = self.emb(ids)
        x = x + self.positions(ids.shape[1], x.shape[-1])
        for i in range(self.depth):
            x = x + self.attend(self.ln_a[i](x), i)
            x = x + self.feed(self.ln_m[i](x), i)
        return self.unembed(self.ln_out(x))


def build():
    torch.manual_seed(36)
    return StackedLM()


def batch():
    return torch.randint(0, 56, (3, 12), generator=torch.Generator().manual_seed(37))
