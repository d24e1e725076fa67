"""A language model of one's own that takes ids as (tokens, texts)."""

import torch

import rankscope as rs


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.layers = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(16, 4, 32) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x


torch.manual_seed(3)
model = Model().eval()
ids = torch.randint(50, (12, 5))
rows = rs.scan(model, inputs=ids).table.frame
state = model(ids)
truth = (state - state.mean(dim=0)).norm(dim=(0, 2)) / state.norm(dim=(0, 2))
seen = rows.filter(layer=2, site="block", definition="residual_ratio[frobenius,mean]").sort("sample")["value"]
torch.testing.assert_close(seen.to_torch(), truth.double(), rtol=1e-5, atol=0)
