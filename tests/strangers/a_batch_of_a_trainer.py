"""What a Trainer of transformers hands to a model: a dict with labels, and texts of different lengths."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
)

import rankscope as rs

words = {"[PAD]": 0, "[UNK]": 1} | {
    word: 2 + place for place, word in enumerate(["a", "b", "c", "d", "e", "f", "g"])
}
tokenizer = Tokenizer(models.WordLevel(words, "[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, **{"pad_token": "[PAD]", "unk_token": "[UNK]"}
)
texts = ["a b c d e", "b a g f e d c b", "g f e"]
batch = DataCollatorWithPadding(tokenizer)([dict(tokenizer(text), label=1) for text in texts])

torch.manual_seed(73)
sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
model = BertForSequenceClassification(BertConfig(vocab_size=9, **sizes)).double().eval()
with rs.record(model) as seen:
    loss = model(**batch).loss
loss.backward()
with torch.no_grad():
    hidden = model(**batch, output_hidden_states=True).hidden_states
rows = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
for layer, state in enumerate(hidden):
    for text, length in enumerate((5, 8, 3)):
        real = state[text, :length]
        truth = (real - real.mean(dim=0)).norm() / real.norm()
        measured = rows.filter(layer=layer, sample=text)["value"].to_torch()
        torch.testing.assert_close(measured, truth[None], rtol=1e-6, atol=0)
found = rs.translate(seen)
with rs.record(model) as other:
    model(**tokenizer(["g a b", "c d e f g a b c d e"], padding=True, return_tensors="pt"))
x, context = found.embed(other.batches[0])
with torch.no_grad():
    truth = model.bert(**other.batches[0].inputs, output_hidden_states=True).hidden_states
for ours, theirs in zip(found.network.states(x, context), truth, strict=True):
    torch.testing.assert_close(ours[context.is_token], theirs[context.is_token], rtol=0, atol=1e-10)
