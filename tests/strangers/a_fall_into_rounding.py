"""A residual that shrinks a hundredfold per layer: the factor is read off the layers above rounding alone."""

import torch

import rankscope as rs

draw = torch.Generator().manual_seed(29)
row, rest = (torch.randn(n, 32, generator=draw, dtype=torch.float64) for n in (1, 12))
states = torch.stack([row + 0.01**layer * rest for layer in range(12)])
unit = torch.nn.functional.normalize(states, dim=-1)
ratio = (unit - unit.mean(dim=1, keepdim=True)).norm(dim=(1, 2)) / 12**0.5
found = rs.scan_states(states, axes="layers,tokens,dim").verdict.stacks[0]
last = found["last_resolved"]
assert (found["verdict"], found["equal_from"]) == ("collapsing", last + 1)
assert ratio[last] > 1e-15
assert abs(found["rate"] / float(ratio[last] / ratio[0]) ** (1 / last) - 1) < 0.02
