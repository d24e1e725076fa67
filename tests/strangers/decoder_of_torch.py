"""torch's decoder: a target, a causal mask, a memory and its padding; cross-attention is part of the tree."""

import torch
from torch import nn

import rankscope as rs

torch.manual_seed(48)
layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True)
model = nn.TransformerDecoder(layer, 2).double().eval()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
states: list[torch.Tensor] = []
model.layers[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
for block in model.layers:
    block.register_forward_hook(lambda _, args, out: states.append(out))


def call(texts: int, tokens: int, read: int) -> None:
    mask = nn.Transformer.generate_square_subsequent_mask(tokens, dtype=torch.float64)
    padding = torch.arange(read) >= torch.arange(read, read - texts, -1)[:, None]
    target, memory = torch.randn(texts, tokens, 16).double(), torch.randn(texts, read, 16).double()
    model(target, memory, tgt_mask=mask, memory_key_padding_mask=padding)


with rs.record(model) as seen:
    call(2, 7, 5)
truth = torch.stack(states)
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = rows.sort("layer", "sample")["value"].to_torch().view_as(ratio)
torch.testing.assert_close(measured, ratio, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
with rs.record(model) as other:
    call(3, 10, 8)
truth = states.copy()
for ours, theirs in zip(found.network.states(*found.embed(other.batches[0])), truth, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
