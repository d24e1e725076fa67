"""nn.MultiheadAttention inside a block with LayerScale, and a boolean mask handed down to it."""

import torch
from torch import nn

import rankscope as rs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(24), nn.LayerNorm(24)
        self.mha = nn.MultiheadAttention(24, 3, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(24, 40), nn.SiLU(), nn.Linear(40, 24))
        self.ls1, self.ls2 = nn.Parameter(torch.rand(24)), nn.Parameter(torch.rand(24))

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor | None = None) -> torch.Tensor:
        h = self.n1(x)
        x = x + self.ls1 * self.mha(h, h, h, attn_mask=attn_mask, need_weights=False)[0]
        return x + self.ls2 * self.ff(self.n2(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, attn_mask=mask)
        return x.mean(dim=1)


torch.manual_seed(50)
model = Model().double().eval()
states: list[torch.Tensor] = []
model.blocks[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model.blocks:
    block.register_forward_hook(lambda _, args, out: states.append(out))
with rs.record(model) as seen:
    model(torch.randn(2, 8, 24).double(), mask=torch.ones(8, 8).triu(1).bool())
truth = torch.stack(states)
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
with rs.record(model) as other:
    model(torch.randn(3, 13, 24).double(), mask=torch.ones(13, 13).triu(1).bool())
truth = states.copy()
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
