"""21 of 1,500 tokens hold nine tenths of the energy: that is said, and the others are judged without them."""

import torch

import rankscope as rs

torch.manual_seed(22)
state = torch.randn(1500, 32, dtype=torch.float64)
others = state[21:].square().sum()
state[:21] *= (9 * others / state[:21].square().sum()).sqrt()
assert abs(state[:21].square().sum() / state.square().sum() - 0.9) < 1e-12
found = rs.scan_states(state.expand(1, 1, 1500, 32))
assert found.verdict == "massive token"
numbers = found.verdict.stacks[0]["layers"][0]["numbers"]
assert numbers["massive_tokens[5x_others]"] == 21
unit = torch.nn.functional.normalize(state[21:], dim=-1)
truth = float((unit - unit.mean(dim=0)).norm() / 1479**0.5)
assert abs(numbers["residual_ratio[frobenius,mean,unit,others]"] / truth - 1) < 1e-9
