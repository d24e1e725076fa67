"""A Llama of one's own: grouped heads, rotary positions, norms of queries and keys, SwiGLU, angles made outside."""

import torch
from torch import nn
from torch.nn import functional as F

import rankscope as rs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(24, eps=1e-5), nn.RMSNorm(24, eps=1e-5)
        self.q_norm, self.k_norm = nn.RMSNorm(8, eps=1e-6), nn.RMSNorm(8, eps=1e-6)
        self.q, self.o = nn.Linear(24, 32, bias=False), nn.Linear(32, 24, bias=False)
        self.k, self.v = nn.Linear(24, 16, bias=False), nn.Linear(24, 16, bias=False)
        self.gate, self.up, self.down = nn.Linear(24, 48), nn.Linear(24, 48), nn.Linear(48, 24)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        h = self.norm1(x)
        q, k, v = (m(h).view(b, t, -1, 8).transpose(1, 2) for m in (self.q, self.k, self.v))
        q, k = self.q_norm(q), self.k_norm(k)
        q, k = (y * cos + torch.cat([-y[..., 4:], y[..., :4]], dim=-1) * sin for y in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(40, 24), nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.RMSNorm(24, eps=1e-5)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        angles = torch.outer(torch.arange(x.shape[1]).to(x), 1000.0 ** (-torch.arange(0, 8, 2).to(x) / 8))
        angles = torch.cat([angles, angles], dim=-1)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.norm(x) @ self.embed.weight.T


torch.manual_seed(52)
model = Model().double().eval()
states: list[torch.Tensor] = []
model.layers[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model.layers:
    block.register_forward_hook(lambda _, args, out: states.append(out))
with rs.record(model) as seen:
    model(input_ids=torch.randint(40, (2, 8)))
truth = torch.stack(states)
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
with rs.record(model) as other:
    model(input_ids=torch.randint(40, (3, 15)))
truth = states.copy()
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
