"""Causal mask and padding together, norms before, tokens first."""

import torch
from torch import nn

import rankscope as rs

torch.manual_seed(47)
layer = nn.TransformerEncoderLayer(16, 2, 32, norm_first=True)
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
states: list[torch.Tensor] = []
model.layers[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model.layers:
    block.register_forward_hook(lambda _, args, out: states.append(out))
x, mask = torch.randn(9, 2, 16).double(), torch.ones(9, 9).triu(1).bool()
padding = torch.arange(9) >= torch.tensor([[9], [6]])
with rs.record(model) as seen:
    model(x, mask=mask, src_key_padding_mask=padding)
truth = torch.stack(states).transpose(1, 2)
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
for text, tokens in enumerate((9, 6)):  # padding is not measured
    real = truth[:, text, :tokens]
    ratio = (real - real.mean(dim=1, keepdim=True)).norm(dim=(1, 2)) / real.norm(dim=(1, 2))
    measured = rows.filter(sample=text).sort("layer")["value"].to_torch()
    torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
x, mask = torch.randn(12, 3, 16).double(), torch.ones(12, 12).triu(1).bool()
padding = torch.arange(12) >= torch.tensor([[7], [12], [10]])
with rs.record(model) as other:
    model(x, mask=mask, src_key_padding_mask=padding)
truth = [state.transpose(0, 1) for state in states]
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    for text, tokens in enumerate((7, 12, 10)):
        torch.testing.assert_close(ours[text, :tokens], theirs[text, :tokens], rtol=0, atol=1e-10)
