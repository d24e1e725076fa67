"""A decoder in the style of Mistral: grouped keys, rotations, a window, logits that are capped."""

import torch
from torch import nn
import torch.nn.functional as F


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary(q, k, cos, sin):
    q = q * cos + rotate_half(q) * sin
    k = k * cos + rotate_half(k) * sin
    return q, k


def repeat_kv(x, n):
    b, h, t, d = x.shape
    return x[:, :, None].expand(b, h, n, t, d).reshape(b, h * n, t, d)


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim)))

    def forward(self, position_ids):
        freqs = position_ids[:, :, None].float() * self.inv_freq[None, None, :]
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos()[:, None], emb.sin()[:, None]


class Norm(nn.Module):
    def __init__(self, size, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class WindowAttention(nn.Module):
    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.q_proj = nn.Linear(dim, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, dim, bias=False)

    def forward(self, h, rope, mask):
        b, t, _ = h.shape
        q = self.q_proj(h).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(h).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(h).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = apply_rotary(q, k, *rope)
        k, v = repeat_kv(k, self.heads // self.kv_heads), repeat_kv(v, self.heads // self.kv_heads)
        scores = torch.matmul(q, k.transpose(2, 3)) / self.head_dim**0.5
        scores = 30.0 * torch.tanh(scores / 30.0)
        scores = scores + mask
        probs = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(probs, v).transpose(1, 2).contiguous()
        return self.o_proj(out.reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads, kv_heads, hidden):
        super().__init__()
        self.self_attn = WindowAttention(dim, heads, kv_heads)
        self.mlp = FeedForward(dim, hidden)
        self.input_layernorm = Norm(dim)
        self.post_attention_layernorm = Norm(dim)

    def forward(self, hidden_states, rope, mask):
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.self_attn(hidden_states, rope, mask)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


class MistralLike(nn.Module):
    def __init__(self, vocab=73, dim=32, heads=4, kv_heads=2, hidden=48, depth=4, window=6):
        super().__init__()
        self.window = window
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.rotary = RotaryEmbedding(dim // heads)
        self.layers = nn.ModuleList([DecoderLayer(dim, heads, kv_heads, hidden) for _ in range(depth)])
        self.norm = Norm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def make_mask(self, t):
        i = torch.arange(t)
        seen = (i[:, None] >= i[None, :]) & (i[:, None] - i[None, :] < self.window)
        return torch.zeros(t, t).masked_fill(~seen, float("-inf"))

    def forward(self, input_ids):
        h = self.embed_tokens(input_ids)
        position_ids = torch.arange(input_ids.shape[1])[None]
        rope = self.rotary(position_ids)
        mask = self.make_mask(input_ids.shape[1])
        for layer in self.layers:
            h = layer(h, rope, mask)
        return self.lm_head(self.norm(h))


def build():
    torch.manual_seed(28)
    return MistralLike()


def batch():
    return torch.randint(0, 73, (3, 14), generator=torch.Generator().manual_seed(29))
