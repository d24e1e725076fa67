"""Many starts of a dynamical system as one batch, against a loop over the starts."""

import torch

from bench.timing import best_times
from rankscope.dynamics import attention_system
from rankscope.dynamics import run as follow
from rankscope.masks import parse_mask
from rankscope.network import Softmax, Sphere

STARTS, LOOPED = 1000, 20
"""Starts of the batch, and how many of them the loop really runs; its time is scaled to all."""


def run() -> list[dict[str, object]]:
    return [batch_ratio(mask=mask) for mask in ("full", "causal", "window:1")]


def batch_ratio(*, mask: str, tokens: int = 8, dim: int = 4, steps: int = 64) -> dict[str, object]:
    """Time of a loop over 1,000 starts over that of one batch (aim 20), all of ``steps`` steps."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mixer = Softmax(draw(dim, dim), draw(dim, dim), heads=1, rule=parse_mask(mask))
    system = attention_system(mixer, draw(dim, dim), Sphere())
    starts = draw(STARTS, tokens, dim)

    def batch() -> None:
        follow(system, starts, steps, tolerance=0.0, at_rest=0.0, slowness=None)

    def loop() -> None:
        for start in starts[:LOOPED]:
            follow(system, start, steps, tolerance=0.0, at_rest=0.0, slowness=None)

    together, singly = best_times(batch, loop, repeats=5)
    ratio = singly * STARTS / LOOPED / together
    return {"mask": mask, "tokens": tokens, "dim": dim, "loop_over_batch": round(ratio, 1)}
