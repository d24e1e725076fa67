"""A classifier of texts from torch's own layers, with padding."""

import torch
from torch import nn


class TextClassifier(nn.Module):
    def __init__(self, vocab=60, d=24, heads=4, ff=48, layers=3, classes=4, max_len=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, d, padding_idx=0)
        self.pos = nn.Embedding(max_len, d)
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(
                    d, heads, ff, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(layers)
            ]
        )
        self.norm = nn.LayerNorm(d)
        self.fc = nn.Linear(d, classes)

    def forward(self, ids):
        pad = ids == 0
        pos = torch.arange(ids.size(1), device=ids.device)
        x = self.embed(ids) + self.pos(pos)
        for i, layer in enumerate(self.layers):
            x = layer(x, src_key_padding_mask=pad)
        x = self.norm(x)
        keep = (~pad).unsqueeze(-1).float()
        pooled = (x * keep).sum(1) / keep.sum(1)
        return self.fc(pooled)


def build():
    torch.manual_seed(0)
    return TextClassifier()


def batch():
    ids = torch.randint(1, 60, (4, 12), generator=torch.Generator().manual_seed(1))
    ids[1, 9:] = 0
    ids[3, 6:] = 0
    return ids
