"""ALiBi as a float mask, queries, keys and values by unbind, norms behind the skips."""

import torch
from torch import nn
from torch.nn import functional as F

import rankscope as rs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2, self.qkv, self.o = (
            nn.LayerNorm(24),
            nn.LayerNorm(24),
            nn.Linear(24, 72),
            nn.Linear(24, 24),
        )
        self.f = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24))
        self.register_buffer("slopes", torch.tensor([0.5, 0.25, 0.125]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 3, -1).permute(2, 0, 3, 1, 4).unbind(0)
        i = torch.arange(t)
        bias = -self.slopes[:, None, None] * (i[:, None] - i).abs() + torch.full((t, t), float("-inf")).triu(
            1
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(x)[None].expand(b, -1, -1, -1))
        x = self.n1(x + self.o(y.transpose(1, 2).flatten(2)))
        return self.n2(x + self.f(x))


torch.manual_seed(53)
model = nn.Sequential(nn.Embedding(40, 24), nn.Sequential(*(Block() for _ in range(3)))).double().eval()
states: list[torch.Tensor] = []
model[1][0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model[1]:
    block.register_forward_hook(lambda _, args, out: states.append(out))
with rs.record(model) as seen:
    model(torch.randint(40, (2, 9)))
truth = torch.stack(states)
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
with rs.record(model) as other:
    model(torch.randint(40, (3, 16)))
truth = states.copy()
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
