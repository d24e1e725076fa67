"""How many texts run at a time, and in which order, moves no number."""

import torch

import rankscope as rs

torch.manual_seed(4)
model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16), 2).double().eval()
x = torch.randn(6, 7, 8, dtype=torch.float64)
state, turned = model(x), [6, 2, 0, 5, 1, 4, 3]
truth = (state - state.mean(dim=0)).norm(dim=(0, 2)) / state.norm(dim=(0, 2))
for size, order in ((1, range(7)), (3, range(7)), (7, range(7)), (2, turned)):
    rows = rs.scan(model, inputs=x[:, list(order)], batch_size=size).table.frame
    seen = rows.filter(layer=2, site="block", definition="residual_ratio[frobenius,mean]").sort("sample")
    torch.testing.assert_close(seen["value"].to_torch(), truth[list(order)], rtol=1e-10, atol=0)
