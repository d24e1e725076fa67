"""torch's default layout: tokens are the first axis, texts the second."""

import torch

import rankscope as rs

torch.manual_seed(0)
model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32), 2).eval()
x = torch.randn(24, 3, 16)
rows = rs.scan(model, inputs=x, measures=["residual_ratio[frobenius,mean]"]).table.frame
for layer, state in enumerate([x, model.layers[0](x), model(x)]):
    off = state - state.mean(dim=0)
    truth = off.norm(dim=(0, 2)) / state.norm(dim=(0, 2))
    seen = rows.filter(layer=layer, site="block", definition="residual_ratio[frobenius,mean]").sort("sample")
    torch.testing.assert_close(seen["value"].to_torch(), truth.double(), rtol=1e-5, atol=0)
