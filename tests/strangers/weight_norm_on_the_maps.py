"""Maps whose weights are made on the fly, by torch's weight_norm and spectral_norm."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import rankscope as rs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2, self.mha = (
            nn.LayerNorm(24),
            nn.LayerNorm(24),
            nn.MultiheadAttention(24, 3, batch_first=True),
        )
        self.out = weight_norm(nn.Linear(24, 24))
        self.up, self.down = spectral_norm(nn.Linear(24, 48)), nn.Linear(48, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.n1(x)
        x = x + self.out(self.mha(h, h, h)[0])
        return x + self.down(torch.relu(self.up(self.n2(x))))


torch.manual_seed(55)
model = nn.Sequential(*(Block() for _ in range(2))).double().eval()
states: list[torch.Tensor] = []
model[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model:
    block.register_forward_hook(lambda _, args, out: states.append(out))
with rs.record(model) as seen:
    model(torch.randn(2, 7, 24).double())
truth = torch.stack(states).detach()
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
