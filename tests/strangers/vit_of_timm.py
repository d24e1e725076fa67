"""A vision transformer of timm with LayerScale and norms of queries and keys, on images of its own size."""

import torch
from timm.models.vision_transformer import VisionTransformer

import rankscope as rs

torch.manual_seed(71)
sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
model = VisionTransformer(**sizes, qk_norm=True, init_values=0.5).double().eval()
states: list[torch.Tensor] = []
model.blocks[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model.blocks:
    block.register_forward_hook(lambda _, args, out: states.append(out))
with rs.record(model) as seen:
    model(torch.randn(2, 3, 16, 16).double())
truth = torch.stack(states)
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
with rs.record(model) as other:
    model(torch.randn(5, 3, 16, 16).double())
truth = states.copy()
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
