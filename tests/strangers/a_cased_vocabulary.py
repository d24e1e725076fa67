"""A folder with tokenizer.json alone: its own ids are scanned, capitals included."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel

import rankscope as rs

words, text = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "M", "m", "K", "k", "V", "v"], "M K V k M V"
made = Tokenizer(models.WordPiece({word: place for place, word in enumerate(words)}, unk_token=words[1]))
made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
torch.manual_seed(27)
sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
model = BertModel(BertConfig(vocab_size=11, **sizes)).eval()
model.save_pretrained("folder")
made.save("folder/tokenizer.json")
ids = [2, *(words.index(word) for word in text.split()), 3]
state = model(torch.tensor([ids])).last_hidden_state[0, 1:-1].double().detach()
truth = (state - state.mean(dim=0)).norm() / state.norm()
rows = rs.scan("folder", [text]).table.frame
seen = rows.filter(layer=2, site="block", definition="residual_ratio[frobenius,mean]")["value"].item()
assert abs(seen - float(truth)) < 1e-5
