"""Frames before texts inside one forward pass, with lengths; parts of a kind stand in lists."""

import torch
from torch import nn


class Wave(nn.Module):
    """frames x batch x channels inside, padding as lengths"""

    def __init__(self, bins=8, width=30, heads=3, depth=4, out=12):
        super().__init__()
        self.heads, self.depth = heads, depth
        self.lift = nn.Linear(bins, width)
        self.position = nn.Parameter(torch.randn(40, 1, width) * 0.3)
        self.pre = nn.ModuleList([nn.LayerNorm(width) for _ in range(depth)])
        self.attention = nn.ModuleList([nn.MultiheadAttention(width, heads) for _ in range(depth)])
        self.mid = nn.ModuleList([nn.LayerNorm(width) for _ in range(depth)])
        self.expand = nn.ModuleList([nn.Linear(width, 2 * width) for _ in range(depth)])
        self.shrink = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(depth)])
        self.out = nn.Linear(width, out)

    def forward(self, frames, lengths):
        n = frames.shape[1]
        ignore = torch.arange(n)[None, :] >= lengths[:, None]
        x = self.lift(frames).transpose(0, 1)
        x = x + self.position[:n]
        for i in range(self.depth):
            y = self.pre[i](x)
            y, _ = self.attention[i](y, y, y, key_padding_mask=ignore, need_weights=False)
            x = x + y
            y = self.mid[i](x)
            y = torch.nn.functional.silu(self.expand[i](y))
            y = self.shrink[i](y)
            x = x + y
        return self.out(x.transpose(0, 1))


def build():
    torch.manual_seed(62)
    return Wave()


def batch():
    frames = torch.randn(3, 15, 8, generator=torch.Generator().manual_seed(63))
    return {"frames": frames, "lengths": torch.tensor([15, 11, 8])}
