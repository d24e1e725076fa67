"""A DataLoader of pairs (features, label) with a last batch that is smaller, scanned as it comes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rankscope as rs


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder, self.head = (
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            nn.Linear(16, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).mean(dim=1))


torch.manual_seed(72)
model, x = Model().double().eval(), torch.randn(7, 9, 16).double()
loader = DataLoader(TensorDataset(x, torch.randint(3, (7,))), batch_size=3)
with rs.record(model) as seen:
    for features, labels in loader:
        nn.functional.cross_entropy(model(features), labels)
given = DataLoader(TensorDataset(x), batch_size=3)
for found in (
    rs.scan(seen),
    rs.scan(model, inputs=given),
    rs.scan(model, call=lambda m: [m(one) for (one,) in given]),
):
    rows = found.table.frame.filter(site="block", layer=2, definition="residual_ratio[frobenius,mean]")
    state = model.encoder(x)
    truth = (state - state.mean(dim=1, keepdim=True)).norm(dim=(1, 2)) / state.norm(dim=(1, 2))
    torch.testing.assert_close(rows.sort("sample")["value"].to_torch(), truth, rtol=1e-6, atol=0)
