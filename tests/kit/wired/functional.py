"""A language model without modules inside: dictionaries of parameters and functions."""

import torch
import torch.nn.functional as F
from torch.nn import Module, Parameter, ParameterDict


def layer_params(d, f, gen):
    n = lambda *s: Parameter(torch.randn(*s, generator=gen) / s[-1] ** 0.5)
    return ParameterDict(
        {
            "wqkv": n(3 * d, d),
            "wo": n(d, d),
            "w1": n(f, d),
            "b1": Parameter(torch.zeros(f)),
            "w2": n(d, f),
            "b2": Parameter(torch.zeros(d)),
            "g1": Parameter(torch.ones(d)),
            "g2": Parameter(torch.ones(d)),
        }
    )


def attend(p, x, heads):
    b, t, d = x.shape
    qkv = F.linear(x, p["wqkv"]).view(b, t, 3, heads, d // heads)
    q, k, v = (one.transpose(1, 2) for one in qkv.unbind(2))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(y.transpose(1, 2).flatten(2), p["wo"])


def feed(p, x):
    return F.linear(torch.relu(F.linear(x, p["w1"], p["b1"])) ** 2, p["w2"], p["b2"])


class Functional(Module):
    def __init__(self, vocab=40, d=24, heads=3, layers=4):
        super().__init__()
        gen = torch.Generator().manual_seed(77)
        self.heads, self.d = heads, d
        self.wte = Parameter(torch.randn(vocab, d, generator=gen) * 0.3)
        self.wpe = Parameter(torch.randn(64, d, generator=gen) * 0.3)
        self.p = torch.nn.ModuleList(layer_params(d, 2 * d, gen) for _ in range(layers))

    def forward(self, tokens):
        x = self.wte[tokens] + self.wpe[: tokens.shape[-1]]
        for n, p in enumerate(self.p):
            x = x + attend(p, F.layer_norm(x, (self.d,), p["g1"]), self.heads)
            x = x + feed(p, F.layer_norm(x, (self.d,), p["g2"]))
        return F.layer_norm(x, (self.d,)) @ self.wte.T * self.d**-0.5


def build():
    return Functional()


def batch():
    return torch.randint(40, (3, 10), generator=torch.Generator().manual_seed(2))


def loss(model, t):
    t = t if torch.is_tensor(t) else next(iter(t.inputs.values()))
    return F.cross_entropy(model(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten())
