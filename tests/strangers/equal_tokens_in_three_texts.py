"""Three texts that differ, each of 24 equal tokens: every text has collapsed, whichever axis holds the texts."""

import torch

import rankscope as rs

torch.manual_seed(1)
layer = torch.nn.TransformerEncoderLayer(16, 2, 32)
model = torch.nn.TransformerEncoder(layer, 3).eval()
x = torch.randn(1, 3, 16).expand(24, 3, 16)
assert (model(x) - model(x)[:1]).abs().max() < 1e-6  # tokens of a text are equal
assert (model(x)[:, 0] - model(x)[:, 1]).abs().max() > 0.1  # texts are not
assert rs.scan(model, inputs=x).verdict == "collapsed"
