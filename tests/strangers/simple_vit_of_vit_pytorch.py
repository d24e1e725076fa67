"""SimpleViT of vit-pytorch: its blocks are pairs in a list, no modules that run."""

import torch
from vit_pytorch import SimpleViT

import rankscope as rs

torch.manual_seed(69)
sizes = {"dim": 16, "depth": 2, "heads": 2, "dim_head": 8, "mlp_dim": 32}
model = SimpleViT(image_size=16, patch_size=4, num_classes=5, **sizes).double().eval()
states: list[torch.Tensor] = []
model.transformer.register_forward_pre_hook(lambda _, args: states.append(args[0].clone()))
model.transformer.norm.register_forward_pre_hook(lambda _, args: states.append(args[0]))
with rs.record(model) as seen:
    model(torch.randn(2, 3, 16, 16).double())
truth = torch.stack(states)  # there are no block modules: what enters, and what the norm at the end reads
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
for layer, wanted in ((0, ratio[0]), (2, ratio[1])):
    measured = rows.filter(layer=layer).sort("sample")["value"].to_torch()
    torch.testing.assert_close(measured, wanted, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
with rs.record(model) as other:
    model(torch.randn(5, 3, 16, 16).double())
truth = states.copy()
ours = found.network.states(*found.embed(other.batches[0]))
torch.testing.assert_close(ours[0], truth[0], rtol=0, atol=1e-10)
torch.testing.assert_close(ours[-1], truth[1], rtol=0, atol=1e-10)
