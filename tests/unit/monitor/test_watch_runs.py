"""Whole runs: what collapses is alarmed before the loss shows anything, and what trains is left in peace."""

import math
import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rankscope as rs

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
pytestmark = [
    pytest.mark.filterwarnings("ignore::rankscope.errors.RankscopeWarning"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor"),
]


# self-supervision on digits


def siamese(*, stop: bool, steps: int, seed: int = 0) -> rs.Monitor:
    """Two noisy views of the digits of scikit-learn, an encoder with batch norm, a predictor, negative cosine."""
    from sklearn.datasets import load_digits

    digits = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64))
    predictor = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64))
    weights = [*encoder.parameters(), *predictor.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.5, momentum=0.9)
    monitor = rs.watch(encoder, digits[:64], every=1)
    g = torch.Generator().manual_seed(seed)
    for step in range(steps):
        x = digits[torch.randint(0, len(digits), (128,), generator=g)]
        one, two = (encoder(x + 0.1 * torch.randn(x.shape, generator=g)) for _ in range(2))
        guess, other = predictor(one), predictor(two)
        if stop:
            one, two = one.detach(), two.detach()
        alike = F.cosine_similarity(guess, two, dim=-1) + F.cosine_similarity(other, one, dim=-1)
        loss = -alike.mean() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(step, loss=loss)
    return monitor


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_inputs_collapse_without_the_stop_gradient_and_not_with_it(seed: int) -> None:
    without = siamese(stop=False, steps=20, seed=seed)
    assert [one.name for one in without.rang] == ["inputs collapsing"]
    assert siamese(stop=True, steps=60, seed=seed).rang == ()


# a deep encoder


class Letters(nn.Module):
    """A causal encoder over characters: 24 layers, drawn one by one."""

    def __init__(self, letters: int, *, pre: bool, layers: int, dim: int = 64, length: int = 32) -> None:
        super().__init__()

        def block() -> nn.Module:
            return nn.TransformerEncoderLayer(dim, 4, 4 * dim, 0.0, batch_first=True, norm_first=pre)

        self.embedded = nn.Embedding(letters, dim)
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        self.encoder = nn.TransformerEncoder(block(), 1, enable_nested_tensor=False)
        self.encoder.layers = nn.ModuleList(block() for _ in range(layers))
        self.norm = nn.LayerNorm(dim) if pre else nn.Identity()
        self.out = nn.Linear(dim, letters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedded(x) + self.places
        return self.out(self.norm(self.encoder(x, mask=self.mask, is_causal=True)))


def letters_run(
    *, pre: bool, seed: int, steps: int, layers: int = 24, **options: Any
) -> tuple[rs.Monitor, list[float]]:
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    jumps = torch.randint(0, 30, (30, 3), generator=g)  # a chain: one of three letters follows each
    text = [0]
    for choice in torch.randint(0, 3, (20_000,), generator=g).tolist():
        text.append(int(jumps[text[-1], choice]))
    data = torch.tensor(text)
    model = Letters(30, pre=pre, layers=layers)

    def batch(many: int) -> tuple[Tensor, Tensor]:
        starts = torch.randint(0, len(data) - 33, (many,), generator=g).tolist()
        return torch.stack([data[s : s + 32] for s in starts]), torch.stack(
            [data[s + 1 : s + 33] for s in starts]
        )

    monitor = rs.watch(model, batch(8)[0], steps=steps, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        x, y = batch(16)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        monitor.step(step, loss=loss)
    return monitor, losses


@pytest.mark.slow
def test_post_norm_is_alarmed_before_the_loss_shows_anything() -> None:
    monitor, losses = letters_run(pre=False, seed=0, steps=12, every=200)
    alarm = monitor.rang[0]
    assert alarm.name == "collapsing"
    assert alarm.step <= 10
    assert alarm.cause is not None
    assert alarm.cause.name == "norm-rescale"
    assert losses[alarm.step] > 0.5 * math.log(30)  # nothing is learned, and nothing looks wrong either
    assert losses[alarm.step] < losses[0] + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5 if SOAK else 1))
@pytest.mark.timeout(900)
def test_pre_norm_is_left_in_peace(seed: int) -> None:
    monitor, losses = letters_run(pre=True, seed=seed, steps=300, every=5 + 10 * seed)
    assert monitor.rang == ()
    assert losses[-1] < losses[0] - 1


def test_a_small_pre_norm_run_is_left_in_peace() -> None:
    monitor, _ = letters_run(pre=True, seed=0, steps=12, layers=6, every=2, maps=True)
    assert monitor.rang == ()
