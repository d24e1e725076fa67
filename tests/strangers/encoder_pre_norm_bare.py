"""torch's encoder, norms before, texts first, called with features alone; then bounds that hold."""

import torch
from torch import nn

import rankscope as rs

torch.manual_seed(46)
layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
states: list[torch.Tensor] = []
model.layers[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model.layers:
    block.register_forward_hook(lambda _, args, out: states.append(out))
x = torch.randn(2, 9, 16).double()
with rs.record(model) as seen:
    model(x)
truth = torch.stack(states)
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
x = torch.randn(5, 4, 16).double()
with rs.record(model) as other:
    model(x)
truth = states.copy()
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
rows = rs.certify(found, inputs=x).table.frame.filter(definition="residual[frobenius,mean]")
for layer, state in enumerate(truth):
    residual = (state - state.mean(dim=1, keepdim=True)).norm(dim=(1, 2)).log()
    for row in rows.filter(layer=layer).sort("sample").to_dicts():
        here = float(residual.detach()[row["sample"]])
        assert row["lower"] is None or row["lower"] <= here + 1e-9
        assert row["upper"] is None or row["upper"] >= here - 1e-9
