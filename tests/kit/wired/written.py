"""A language model with queries, keys and values of their own, and a mask that is made in every pass."""

import math
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.dh = h, d // h
        self.wq = nn.Linear(d, d)
        self.wk = nn.Linear(d, d)
        self.wv = nn.Linear(d, d)
        self.wo = nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q = self.wq(x).view(b, t, self.h, self.dh).transpose(1, 2)
        k = self.wk(x).view(b, t, self.h, self.dh).transpose(1, 2)
        v = self.wv(x).view(b, t, self.h, self.dh).transpose(1, 2)
        scores = q @ k.transpose(-2, -1)
        scores = scores / math.sqrt(self.dh)
        future = torch.triu(torch.ones(t, t, device=x.device), diagonal=1).bool()
        scores = scores.masked_fill(future, float("-inf"))
        w = torch.softmax(scores, dim=-1)
        y = w @ v
        y = y.transpose(1, 2).contiguous().view(b, t, d)
        return self.wo(y)


class Mlp(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fc1 = nn.Linear(d, 4 * d)
        self.fc2 = nn.Linear(4 * d, d)

    def forward(self, x):
        return self.fc2(torch.nn.functional.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, d, h, idx):
        super().__init__()
        self.idx = idx
        self.ln1 = nn.LayerNorm(d)
        self.attn = SelfAttention(d, h)
        self.ln2 = nn.LayerNorm(d)
        self.mlp = Mlp(d)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        x = x + self.mlp(self.ln2(x))
        return x


class TinyLM(nn.Module):
    def __init__(self, vocab=61, d=32, h=4, layers=5, max_len=40):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(max_len, d)
        self.blocks = nn.ModuleList([Block(d, h, i) for i in range(layers)])
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.tok(ids) + self.pos(torch.arange(t, device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def build():
    torch.manual_seed(0)
    return TinyLM()


def batch():
    return torch.randint(0, 61, (4, 14), generator=torch.Generator().manual_seed(1))
