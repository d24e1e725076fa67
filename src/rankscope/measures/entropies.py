"""Entropy of probabilities, and how far it can move."""

import math

import torch
from torch import Tensor


def entropy(probabilities: Tensor) -> Tensor:
    """``-sum p log p`` over the last axis, in nats; zero probabilities count zero."""
    # torch's own function of one number takes one at a time; this one is several times faster
    logs = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log_()
    return logs.mul_(probabilities).sum(dim=-1).neg()


def entropy_change(moved: Tensor, outcomes: int) -> Tensor:
    """Largest change of the entropy of ``outcomes`` probabilities that move by ``moved`` in total variation.

    ``T log(outcomes - 1) + h(T)`` with h the binary entropy (Audenaert 2007); it grows up to ``log(outcomes)`` at
    ``T = 1 - 1/outcomes`` and is capped there.
    """
    capped = moved.clamp(max=1 - 1 / outcomes)
    return capped * math.log(max(outcomes - 1, 1)) + entropy(torch.stack([capped, 1 - capped], dim=-1))
