"""A parallel block: attention and a fused SwiGLU read one norm and are added; rotary positions by complex numbers."""

import torch
from torch import nn
from torch.nn import functional as F

import rankscope as rs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = nn.RMSNorm(24, eps=1e-6)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(24, 24, bias=False) for _ in range(4))
        self.gate_up, self.down = nn.Linear(24, 80, bias=False), nn.Linear(40, 24, bias=False)

    def rope(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(x.shape[1]).to(x), 100.0 ** (-torch.arange(0, 8, 2).to(x) / 8))
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(z * torch.polar(torch.ones_like(angles), angles)[None, :, None]).flatten(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        h = self.n(x)
        q, k, v = (w(h).view(b, t, 3, -1) for w in (self.wq, self.wk, self.wv))
        q, k, v = (y.transpose(1, 2) for y in (self.rope(q), self.rope(k), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = self.wo(y.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.gate_up(h).chunk(2, -1)
        out += self.down(F.silu(gate) * up)
        return x + out


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(40, 24), nn.ModuleList(Block() for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return x


torch.manual_seed(51)
model = Model().double().eval()
states: list[torch.Tensor] = []
model.blocks[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model.blocks:
    block.register_forward_hook(lambda _, args, out: states.append(out))
with rs.record(model) as seen:
    model(torch.randint(40, (2, 8)))
truth = torch.stack(states)
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
with rs.record(model) as other:
    model(torch.randint(40, (3, 15)))
truth = states.copy()
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
