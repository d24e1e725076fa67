"""Norms, attentions and MLPs each in a list of their own, used in one loop."""

import torch
from torch import nn
from torch.nn import functional

import rankscope as rs


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(30, 16), nn.Linear(16, 30)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
        self.attentions = nn.ModuleList(nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))
        self.ups = nn.ModuleList(nn.Linear(16, 32) for _ in range(2))
        self.downs = nn.ModuleList(nn.Linear(32, 16) for _ in range(2))

    def states(self, ids: torch.Tensor) -> list[torch.Tensor]:
        states = [self.embed(ids)]
        for i, attention in enumerate(self.attentions):
            h = self.norms[2 * i](states[-1])
            x = states[-1] + attention(h, h, h, need_weights=False)[0]
            states.append(x + self.downs[i](functional.gelu(self.ups[i](self.norms[2 * i + 1](x)))))
        return states

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.states(ids)[-1])


torch.manual_seed(81)
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
