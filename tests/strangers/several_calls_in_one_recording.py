"""Three calls of different sizes and lengths inside one with, and the same as a function of the model."""

import torch
from torch import nn

import rankscope as rs

torch.manual_seed(77)
layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
calls = [torch.randn(texts, tokens, 16).double() for texts, tokens in ((2, 9), (1, 5), (3, 7))]
with rs.record(model) as seen:
    for x in calls:
        model(x)
truth = []
for x in calls:
    state = model(x)
    truth += ((state - state.mean(dim=1, keepdim=True)).norm(dim=(1, 2)) / state.norm(dim=(1, 2))).tolist()
for found in (
    rs.scan(seen),
    rs.scan(model, inputs=calls),
    rs.scan(model, call=lambda m: [m(x) for x in calls]),
):
    rows = found.table.frame.filter(site="block", layer=2, definition="residual_ratio[frobenius,mean]")
    torch.testing.assert_close(rows.sort("sample")["value"].to_list(), truth, rtol=1e-6, atol=0)
