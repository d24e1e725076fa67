"""The spectrum streams: at its peak it holds less than two states per length and a dozen more."""

import pytest
import torch
from bench.live_memory import LiveMemory

from rankscope.network import Spec, build, gaussian_tokens
from rankscope.pathways import spectrum


@pytest.mark.parametrize("placement", ["post", "pre", "sandwich", "parallel"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu gated"])
def test_peak_memory_in_states(placement: str, activation: str) -> None:
    layers, (name, *gated) = 12, activation.split()
    spec = Spec(
        layers=layers,
        heads=12,
        dim=96,
        variant="transformer",
        norm="layer",
        placement=placement,
        activation=name,
        gated=bool(gated),
    )
    generator = torch.Generator().manual_seed(0)
    network = build(spec, generator)
    x = gaussian_tokens(
        16, 96, generator=generator
    )  # maps are two states, as those of 128 tokens of 768 channels
    with LiveMemory([*network.parameters(), x]) as memory:
        spectrum(network, x)
    assert memory.peak / (x.numel() * x.element_size()) <= 2 * (layers + 1) + 12


def test_the_count_of_memory_sees_what_is_alive_together() -> None:
    x = torch.zeros(1000, dtype=torch.float64)
    with LiveMemory([x]) as memory:
        y = x + 1
        z = y.view(10, 100) * 2
        del y
        z = z + 1
    assert memory.peak == 2 * 8000
