"""Encoder and decoder for translation, tokens of both padded."""

import math
import torch
from torch import nn


def attention(query, key, value, mask=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    return torch.matmul(p_attn, value)


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.d_k = d_model // h
        self.h = h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])

    def forward(self, query, key, value, mask=None):
        n = query.size(0)
        query, key, value = [
            lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        x = attention(query, key, value, mask=mask)
        x = x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k)
        return self.linears[-1](x)


class Sublayer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)

    def forward(self, x, sublayer):
        return x + sublayer(self.norm(x))


class EncoderLayer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.self_attn = MultiHeadedAttention(h, d)
        self.feed_forward = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.sublayer = nn.ModuleList([Sublayer(d) for _ in range(2)])

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.self_attn = MultiHeadedAttention(h, d)
        self.src_attn = MultiHeadedAttention(h, d)
        self.feed_forward = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.sublayer = nn.ModuleList([Sublayer(d) for _ in range(3)])

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))
        return self.sublayer[2](x, self.feed_forward)


def subsequent_mask(size):
    return torch.triu(torch.ones(1, size, size), diagonal=1) == 0


class PositionalEncoding(nn.Module):
    def __init__(self, d, length=64):
        super().__init__()
        pe = torch.zeros(length, d)
        position = torch.arange(length).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2) * -(math.log(10000.0) / d))
        pe[:, 0::2] = torch.sin(position * div)
        pe[:, 1::2] = torch.cos(position * div)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]


class Translator(nn.Module):
    def __init__(self, src_vocab=44, tgt_vocab=52, d=32, h=4, layers=3, pad=0):
        super().__init__()
        self.pad, self.d = pad, d
        self.src_embed = nn.Embedding(src_vocab, d)
        self.tgt_embed = nn.Embedding(tgt_vocab, d)
        self.positions = PositionalEncoding(d)
        self.encoder = nn.ModuleList([EncoderLayer(d, h) for _ in range(layers)])
        self.decoder = nn.ModuleList([DecoderLayer(d, h) for _ in range(layers)])
        self.enc_norm, self.dec_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.generator = nn.Linear(d, tgt_vocab)

    def forward(self, src, tgt):
        src_mask = (src != self.pad).unsqueeze(-2).unsqueeze(1)
        tgt_mask = (tgt != self.pad).unsqueeze(-2).unsqueeze(1) & subsequent_mask(tgt.size(-1)).unsqueeze(1)
        m = self.positions(self.src_embed(src) * math.sqrt(self.d))
        for layer in self.encoder:
            m = layer(m, src_mask)
        m = self.enc_norm(m)
        x = self.positions(self.tgt_embed(tgt) * math.sqrt(self.d))
        for layer in self.decoder:
            x = layer(x, m, src_mask, tgt_mask)
        return self.generator(self.dec_norm(x))


def build():
    torch.manual_seed(21)
    return Translator()


def batch():
    g = torch.Generator().manual_seed(5)
    src, tgt = torch.randint(1, 44, (3, 9), generator=g), torch.randint(1, 52, (3, 7), generator=g)
    src[2, 6:] = 0
    return {"src": src, "tgt": tgt}


def loss(model, b):
    b = getattr(b, "inputs", b)
    out = model(b["src"], b["tgt"][:, :-1])
    return nn.functional.cross_entropy(out.flatten(0, 1), b["tgt"][:, 1:].flatten())
