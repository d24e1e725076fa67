"""A module whose blocks are attributes, not a list: a list of names is one stack, in that order."""

import torch

import rankscope as rs


class Averaging(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1, keepdim=True) + 0.6 * (x - x.mean(dim=1, keepdim=True))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in "abcdefghijklmnop":
            setattr(self, f"stage_{name}", Averaging())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in "abcdefghijklmnop":
            x = getattr(self, f"stage_{name}")(x)
        return x


torch.manual_seed(8)
x = 1 + torch.randn(2, 12, 16, dtype=torch.float64)
found = rs.scan(Model(), inputs=x, blocks=[f"stage_{name}" for name in "abcdefghijklmnop"])
assert found.verdict == "collapsing"
rows = found.table.frame.filter(site="block", sample=1, definition="residual_ratio[frobenius,mean]").sort(
    "layer"
)
off, mean = (x[1] - x[1].mean(dim=0)).norm(), (x[1].mean(dim=0).norm() * 12**0.5)
truth = [float(0.6**b * off / ((0.6**b * off) ** 2 + mean**2) ** 0.5) for b in range(17)]
torch.testing.assert_close(rows["value"].to_list(), truth, rtol=1e-9, atol=0)
