"""A random network of pure attention with one head, computed from its weights."""

import torch

import rankscope as rs

net = rs.build(rs.Spec(layers=3, heads=1, dim=16), torch.Generator().manual_seed(19))
x = state = rs.gaussian_tokens(8, 16, generator=torch.Generator().manual_seed(20))
logs = [rs.log_residual(split, norm="frobenius", center="mean") for split in rs.split_states(net, x)]
for layer, block in enumerate(net.blocks, start=1):
    mixer, values = block.mixer, block.values
    maps = torch.softmax((state @ mixer.query) @ (state @ mixer.key).T / 16**0.5, dim=-1)
    state = maps @ state @ values.value @ values.out
    truth = (state - state.mean(dim=0)).norm()
    torch.testing.assert_close(torch.as_tensor(logs[layer]).exp(), truth, rtol=1e-6, atol=1e-15)
