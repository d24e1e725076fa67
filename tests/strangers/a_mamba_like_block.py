"""A block with a selective scan, then an MLP: the scan is run as it is, and no bound is claimed of it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rankscope as rs
from rankscope.errors import RankscopeError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n, self.i, self.dt, self.o = (
            nn.RMSNorm(16, eps=1e-6),
            nn.Linear(16, 32),
            nn.Linear(16, 16),
            nn.Linear(16, 16),
        )
        self.conv = nn.Conv1d(16, 16, 3, padding=2, groups=16)
        self.n2, self.f = nn.LayerNorm(16), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, z = self.i(self.n(x)).chunk(2, -1)
        u = F.silu(self.conv(u.mT)[..., : x.shape[1]].mT)
        d, s, ys = F.softplus(self.dt(u)), torch.zeros_like(u[:, 0]), []
        for t in range(x.shape[1]):
            s = torch.exp(-d[:, t]) * s + d[:, t] * u[:, t]
            ys.append(s)
        x = x + self.o(torch.stack(ys, 1) * F.silu(z))
        return x + self.f(self.n2(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(30, 16), nn.ModuleList(Block() for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x


torch.manual_seed(75)
model = Model().double().eval()
ids = torch.randint(30, (2, 8))
states: list[torch.Tensor] = []
model.layers[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model.layers:
    block.register_forward_hook(lambda _, args, out: states.append(out))
with rs.record(model) as seen:
    model(ids)
truth = torch.stack(states)
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
with pytest.raises(RankscopeError, match=r"a_mamba_like_block\.py:\d+"):
    rs.certify(seen)
found = rs.translate(seen)
states.clear()
with rs.record(model) as other:
    model(torch.randint(30, (2, 8)))
truth = states.copy()
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
told = rs.ablate(seen)
assert "attention alone" not in " ".join(told.words).lower()
assert told.subject.as_it_is[0].where in told.words[0]
