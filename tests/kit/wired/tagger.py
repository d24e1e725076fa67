"""A tagger with relative places, a mask of padding and norms behind the sums; its blocks are named one by one."""

import math
import torch
import torch.nn.functional as F
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, width, heads, longest):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.dense = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn(heads, 2 * longest - 1) * 0.1)
        self.longest = longest

    def split(self, x):
        return x.unflatten(-1, (self.heads, self.size)).permute(0, 2, 1, 3)

    def forward(self, states, attention_mask):
        q, k, v = self.split(self.query(states)), self.split(self.key(states)), self.split(self.value(states))
        n = states.shape[1]
        place = torch.arange(n)
        relative = place[:, None] - place[None, :] + self.longest - 1
        scores = torch.matmul(q, k.mT) / math.sqrt(self.size)
        scores = scores + self.bias[:, relative]
        scores = scores + (1.0 - attention_mask[:, None, None, :].float()) * -1e9
        probs = F.softmax(scores, dim=-1)
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).flatten(2)
        return self.dense(context)


class Block(nn.Module):
    def __init__(self, width, heads, longest):
        super().__init__()
        self.attention = SelfAttention(width, heads, longest)
        self.attention_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.output_norm = nn.LayerNorm(width)

    def forward(self, states, attention_mask):
        attended = self.attention(states, attention_mask)
        states = self.attention_norm(states + attended)
        inner = F.gelu(self.up(states))
        states = self.output_norm(states + self.down(inner))
        return states


class Tagger(nn.Module):
    def __init__(self, vocab=200, width=64, heads=4, layers=4, longest=32, tags=7):
        super().__init__()
        self.words = nn.Embedding(vocab, width, padding_idx=0)
        self.norm = nn.LayerNorm(width)
        self.block1 = Block(width, heads, longest)
        self.block2 = Block(width, heads, longest)
        self.block3 = Block(width, heads, longest)
        self.block4 = Block(width, heads, longest)
        self.classifier = nn.Linear(width, tags)

    def forward(self, input_ids, attention_mask):
        states = self.norm(self.words(input_ids))
        states = self.block1(states, attention_mask)
        states = self.block2(states, attention_mask)
        states = self.block3(states, attention_mask)
        states = self.block4(states, attention_mask)
        return {"logits": self.classifier(states)}


def build():
    torch.manual_seed(7)
    model = Tagger()
    return model


def batch():
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 200, (4, 11), generator=g)
    mask = torch.ones_like(ids)
    for row, length in enumerate((11, 8, 6, 9)):
        mask[row, length:] = 0
        ids[row, length:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def loss(model, batch):
    logits = model(**batch)["logits"]
    keep = batch["attention_mask"].bool()
    return F.cross_entropy(logits[keep], (batch["input_ids"] % 7)[keep])
