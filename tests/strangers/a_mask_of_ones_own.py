"""A causal mask: token 0 reads itself alone, so its row of pure attention is its own value."""

import torch

import rankscope as rs

net = rs.build(rs.Spec(layers=1, heads=1, dim=8), torch.Generator().manual_seed(23))
net = rs.with_mask(net, rs.parse_mask("causal"))
x = rs.gaussian_tokens(5, 8, generator=torch.Generator().manual_seed(24))
values = net.blocks[0].values
torch.testing.assert_close(net(x)[0], x[0] @ values.value @ values.out, rtol=1e-12, atol=0)
last = net(x)[-1]
maps = torch.softmax((x @ net.blocks[0].mixer.query) @ (x @ net.blocks[0].mixer.key).T / 8**0.5, dim=-1)
torch.testing.assert_close(last, maps[-1] @ x @ values.value @ values.out, rtol=1e-12, atol=1e-14)
