"""Entropy of probabilities, and how far it can move."""

import math

import torch
from torch import Tensor

NEAR = 2**15
"""Entries that are read several times in a row: a quarter of a megabyte, which stays near the processor."""


def entropy(probabilities: Tensor) -> Tensor:
    """``-sum p log p`` over the last axis, in nats; zero or less counts zero."""
    tiny = torch.finfo(probabilities.dtype).tiny
    flat = probabilities.reshape(-1, probabilities.shape[-1])
    sums = []
    for part in flat.split(max(1, NEAR // max(1, flat.shape[-1]))):
        positive = part.clamp(min=0)
        # torch's own function of one number takes one at a time; this one is several times faster
        sums.append(positive.clamp(min=tiny).log_().mul_(positive).sum(dim=-1))
    return torch.cat(sums).neg().reshape(probabilities.shape[:-1])


def entropy_change(moved: Tensor, outcomes: int) -> Tensor:
    """Largest change of the entropy of ``outcomes`` probabilities that move by ``moved`` in total variation.

    ``T log(outcomes - 1) + h(T)`` with h the binary entropy (Audenaert 2007); it grows up to ``log(outcomes)`` at
    ``T = 1 - 1/outcomes`` and is capped there.
    """
    capped = moved.clamp(max=1 - 1 / outcomes)
    return capped * math.log(max(outcomes - 1, 1)) + entropy(torch.stack([capped, 1 - capped], dim=-1))
