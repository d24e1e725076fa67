"""Post-norm encoder with segments and padding, classified at its first token."""

import math
import torch
import torch.nn as nn
import torch.nn.functional as F

PAD = 0


class Norm(nn.Module):
    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(size))
        self.beta = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.gamma * (x - mean) / torch.sqrt(var + self.eps) + self.beta


class SelfAttention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.size = hidden // heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.dense = nn.Linear(hidden, hidden)

    def split(self, x):
        return x.view(*x.shape[:-1], self.heads, self.size).permute(0, 2, 1, 3)

    def forward(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.size)
        scores = scores + mask
        probs = nn.Softmax(dim=-1)(scores)
        ctx = (probs @ v).permute(0, 2, 1, 3).contiguous()
        return self.dense(ctx.view(*ctx.shape[:2], -1))


class EncoderLayer(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.attention = SelfAttention(hidden, heads)
        self.norm1 = Norm(hidden)
        self.intermediate = nn.Linear(hidden, 4 * hidden)
        self.output = nn.Linear(4 * hidden, hidden)
        self.norm2 = Norm(hidden)

    def forward(self, x, mask):
        x = self.norm1(x + self.attention(x, mask))
        y = self.output(F.gelu(self.intermediate(x)))
        return self.norm2(x + y)


class Encoder(nn.Module):
    def __init__(self, vocab=60, hidden=32, heads=4, layers=4, classes=5):
        super().__init__()
        self.word = nn.Embedding(vocab, hidden, padding_idx=PAD)
        self.position = nn.Embedding(40, hidden)
        self.segment = nn.Embedding(2, hidden)
        self.norm = Norm(hidden)
        self.layer = nn.ModuleList(EncoderLayer(hidden, heads) for _ in range(layers))
        self.pooler = nn.Linear(hidden, hidden)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, input_ids, attention_mask, token_type_ids):
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.word(input_ids) + self.position(positions) + self.segment(token_type_ids)
        x = self.norm(x)
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -1e9
        for i, layer in enumerate(self.layer):
            x = layer(x, mask)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return self.classifier(pooled)


def build():
    torch.manual_seed(5)
    return Encoder()


def batch():
    g = torch.Generator().manual_seed(2)
    ids = torch.randint(1, 60, (3, 12), generator=g)
    mask = torch.ones(3, 12, dtype=torch.long)
    mask[1, 9:] = 0
    ids[1, 9:] = PAD
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": (torch.arange(12) > 5).long().expand(3, 12),
    }


def loss(model, b):
    b = getattr(b, "inputs", b)
    return F.cross_entropy(model(**b), b["input_ids"][:, 0] % 5)
