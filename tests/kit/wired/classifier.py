"""An encoder with norms behind the skips that classifies texts, and takes a mask of padding: True on tokens."""

import math

import torch
from torch import nn
from torch.nn import functional as F


def sinusoids(length, dim):
    place = torch.arange(length).unsqueeze(1)
    turn = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    table = torch.zeros(length, dim)
    table[:, 0::2] = torch.sin(place * turn)
    table[:, 1::2] = torch.cos(place * turn)
    return table


class Attention(nn.Module):
    def __init__(self, dim, heads, layer):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)
        self.heads, self.layer = heads, layer

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, keep):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~keep[:, None, None, :], -1e9)
        probs = torch.softmax(scores, dim=-1)
        mixed = torch.matmul(probs, v)
        mixed = mixed.transpose(1, 2).flatten(2)
        return self.out(mixed)


class Layer(nn.Module):
    def __init__(self, dim, heads, layer):
        super().__init__()
        self.layer = layer
        self.attention = Attention(dim, heads, layer)
        self.norm1 = nn.LayerNorm(dim)
        self.feed = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x, keep):
        a = self.attention(x, keep)
        x = self.norm1(x + a)
        f = self.feed(x)
        x = self.norm2(x + f)
        return x  # noqa: RET504 - as people write it


class Classifier(nn.Module):
    def __init__(self, vocabulary=40, dim=16, heads=2, layers=3, classes=5):
        super().__init__()
        self.words = nn.Embedding(vocabulary, dim)
        self.register_buffer("positions", sinusoids(64, dim))
        self.layers = nn.ModuleList([Layer(dim, heads, layer) for layer in range(layers)])
        self.head = nn.Linear(dim, classes)

    def forward(self, tokens, mask):
        keep = mask.bool()
        x = self.words(tokens)
        x = x + self.positions[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, keep)
        x = x.masked_fill(~keep.unsqueeze(-1), 0.0)
        pooled = x.sum(1) / keep.sum(1, keepdim=True)
        return self.head(pooled)


def build():
    torch.manual_seed(1)
    return Classifier()


def batch():
    tokens = torch.randint(40, (4, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(9) < torch.tensor([[9], [7], [9], [5]])
    return {"tokens": tokens, "mask": mask}


def loss(model, inputs):
    logits = model(**inputs)
    return F.cross_entropy(logits, torch.tensor([0, 3, 1, 4]))
