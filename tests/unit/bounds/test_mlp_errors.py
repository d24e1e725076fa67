"""MLPs on tokens that are known up to a distance: every token within it is enclosed, for every activation."""

import pytest
import torch
from torch import Tensor

from kit.trees import DIM, Draws, mlp
from rankscope.bounds.enclosure import Enclosed
from rankscope.bounds.mlp_rules import activated_error, inner, through_mlp
from rankscope.bounds.secants import _secants, mlp_matrix
from rankscope.network import ACTIVATIONS, Context

TOKENS, DRAWN = 4, 40


def moved(x: Tensor, error: float, draw: Draws) -> Tensor:
    """Tokens at that distance: in random directions, and along the largest entry of each, up and down."""
    ways = draw(DRAWN, *x.shape)
    largest = torch.nn.functional.one_hot(x.abs().argmax(dim=-1), x.shape[-1]) * x.sign()
    ways[0], ways[1] = largest, -largest
    return x + error * ways / torch.linalg.vector_norm(ways, dim=-1, keepdim=True)


@pytest.mark.parametrize("error", [1e-9, 0.1, 2.0])
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_the_error_of_an_activation_covers_all_entries_within_reach(name: str, error: float) -> None:
    draw, activation = Draws(0), ACTIVATIONS[name]
    x = 3 * draw(TOKENS, DIM)
    allowed = activated_error(activation, Enclosed(x=x, error=torch.full((TOKENS,), error).double()))
    off = torch.linalg.vector_norm(activation(moved(x, error, draw)) - activation(x), dim=-1)
    assert bool((off <= allowed).all())
    assert float(allowed.max()) <= 30 * max(float(off.max()), error), "and it says something"


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_what_leaves_an_mlp_is_enclosed(name: str, gated: bool) -> None:
    draw = Draws(1)
    part, x, error = mlp(draw, activation=name, gated=gated), 2 * draw(TOKENS, DIM), 0.1
    found = through_mlp(part, inner(part, Enclosed(x=x, error=torch.full((TOKENS,), error).double())))
    off = torch.linalg.vector_norm(part(moved(x, error, draw), Context()) - found.x, dim=-1)
    assert bool((off <= found.error).all())
    assert bool(torch.isfinite(found.error).all())


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_the_matrix_of_an_mlp_holds_for_all_tokens_within_reach(name: str, gated: bool) -> None:
    draw = Draws(2)
    part, x, error = mlp(draw, activation=name, gated=gated), draw(TOKENS, DIM), 1e-3
    found = mlp_matrix(part, Enclosed(x=x, error=torch.full((TOKENS,), error).double()))
    low, high = found.gains()
    for tokens in moved(x, error, draw):
        before, after = (one - one.mean(dim=-2, keepdim=True) for one in (tokens, part(tokens, Context())))
        ratio = (after.norm() / before.norm()).log()
        assert bool(low <= ratio + 1e-9)
        assert bool(ratio <= high + 1e-9)


@pytest.mark.parametrize("error", [1e-6, 1e-2])
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_secants_are_known_as_well_as_they_say(name: str, error: float) -> None:
    """Between every entry and that of the mean token, each moved up or down by all that is allowed."""
    draw, activation = Draws(3), ACTIVATIONS[name]
    x, center, errors = 3 * draw(200, 1), draw(1, 1), torch.full((200,), error).double()
    slopes, loose = _secants(activation, Enclosed(x=x, error=errors), Enclosed(x=center, error=errors[:1]))
    for up in (-error, error):
        for other in (-error, error):
            a, b = x + up, center + other
            exact = (activation(a) - activation(b)) / (a - b)
            assert bool(((exact - slopes).abs() <= loose + 1e-9).all())
