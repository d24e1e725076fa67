"""Training of the sorting model: Adam on the cross-entropy of every position, deterministic for a given seed."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from rankscope.core.numerics import threads_for
from rankscope.errors import NumericalError
from rankscope.studies.sorting_model import SortingModel, initial_sorting, token_accuracy
from rankscope.studies.sorting_task import SortingConfig, held_out, training_batches


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """How far training is after an epoch, counted from 1.

    ``loss`` and ``train_accuracy`` are means over the epoch's batches, each taken before the step on that batch.
    """

    epoch: int
    loss: float
    train_accuracy: float
    test_accuracy: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A trained model in evaluation mode and float32, and what was seen on the way."""

    model: SortingModel
    curve: tuple[Epoch, ...]

    @property
    def test_accuracy(self) -> float:
        """Token accuracy of the model on the test sequences."""
        return measured_accuracy(self.model)


def train_sorting(config: SortingConfig, progress: Callable[[Epoch], object] | None = None) -> Trained:
    """The model of ``config`` after training, and its curve; ``progress`` is told of every epoch as it ends.

    One thread: the same configuration gives the same bits on the same machine, whatever else is set.
    """
    model = initial_sorting(config, dtype=torch.float32).requires_grad_().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    schedule = LambdaLR(optimizer, lambda step: learning_rate(config, step) / config.learning_rate)
    curve: list[Epoch] = []
    with threads_for(0):
        for number, batches in enumerate(training_batches(config), start=1):
            loss, accuracy = _epoch(model, optimizer, schedule, batches)
            found = Epoch(
                epoch=number,
                loss=loss,
                train_accuracy=accuracy,
                test_accuracy=measured_accuracy(model),
            )
            curve.append(found)
            if progress is not None:
                progress(found)
    return Trained(model=model.requires_grad_(requires_grad=False).eval(), curve=tuple(curve))


def learning_rate(config: SortingConfig, step: int) -> float:
    """Rate of a step, counted from 0: linear up to the full rate, times the cosine decay to zero at the end.

    ``rate * min((step + 1) / warmup, 1) * (1 + cos(pi step / steps)) / 2``

    >>> learning_rate(SortingConfig(warmup=10, decay="none"), 4)
    0.0005
    """
    rising = min((step + 1) / config.warmup, 1.0) if config.warmup else 1.0
    falling = (1 + math.cos(math.pi * step / max(config.steps, 1))) / 2 if config.decay == "cosine" else 1.0
    return config.learning_rate * rising * falling


def measured_accuracy(model: SortingModel) -> float:
    """Token accuracy of a model on the test sequences of its configuration."""
    letters, targets = held_out(model.config)
    with torch.no_grad():
        return token_accuracy(model(letters), targets)


def _epoch(
    model: SortingModel,
    optimizer: torch.optim.Optimizer,
    schedule: LambdaLR,
    batches: list[tuple[Tensor, Tensor]],
) -> tuple[float, float]:
    """Mean loss and token accuracy over the sequences of the batches, while the model learns from them."""
    losses, accuracies, counts = [], [], []
    for letters, targets in batches:
        logits = model(letters)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        if not math.isfinite(loss.item()):
            rate = model.config.learning_rate
            raise NumericalError(f"the loss is {loss.item()} at learning_rate={rate}; choose a smaller one")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        accuracies.append(token_accuracy(logits.detach(), targets))
        counts.append(len(letters))
    total = sum(counts)
    return _weighted(losses, counts) / total, _weighted(accuracies, counts) / total


def _weighted(values: list[float], counts: list[int]) -> float:
    return math.fsum(value * count for value, count in zip(values, counts, strict=True))
