"""A student that is taught by a larger model's double: two encoders of torch's own layers in one module."""

import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self, dim=16, layers=3):
        super().__init__()
        self.words = nn.Embedding(40, dim)
        self.place = nn.Embedding(32, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 2, 32, dropout=0.1, batch_first=True) for _ in range(layers)
        )

    def forward(self, ids):
        x = self.words(ids) + self.place(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return x


class Distiller(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = Tower()
        self.teacher = Tower()

    def forward(self, ids):
        with torch.no_grad():
            target = self.teacher(ids)
        return ((self.student(ids) - target) ** 2).mean(dim=(1, 2))


def build():
    torch.manual_seed(5)
    model = Distiller()
    model.teacher.requires_grad_(False)
    return model


def batch():
    return torch.randint(40, (3, 8), generator=torch.Generator().manual_seed(6))
