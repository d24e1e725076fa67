"""A small language model whose weights follow from a formula, so that they are the same on every machine."""

import math

import torch
from torch import Tensor, nn

DIM, HEADS, WORDS = 8, 2, 20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        texts, tokens, _ = x.shape
        q, k, v = (
            part.view(texts, tokens, HEADS, DIM // HEADS).transpose(1, 2)
            for part in self.qkv(self.ln_1(x)).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(texts, tokens, DIM))
        return x + self.down(torch.relu(self.up(self.ln_2(x))))


class SmallModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, DIM), nn.Embedding(16, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return x


def by_formula(model: nn.Module) -> nn.Module:
    """Weights from the digits of multiples of the golden ratio: no random generator, no rounding to speak of."""
    golden, start = (math.sqrt(5) - 1) / 2, 1
    with torch.no_grad():
        for name, weight in model.named_parameters():
            places = torch.arange(start, start + weight.numel(), dtype=torch.float64)
            spread = 2 * torch.frac(golden * places) - 1
            scale = 1.0 if name.startswith(("words", "places")) else 1.7 / math.sqrt(weight.shape[-1])
            centre = 1.0 if "ln" in name and name.endswith("weight") else 0.0
            weight.copy_((centre + (0.2 if "ln" in name else scale) * spread).reshape(weight.shape))
            start += weight.numel()
    return model


model = by_formula(SmallModel().double().eval())
sharper = by_formula(SmallModel().double().eval())
with torch.no_grad():  # attention that looks at few tokens, and writes more
    for block in sharper.blocks:
        block.qkv.weight.mul_(2.0)
batch = (torch.arange(24) * 7 % WORDS).reshape(3, 8)


def call(found: nn.Module) -> Tensor:
    return found(batch)
