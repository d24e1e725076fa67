"""The encoder of DETR: tokens before texts, and positions that queries and keys get and values do not."""

import torch
from torch import nn

import rankscope as rs


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(24, 3, dropout=0.1)
        self.linear1, self.linear2 = nn.Linear(24, 40), nn.Linear(40, 24)
        self.norm1, self.norm2 = nn.LayerNorm(24), nn.LayerNorm(24)
        self.dropout = nn.Dropout(0.1)

    def forward(self, src: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        q = k = src + pos
        src = self.norm1(src + self.dropout(self.self_attn(q, k, value=src, need_weights=False)[0]))
        return self.norm2(src + self.dropout(self.linear2(self.linear1(src).relu())))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.places = nn.Parameter(torch.rand(50, 24))

    def forward(self, src: torch.Tensor) -> torch.Tensor:
        pos = self.places[: len(src)].unsqueeze(1).repeat(1, src.shape[1], 1)
        for layer in self.layers:
            src = layer(src, pos=pos)
        return src


torch.manual_seed(3)
model = Encoder().double().eval()
states: list[torch.Tensor] = []
model.layers[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for layer in model.layers:
    layer.register_forward_hook(lambda _, args, out: states.append(out))
with rs.record(model) as seen:
    model(torch.randn(8, 2, 24).double())
truth = torch.stack(states).transpose(1, 2)
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
assert found.network.longest == 50  # as many places as the model has
assert all(block.covered == 1.0 for block in found.recognised)
for tokens, texts in ((13, 3), (5, 1)):
    states.clear()
    with rs.record(model) as other:
        model(torch.randn(tokens, texts, 24).double())
    truth_of_others = states.copy()
    for ours, theirs in zip(
        found.network.states(*found.embed(other.batches[0])), truth_of_others, strict=True
    ):
        torch.testing.assert_close(ours, theirs.transpose(0, 1), rtol=0, atol=1e-10)
bounds = rs.certify(seen, definitions=("frobenius",)).words
assert bounds
