"""minGPT: its own GELU, a buffer of ones below the diagonal, blocks in a ModuleDict, float32 as it is trained."""

import math

import torch
from torch import nn
from torch.nn import functional as F

import rankscope as rs


class NewGELU(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class CausalSelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(24, 72), nn.Linear(24, 24)
        self.register_buffer("bias", torch.tril(torch.ones(40, 40)).view(1, 1, 40, 40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.size()
        q, k, v = (part.view(B, T, 4, C // 4).transpose(1, 2) for part in self.c_attn(x).split(24, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(24), CausalSelfAttention(), nn.LayerNorm(24)
        parts = {"c_fc": nn.Linear(24, 96), "c_proj": nn.Linear(96, 24), "act": NewGELU()}
        self.mlp = nn.ModuleDict(parts | {"dropout": nn.Dropout(0.1)})
        m = self.mlp
        self.mlpf = lambda x: m.dropout(m.c_proj(m.act(m.c_fc(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlpf(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(50, 24), nn.Embedding(40, 24), nn.Dropout(0.1)
        self.h, self.ln_f = nn.ModuleList(Block() for _ in range(2)), nn.LayerNorm(24)
        self.lm_head = nn.Linear(24, 50, bias=False)

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(idx.size(1)).unsqueeze(0)))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


torch.manual_seed(42)
model = GPT().eval()
states: list[torch.Tensor] = []
model.h[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model.h:
    block.register_forward_hook(lambda _, args, out: states.append(out))
with rs.record(model) as seen:
    model(torch.randint(50, (2, 10)))
truth = torch.stack(states).double()
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
with rs.record(model) as other:
    model(torch.randint(50, (4, 15)))
truth = states.copy()  # in float32, so ten digits are not to be had
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
