"""Sound designs that look like faults at first: every one returns a model, a batch and a loss or None."""

import copy
import math
import torch
from torch import nn
import torch.nn.functional as F

D, H = 24, 4


def g(s=1):
    return torch.Generator().manual_seed(s)


def ids(b=3, t=10, v=40):
    return torch.randint(2, v, (b, t), generator=g())


class Attn(nn.Module):
    def __init__(self, causal=True, kind="softmax", sinks=False, kept=None):
        super().__init__()
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.causal, self.kind = causal, kind
        self.sinks = nn.Parameter(torch.zeros(H)) if sinks else None
        if kept is not None:
            self.register_buffer("kept", torch.tensor(kept).float())

    def forward(self, x, mask=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, H, d // H).permute(2, 0, 3, 1, 4)
        if self.kind == "linear":
            q, k = F.elu(q) + 1, F.elu(k) + 1
            if self.causal:
                kv = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
                z = 1 / (q * k.cumsum(2)).sum(-1)
                y = torch.einsum("bhtd,bhtde,bht->bhte", q, kv, z)
            else:
                y = torch.einsum("bhtd,bhde->bhte", q, k.mT @ v) / (q @ k.sum(2, keepdim=True).mT)
        else:
            s = q @ k.mT / math.sqrt(d // H)
            if mask is not None:
                s = s.masked_fill(~mask[:, None, None, :], -1e9)
            if self.causal:
                s = s.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
            if self.kind == "sigmoid":
                a = torch.sigmoid(s - math.log(t))
            elif self.sinks is not None:
                a = torch.cat([s, self.sinks.view(1, H, 1, 1).expand(b, H, t, 1)], -1).softmax(-1)[..., :-1]
            elif self.kind == "relu":
                a = F.relu(s) ** 2 / t
            elif self.kind == "one":
                a = s.exp() / (1 + s.exp().sum(-1, keepdim=True))
            else:
                a = s.softmax(-1)
            y = a @ v
        if hasattr(self, "kept"):
            y = y * self.kept.view(1, H, 1, 1)
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, alpha=None, scale=None, norm=nn.LayerNorm, drop=0.0, parallel=False, ffn=None, **kw):
        super().__init__()
        self.n1, self.n2 = norm(D), norm(D)
        self.attn = Attn(**kw)
        self.ff = ffn or nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))
        if alpha is not None:
            self.alpha = nn.Parameter(torch.tensor(float(alpha)))
        if scale is not None:
            self.g1, self.g2 = nn.Parameter(torch.full((D,), scale)), nn.Parameter(torch.full((D,), scale))
        self.drop, self.parallel = drop, parallel

    def forward(self, x, mask=None):
        if self.training and self.drop and torch.rand(()) < self.drop:
            return x
        a = self.attn(self.n1(x), mask)
        if hasattr(self, "alpha"):
            x = x + self.alpha * a
            return x + self.alpha * self.ff(x)
        if hasattr(self, "g1"):
            x = x + self.g1 * a
            return x + self.g2 * self.ff(self.n2(x))
        if self.parallel:
            return x + a + self.ff(self.n1(x))
        x = x + a
        return x + self.ff(self.n2(x))


class Net(nn.Module):
    def __init__(self, blocks, tied=False, pos=True, extra=0, head=True):
        super().__init__()
        self.emb = nn.Embedding(40, D)
        if pos:
            self.wpe = nn.Embedding(32, D)
        self.blocks = nn.ModuleList(blocks)
        self.ln = nn.LayerNorm(D)
        self.head = nn.Linear(D, 40, bias=False)
        if tied:
            self.head.weight = self.emb.weight
        if extra:
            self.registers = nn.Parameter(torch.randn(1, extra, D))

    def forward(self, x):
        x = self.emb(x) + (self.wpe(torch.arange(x.shape[1])) if hasattr(self, "wpe") else 0)
        if hasattr(self, "registers"):
            x = torch.cat([self.registers.expand(len(x), -1, -1), x], 1)
        for b in self.blocks:
            x = b(x)
        if hasattr(self, "registers"):
            x = x[:, self.registers.shape[1] :]
        return self.head(self.ln(x))


DESIGNS = {}


def design(fn):
    DESIGNS[fn.__name__] = fn
    return fn


@design
def albert_sharing():
    class SharedNet(Net):
        def forward(self, x):
            x = self.emb(x) + self.wpe(torch.arange(x.shape[1]))
            for _ in range(4):
                x = self.blocks[0](x)
            return self.head(self.ln(x))

    return SharedNet([Block(causal=False)]), ids(), None


@design
def moe_capacity():
    class MoE(nn.Module):
        def __init__(s):
            super().__init__()
            s.router = nn.Linear(D, 3)
            s.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(3))

        def forward(s, x):
            h = x.flatten(0, 1)
            gate = s.router(h).softmax(-1)
            out = torch.zeros_like(h)
            for i, e in enumerate(s.experts):
                top = gate[:, i].topk(len(h) // 2).indices
                out = out.index_add(0, top, e(h[top]) * gate[top, i : i + 1])
            return out.view_as(x)

    return Net([Block(ffn=MoE()) for _ in range(3)]), ids(), None


@design
def moe_topk():
    class MoE(nn.Module):
        def __init__(s):
            super().__init__()
            s.gate = nn.Linear(D, 4)
            s.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D)) for _ in range(4)
            )

        def forward(s, x):
            w, i = s.gate(x).softmax(-1).topk(2, -1)
            out = torch.zeros_like(x)
            for n, e in enumerate(s.experts):
                m = i == n
                if m.any():
                    sel = m.any(-1)
                    out[sel] += e(x[sel]) * (w * m).sum(-1)[sel].unsqueeze(-1)
            return out

    return Net([Block(ffn=MoE()) for _ in range(3)]), ids(), None


@design
def batchnorm():
    class BN(nn.BatchNorm1d):
        def forward(s, x):
            return super().forward(x.mT).mT

    return Net([Block(norm=BN, causal=False) for _ in range(3)], pos=True).train(), ids(), None


@design
def set_without_positions():
    return Net([Block(causal=False) for _ in range(3)], pos=False), ids(), None


@design
def prefix_lm():
    class PA(Attn):
        def forward(self, x, mask=None):
            b, t, d = x.shape
            q, k, v = self.qkv(x).view(b, t, 3, H, d // H).permute(2, 0, 3, 1, 4)
            m = torch.ones(t, t).tril().bool()
            m[:, :4] = True
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=m)
            return self.o(y.transpose(1, 2).reshape(b, t, d))

    bs = [Block() for _ in range(3)]
    for b in bs:
        b.attn = PA()
    return Net(bs), ids(), None


@design
def bidirectional_with_padding():
    class Enc(Net):
        def forward(self, input_ids, attention_mask=None):
            m = torch.ones_like(input_ids).bool() if attention_mask is None else attention_mask.bool()
            x = self.emb(input_ids) + self.wpe(torch.arange(input_ids.shape[1]))
            for b in self.blocks:
                x = b(x, m)
            return self.head(self.ln(x))

    m = torch.ones(3, 10, dtype=torch.long)
    m[0, 7:] = 0
    return Enc([Block(causal=False) for _ in range(3)]), {"input_ids": ids() * m, "attention_mask": m}, None


@design
def rezero():
    return Net([Block(alpha=0.0) for _ in range(4)]), ids(), None


@design
def layerscale():
    return Net([Block(scale=1e-6) for _ in range(4)]), ids(), None


@design
def lora_frozen():
    class LoRA(nn.Module):
        def __init__(s, base):
            super().__init__()
            s.base = base
            s.A = nn.Parameter(torch.randn(2, base.in_features) * 0.1)
            s.B = nn.Parameter(torch.zeros(base.out_features, 2))

        def forward(s, x):
            return s.base(x) + x @ s.A.T @ s.B.T

    m = Net([Block() for _ in range(3)])
    for p in m.parameters():
        p.requires_grad_(False)
    for b in m.blocks:
        b.attn.qkv = LoRA(b.attn.qkv)
    return m, ids(), None


@design
def tied_embeddings():
    return (
        Net([Block() for _ in range(3)], tied=True),
        ids(),
        lambda m, x: F.cross_entropy(m(x)[:, :-1].flatten(0, 1) * 0.1, x[:, 1:].flatten()),
    )


@design
def stochastic_depth():
    return Net([Block(drop=0.3) for _ in range(4)]).train(), ids(), None


@design
def registers():
    return Net([Block(causal=False) for _ in range(3)], extra=3), ids(), None


@design
def linear_causal():
    return Net([Block(kind="linear") for _ in range(3)]), ids(), None


@design
def linear_both():
    return Net([Block(kind="linear", causal=False) for _ in range(3)]), ids(), None


@design
def sigmoid_attention():
    return Net([Block(kind="sigmoid") for _ in range(3)]), ids(), None


@design
def relu_squared():
    return Net([Block(kind="relu", causal=False) for _ in range(3)]), ids(), None


@design
def sinks():
    return Net([Block(sinks=True) for _ in range(3)]), ids(), None


@design
def softmax_one():
    return Net([Block(kind="one", causal=False) for _ in range(3)]), ids(), None


@design
def heads_pruned():
    return Net([Block(kept=[1, 1, 0, 1] if i == 1 else [1, 1, 1, 1]) for i in range(3)]), ids(), None


@design
def parallel_blocks():
    return Net([Block(parallel=True) for _ in range(3)]), ids(), None


@design
def alternating_windows():
    class W(Attn):
        def __init__(self, w):
            super().__init__()
            self.w = w

        def forward(self, x, mask=None):
            b, t, d = x.shape
            q, k, v = self.qkv(x).view(b, t, 3, H, d // H).permute(2, 0, 3, 1, 4)
            i = torch.arange(t)
            m = (i[:, None] >= i) & (i[:, None] - i < self.w)
            return self.o(
                F.scaled_dot_product_attention(q, k, v, attn_mask=m).transpose(1, 2).reshape(b, t, d)
            )

    bs = [Block() for _ in range(4)]
    for i, b in enumerate(bs):
        b.attn = W(3 if i % 2 == 0 else 99)
    return Net(bs), ids(), None


@design
def one_global_of_four():
    m, x, _ = alternating_windows()
    for i, b in enumerate(m.blocks):
        b.attn.w = 99 if i == 3 else 3
    return m, x, None


@design
def nope_every_third():
    class R(Attn):
        def __init__(self, rope):
            super().__init__()
            self.rope = rope

        def forward(self, x, mask=None):
            b, t, d = x.shape
            q, k, v = self.qkv(x).view(b, t, 3, H, d // H).permute(2, 0, 3, 1, 4)
            if self.rope:
                th = torch.arange(t)[:, None] * 100.0 ** -(torch.arange(3) / 3)
                c, s = th.cos(), th.sin()
                rot = lambda u: torch.cat(
                    [u[..., :3] * c - u[..., 3:] * s, u[..., :3] * s + u[..., 3:] * c], -1
                )
                q, k = rot(q), rot(k)
            return self.o(
                F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
            )

    bs = [Block() for _ in range(4)]
    for i, b in enumerate(bs):
        b.attn = R(i != 3)
    return Net(bs, pos=False), ids(), None


@design
def first_block_dense_then_moe():
    m, x, _ = moe_topk()
    m.blocks[0].ff = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))
    return m, x, None


@design
def hybrid_conv_attention():
    class Conv(nn.Module):
        def __init__(s):
            super().__init__()
            s.n = nn.LayerNorm(D)
            s.c = nn.Conv1d(D, D, 4, groups=D, padding=3)
            s.p = nn.Linear(D, D)

        def forward(s, x):
            return x + s.p(F.silu(s.c(s.n(x).mT)[..., : x.shape[1]].mT))

    return Net([Conv(), Conv(), Conv(), Block()]), ids(), None


@design
def zero_init_output():
    m = Net([Block() for _ in range(3)])
    for b in m.blocks:
        nn.init.zeros_(b.attn.o.weight)
        nn.init.zeros_(b.ff[2].weight)
    return m, ids(), None


@design
def deepnorm_post():
    class P(Block):
        def forward(self, x, mask=None):
            x = self.n1(x * 1.7 + self.attn(x))
            return self.n2(x * 1.7 + self.ff(x))

    return Net([P(causal=False) for _ in range(4)]), ids(), None


@design
def unet_skips():
    class U(Net):
        def forward(self, x):
            x = self.emb(x) + self.wpe(torch.arange(x.shape[1]))
            held = []
            for b in self.blocks[:2]:
                x = b(x)
                held.append(x)
            for b in self.blocks[2:]:
                x = b(x + held.pop())
            return self.head(self.ln(x))

    return U([Block() for _ in range(4)]), ids(), None


@design
def early_exit_heads():
    class E(Net):
        def __init__(self, bs):
            super().__init__(bs)
            self.exits = nn.ModuleList(nn.Linear(D, 40) for _ in bs)

        def forward(self, x):
            x = self.emb(x) + self.wpe(torch.arange(x.shape[1]))
            out = []
            for b, e in zip(self.blocks, self.exits):
                x = b(x)
                out.append(e(x))
            return out

    return E([Block() for _ in range(3)]), ids(), None


@design
def byol():
    class B(nn.Module):
        def __init__(s):
            super().__init__()
            s.online = Net([Block(causal=False) for _ in range(2)])
            s.target = copy.deepcopy(s.online).requires_grad_(False)

        def forward(s, x):
            with torch.no_grad():
                t = s.target(x)
            return (s.online(x) - t).square().mean((1, 2))

    return B(), ids(), None


@design
def cls_classifier():
    class C(Net):
        def __init__(s, bs):
            super().__init__(bs)
            s.cls = nn.Parameter(torch.zeros(1, 1, D))
            s.head = nn.Linear(D, 3)

        def forward(s, x):
            x = torch.cat([s.cls.expand(len(x), -1, -1), s.emb(x) + s.wpe(torch.arange(x.shape[1]))], 1)
            for b in s.blocks:
                x = b(x)
            return s.head(s.ln(x)[:, 0])

    return C([Block(causal=False) for _ in range(3)]), ids(), None


@design
def last_token_classifier_causal():
    class C(Net):
        def __init__(s, bs):
            super().__init__(bs)
            s.head = nn.Linear(D, 3)

        def forward(s, x):
            x = s.emb(x) + s.wpe(torch.arange(x.shape[1]))
            for b in s.blocks:
                x = b(x)
            return s.head(s.ln(x)[:, -1])

    return C([Block() for _ in range(3)]), ids(), None


@design
def half_precision():
    return Net([Block() for _ in range(3)]).bfloat16(), ids(), None


@design
def frozen_lower_blocks():
    m = Net([Block() for _ in range(4)])
    for p in [*m.emb.parameters(), *m.blocks[0].parameters(), *m.blocks[1].parameters()]:
        p.requires_grad_(False)
    return m, ids(), None


@design
def stop_gradient_embedding():
    class S(Net):
        def forward(self, x):
            x = self.emb(x).detach() + self.wpe(torch.arange(x.shape[1]))
            for b in self.blocks:
                x = b(x)
            return self.head(self.ln(x))

    m = S([Block() for _ in range(3)])
    m.emb.weight.requires_grad_(False)
    return m, ids(), None


@design
def query_key_norm():
    class Q(Attn):
        def __init__(s):
            super().__init__()
            s.qn, s.kn = nn.LayerNorm(D // H), nn.LayerNorm(D // H)

        def forward(self, x, mask=None):
            b, t, d = x.shape
            q, k, v = self.qkv(x).view(b, t, 3, H, d // H).permute(2, 0, 3, 1, 4)
            return self.o(
                F.scaled_dot_product_attention(self.qn(q), self.kn(k), v, is_causal=True)
                .transpose(1, 2)
                .reshape(b, t, d)
            )

    bs = [Block() for _ in range(3)]
    for b in bs:
        b.attn = Q()
    return Net(bs), ids(), None


@design
def trained_heads_differ():
    m = Net([Block() for _ in range(4)])
    opt = torch.optim.Adam(m.parameters(), 3e-3)
    x = torch.randint(40, (8, 12), generator=g(3))
    for _ in range(40):
        opt.zero_grad()
        F.cross_entropy(m(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
        opt.step()
    return m, x[:3], None


@design
def scan_rnn_blocks():
    class R(nn.Module):
        def __init__(s):
            super().__init__()
            s.n = nn.LayerNorm(D)
            s.r = nn.GRU(D, D, batch_first=True)

        def forward(s, x):
            return x + s.r(s.n(x))[0]

    return Net([R() for _ in range(3)], pos=False), ids(), None


@design
def bidirectional_lstm_blocks():
    class R(nn.Module):
        def __init__(s):
            super().__init__()
            s.n = nn.LayerNorm(D)
            s.r = nn.LSTM(D, D // 2, batch_first=True, bidirectional=True)

        def forward(s, x):
            return x + s.r(s.n(x))[0]

    return Net([R() for _ in range(3)], pos=False), ids(), None


@design
def mlp_mixer():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.n1, s.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
            s.t = nn.Sequential(nn.Linear(10, 20), nn.GELU(), nn.Linear(20, 10))
            s.c = nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D))

        def forward(s, x):
            x = x + s.t(s.n1(x).mT).mT
            return x + s.c(s.n2(x))

    return Net([M() for _ in range(3)], pos=False), ids(), None


@design
def first_norm_only_in_first_block():
    m = Net([Block() for _ in range(4)])
    m.blocks[0].n1 = nn.Identity()
    return m, ids(), None


@design
def prelayernorm_skipless_shaped():
    class S(Block):
        def forward(self, x, mask=None):
            x = 0.7 * x + 0.3 * self.attn(x)
            return self.ff(self.n2(x))

    return Net([S() for _ in range(3)]), ids(), None


@design
def perceiver_bottleneck():
    class P(nn.Module):
        def __init__(s):
            super().__init__()
            s.emb = nn.Embedding(40, D)
            s.pos = nn.Embedding(32, D)
            s.lat = nn.Parameter(torch.randn(5, D))
            s.ca = nn.MultiheadAttention(D, H, batch_first=True)
            s.blocks = nn.ModuleList([Block(causal=False) for _ in range(3)])
            s.head = nn.Linear(D, 7)

        def forward(s, x):
            e = s.emb(x) + s.pos(torch.arange(x.shape[1]))
            z = s.lat.expand(len(x), -1, -1)
            z = z + s.ca(z, e, e)[0]
            for b in s.blocks:
                z = b(z)
            return s.head(z.mean(1))

    return P(), ids(), None


@design
def weight_tied_pairs():
    bs = [Block() for _ in range(4)]
    bs[1] = bs[0]
    bs[3] = bs[2]

    class TyingNet(Net):
        pass

    return TyingNet(bs), ids(), None


@design
def depth_scaled_init():
    m = Net([Block() for _ in range(4)])
    for i, b in enumerate(m.blocks):
        b.attn.o.weight.data.mul_(1 / (i + 1))
        b.ff[2].weight.data.mul_(1 / (i + 1))
    return m, ids(), None


@design
def xl_temperature_per_layer():
    m = Net([Block() for _ in range(4)])
    for i, b in enumerate(m.blocks):
        b.attn.qkv.weight.data[:D].mul_(1 + i)
    return m, ids(), None


@design
def frozen_gates_sparse_channels():
    m = Net([Block() for _ in range(3)])
    m.blocks[2].ff[0].bias.data[:5] = -9
    return m, ids(), None
