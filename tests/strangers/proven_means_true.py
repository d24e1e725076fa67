"""Certified bounds around residuals computed by hand."""

import math

import torch

import rankscope as rs

net = rs.build(rs.Spec(layers=4, heads=2, dim=16, variant="san+skip"), torch.Generator().manual_seed(15))
x = rs.gaussian_tokens(8, 16, generator=torch.Generator().manual_seed(16))
rows = rs.certify(net, inputs=x).table.frame.filter(definition="residual[frobenius,mean]").sort("layer")
for layer, state in enumerate(net.states(x)):
    truth = math.log(float((state - state.mean(dim=-2, keepdim=True)).norm()))
    row = rows.filter(layer=layer).to_dicts()[0]
    assert row["lower"] is None or row["lower"] <= truth + 1e-12
    assert row["upper"] is None or row["upper"] >= truth - 1e-12
assert rows["lower"].null_count() < len(rows)
