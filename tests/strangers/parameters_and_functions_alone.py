"""Parameters and functions, no modules at all: a causal model in one loop."""

import torch
from torch import nn
from torch.nn import functional

import rankscope as rs


def normed(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6) * gain


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.gains = nn.Parameter(torch.randn(30, 16)), nn.Parameter(torch.rand(2, 2, 16) + 0.5)
        self.qkv, self.out = (
            nn.Parameter(torch.randn(2, 48, 16) / 4),
            nn.Parameter(torch.randn(2, 16, 16) / 4),
        )
        self.up, self.down = (
            nn.Parameter(torch.randn(2, 32, 16) / 4),
            nn.Parameter(torch.randn(2, 16, 32) / 6),
        )

    def states(self, ids: torch.Tensor) -> list[torch.Tensor]:
        states = [self.table[ids]]
        for gain, qkv, out, up, down in zip(self.gains, self.qkv, self.out, self.up, self.down, strict=True):
            x = states[-1]
            parts = (normed(x, gain[0]) @ qkv.T).chunk(3, dim=-1)
            q, k, v = (one.unflatten(-1, (2, 8)).transpose(1, 2) for one in parts)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + mixed.transpose(1, 2).flatten(2) @ out.T
            states.append(x + functional.silu(normed(x, gain[1]) @ up.T) @ down.T)
        return states

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.states(ids)[-1] @ self.table.T


torch.manual_seed(84)
model = Model().double().eval().requires_grad_(False)
given = torch.randint(30, (2, 8))
with rs.record(model) as seen:
    model(given)
truth = torch.stack(model.states(given))
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
given = torch.randint(30, (3, 13))
with rs.record(model) as other:
    model(given)
ours = found.network.states(*found.embed(other.batches[0]))
for one, theirs in zip(ours, model.states(given), strict=True):
    torch.testing.assert_close(one, theirs, rtol=0, atol=1e-10)
