"""One encoder, both layouts: what is left of it without skips and MLPs is the same."""

import torch

import rankscope as rs

torch.manual_seed(2)
first, second = (torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=b).eval() for b in (True, False))
second.load_state_dict(first.state_dict())
models = [torch.nn.TransformerEncoder(layer, 2).double().eval() for layer in (first, second)]
x = torch.randn(3, 10, 16, dtype=torch.float64)
assert (models[0](x) - models[1](x.transpose(0, 1)).transpose(0, 1)).abs().max() < 1e-12
found = [rs.ablate(models[0], inputs=x), rs.ablate(models[1], inputs=x.transpose(0, 1))]
keys = ["variant", "sample", "layer", "measure"]
one, two = (one.table.frame.sort(keys)["value"].to_torch() for one in found)
torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-14)
