"""A language model whose layers are pairs of attention and MLP, added in the loop of the model."""

import torch
from torch import nn, einsum
from einops import rearrange


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim**0.5
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return nn.functional.normalize(x, dim=-1) * self.scale * self.g


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm = RMSNorm(dim)
        self.fn = fn

    def forward(self, x, **kwargs):
        return self.fn(self.norm(x), **kwargs)


class Attention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=8, causal=True):
        super().__init__()
        inner = heads * dim_head
        self.heads, self.scale, self.causal = heads, dim_head**-0.5, causal
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x, mask=None):
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))
        q = q * self.scale
        sim = einsum("b h i d, b h j d -> b h i j", q, k)
        if mask is not None:
            sim = sim.masked_fill(~rearrange(mask, "b j -> b 1 1 j"), -torch.finfo(sim.dtype).max)
        if self.causal:
            i, j = sim.shape[-2:]
            causal_mask = torch.ones((i, j), device=x.device, dtype=torch.bool).triu(j - i + 1)
            sim = sim.masked_fill(causal_mask, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        out = rearrange(out, "b h n d -> b n (h d)")
        return self.to_out(out)


def FeedForward(dim, mult=4):
    return nn.Sequential(
        nn.Linear(dim, dim * mult),
        nn.GELU(),
        nn.Linear(dim * mult, dim),
    )


class Transformer(nn.Module):
    def __init__(self, *, num_tokens=48, dim=32, depth=4, max_seq=40):
        super().__init__()
        self.tok = nn.Embedding(num_tokens, dim)
        self.pos = nn.Embedding(max_seq, dim)
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(
                nn.ModuleList(
                    [
                        PreNorm(dim, Attention(dim)),
                        PreNorm(dim, FeedForward(dim)),
                    ]
                )
            )
        self.to_logits = nn.Sequential(RMSNorm(dim), nn.Linear(dim, num_tokens, bias=False))

    def forward(self, x, mask=None):
        n = x.shape[1]
        x = self.tok(x)
        x = x + rearrange(self.pos(torch.arange(n, device=x.device)), "n d -> 1 n d")
        for attn, ff in self.layers:
            x = attn(x, mask=mask) + x
            x = ff(x) + x
        return self.to_logits(x)


def build():
    torch.manual_seed(11)
    return Transformer()


def batch():
    ids = torch.randint(48, (3, 11), generator=torch.Generator().manual_seed(1))
    return ids


def loss(model, ids):
    ids = ids if torch.is_tensor(ids) else next(iter(ids.inputs.values()))
    logits = model(ids[:, :-1])
    return nn.functional.cross_entropy(rearrange(logits, "b n c -> b c n"), ids[:, 1:])
