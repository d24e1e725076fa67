"""What ablate calls attention alone, computed with torch's own attention and norm."""

import torch

import rankscope as rs

torch.manual_seed(14)
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 3).double().eval()
x = torch.randn(2, 9, 16, dtype=torch.float64)
rows = rs.ablate(model, inputs=x, variants=("san",), measures=("residual[frobenius,mean]",)).table.frame
state = x
for depth, block in enumerate(model.layers, start=1):
    state = block.norm1(block.self_attn(state, state, state, need_weights=False)[0])
    truth = (state - state.mean(dim=1, keepdim=True)).norm(dim=(1, 2))
    seen = rows.filter(layer=depth, definition="residual[frobenius,mean]").sort("sample")["value"]
    torch.testing.assert_close(seen.to_torch(), truth.detach(), rtol=1e-6, atol=1e-13)
