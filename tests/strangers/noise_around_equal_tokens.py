"""Rounding noise around equal tokens, in every precision: collapsed where that can be told, undecided where not."""

import torch

import rankscope as rs

for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
    draw = torch.Generator().manual_seed(28)
    row = torch.randn(6, 3, 1, 64, generator=draw, dtype=torch.float64)
    noise = torch.finfo(dtype).eps * torch.randn(6, 3, 16, 64, generator=draw, dtype=torch.float64)
    states = (row * (1 + noise)).to(dtype)
    off = states.double() - states.double().mean(dim=2, keepdim=True)
    assert off.norm() / states.double().norm() < 2 * torch.finfo(dtype).eps
    verdict = rs.scan_states(states).verdict
    assert verdict == ("undecided" if dtype == torch.bfloat16 else "collapsed"), (dtype, verdict.words)
