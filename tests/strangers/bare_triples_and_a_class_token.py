"""Norm, attention and MLP in bare triples, and only the class token goes on."""

import torch
from torch import nn
from torch.nn import functional

import rankscope as rs


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.token = nn.Linear(5, 16), nn.Parameter(torch.randn(1, 1, 16))
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [nn.LayerNorm(16), nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 16)]
            )
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)

    def states(self, x: torch.Tensor) -> list[torch.Tensor]:
        states = [torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], dim=1)]
        for norm, attention, mlp in self.layers:
            h = norm(states[-1])
            x = attention(h, h, h)[0] + states[-1]
            states.append(functional.gelu(mlp(x)) + x)
        return states

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.states(x)[-1][:, 0]))


torch.manual_seed(83)
model = Model().double().eval().requires_grad_(False)
given = torch.randn(2, 8, 5).double()
with rs.record(model) as seen:
    model(given)
truth = torch.stack(model.states(given))
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
given = torch.randn(3, 13, 5).double()
with rs.record(model) as other:
    model(given)
ours = found.network.states(*found.embed(other.batches[0]))
for one, theirs in zip(ours, model.states(given), strict=True):
    torch.testing.assert_close(one, theirs, rtol=0, atol=1e-10)
