"""Frozen parts one by one: the same output as the part, linear, with the transposed map that belongs to it."""

import pytest
import torch
from torch import Tensor

from kit.trees import DIM, Draws, attention, mlp, norm, values
from rankscope.network import ACTIVATIONS, Attention, Context, Network, Part, Scale, Uniform
from rankscope.pathways import freeze
from rankscope.pathways.frozen import FrozenAttention, Leaf

DRAW = Draws(0)
PARTS: dict[str, Part] = {
    "softmax": attention(DRAW, rule="causal"),
    "grouped": attention(DRAW, groups=1),
    "four heads in two groups": attention(DRAW, heads=4, groups=2),
    "uniform": Attention(Uniform(heads=2), values(DRAW)),
    "layer": norm("layer", DRAW),
    "rms": norm("rms", DRAW),
    "sphere": norm("sphere", DRAW),
    "scale": Scale(DRAW(DIM)),
    **{f"mlp {name}": mlp(DRAW, activation=name) for name in ACTIVATIONS},
    "gated": mlp(DRAW, activation="silu", gated=True),
}


def frozen(name: str) -> tuple[Leaf, Tensor]:
    x = Draws(1)(3, 5, DIM)
    leaf = freeze(Network([PARTS[name]]), x).block(1)
    assert isinstance(leaf, Leaf)
    return leaf, x


@pytest.mark.parametrize("name", PARTS)
def test_on_its_own_input_a_frozen_part_is_the_part(name: str) -> None:
    leaf, x = frozen(name)
    total = leaf.linear(x) + sum(constant.value for constant in leaf.constants())
    torch.testing.assert_close(total, PARTS[name](x, Context()), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", PARTS)
def test_linear_with_its_transpose_on_stacks_of_any_size(name: str) -> None:
    leaf, x = frozen(name)
    y, z, g = (Draws(seed)(2, 4, *x.shape) for seed in (2, 3, 4))
    torch.testing.assert_close(
        leaf.linear(2 * y - z), 2 * leaf.linear(y) - leaf.linear(z), rtol=1e-11, atol=1e-12
    )
    torch.testing.assert_close(leaf.linear(y)[1, 2], leaf.linear(y[1, 2]), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(leaf.adjoint(g)[1, 2], leaf.adjoint(g[1, 2]), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(
        (leaf.linear(y) * g).sum(), (y * leaf.adjoint(g)).sum(), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("name", ["softmax", "grouped", "four heads in two groups", "uniform"])
def test_heads_add_up_and_have_transposes_of_their_own(name: str) -> None:
    leaf, x = frozen(name)
    assert isinstance(leaf, FrozenAttention)
    g, heads = Draws(5)(*x.shape), range(leaf.heads)
    torch.testing.assert_close(sum(leaf.head(x, h) for h in heads), leaf.linear(x), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(
        sum(leaf.head_adjoint(g, h) for h in heads), leaf.adjoint(g), rtol=1e-12, atol=1e-13
    )
    keep = torch.arange(leaf.heads) == 1
    torch.testing.assert_close(leaf.kept(x, keep), leaf.head(x, 1), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(leaf.kept_adjoint(g, keep), leaf.head_adjoint(g, 1), rtol=1e-12, atol=1e-13)
    for head in heads:
        met = (leaf.mixed(x) * leaf.pulled(g)).sum(dim=(-2, -1))[..., head]
        torch.testing.assert_close(met, (leaf.head(x, head) * g).sum(dim=(-2, -1)), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_secant_is_the_activation_over_its_argument(name: str) -> None:
    h = torch.cat([torch.linspace(-30, 30, 401, dtype=torch.float64), torch.tensor([0.0, 1e-300, -1e-9])])
    act = ACTIVATIONS[name]
    torch.testing.assert_close(act.secant(h) * h, act(h), rtol=1e-12, atol=1e-15)
    assert bool(torch.isfinite(act.secant(h)).all())
