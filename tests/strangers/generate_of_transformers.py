"""generate() of transformers: many calls with a cache, of which the first, on the whole prompt, is used."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import rankscope as rs

torch.manual_seed(74)
sizes = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).double().eval()
prompt = torch.randint(40, (2, 7))
with rs.record(model) as seen:
    model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False, pad_token_id=0
    )
with torch.no_grad():
    hidden = model(prompt, output_hidden_states=True).hidden_states
found = rs.scan(seen)
rows = found.table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
for layer, state in enumerate(hidden[:-1]):  # the last of them is behind the final norm
    truth = (state - state.mean(dim=1, keepdim=True)).norm(dim=(1, 2)) / state.norm(dim=(1, 2))
    measured = rows.filter(layer=layer).sort("sample")["value"].to_torch()
    torch.testing.assert_close(measured, truth, rtol=1e-6, atol=0)
assert any("cache" in note for note in seen.notes)
