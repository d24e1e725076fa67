"""Shares of all path lengths add up to one, and length 0 is what skips alone carry."""

import torch

import rankscope as rs

net = rs.build(rs.Spec(layers=3, heads=2, dim=8, variant="san+skip"), torch.Generator().manual_seed(17))
x = rs.gaussian_tokens(5, 8, generator=torch.Generator().manual_seed(18))
rows = rs.paths(net, inputs=x).table.frame.filter(kind="length", definition="share[residual]").sort("length")
y, off = net(x), lambda z: z - z.mean(dim=-2, keepdim=True)
truth = (off(x) * off(y)).sum() / off(y).square().sum()
assert abs(rows["value"].sum() - 1) < 1e-9
assert abs(rows["value"][0] - float(truth)) < 1e-9
