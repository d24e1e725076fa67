"""A masked language model with padding, segments and a tied head."""

import math

import torch
from torch import nn
import torch.nn.functional as F


class BertEmbeddings(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.word_embeddings = nn.Embedding(cfg.vocab, cfg.hidden, padding_idx=0)
        self.position_embeddings = nn.Embedding(cfg.max_len, cfg.hidden)
        self.token_type_embeddings = nn.Embedding(2, cfg.hidden)
        self.LayerNorm = nn.LayerNorm(cfg.hidden, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, input_ids, token_type_ids=None):
        position_ids = torch.arange(input_ids.size(1), device=input_ids.device).unsqueeze(0)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        x = self.word_embeddings(input_ids)
        x = x + self.position_embeddings(position_ids)
        x = x + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(x))


class BertSelfAttention(nn.Module):
    def __init__(self, cfg, idx):
        super().__init__()
        self.idx = idx
        self.num_heads = cfg.heads
        self.head_size = cfg.hidden // cfg.heads
        self.query = nn.Linear(cfg.hidden, cfg.hidden)
        self.key = nn.Linear(cfg.hidden, cfg.hidden)
        self.value = nn.Linear(cfg.hidden, cfg.hidden)
        self.dropout = nn.Dropout(0.1)

    def transpose_for_scores(self, x):
        new_shape = x.size()[:-1] + (self.num_heads, self.head_size)
        x = x.view(*new_shape)
        return x.permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask):
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))
        scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        scores = scores / math.sqrt(self.head_size)
        scores = scores + attention_mask
        probs = nn.Softmax(dim=-1)(scores)
        probs = self.dropout(probs)
        context = torch.matmul(probs, value_layer)
        context = context.permute(0, 2, 1, 3).contiguous()
        return context.view(context.size(0), context.size(1), -1)


class BertLayer(nn.Module):
    def __init__(self, cfg, idx):
        super().__init__()
        self.idx = idx
        self.attention = BertSelfAttention(cfg, idx)
        self.dense = nn.Linear(cfg.hidden, cfg.hidden)
        self.norm1 = nn.LayerNorm(cfg.hidden, eps=1e-12)
        self.intermediate = nn.Linear(cfg.hidden, cfg.inner)
        self.output = nn.Linear(cfg.inner, cfg.hidden)
        self.norm2 = nn.LayerNorm(cfg.hidden, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, mask):
        a = self.attention(x, mask)
        a = self.dropout(self.dense(a))
        x = self.norm1(x + a)
        h = F.gelu(self.intermediate(x))
        h = self.dropout(self.output(h))
        x = self.norm2(x + h)
        return x


class BertForMaskedLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embeddings = BertEmbeddings(cfg)
        self.layer = nn.ModuleList([BertLayer(cfg, i) for i in range(cfg.layers)])
        self.transform = nn.Linear(cfg.hidden, cfg.hidden)
        self.transform_norm = nn.LayerNorm(cfg.hidden, eps=1e-12)
        self.decoder = nn.Linear(cfg.hidden, cfg.vocab, bias=False)
        self.bias = nn.Parameter(torch.zeros(cfg.vocab))
        self.apply(self._init_weights)
        self.decoder.weight = self.embeddings.word_embeddings.weight

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.data.zero_()

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        extended = attention_mask[:, None, None, :].float()
        extended = (1.0 - extended) * -10000.0
        x = self.embeddings(input_ids, token_type_ids)
        for layer in self.layer:
            x = layer(x, extended)
        x = self.transform_norm(F.gelu(self.transform(x)))
        return self.decoder(x) + self.bias


class Config:
    vocab, hidden, heads, inner, layers, max_len = 53, 32, 4, 64, 4, 24


def build():
    torch.manual_seed(0)
    return BertForMaskedLM(Config())


def batch():
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 53, (3, 12), generator=g)
    mask = torch.ones(3, 12, dtype=torch.long)
    mask[1, 9:] = 0
    mask[2, 7:] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}
