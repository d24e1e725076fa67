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
assert "21" in found.verdict.words
