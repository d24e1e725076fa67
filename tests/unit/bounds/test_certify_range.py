"""Certificates at the edges of arithmetic: stored maps, huge means, sizes near the ends of the range, many layers."""

import pytest
import torch
from torch import Tensor

from kit.certify_networks import refuted, truth
from kit.trees import Draws
from rankscope.bounds.certificate import FROBENIUS
from rankscope.bounds.certify import certify
from rankscope.bounds.dense import JOINT_SIDE
from rankscope.masks import parse_mask
from rankscope.network import (
    Attention,
    Chain,
    Fixed,
    LayerNorm,
    Mlp,
    Network,
    Part,
    RMSNorm,
    Scale,
    Skip,
    Softmax,
    Sphere,
    Sum,
    Uniform,
    Values,
)

EYE = torch.eye(2, dtype=torch.float64)
ONE = torch.ones(1, 1, dtype=torch.float64)


def tensor(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def still(rule: str = "causal") -> Attention:
    """Attention that adds nothing."""
    return Attention(Uniform(heads=1, rule=parse_mask(rule)), Values(0 * EYE, EYE, heads=1))


def softmax(values: Tensor, outs: Tensor) -> Attention:
    return Attention(Softmax(EYE, EYE, heads=1), Values(values, outs, heads=1))


STORED = torch.tensor([[[0.5, 0.5], [0.5, 0.5 + 2**-23]]])
HALF = 0.25 + EYE.unsqueeze(0) / 2
FAR = 145256119966.5069
CASES: dict[str, tuple[list[Part], Tensor]] = {
    "maps stored in float32": ([Attention(Fixed(STORED), Values(ONE, ONE, heads=1))], tensor([[1000.0], [1001.0]])),
    "mean far above the spread": (
        [LayerNorm(None, None, eps=1e-12)],
        tensor([[FAR, 145256119966.50696], [145256119966.50693, 145256119966.50696]]),
    ),
    "norm of huge tokens": (
        [Skip(Chain([RMSNorm(torch.ones(2).double(), eps=1e-6), Scale(1e104)]))],
        1e104 * tensor([[1, 0], [2, 1], [0, 3]]),
    ),
    "sphere of tiny tokens": ([Sphere()], 1e-160 * Draws(0)(3, 4)),
    "factors that underflow on the way": (
        [Chain([Scale(1e-200), Scale(1e-200), Scale(1e300)])],
        tensor([[1, 0], [2, 1], [0, 3]]),
    ),
    "value maps that underflow": ([softmax(1e-200 * EYE, 1e-200 * EYE)], tensor([[1, 0], [2, 1], [0, 3]])),
    "value maps of opposite sizes": ([softmax(1e-160 * EYE, 1e160 * EYE)], tensor([[1, 0], [2, 1], [0, 3]])),
    "a closed skip around attention that all but vanishes": (
        [Skip(softmax(EYE, EYE), 0.0)] * 5,
        tensor([[1, 2], [1 + 2e-8, 2 - 3e-8], [1 - 1e-8, 2 + 1e-8]]),
    ),
    "scales that cancel, in windows": (
        [Sum([Scale(1.0), Scale(1e-17), Scale(-1.0), still()])] * 3,
        tensor([[1, 0], [2, 1], [0, 3]]),
    ),
    "scales that cancel, beside attention": (
        [Sum([Scale(0.1), Scale(0.2), Scale(-0.3), still("full")])],
        tensor([[1, 0], [2, 1], [0, 3]]),
    ),
    "a skip of unknown sign, against which attention turns": (
        [Skip(Sum([Scale(-1e-17), Scale(-1.0), Attention(Fixed(HALF), Values(-1e-9 * EYE, EYE, heads=1))]))],
        tensor([[1, 2], [3, 4]]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_bounds_hold_at_the_edges_of_arithmetic(name: str) -> None:
    blocks, x = CASES[name]
    network = Network(blocks)
    for joint_side in (JOINT_SIDE, 0):  # with matrices on residuals and without
        assert not refuted(certify(network, x, joint_side=joint_side), truth(network, x))


@pytest.mark.parametrize("blocks", [[Scale(1e-10)] * 40, [Attention(
    Uniform(heads=1, rule=parse_mask("causal")), Values(1e-4 * EYE, EYE, heads=1))] * 80])  # fmt: skip
def test_many_layers_do_not_underflow(blocks: list[Part]) -> None:
    for bounds in certify(Network(blocks), tensor([[1, 0], [2, 1], [0, 3]])).layers:
        assert bounds.lower[FROBENIUS] <= bounds.measured[FROBENIUS] <= bounds.upper[FROBENIUS]
        assert bounds.upper[FROBENIUS] > -torch.inf


@pytest.mark.parametrize("seeds", [3, 5])
def test_seeds_of_weights_alone_are_a_batch(seeds: int) -> None:
    scale = torch.logspace(-3, 3, seeds, dtype=torch.float64).unsqueeze(-1)
    draw = Draws(1)
    block = Chain([Mlp(draw(3, 6), draw(6, 3), activation="relu"), Scale(scale)])
    x = draw(4, 3)
    together = certify(Network([Scale(scale), block]), x).layers[-1]
    assert together.upper[FROBENIUS].shape == (seeds,)
    for place in range(seeds):
        own = Scale(scale[place])
        alone = certify(Network([own, Chain([block.parts[0], own])]), x).layers[-1]
        torch.testing.assert_close(together.upper[FROBENIUS][place], alone.upper[FROBENIUS])


def test_one_invertible_head_keeps_tokens_apart_without_a_skip() -> None:
    maps = torch.eye(3, dtype=torch.float64).unsqueeze(0)
    found = certify(
        Network([Attention(Fixed(maps), Values(2 * EYE, EYE, heads=1))]), Draws(2)(3, 2), joint_side=0
    )
    torch.testing.assert_close(
        found.layers[1].lower[FROBENIUS], found.layers[1].measured[FROBENIUS], rtol=0, atol=1e-7
    )
