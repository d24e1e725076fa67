"""What watching costs, as a share of the training that it watches."""

from itertools import count

import torch
import torch.nn.functional as F
from torch import nn

import rankscope as rs
from bench.timing import median_times

TEXTS, TOKENS, WORDS = 8, 128, 2000
EVERY, WEIGHTS_EVERY = 200, 20


def run() -> dict[str, float]:
    """One scan over 200 steps, and one look at the weights with the twenty losses since the last one over 20 steps."""
    torch.manual_seed(0)
    model = Small()
    ids = torch.randint(0, WORDS, (TEXTS, TOKENS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    monitor = rs.watch(model, ids, every=EVERY, early=False)
    loss, steps = torch.zeros(()), count(1)

    def train() -> None:
        _step(model, optimizer, ids)

    def scan() -> None:
        monitor.scan(0)

    def weights() -> None:
        for _ in range(WEIGHTS_EVERY):
            step = next(steps)
            if step % EVERY:  # a scan is timed by itself
                monitor.step(step, loss=loss)

    step, one_scan, looks = median_times(train, scan, weights, repeats=5)
    return {
        "watch_scan_over_200_steps": one_scan / (EVERY * step),
        "watch_weights_over_20_steps": looks / (WEIGHTS_EVERY * step),
    }


class Small(nn.Module):
    """A causal encoder of six layers of width 256."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded = nn.Embedding(WORDS, 256)
        block = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(block, 6, enable_nested_tensor=False)
        self.out = nn.Linear(256, WORDS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.encoder(self.embedded(ids), mask=self.mask, is_causal=True))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
