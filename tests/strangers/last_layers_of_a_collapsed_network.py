"""The last layers alone of attention without skips: equal tokens, in every precision that can tell."""

import torch

import rankscope as rs

torch.manual_seed(5)
x, states = torch.randn(16, 32, dtype=torch.float64), []
for _ in range(14):
    q, k, v = torch.randn(3, 32, 32, dtype=torch.float64) / 32**0.5
    x = torch.softmax(x @ q @ (x @ k).T / 32**0.5, dim=-1) @ x @ v
    x = x / x.norm() * 16
    states.append(x + torch.randn(16, 32, dtype=torch.float64) * 1e-16)
last = torch.stack(states[-6:])
assert (last - last.mean(dim=-2, keepdim=True)).norm(dim=(1, 2)).max() < 1e-13
for dtype in (torch.float64, torch.float32, torch.float16):
    found = rs.scan_states(last.to(dtype), axes="layers,tokens,dim")
    assert found.verdict == "collapsed", (dtype, str(found))
assert rs.scan_states(last.bfloat16(), axes="layers,tokens,dim").verdict == "undecided"
