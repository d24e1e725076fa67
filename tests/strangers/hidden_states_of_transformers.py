"""The tuple that transformers returns with output_hidden_states=True goes in as it is."""

import torch
from transformers import BertConfig, BertModel

import rankscope as rs

torch.manual_seed(7)
sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
model = BertModel(BertConfig(vocab_size=60, **sizes)).eval()
with torch.no_grad():
    hidden = model(torch.randint(60, (2, 9)), output_hidden_states=True).hidden_states
rows = rs.scan_states(hidden).table.frame
for layer, state in enumerate(hidden):
    truth = (state - state.mean(dim=1, keepdim=True)).norm(dim=(1, 2)) / state.norm(dim=(1, 2))
    seen = rows.filter(layer=layer, site="block", definition="residual_ratio[frobenius,mean]").sort("sample")
    torch.testing.assert_close(seen["value"].to_torch(), truth.double(), rtol=1e-5, atol=0)
