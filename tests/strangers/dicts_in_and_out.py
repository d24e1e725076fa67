"""Blocks that take and return a dict, a model that takes a list of dicts, and a relu in place."""

import torch
from torch import nn
from torch.nn import functional as F

import rankscope as rs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n, self.a = nn.LayerNorm(24), nn.MultiheadAttention(24, 3, batch_first=True)
        self.f1, self.f2 = nn.Linear(24, 30), nn.Linear(30, 24)

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        h = self.n(batch["x"])
        x = batch["x"] + self.a(h, h, h, key_padding_mask=batch["padding"], need_weights=False)[0]
        h = self.f1(x)
        F.relu_(h)
        return {"x": x + self.f2(h), "padding": batch["padding"]}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for block in self.blocks:
            batch = block(batch)
        return batch


torch.manual_seed(56)
model = Model().double().eval()
states: list[torch.Tensor] = []
model.blocks[0].register_forward_pre_hook(lambda _, args: states.append(args[0]["x"]))
for block in model.blocks:
    block.register_forward_hook(lambda _, args, out: states.append(out["x"]))
with rs.record(model) as seen:
    model({"x": torch.randn(2, 7, 24).double(), "padding": torch.zeros(2, 7, dtype=torch.bool)})
truth = torch.stack(states)
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
with rs.record(model) as other:
    model({"x": torch.randn(3, 11, 24).double(), "padding": torch.zeros(3, 11, dtype=torch.bool)})
truth = states.copy()
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
