"""The translation tutorial: torch's Transformer, tokens first, masks made outside."""

import math

import torch
import torch.nn as nn

PAD_IDX = 1


class PositionalEncoding(nn.Module):
    def __init__(self, emb_size, dropout, maxlen=100):
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pos_embedding = torch.zeros((maxlen, emb_size))
        pos_embedding[:, 0::2] = torch.sin(pos * den)
        pos_embedding[:, 1::2] = torch.cos(pos * den)
        pos_embedding = pos_embedding.unsqueeze(-2)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pos_embedding", pos_embedding)

    def forward(self, token_embedding):
        return self.dropout(token_embedding + self.pos_embedding[: token_embedding.size(0), :])


class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size, emb_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_size)
        self.emb_size = emb_size

    def forward(self, tokens):
        return self.embedding(tokens.long()) * math.sqrt(self.emb_size)


class Seq2SeqTransformer(nn.Module):
    def __init__(self, layers=3, emb_size=24, nhead=4, src_vocab=30, tgt_vocab=34, ff=48, dropout=0.1):
        super().__init__()
        self.encoder = nn.ModuleList(
            [nn.TransformerEncoderLayer(emb_size, nhead, ff, dropout) for _ in range(layers)]
        )
        self.decoder = nn.ModuleList(
            [nn.TransformerDecoderLayer(emb_size, nhead, ff, dropout) for _ in range(layers)]
        )
        self.generator = nn.Linear(emb_size, tgt_vocab)
        self.src_tok_emb = TokenEmbedding(src_vocab, emb_size)
        self.tgt_tok_emb = TokenEmbedding(tgt_vocab, emb_size)
        self.positional_encoding = PositionalEncoding(emb_size, dropout)

    def forward(
        self, src, trg, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask, memory_key_padding_mask
    ):
        src_emb = self.positional_encoding(self.src_tok_emb(src))
        tgt_emb = self.positional_encoding(self.tgt_tok_emb(trg))
        memory = src_emb
        for layer in self.encoder:
            memory = layer(memory, src_mask=src_mask, src_key_padding_mask=src_padding_mask)
        out = tgt_emb
        for i, layer in enumerate(self.decoder):
            out = layer(
                out,
                memory,
                tgt_mask=tgt_mask,
                tgt_key_padding_mask=tgt_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
            )
        return self.generator(out)


def create_mask(src, tgt):
    n = tgt.shape[0]
    tgt_mask = torch.triu(torch.ones((n, n)), diagonal=1).bool()
    src_mask = torch.zeros((src.shape[0], src.shape[0])).type(torch.bool)
    src_padding_mask = (src == PAD_IDX).transpose(0, 1)
    tgt_padding_mask = (tgt == PAD_IDX).transpose(0, 1)
    return src_mask, tgt_mask, src_padding_mask, tgt_padding_mask


def build():
    torch.manual_seed(0)
    transformer = Seq2SeqTransformer()
    for p in transformer.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    return transformer


def batch():
    g = torch.Generator().manual_seed(1)
    src, tgt = torch.randint(2, 30, (11, 3), generator=g), torch.randint(2, 34, (8, 3), generator=g)
    src[8:, 1] = PAD_IDX
    tgt[6:, 2] = PAD_IDX
    src_mask, tgt_mask, sp, tp = create_mask(src, tgt)
    return {
        "src": src,
        "trg": tgt,
        "src_mask": src_mask,
        "tgt_mask": tgt_mask,
        "src_padding_mask": sp,
        "tgt_padding_mask": tp,
        "memory_key_padding_mask": sp,
    }
