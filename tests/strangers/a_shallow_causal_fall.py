"""A fall of .98 to .11 in six layers is a collapse on its way, not its absence."""

import torch

import rankscope as rs

torch.manual_seed(21)
fall = (0.98, 0.65, 0.50, 0.39, 0.23, 0.17, 0.11)
row, rest = torch.randn(1, 64, dtype=torch.float64), torch.randn(24, 64, dtype=torch.float64)
row, rest = row / row.norm(), rest - rest.mean(dim=0)
rest = rest / rest.norm() * 24**0.5
states = torch.stack([(1 - r * r) ** 0.5 * row + r * rest for r in fall])
seen = (states - states.mean(dim=1, keepdim=True)).norm(dim=(1, 2)) / states.norm(dim=(1, 2))
torch.testing.assert_close(seen, torch.tensor(fall, dtype=torch.float64), rtol=1e-9, atol=0)
assert rs.scan_states(states, axes="layers,tokens,dim").verdict == "collapsing"
