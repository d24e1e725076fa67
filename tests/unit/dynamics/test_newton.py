"""Newton's method against closed forms: simple roots, multiple roots, families, and states that are no equilibria."""

import itertools
import math

import pytest
import torch

from rankscope.dynamics import Drawn, attention_system, every_rank, iterate, judged
from rankscope.dynamics.newton import polish
from rankscope.dynamics.returning import returning
from rankscope.errors import ConfigError, NumericalError, ShapeError
from rankscope.masks import parse_mask
from rankscope.network import LayerNorm, Softmax, Sphere, Uniform

F64 = torch.float64
CAUSAL = Uniform(heads=1, rule=parse_mask("causal"))
B = torch.tensor([[0, 1], [-1 / 3, -math.sqrt(8) / 3]], dtype=F64)


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def on_sphere(x):
    return torch.nn.functional.normalize(x, dim=-1)


def shear():
    return attention_system(CAUSAL, torch.tensor([[1.0, 3.0], [0.0, 1.0]], dtype=F64), Sphere())


def shift(dim=4, weight=10.0):
    return torch.eye(dim, dtype=F64) + weight * torch.diag(torch.ones(dim - 1, dtype=F64), 1)


def test_a_double_root_is_reached_to_the_last_bit():
    """Token 0 sits at a double root: plain Newton halves its error, and 60 halvings of 0.02 would leave 2e-20."""
    near = on_sphere(B + 0.02 * draw(0, 32, 2, 2))
    found = polish(shear(), near)
    assert bool(found.converged.all())
    assert float(found.residual.max()) <= 2**-52
    torch.testing.assert_close(found.tokens, B.expand_as(near), rtol=0, atol=1e-15)
    assert float(found.uncertainty.max()) < 1e-13


def test_the_unstable_equilibrium_is_reached_as_well():
    wanted = B * torch.tensor([1.0, -1.0], dtype=F64) + torch.tensor([[0.0, 2.0], [0.0, 0.0]], dtype=F64)
    found = polish(shear(), on_sphere(wanted + 0.01))
    torch.testing.assert_close(found.tokens, wanted, rtol=0, atol=1e-15)


def test_a_root_of_multiplicity_four_is_reached():
    """W = 1 + 10 S in four dimensions: the residual of token 0 is the fourth power of its error."""
    system = attention_system(CAUSAL, shift(), Sphere())
    last = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=F64)
    near = next(itertools.islice(iterate(system, torch.ones(6, 4, dtype=F64)), 300, None))
    found = polish(system, near)
    assert float((near - last).abs().max()) > 1e-3
    torch.testing.assert_close(found.tokens, last.expand(6, 4), rtol=0, atol=0)


def test_the_same_root_in_other_coordinates_is_near_and_the_distance_is_owned():
    turn = torch.linalg.qr(draw(2, 4, 4))[0]
    system = attention_system(CAUSAL, turn.mT @ shift() @ turn, Sphere())
    t = 0.01
    near = on_sphere(torch.tensor([t**3, t**2, t, 1.0], dtype=F64).expand(3, 4)) @ turn
    found = polish(system, near)
    off = float((found.tokens @ turn.mT - torch.tensor([0, 0, 0, 1.0], dtype=F64)).abs().max())
    assert bool(found.converged)
    assert off < 1e-3  # the fourth root of rounding
    assert off <= float(found.uncertainty.max())


def test_well_conditioned_roots_come_out_at_rounding():
    """The dominant eigenvector of a value map that is far from a multiple of the identity, at consensus."""
    values = torch.diag(torch.tensor([2.0, 1.0, 0.5], dtype=F64)) + 0.1 * draw(3, 3, 3)
    system = attention_system(Softmax(draw(4, 3, 3), draw(5, 3, 3), heads=1), values, Sphere())
    roots, vectors = torch.linalg.eig(values.mT)
    row = vectors[:, roots.abs().argmax()].real
    x = (row / row.norm() * row[0].sign()).expand(5, 3)
    found = polish(system, on_sphere(x + 0.05 * draw(6, 5, 3)))
    assert float(found.residual) <= 1e-15
    assert float(found.uncertainty.max()) <= 1e-13
    torch.testing.assert_close(found.tokens, x, rtol=0, atol=1e-14)


def test_of_a_family_the_nearest_member_is_taken():
    """Identity values: every consensus is at rest; a state beside one moves to a neighbor, not across the sphere."""
    system = attention_system(CAUSAL, torch.eye(3, dtype=F64), Sphere())
    one = on_sphere(draw(7, 1, 3)).expand(4, 3)
    near = on_sphere(one + 1e-3 * draw(8, 16, 4, 3))
    found = polish(system, near)
    assert bool(found.converged.all())
    assert float((found.tokens - near).abs().max()) < 0.01
    assert float((found.tokens - found.tokens[:, :1]).abs().max()) < 1e-7


def test_a_batch_is_a_loop():
    system = attention_system(
        Softmax(draw(1, 3, 3), draw(2, 3, 3), heads=1), draw(3, 3, 3), LayerNorm(eps=1e-5)
    )
    x = draw(4, 6, 4, 3)
    together = polish(system, x)
    for one, tokens, is_there in zip(x, together.tokens, together.converged, strict=True):
        alone = polish(system, one)
        assert bool(alone.converged) == bool(is_there)
        if is_there:  # others wander, and rounding decides where to
            torch.testing.assert_close(alone.tokens, tokens, rtol=0, atol=1e-10)


def test_large_blocks_are_solved_without_a_matrix():
    values = torch.diag(torch.tensor([2.0, 1.0, 0.5, 0.25], dtype=F64))
    system = attention_system(Softmax(draw(4, 4, 4), draw(5, 4, 4), heads=1), values, Sphere())
    near = on_sphere(torch.tensor([1.0, 0, 0, 0], dtype=F64) + 0.02 * draw(6, 2, 5, 4))
    small, large = polish(system, near), polish(system, near, largest_dense=4)
    assert bool(large.converged.all())
    torch.testing.assert_close(large.tokens, small.tokens, rtol=0, atol=1e-13)


def test_nothing_is_changed_without_iterations():
    near = on_sphere(B + 1e-6)
    found = polish(shear(), near, iterations=0)
    assert torch.equal(found.tokens, near)
    assert not bool(found.converged)
    assert float(found.uncertainty.max()) > 1e-7  # the correction it would make


def test_a_plateau_that_moves_by_some_roundings_is_no_equilibrium():
    """softmax(16 x.x) at an angle of 2.7: tokens turn by exp(-16 (1 - cos 2.7)) sin 2.7 = 2.5e-14 a step."""
    eye = torch.eye(2, dtype=F64)
    system = attention_system(Softmax(4 * eye, 4 * eye, heads=1, scale=1.0), eye, Sphere())
    x = torch.tensor([[1.0, 0.0], [math.cos(2.7), math.sin(2.7)]], dtype=F64)
    found = polish(system, x, iterations=0)
    assert 1e-14 < float(found.residual) < 1e-13
    assert not bool(found.converged)
    with pytest.raises(NumericalError, match=r"no equilibrium to rounding: .* 32 times the rounding"):
        judged(system, x)
    near = x.clone()
    near[1] = -near[0]  # opposite tokens are at rest
    assert bool(polish(system, near, iterations=0).converged)


def test_zeros_that_a_step_keeps_carry_no_error():
    """The staircase of rank 6 at w = 10: entries down to 1e-5, all known to rounding, zeros exactly."""
    built = every_rank(parse_mask("causal"), 6, 6, 6, shear=10.0)
    unsure = polish(built.system(), built.tokens, iterations=0).uncertainty
    assert float(unsure[built.tokens == 0].max()) == 0
    assert float(unsure.max()) < 1e-11
    exact = every_rank(parse_mask("causal"), 6, 6, 6, shear=10.0, digits=40).tokens
    assert bool(((built.tokens - exact).abs() <= unsure + 2**-52 * exact.abs()).all())


def test_a_turning_consensus_is_no_equilibrium():
    turn = torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=F64)
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=F64)
    found = polish(attention_system(Uniform(heads=1), turn, Sphere()), x)
    assert not bool(found.converged)
    assert float(found.residual) > 0.1


def test_a_state_that_a_step_mirrors_is_no_equilibrium():
    """step(x) = -x has no movement along the sphere, but two steps are needed to come back."""
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=F64)
    found = polish(attention_system(Uniform(heads=1), -torch.eye(2, dtype=F64), Sphere()), x)
    assert not bool(found.converged)


def test_perturbations_come_back_from_one_side_of_a_double_root():
    """Token 0 comes back to (0, 1) from the right alone, so half of all perturbations do; from A none."""
    share = float(returning(shear(), B, trials=256).back)
    assert 0.4 < share < 0.6  # 0.5 within three standard errors of 256 trials
    system = attention_system(CAUSAL, torch.diag(torch.tensor([2.0, 1.0], dtype=F64)), Sphere())
    first = torch.tensor([[1.0, 0.0]] * 3, dtype=F64)
    assert float(returning(system, first).back) == 1.0
    assert float(returning(system, first.flip(-1)).back) == 0.0


def test_pushes_that_go_to_the_mirror_image_are_counted_apart():
    """Token 0 leaves (0, 1) on one side for (0, -1), and all follow it: no push stays away from both."""
    found = returning(shear(), torch.tensor([[0.0, 1.0]] * 2, dtype=F64), trials=128)
    assert 0.3 < float(found.back) < 0.7  # one half within five standard errors
    assert float(found.back + found.mirrored) > 0.9


def test_moving_along_a_family_is_not_coming_back():
    """Identity values, causal: all tokens follow token 0, so the distance stays about what it was."""
    system = attention_system(CAUSAL, torch.eye(3, dtype=F64), Sphere())
    x = torch.tensor([[1.0, 0.0, 0.0]] * 6, dtype=F64)
    assert float(returning(system, x, steps=100).back) < 0.3


def test_questions_without_an_answer_are_refused():
    drawn = attention_system(CAUSAL, Drawn(kind="gaussian", dim=2, seed=0), Sphere())
    with pytest.raises(ConfigError, match="draws its maps anew"):
        polish(drawn, B)
    with pytest.raises(ShapeError):
        polish(shear(), torch.full((2, 2), torch.nan, dtype=F64))
    with pytest.raises(ConfigError, match="trials=0"):
        returning(shear(), B, trials=0)
    with pytest.raises(ConfigError, match="single starts"):
        returning(attention_system(CAUSAL, draw(0, 3, 2, 2), Sphere()), B)
