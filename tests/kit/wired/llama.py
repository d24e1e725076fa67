"""A language model with RMS norms by hand, rotary positions, grouped heads and a gated MLP."""

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        size = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(size + self.eps)
        return x * self.weight


def rotate(x, cos, sin):
    one, two = x.chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


class Attention(nn.Module):
    def __init__(self, dim, heads, groups, layer):
        super().__init__()
        self.heads, self.groups, self.width, self.layer = heads, groups, dim // heads, layer
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, groups * self.width, bias=False)
        self.wv = nn.Linear(dim, groups * self.width, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.heads, self.width).transpose(1, 2)
        k = self.wk(x).view(b, t, self.groups, self.width).transpose(1, 2)
        v = self.wv(x).view(b, t, self.groups, self.width).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k = k.repeat_interleave(self.heads // self.groups, dim=1)
        v = v.repeat_interleave(self.heads // self.groups, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(b, t, -1)
        return self.wo(y)


class Layer(nn.Module):
    def __init__(self, dim, layer):
        super().__init__()
        self.layer = layer
        self.norm1 = RMSNorm(dim)
        self.attention = Attention(dim, 4, 2, layer)
        self.norm2 = RMSNorm(dim)
        self.gate = nn.Linear(dim, 3 * dim, bias=False)
        self.up = nn.Linear(dim, 3 * dim, bias=False)
        self.down = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self, vocabulary=50, dim=16, layers=3):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList()
        for layer in range(layers):
            self.layers.append(Layer(dim, layer))
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, ids):
        t = ids.shape[1]
        turns = 100.0 ** (-torch.arange(0, 4, 2) / 4)
        angles = torch.outer(torch.arange(t).float(), turns)
        cos, sin = angles.cos(), angles.sin()
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return {"logits": self.head(self.norm(x))}


def build():
    torch.manual_seed(2)
    return Decoder()


def batch():
    return torch.randint(50, (2, 11), generator=torch.Generator().manual_seed(3))


def loss(model, ids):
    logits = model(ids)["logits"]
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
