"""One map for queries, keys and values, cut by einops; RMSNorm and GELU by hand; then shares of paths."""

import math

import torch
from einops import rearrange
from torch import nn

import rankscope as rs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g1, self.g2 = nn.Parameter(torch.rand(24) + 0.5), nn.Parameter(torch.rand(24) + 0.5)
        self.qkv, self.out = nn.Linear(24, 72, bias=False), nn.Linear(24, 24)
        self.w1, self.w2 = nn.Linear(24, 50), nn.Linear(50, 24)

    def rms(self, x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = rearrange(self.qkv(self.rms(x, self.g1)), "b t (d three h) -> three b h t d", three=3, h=3)
        a = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(8)
        o = torch.einsum("bhij,bhjd->bhid", a.softmax(dim=-1), v)
        x = self.out(rearrange(o, "b h t d -> b t (h d)")) + x
        h = self.w1(self.rms(x, self.g2))
        return x + self.w2(0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))))


torch.manual_seed(49)
model = nn.Sequential(*(Block() for _ in range(2))).double().eval()
x = torch.randn(2, 9, 24).double()
states: list[torch.Tensor] = []
model[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model:
    block.register_forward_hook(lambda _, args, out: states.append(out))
with rs.record(model) as seen:
    model(x)
truth = torch.stack(states)
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
with rs.record(model) as other:
    model(torch.randn(4, 5, 24).double())
truth = states.copy()
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
rows = rs.paths(seen).table.frame.filter(kind="length", definition="share[residual]", sample=0)
assert abs(rows["value"].sum() - 1) < 1e-9
