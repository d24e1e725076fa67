"""x-transformers with half a feed-forward before and after."""

import torch
from x_transformers import Decoder, TransformerWrapper
from x_transformers.attend import Attend

import rankscope as rs

torch.manual_seed(67)
layers = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, macaron=True)
model = TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers).double().eval()
states: list[torch.Tensor] = []
layers.register_forward_pre_hook(lambda _, args: states.append(args[0]))
layers.final_norm.register_forward_pre_hook(lambda _, args: states.append(args[0]))
for part in layers.modules():  # the library computes softmax in float32, whatever the model is in
    if isinstance(part, Attend):
        part.attn_fn = torch.nn.Softmax(dim=-1)
with rs.record(model) as seen:
    model(torch.randint(50, (2, 9)))
truth = torch.stack(states)  # there are no block modules: what enters, and what the last one leaves
off = truth - truth.mean(dim=-2, keepdim=True)
ratio = off.norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
for layer, wanted in ((0, ratio[0]), (rows["layer"].max(), ratio[1])):
    measured = rows.filter(layer=layer).sort("sample")["value"].to_torch()
    torch.testing.assert_close(measured, wanted, rtol=1e-6, atol=0)
found = rs.translate(seen)
states.clear()
with rs.record(model) as other:
    model(torch.randint(50, (3, 6)))
truth = states.copy()
ours = found.network.states(*found.embed(other.batches[0]))
torch.testing.assert_close(ours[0], truth[0], rtol=0, atol=1e-10)
torch.testing.assert_close(ours[-1], truth[-1], rtol=0, atol=1e-10)
