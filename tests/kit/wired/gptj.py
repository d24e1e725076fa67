"""Attention beside the MLP, interleaved rotary positions on a part of the channels."""

import torch
from torch import nn
import torch.nn.functional as F


def fixed_pos_embedding(dim, seq_len):
    inv_freq = 1.0 / (10000 ** (torch.arange(0, dim, 2) / dim))
    sinusoid = torch.einsum("i,j->ij", torch.arange(seq_len).float(), inv_freq)
    return torch.sin(sinusoid), torch.cos(sinusoid)


def rotate_every_two(x):
    x1 = x[:, :, :, ::2]
    x2 = x[:, :, :, 1::2]
    x = torch.stack((-x2, x1), dim=-1)
    return x.flatten(-2)


def apply_rotary_pos_emb(x, sincos):
    sin, cos = (t[None, :, None, :].repeat_interleave(2, 3) for t in sincos)
    return (x * cos) + (rotate_every_two(x) * sin)


class GPTJAttention(nn.Module):
    def __init__(self, dim, heads, rotary_dim):
        super().__init__()
        self.heads, self.rotary_dim = heads, rotary_dim
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        query = self.q_proj(x).view(b, t, self.heads, -1)
        key = self.k_proj(x).view(b, t, self.heads, -1)
        value = self.v_proj(x).view(b, t, self.heads, -1).permute(0, 2, 1, 3)
        sincos = fixed_pos_embedding(self.rotary_dim, t)
        k_rot, k_pass = key[..., : self.rotary_dim], key[..., self.rotary_dim :]
        q_rot, q_pass = query[..., : self.rotary_dim], query[..., self.rotary_dim :]
        key = torch.cat([apply_rotary_pos_emb(k_rot, sincos), k_pass], dim=-1).permute(0, 2, 1, 3)
        query = torch.cat([apply_rotary_pos_emb(q_rot, sincos), q_pass], dim=-1).permute(0, 2, 1, 3)
        w = torch.matmul(query, key.transpose(-1, -2)) / (d // self.heads) ** 0.5
        causal = torch.tril(torch.ones(t, t, dtype=torch.bool))
        w = torch.where(causal, w, torch.tensor(-1e9))
        w = F.softmax(w, dim=-1)
        out = torch.matmul(w, value)
        out = out.permute(0, 2, 1, 3).reshape(b, t, d)
        return self.out_proj(out)


class GPTJBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(dim)
        self.attn = GPTJAttention(dim, heads, 4)
        self.fc_in = nn.Linear(dim, 4 * dim)
        self.fc_out = nn.Linear(4 * dim, dim)

    def forward(self, x):
        residual = x
        x = self.ln_1(x)
        attn_output = self.attn(x)
        feed_forward = self.fc_out(F.gelu(self.fc_in(x), approximate="tanh"))
        return attn_output + feed_forward + residual


class GPTJ(nn.Module):
    def __init__(self, vocab=50, dim=32, heads=4, layers=4):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.h = nn.ModuleList([GPTJBlock(dim, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab)

    def forward(self, input_ids):
        x = self.wte(input_ids)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def build():
    torch.manual_seed(0)
    return GPTJ()


def batch():
    return torch.randint(50, (3, 11), generator=torch.Generator().manual_seed(1))
