"""A final norm that no tree knows: what the paths add up to is not called the output."""

import torch

import rankscope as rs


class L1Norm(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 9 * x / x.abs().sum(dim=-1, keepdim=True)


torch.manual_seed(26)
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
encoder = torch.nn.TransformerEncoder(layer, 2)
model, x = torch.nn.Sequential(encoder, L1Norm()).double().eval(), torch.randn(1, 5, 8, dtype=torch.float64)
assert (encoder(x) - model(x)).abs().max() > 0.5
found = rs.paths(model, inputs=x, top=0)
words = " ".join(found.words)
assert "is the output" not in words
assert "L1Norm" in words
