"""Six layers of causal attention: collapsing, at the rate that its own numbers have."""

import torch

import rankscope as rs

net = rs.build(rs.Spec(layers=6, heads=4, dim=64), torch.Generator().manual_seed(30))
x = rs.gaussian_tokens(32, 64, generator=torch.Generator().manual_seed(31))
cut = rs.ablate(net, inputs=x, variants=("san",), masks=("causal",)).cuts[0]
states = rs.with_mask(net, rs.parse_mask("causal")).states(x)
sizes = [(s.abs().sum(0).max() * s.abs().sum(1).max()).sqrt() for s in states]
rests = [((s - s.mean(0)).abs().sum(0).max() * (s - s.mean(0)).abs().sum(1).max()).sqrt() for s in states]
ratios = [float(rest / size) for rest, size in zip(rests, sizes, strict=True)]
assert cut.verdict == "collapsing"
assert abs(cut.rate / (ratios[6] / ratios[0]) ** (1 / 6) - 1) < 1e-9
