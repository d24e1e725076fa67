"""Sound models that were once accused, or nearly: what each does looks like a fault at first."""

import math
import torch
from torch import nn
import torch.nn.functional as F

V, D, H = 50, 32, 4


class Attn(nn.Module):
    def __init__(self, d=D, h=H):
        super().__init__()
        self.h = h
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        self.v = nn.Linear(d, d)
        self.o = nn.Linear(d, d)

    def forward(self, x, mask=None, memory=None, turn=None):
        m = x if memory is None else memory
        b, n, d = x.shape
        q, k, v = (
            f(t).view(b, -1, self.h, d // self.h).transpose(1, 2)
            for f, t in ((self.q, x), (self.k, m), (self.v, m))
        )
        if turn is not None:
            q, k = turn(q), turn(k)
        a = q @ k.transpose(-1, -2) / math.sqrt(d // self.h)
        if mask is not None:
            a = a.masked_fill(~mask, float("-inf"))
        return self.o((a.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, d=D):
        super().__init__()
        self.norm1 = nn.LayerNorm(d)
        self.norm2 = nn.LayerNorm(d)
        self.attn = Attn(d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, mask=None):
        x = x + self.attn(self.norm1(x), mask)
        return x + self.ff(self.norm2(x))


class Nope(nn.Module):
    """Causal decoder without positional encoding."""

    def __init__(self, layers=4):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        pos = torch.arange(ids.shape[1], device=ids.device)
        mask = pos[:, None] >= pos[None, :]
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x, mask)
        return self.head(self.norm(x))


class SetLengths(nn.Module):
    """Set encoder
    positions only make the padding mask."""

    def __init__(self, layers=4):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(D, V)

    def forward(self, ids, lengths):
        positions = torch.arange(ids.shape[1], device=ids.device)
        valid = (positions[None] < lengths[:, None])[:, None, None, :]
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x, valid)
        return self.head(x)


class PostBlock(nn.Module):
    def __init__(self, d=D):
        super().__init__()
        self.attn = Attn(d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.post_attn_norm = nn.LayerNorm(d)
        self.post_ff_norm = nn.LayerNorm(d)

    def forward(self, x, mask=None):
        x = self.post_attn_norm(x + self.attn(x, mask))
        return self.post_ff_norm(x + self.ff(x))


class NopePost(nn.Module):
    """No positions by design, norms named post_*."""

    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.emb = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(PostBlock() for _ in range(4))
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        n = ids.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool).tril() if self.causal else None
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x, mask)
        return self.head(x)


class ZeroTable(nn.Module):
    """Learned positions that start at zero, norms named post_*."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.pos_embed = nn.Parameter(torch.zeros(1, 64, D))
        self.blocks = nn.ModuleList(PostBlock() for _ in range(4))
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        x = self.emb(ids) + self.pos_embed[:, : ids.shape[1]]
        for b in self.blocks:
            x = b(x)
        return self.head(x)


class Rotary(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, d, 2) / d))

    def forward(self, x):
        t = torch.arange(x.shape[-2], device=x.device)[:, None] * self.inv_freq
        c, n = t.cos(), t.sin()
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.cat([a * c - b * n, a * n + b * c], -1)


class RotBlock(Block):
    def __init__(self, rotary):
        super().__init__()
        self.rotary = rotary

    def forward(self, x):
        x = x + self.attn(self.norm1(x), None, None, self.rotary)
        return x + self.ff(self.norm2(x))


class Conditional(nn.Module):
    """Rotary positions
    a class label per text is added to all its tokens."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.cond = nn.Embedding(10, D)
        self.blocks = nn.ModuleList(RotBlock(Rotary(D // H)) for _ in range(4))
        self.head = nn.Linear(D, V)

    def forward(self, ids, style):
        x = self.emb(ids) + self.cond(style)[:, None]
        for b in self.blocks:
            x = b(x)
        return self.head(x)


class Cloud(nn.Module):
    """A point cloud: coordinates are the input, the order of points means nothing."""

    def __init__(self):
        super().__init__()
        self.feat = nn.Linear(3, D)
        self.pos_mlp = nn.Linear(3, D)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(D, 5)

    def forward(self, points):
        x = F.gelu(self.feat(points)) + self.pos_mlp(points)
        for b in self.blocks:
            x = b(x)
        return self.head(x.mean(1))


class Pos(nn.Module):
    """Learned positions, options."""

    def __init__(self, zero_head=False, roll=False):
        super().__init__()
        self.roll = roll
        self.emb = nn.Embedding(V, D)
        self.wpe = nn.Embedding(64, D)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)
        if zero_head:
            nn.init.zeros_(self.head.weight)

    def forward(self, ids):
        x = self.emb(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for b in self.blocks:
            x = b(x)
        if self.roll:
            z = self.head(self.norm(x)).mean(1)
            return z, z.roll(1, 0)
        return self.head(self.norm(x))


class InBlock(Block):
    def forward(self, x, x0):
        x = x + x0
        x = x + self.attn(self.norm1(x))
        return x + self.ff(self.norm2(x))


class Injected(nn.Module):
    """The input is added again before every block."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.wpe = nn.Embedding(64, D)
        self.blocks = nn.ModuleList(InBlock() for _ in range(4))
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        x = x0 = self.emb(ids) + self.wpe(torch.arange(ids.shape[1]))
        for b in self.blocks:
            x = b(x, x0)
        return self.head(x)


class CrossBlock(Block):
    def __init__(self):
        super().__init__()
        self.cross = Attn()
        self.norm3 = nn.LayerNorm(D)

    def forward(self, x, memory):
        x = x + self.attn(self.norm1(x))
        x = x + self.cross(self.norm3(x), None, memory)
        return x + self.ff(self.norm2(x))


class OneMemory(nn.Module):
    """Cross-attention to one vector per text, such as a class."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.wpe = nn.Embedding(64, D)
        self.cond = nn.Embedding(10, D)
        self.blocks = nn.ModuleList(CrossBlock() for _ in range(4))
        self.head = nn.Linear(D, V)

    def forward(self, ids, label):
        x = self.emb(ids) + self.wpe(torch.arange(ids.shape[1]))
        m = self.cond(label)[:, None]
        for b in self.blocks:
            x = b(x, m)
        return self.head(x)


class InPlaceShape(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(1, D)
        self.wpe = nn.Parameter(torch.randn(64, D))
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(D, 1)

    def forward(self, series):
        series.unsqueeze_(-1)
        x = self.lin(series) + self.wpe[: series.shape[1]]
        for b in self.blocks:
            x = b(x)
        return self.head(x)


class Segments(nn.Module):
    """Order of the arguments is that of BertTokenizer."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.wpe = nn.Embedding(64, D)
        self.seg = nn.Embedding(2, D)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(D, V)

    def forward(self, input_ids, token_type_ids=None, attention_mask=None):
        x = self.emb(input_ids) + self.wpe(torch.arange(input_ids.shape[1])) + self.seg(token_type_ids)
        mask = attention_mask[:, None, None, :].bool()
        for b in self.blocks:
            x = b(x, mask)
        return self.head(x)


class Smear(nn.Module):
    """Order is told before the blocks: every token also reads the one before it. Norms are named post_*."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.mix = nn.Linear(D, D)
        self.blocks = nn.ModuleList(PostBlock() for _ in range(4))
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        e = self.emb(ids)
        x = e + self.mix(F.pad(e, (0, 0, 1, 0))[:, :-1])
        for b in self.blocks:
            x = b(x)
        return self.head(x)


class ReluBlock(Block):
    def __init__(self, kind="softmax"):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        b, n, d = x.shape
        y = self.norm1(x)
        a = self.attn
        q, k, v = (f(y).view(b, n, H, d // H).transpose(1, 2) for f in (a.q, a.k, a.v))
        l = q @ k.transpose(-1, -2) / math.sqrt(d // H)
        m = l.softmax(-1) if self.kind == "softmax" else F.relu(l).square() / n
        x = x + a.o((m @ v).transpose(1, 2).reshape(b, n, d))
        return x + self.ff(self.norm2(x))


class Hybrid(nn.Module):
    """One of four blocks has squared ReLU in place of softmax, by a setting."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.wpe = nn.Embedding(64, D)
        self.blocks = nn.ModuleList(ReluBlock("relu2" if i == 3 else "softmax") for i in range(4))
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        x = self.emb(ids) + self.wpe(torch.arange(ids.shape[1]))
        for b in self.blocks:
            x = b(x)
        return self.head(x)


class Half(nn.Module):
    """GPT-like start, run in float16."""

    def __init__(self, dim=64, vocab=4000):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.wpe = nn.Embedding(64, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(3))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        x = self.emb(ids) + self.wpe(torch.arange(ids.shape[1]))
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


class Seg2(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.wpe = nn.Embedding(64, D)
        self.seg = nn.Embedding(2, D)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(D, V)

    def forward(self, input_ids, token_type_ids):
        x = self.emb(input_ids) + self.wpe(torch.arange(input_ids.shape[1])) + self.seg(token_type_ids)
        for b in self.blocks:
            x = b(x)
        return self.head(x)


class Seg3(Seg2):
    def forward(self, ids, segments, valid):
        x = self.emb(ids) + self.wpe(torch.arange(ids.shape[1])) + self.seg(segments)
        mask = valid[:, None, None, :].bool()
        for b in self.blocks:
            x = b(x, mask)
        return self.head(x)


class Forecast(nn.Module):
    """Reads a series of which the end is to be filled in
    ``observed`` says where."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, D)
        self.wpe = nn.Embedding(64, D)
        self.gap = nn.Parameter(torch.randn(D))
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(D, 3)

    def forward(self, series, observed_mask):
        x = torch.where(observed_mask[..., None].bool(), self.lin(series), self.gap) + self.wpe(
            torch.arange(series.shape[1])
        )
        for b in self.blocks:
            x = b(x)
        return self.head(x)


class ZeroAda(nn.Module):
    """One modulation for all blocks, which starts at zero (outside of them)."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.wpe = nn.Embedding(64, D)
        self.gate = nn.Parameter(torch.zeros(D))
        self.blocks = nn.ModuleList(Inner() for _ in range(4))
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        x = self.emb(ids) + self.wpe(torch.arange(ids.shape[1]))
        for b in self.blocks:
            x = b(x, self.gate)
        return self.head(x)


class Inner(Block):
    def forward(self, x, gate):
        x = x + gate * self.attn(self.norm1(x))
        return x + gate * self.ff(self.norm2(x))


def _given():
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(1, V, (3, 12), generator=generator)
    segments = torch.zeros(3, 12, dtype=torch.long)
    segments[0, 7:], segments[1, 8:] = 1, 1
    valid = torch.ones(3, 12, dtype=torch.long)
    valid[0, 10:] = 0
    observed = torch.ones(3, 12)
    observed[0, 9:], observed[1, 8:] = 0, 0
    labels = torch.tensor([0, 4, 7])
    every = torch.ones(3, 12, dtype=torch.long)
    return {
        "no positions, a mask of places": (Nope, ids),
        "a set with lengths": (SetLengths, {"ids": ids, "lengths": torch.tensor([12, 9, 7])}),
        "norms named post, causal": (lambda: NopePost(True), ids),
        "norms named post, a set": (lambda: NopePost(False), ids),
        "places that start at zero": (ZeroTable, ids),
        "a label per text": (Conditional, {"ids": ids, "style": labels}),
        "points in space": (Cloud, torch.randn(3, 12, 3, generator=generator)),
        "a head that starts at zero": (lambda: Pos(zero_head=True), ids),
        "answers of other texts beside": (lambda: Pos(roll=True), ids),
        "the input again in every block": (Injected, ids),
        "one token": (Pos, ids[:, :1]),
        "one memory": (OneMemory, {"ids": ids, "label": labels}),
        "segments beside a mask": (
            Segments,
            {"input_ids": ids, "token_type_ids": segments, "attention_mask": every},
        ),
        "order told before the blocks": (Smear, ids),
        "a block of another kind": (Hybrid, ids),
        "float16": (lambda: Half().half(), ids),
        "segments alone": (Seg2, {"input_ids": ids, "token_type_ids": segments}),
        "segments that end": (Seg3, {"ids": ids, "segments": segments, "valid": valid}),
        "what was observed": (
            Forecast,
            {"series": torch.randn(3, 12, 3, generator=generator), "observed_mask": observed},
        ),
        "one gate for all, at zero": (ZeroAda, ids),
    }


SOUND = _given()
