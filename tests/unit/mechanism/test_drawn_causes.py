"""Networks that nobody has chosen: drawn at random, one fault planted, and its sound twin.

The sums are exact on all of them; where the network has collapsed the planted cause comes first, in its block; twins
are not accused. By default a few are drawn, in a soak many.
"""

import math
import os

import numpy as np
import pytest

from kit.planted import (
    Fault,
    Start,
    attention_bias,
    large_values,
    mlp_bias,
    norm_bias,
    norm_gain,
    skip_scale,
    without_skips,
)
from rankscope.findings.mechanism import Mechanism
from rankscope.studies.mechanism import mechanism

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
SEEDS = range(90) if SOAK else range(7)

FAULTS: dict[str, tuple[str, Fault, Fault]] = {
    "no-skip": ("any", without_skips, without_skips),
    "norm-gain": ("post", norm_gain(0.01), norm_gain(1e-3)),
    "norm-direct": ("post", norm_bias(6.0), norm_bias(40.0)),
    "skip-scale": ("any", skip_scale(0.2), skip_scale(0.02)),
    "attention-bias": ("any", attention_bias(8.0), attention_bias(60.0)),
    "mlp-bias": ("any", mlp_bias(8.0), mlp_bias(60.0)),
    "branch-size": ("pre", large_values(40.0), large_values(200.0)),
}
"""Placement of norms that a fault needs; the fault in every block, and as strong as one block alone needs it."""


def drawn(seed: int) -> tuple[Start, str, int | None]:
    """A start, the cause that is planted, and its block, or None for all."""
    draw = np.random.default_rng(seed)
    cause = list(FAULTS)[seed % len(FAULTS)]
    placement = FAULTS[cause][0]
    if placement == "any":
        placement = str(draw.choice(["pre", "post", "post", "none", "parallel", "sandwich"]))
    heads = int(draw.choice([1, 2, 4]))
    start = Start(
        placement=placement,
        layers=int(draw.choice([3, 4, 6, 8, 12] + [24, 32] * SOAK)),
        dim=int(draw.choice([16, 32, 48] + [96, 128] * SOAK)),
        heads=heads,
        groups=int(draw.choice([heads, 1])),
        mask=str(draw.choice(["full", "causal", "window:4", "causal-window:6"])),
        norm=str(draw.choice(["layer", "rms"])),
        activation=str(draw.choice(["relu", "gelu", "silu", "tanh"])),
        gated=bool(draw.random() < 0.3),
        seed=seed,
    )
    is_single = start.layers >= 4 and draw.random() < 0.4
    return start, cause, int(draw.integers(2, start.layers)) if is_single else None


def is_exact(found: Mechanism) -> bool:
    if found.log_start is None or found.log_end is None or found.error is None:
        return False
    return found.error < 1e-10 and math.isclose(
        math.fsum(found.groups.values()), found.log_end - found.log_start, abs_tol=1e-10
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_planted_in_a_drawn_network_is_named_first(seed: int) -> None:
    start, cause, block = drawn(seed)
    _, everywhere, alone = FAULTS[cause]
    network = everywhere(start.network(), None) if block is None else alone(start.network(), (block,))
    found = mechanism(network, start.tokens(16), recover=SOAK)
    assert is_exact(found)
    if not found.collapsed:  # too weak a fault for this network: then nobody may be accused
        assert not found.causes
        return
    assert found.causes[0].name == cause
    if block is not None:
        assert found.causes[0].block == block


@pytest.mark.parametrize("seed", SEEDS)
def test_its_twin_without_the_fault_is_not_accused(seed: int) -> None:
    start, _, _ = drawn(seed)
    found = mechanism(start.network(), start.tokens(16), recover=False)
    assert is_exact(found)
    assert not found.causes
