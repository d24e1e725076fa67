"""A low-rank update beside the query and value maps: one effective map each."""

import torch
from torch import nn
from torch.nn import functional as F

import rankscope as rs


class Lora(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 2, alpha: float = 4.0) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.a, self.b = nn.Linear(24, rank, bias=False), nn.Linear(rank, 24, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.scale * self.b(self.a(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(24), nn.LayerNorm(24)
        self.q, self.k, self.v, self.o = (nn.Linear(24, 24) for _ in range(4))
        self.f = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.n1(x)
        q, k, v = (m(h).unflatten(-1, (3, -1)).transpose(1, 2) for m in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.f(self.n2(x))


torch.manual_seed(54)
model = nn.Sequential(*(Block() for _ in range(2)))
for block in model:
    block.q, block.v = Lora(block.q), Lora(block.v)
model = model.double().eval()
states: list[torch.Tensor] = []
model[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model:
    block.register_forward_hook(lambda _, args, out: states.append(out))
with rs.record(model) as seen:
    model(torch.randn(2, 7, 24).double())
truth = torch.stack(states)
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
with rs.record(model) as other:
    model(torch.randn(3, 11, 24).double())
truth = states.copy()
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
