"""torch's encoder with src_key_padding_mask: True on padding, and texts of different lengths."""

import torch
from torch import nn

import rankscope as rs

torch.manual_seed(45)
layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
states: list[torch.Tensor] = []
model.layers[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model.layers:
    block.register_forward_hook(lambda _, args, out: states.append(out))
x, padding = torch.randn(3, 9, 16).double(), torch.arange(9) >= torch.tensor([[9], [6], [4]])
with rs.record(model) as seen:
    model(x, src_key_padding_mask=padding)
truth = torch.stack(states)
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
for text, tokens in enumerate((9, 6, 4)):  # padding is not measured
    real = truth[:, text, :tokens]
    ratio = (real - real.mean(dim=1, keepdim=True)).norm(dim=(1, 2)) / real.norm(dim=(1, 2))
    measured = rows.filter(sample=text).sort("layer")["value"].to_torch()
    torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
x, padding = torch.randn(2, 14, 16).double(), torch.arange(14) >= torch.tensor([[5], [14]])
with rs.record(model) as other:
    model(x, src_key_padding_mask=padding)
truth = states.copy()
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    for text, tokens in enumerate((5, 14)):
        torch.testing.assert_close(ours[text, :tokens], theirs[text, :tokens], rtol=0, atol=1e-10)
