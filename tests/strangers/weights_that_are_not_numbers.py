"""Fused attention can hide NaN weights; a model that has them is not healthy."""

import pytest
import torch
from transformers import BertConfig, BertModel

import rankscope as rs
from rankscope.errors import RankscopeError

torch.manual_seed(9)
sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
model = BertModel(BertConfig(vocab_size=99, **sizes)).eval()
with torch.no_grad():
    model.encoder.layer[1].attention.self.query.weight.fill_(torch.nan)
ids = torch.randint(99, (2, 8))
found = rs.scan(model, inputs=ids)
assert found.verdict == "ill"
assert "encoder.layer.1.attention.self.query.weight" in found.verdict.words
with pytest.raises(RankscopeError, match=r"encoder.layer.1.attention.self.query.weight"):
    rs.ablate(model, inputs=ids)
