"""A monitor in a plain loop: its number is the model's, NaN is logged and said once, the record outlives a restart."""

import math
import warnings

import torch

import rankscope as rs

torch.manual_seed(25)
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
model, x = torch.nn.TransformerEncoder(layer, 2).eval(), torch.randn(3, 7, 16)
monitor = rs.CollapseMonitor(model, x, every=1, output="run.json")
monitor.step(0)
y = model(x).detach().double()
off = y - y.mean(dim=1, keepdim=True)
size, rest = ((z.abs().sum(1).amax(-1) * z.abs().sum(2).amax(-1)).sqrt() for z in (y, off))
assert abs(monitor.record({})["rankscope/residual_ratio/last_block"] - float((rest / size).mean())) < 1e-4
model.layers[1].linear2.bias.data[0] = math.nan
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for step in (1, 2):
        monitor.step(step)
assert ["layers.1.linear2.bias" in str(one.message) for one in told] == [True]
assert math.isnan(monitor.record({})["rankscope/residual_ratio/last_block"])
again = rs.CollapseMonitor(model, x, every=1, output="run.json")
assert again.table.sections["monitor"]["steps"] == [0, 1, 2]
