"""A skip of one's own: half of it runs, so nothing may be proven as if all of it did."""

import pytest
import torch

import rankscope as rs
from rankscope.errors import RankscopeError
from rankscope.network import Skip


class HalfSkip(Skip):
    def forward(self, x: torch.Tensor, context: rs.Context) -> torch.Tensor:
        return 0.5 * x + self.inner(x, context)


net = rs.build(rs.Spec(layers=2, heads=2, dim=8, variant="san+skip"), torch.Generator().manual_seed(12))
x = rs.gaussian_tokens(6, 8, generator=torch.Generator().manual_seed(13))
before = net(x)
for part in net.modules():
    if isinstance(part, Skip):
        part.__class__ = HalfSkip
assert (net(x) - before).norm() > 0.1
for call in (
    lambda: rs.split_states(net, x),
    lambda: rs.certify(net, inputs=x),
    lambda: rs.paths(net, inputs=x),
):
    with pytest.raises(RankscopeError, match="HalfSkip"):
        call()
