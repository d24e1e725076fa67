"""Speech: half feed-forward, attention, convolution, half feed-forward."""

import torch
from torch import nn
import torch.nn.functional as F


class FeedForward(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.w1 = nn.Linear(d, 4 * d)
        self.w2 = nn.Linear(4 * d, d)

    def forward(self, x):
        return self.w2(F.silu(self.w1(self.norm(x))))


class ConvModule(nn.Module):
    def __init__(self, d, kernel=5):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.pointwise1 = nn.Conv1d(d, 2 * d, 1)
        self.depthwise = nn.Conv1d(d, d, kernel, padding=kernel // 2, groups=d)
        self.bn = nn.BatchNorm1d(d)
        self.pointwise2 = nn.Conv1d(d, d, 1)

    def forward(self, x, pad):
        x = self.norm(x).transpose(1, 2)
        x = F.glu(self.pointwise1(x), dim=1)
        x = x.masked_fill(pad[:, None, :], 0.0)
        x = F.silu(self.bn(self.depthwise(x)))
        return self.pointwise2(x).transpose(1, 2)


class ConformerBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ff1 = FeedForward(d)
        self.attn_norm = nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, dropout=0.1, batch_first=True)
        self.conv = ConvModule(d)
        self.ff2 = FeedForward(d)
        self.norm = nn.LayerNorm(d)

    def forward(self, x, pad):
        x = x + 0.5 * self.ff1(x)
        h = self.attn_norm(x)
        h, _ = self.attn(h, h, h, key_padding_mask=pad, need_weights=False)
        x = x + h
        x = x + self.conv(x, pad)
        x = x + 0.5 * self.ff2(x)
        return self.norm(x)


class Conformer(nn.Module):
    def __init__(self, n_mels=8, d=24, heads=4, layers=3, classes=9):
        super().__init__()
        self.proj = nn.Linear(n_mels, d)
        self.blocks = nn.ModuleList([ConformerBlock(d, heads) for _ in range(layers)])
        self.out = nn.Linear(d, classes)

    def forward(self, feats, lengths):
        t = feats.size(1)
        pad = torch.arange(t)[None, :] >= lengths[:, None]
        x = self.proj(feats)
        for block in self.blocks:
            x = block(x, pad)
        return self.out(x).log_softmax(-1)


def build():
    torch.manual_seed(0)
    return Conformer()


def batch():
    return {
        "feats": torch.randn(3, 14, 8, generator=torch.Generator().manual_seed(1)),
        "lengths": torch.tensor([14, 11, 8]),
    }
