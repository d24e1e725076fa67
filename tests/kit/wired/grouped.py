"""A language model with rotary positions, grouped heads and gated MLPs."""

import torch
from torch import nn
import torch.nn.functional as F


class RMS(nn.Module):
    def __init__(self, d, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rope(q, k, cos, sin):
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class Attention(nn.Module):
    def __init__(self, d, h, kv):
        super().__init__()
        self.h, self.kv, self.hd = h, kv, d // h
        self.wq = nn.Linear(d, h * self.hd, bias=False)
        self.wk = nn.Linear(d, kv * self.hd, bias=False)
        self.wv = nn.Linear(d, kv * self.hd, bias=False)
        self.wo = nn.Linear(h * self.hd, d, bias=False)

    def forward(self, x, cos, sin, mask):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.h, self.hd).transpose(1, 2)
        k = self.wk(x).view(b, t, self.kv, self.hd).transpose(1, 2)
        v = self.wv(x).view(b, t, self.kv, self.hd).transpose(1, 2)
        q, k = rope(q, k, cos, sin)
        k = k.repeat_interleave(self.h // self.kv, dim=1)
        v = v.repeat_interleave(self.h // self.kv, dim=1)
        s = q @ k.mT / self.hd**0.5 + mask
        p = F.softmax(s.float(), dim=-1).type_as(q)
        return self.wo((p @ v).transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.gate = nn.Linear(d, hidden, bias=False)
        self.up = nn.Linear(d, hidden, bias=False)
        self.down = nn.Linear(hidden, d, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class DecoderBlock(nn.Module):
    def __init__(self, i, d, h, kv):
        super().__init__()
        self.i = i
        self.attn_norm, self.attn = RMS(d), Attention(d, h, kv)
        self.mlp_norm, self.mlp = RMS(d), MLP(d, 3 * d)

    def forward(self, x, cos, sin, mask):
        x = x + self.attn(self.attn_norm(x), cos, sin, mask)
        return x + self.mlp(self.mlp_norm(x))


class LM(nn.Module):
    def __init__(self, vocab=72, d=32, layers=5, h=4, kv=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(DecoderBlock(i, d, h, kv) for i in range(layers))
        self.norm = RMS(d)
        inv = 1.0 / (1000.0 ** (torch.arange(0, d // h, 2) / (d // h)))
        self.register_buffer("inv", inv, persistent=False)

    def forward(self, ids):
        t = ids.shape[1]
        angle = torch.outer(torch.arange(t, device=ids.device).float(), self.inv)
        angle = torch.cat((angle, angle), dim=-1)
        cos, sin = angle.cos(), angle.sin()
        mask = torch.full((t, t), float("-inf"), device=ids.device).triu(1)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return F.linear(self.norm(x), self.embed.weight) / 32


def build():
    torch.manual_seed(4)
    return LM()


def batch():
    return torch.randint(72, (2, 13), generator=torch.Generator().manual_seed(9))


def loss(model, ids):
    ids = ids if torch.is_tensor(ids) else next(iter(ids.inputs.values()))
    out = model(ids)[:, :-1]
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), ids[:, 1:].reshape(-1))
