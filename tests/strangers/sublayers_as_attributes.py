"""Attention and MLP of every layer as attributes with numbers, norms after them, a mean at the end."""

import torch
from torch import nn
from torch.nn import functional

import rankscope as rs


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(30, 16), nn.Linear(16, 3)
        self.attn1, self.attn2 = (nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))
        self.up1, self.up2 = nn.Linear(16, 32), nn.Linear(16, 32)
        self.down1, self.down2 = nn.Linear(32, 16), nn.Linear(32, 16)
        self.n1, self.n2, self.n3, self.n4 = (nn.LayerNorm(16) for _ in range(4))

    def states(self, ids: torch.Tensor) -> list[torch.Tensor]:
        x = self.embed(ids)
        y = self.n1(x + self.attn1(x, x, x)[0])
        y = self.n2(y + self.down1(functional.relu(self.up1(y))))
        z = self.n3(y + self.attn2(y, y, y)[0])
        return [x, y, self.n4(z + self.down2(functional.relu(self.up2(z))))]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.states(ids)[-1].mean(dim=1))


torch.manual_seed(82)
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
