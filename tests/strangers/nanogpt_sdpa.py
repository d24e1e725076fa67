"""nanoGPT with torch's own attention, in a step of training: the loss is called, not the model alone."""

import torch
from torch import nn
from torch.nn import functional as F

import rankscope as rs


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj, self.heads = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), heads
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(dim), Attention(dim, heads), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts = {"wte": nn.Embedding(65, 24), "wpe": nn.Embedding(32, 24), "ln_f": nn.LayerNorm(24)}
        self.transformer = nn.ModuleDict(parts | {"h": nn.ModuleList(Block(24, 3) for _ in range(2))})
        self.lm_head = nn.Linear(24, 65, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx: torch.Tensor, targets: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        x = self.transformer.wte(idx) + self.transformer.wpe(torch.arange(idx.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, 65), targets.view(-1))


torch.manual_seed(41)
model, ids = GPT().double().eval(), torch.randint(65, (2, 13))
states: list[torch.Tensor] = []
model.transformer.h[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model.transformer.h:
    block.register_forward_hook(lambda _, args, out: states.append(out))
with rs.record(model) as seen:
    _, loss = model(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
truth = torch.stack(states).detach()
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
loss.backward()
assert all(parameter.grad is not None for parameter in model.transformer.h.parameters())
found = rs.translate(seen)
states.clear()
with rs.record(model) as other:
    model(torch.randint(65, (3, 17)))
truth = states.copy()
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def without_mlps(x: torch.Tensor) -> torch.Tensor:
    for block in model.transformer.h:
        x = x + block.attn(block.ln_1(x))
    return x


rows = rs.ablate(seen, variants=["san+skip"], measures=["residual[frobenius,mean]"]).table.frame
last = rows.filter(layer=2, definition="residual[frobenius,mean]").sort("sample")["value"].to_torch()
with torch.no_grad():
    x = model.transformer.wte(ids[:, :-1]) + model.transformer.wpe(torch.arange(12))
    state = without_mlps(x)
truth = (state - state.mean(dim=1, keepdim=True)).norm(dim=(1, 2))
torch.testing.assert_close(last, truth, rtol=1e-9, atol=0)
