"""Networks that enlarge their own rounding: a second run with noise shows it, and floors are wider by as much."""

import os
from itertools import product

import pytest
import torch

from rankscope.measures import evaluate, find_measure
from rankscope.network import Network, Softmax, Spec, build, gaussian_tokens
from rankscope.network.jitter import UNITS, jittered

SEEDS = range(24) if os.environ.get("RANKSCOPE_SOAK") else range(3)
MEASURES = ("residual_ratio[frobenius,mean]", "residual_ratio[composite,mean]", "cosine[off_diagonal]")


def sharp(
    seed: int, scale: float, variant: str = "san+skip", layers: int = 48, norm: str = "none"
) -> Network:
    """A network of float32 weights whose queries are ``scale`` times as large as usual."""
    spec = Spec(layers=layers, heads=2, dim=16, variant=variant, norm=norm)
    network = build(spec, torch.Generator().manual_seed(seed))
    for part in network.modules():
        if isinstance(part, Softmax):
            part.query.data.mul_(scale)
    return network.float()


@torch.no_grad()
def compared(network: Network, seed: int) -> list[tuple[float, float, float, bool]]:
    """Per layer and measure: how far float32 is from float64, and floors with a second run and without."""
    x = gaussian_tokens(16, 16, generator=torch.Generator().manual_seed(100 + seed)).float()
    truth = network.owned().double().states(x.double())
    found = []
    for layer, (exact, state, again) in enumerate(
        zip(truth, network.states(x), jittered(network).states(x), strict=True)
    ):
        if not bool(torch.isfinite(state).all()):
            break
        for measure in map(find_measure, MEASURES):
            wide = evaluate(measure, state, layer=layer, dtype=torch.float32, again=again)
            usual = evaluate(measure, state, layer=layer, dtype=torch.float32)
            off = abs(float(wide.value) - float(measure(exact)))
            found.append((off, float(wide.floor), float(usual.floor), bool(wide.resolved)))
    return found


@pytest.mark.slow
def test_a_second_run_covers_what_the_usual_floor_does_not() -> None:
    drawn = product((2.0, 4.0), ("san+skip", "transformer"), SEEDS)
    rows = [row for scale, variant, seed in drawn for row in compared(sharp(seed, scale, variant), seed)]
    beyond_usual = sum(off > usual for off, _, usual, _ in rows) / len(rows)
    uncovered = sum(off > wide for off, wide, _, _ in rows) / len(rows)
    assert beyond_usual > 0.05  # the fault that the second run is for
    # a second run is one draw: over 7,000 numbers of such networks 0.3% were off by more than it shows
    assert uncovered <= 0.03
    assert not any(resolved and off > 20 * wide for off, wide, _, resolved in rows)
    assert sum(resolved for *_, resolved in rows) > 0.1 * len(rows)  # early layers stay known


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_networks_that_enlarge_nothing_keep_their_floors(norm: str) -> None:
    for variant, layers in (("san", 4), ("san+skip", 4)):
        network = sharp(0, 1.0, variant, layers=layers, norm=norm)
        for _, wide, usual, _ in compared(network, 0):
            assert wide <= 4 * usual


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_noise_has_the_stated_length_and_is_always_the_same(dtype: torch.dtype) -> None:
    network = sharp(0, 1.0, layers=3).owned().to(dtype)
    x = gaussian_tokens(6, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    one, two = jittered(network), jittered(network)
    assert [torch.equal(a, b) for a, b in zip(one.states(x), two.states(x), strict=True)] == [True] * 4
    moved = one.blocks[0].parts[0](x, network.checked(x, None)).double() - x.double()
    unit = torch.finfo(dtype).eps / 2
    lengths = torch.linalg.vector_norm(moved, dim=-1) / torch.linalg.vector_norm(x.double(), dim=-1)
    # rounding the sum adds up to one unit of each entry
    torch.testing.assert_close(lengths / unit, torch.full_like(lengths, UNITS), rtol=0.2, atol=0)
    assert next(one.parameters()) is next(network.parameters())
