"""Layers as dictionaries around nn.MultiheadAttention, for a language model."""

import torch
from torch import nn


class DictLM(nn.Module):
    def __init__(self, vocab=55, width=40, heads=5, depth=4, max_len=50):
        super().__init__()
        self.embedding = nn.ModuleDict(
            {
                "tokens": nn.Embedding(vocab, width),
                "positions": nn.Embedding(max_len, width),
            }
        )
        self.layers = nn.ModuleList()
        for _ in range(depth):
            self.layers.append(
                nn.ModuleDict(
                    {
                        "ln_attn": nn.LayerNorm(width),
                        "attn": nn.MultiheadAttention(width, heads, batch_first=True),
                        "ln_ff": nn.LayerNorm(width),
                        "ff": nn.Sequential(
                            nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)
                        ),
                    }
                )
            )
        self.ln = nn.LayerNorm(width)
        self.to_vocab = nn.Linear(width, vocab)

    def forward(self, ids, padding=None):
        length = ids.size(1)
        x = self.embedding["tokens"](ids) + self.embedding["positions"].weight[:length]
        future = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(diagonal=1)
        for number, layer in enumerate(self.layers):
            h = layer["ln_attn"](x)
            h, _ = layer["attn"](h, h, h, attn_mask=future, key_padding_mask=padding, need_weights=False)
            x = x + h
            x = x + layer["ff"](layer["ln_ff"](x))
        return {"logits": self.to_vocab(self.ln(x))}


def build():
    torch.manual_seed(6)
    return DictLM()


def batch():
    ids = torch.randint(55, (3, 9), generator=torch.Generator().manual_seed(8))
    padding = torch.zeros(3, 9, dtype=torch.bool)
    padding[0, 7:] = True
    return {"ids": ids, "padding": padding}


def loss(model, b):
    b = getattr(b, "inputs", b)
    out = model(**b)["logits"]
    return nn.functional.cross_entropy(out[:, :-1].flatten(0, 1), b["ids"][:, 1:].flatten())
