"""A mixer of one's own, written as a subclass of softmax: it runs, and nothing is proven of it."""

import pytest
import torch

import rankscope as rs
from rankscope.errors import RankscopeError
from rankscope.network import Attention, Softmax


class Hardmax(Softmax):
    def forward(self, *given: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        maps = super().forward(*given, **more)
        return (maps == maps.amax(dim=-1, keepdim=True)).to(maps.dtype)


spec = rs.Spec(layers=3, heads=1, dim=8)
net = rs.build(spec, torch.Generator().manual_seed(10))
x = rs.gaussian_tokens(6, 8, generator=torch.Generator().manual_seed(11))
soft = net(x)
for part in net.modules():
    if isinstance(part, Attention):
        part.mixer.__class__ = Hardmax
assert (net(x) - soft).norm() > 0.1  # it runs, and is another network
for call in (
    lambda: rs.split_states(net, x),
    lambda: rs.certify(net, inputs=x),
    lambda: rs.paths(net, inputs=x),
):
    with pytest.raises(RankscopeError, match="Hardmax"):
        call()
