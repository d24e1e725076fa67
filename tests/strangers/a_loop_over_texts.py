"""Attention in a Python loop over the texts, each cut to its own length: scanned, and not claimed to be more."""

import pytest
import torch
from torch import nn

import rankscope as rs
from rankscope.errors import RankscopeError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n, self.qkv, self.o = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = []
        for text in x:
            kept = int((text.abs().sum(dim=-1) > 0).sum())
            q, k, v = self.qkv(self.n(text[:kept])).chunk(3, dim=-1)
            mixed = torch.cummax((q @ k.T / 4).softmax(dim=-1), dim=-1).values @ v
            rows.append(torch.cat([text[:kept] + self.o(mixed), text[kept:]]))
        return torch.stack(rows)


torch.manual_seed(76)
model = nn.Sequential(*(Block() for _ in range(2))).double().eval()
x = torch.randn(2, 8, 16).double()
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
with pytest.raises(RankscopeError, match=r"a_loop_over_texts\.py:\d+"):
    rs.certify(seen)
