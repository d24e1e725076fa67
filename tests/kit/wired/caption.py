"""A decoder of captions that reads a picture, with one class for both kinds of attention."""

import torch
from torch import nn


class Reader(nn.Module):
    """one multi-head attention for both uses"""

    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.query, self.key, self.value = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.final = nn.Linear(d, d)

    def heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.h, -1).permute(0, 2, 1, 3)

    def forward(self, x, source, hide=None):
        q, k, v = self.heads(self.query(x)), self.heads(self.key(source)), self.heads(self.value(source))
        score = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
        if hide is not None:
            score = score + hide
        weight = torch.softmax(score, -1)
        y = torch.einsum("bhqk,bhkd->bhqd", weight, v)
        y = y.permute(0, 2, 1, 3).reshape(x.shape)
        return self.final(y)


class CaptionLayer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.a, self.b, self.c = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.self_read = Reader(d, h)
        self.cross_read = Reader(d, h)
        self.ffn = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x, image, hide):
        h = self.a(x)
        x = x + self.self_read(h, h, hide)
        h = self.b(x)
        x = x + self.cross_read(h, image)
        h = self.c(x)
        x = x + self.ffn(h)
        return x


class Captioner(nn.Module):
    def __init__(self, vocab=51, d=32, h=4, depth=4, features=10):
        super().__init__()
        self.see = nn.Linear(features, d)
        self.word = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(40, d)
        self.layers = nn.ModuleList([CaptionLayer(d, h) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, vocab)

    def forward(self, words, image):
        n = words.shape[1]
        hide = torch.full((n, n), float("-inf")).triu(1)
        x = self.word(words) + self.pos(torch.arange(n))
        image = self.see(image)
        for layer in self.layers:
            x = layer(x, image, hide)
        return self.out(self.norm(x))


def build():
    torch.manual_seed(46)
    return Captioner()


def batch():
    g = torch.Generator().manual_seed(47)
    return {"words": torch.randint(0, 51, (3, 11), generator=g), "image": torch.randn(3, 7, 10, generator=g)}
