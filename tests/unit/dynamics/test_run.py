"""Runs of many starts: every step against plain loops, every way to end, every refusal."""

import math
from itertools import islice

import numpy as np
import pytest
import torch

from rankscope.dynamics import Drawn, Ending, Slowness, attention_system, iterate, repeat, run
from rankscope.errors import ConfigError, NumericalError, ShapeError
from rankscope.masks import parse_mask
from rankscope.network import Fixed, LayerNorm, RMSNorm, Softmax, Spec, Sphere, Uniform, build, stack
from rankscope.network.initial import haar_orthogonal
from reference.attention_steps import attention_row, one_step

NORMS = {
    "none": None,
    "sphere": Sphere(),
    "layer": LayerNorm(eps=1e-5),
    "rms": RMSNorm(eps=1e-6),
}


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(mask, value, norm="sphere"):
    return attention_system(Uniform(heads=1, rule=parse_mask(mask)), value, NORMS[norm])


def shear(dim, size):
    return torch.eye(dim, dtype=torch.float64) + size * torch.diag(torch.ones(dim - 1).double(), 1)


def turn(angle):
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, s], [-s, c]], dtype=torch.float64)


@pytest.mark.parametrize("mask", ["full", "causal", "window:1", "causal-window:2", "blocks:2"])
@pytest.mark.parametrize("norm", list(NORMS))
@pytest.mark.parametrize("values", ["gaussian", "orthogonal", "identity"])
def test_steps_equal_plain_loops(mask, norm, values):
    n, d = 5, 3
    value = {"gaussian": drawn(1, d, d), "orthogonal": haar_orthogonal(drawn(1, d, d))}.get(values)
    value = torch.eye(d, dtype=torch.float64) if value is None else value
    query, key, x = drawn(2, d, d), drawn(3, d, d), drawn(4, n, d)
    system = attention_system(Softmax(query, key, heads=1, rule=parse_mask(mask)), value, NORMS[norm])
    allowed, tokens = parse_mask(mask).matrix(n), x.numpy()
    for state in islice(iterate(system, x), 4):
        # a few steps only: rounding of the two ways drifts apart by a factor per step in chaotic systems
        torch.testing.assert_close(state, torch.from_numpy(tokens), rtol=1e-11, atol=1e-12)
        tokens = one_step(tokens, allowed, value.numpy(), norm, query.numpy(), key.numpy())


def test_frozen_maps_are_those_of_the_start():
    n, d = 4, 3
    query, key, value, x = drawn(1, d, d), drawn(2, d, d), drawn(3, d, d), drawn(4, 2, n, d)
    system = attention_system(Softmax(query, key, heads=1, rule=parse_mask("causal")), value, Sphere())
    states = list(islice(iterate(system.frozen(x), x), 6))
    allowed = parse_mask("causal").matrix(n)
    for start in range(2):
        tokens = x[start].numpy()
        rows = [attention_row(tokens, i, allowed, query.numpy(), key.numpy()) for i in range(n)]
        for state in states:
            torch.testing.assert_close(state[start], torch.from_numpy(tokens), rtol=1e-11, atol=1e-12)
            tokens = one_step(tokens, allowed, value.numpy(), "sphere", rows=rows)


def test_drawn_maps_differ_by_step_and_come_back_with_the_seed():
    maps = [Drawn(kind="gaussian", dim=8, seed=3).at(step) for step in (0, 1, 0)]
    assert torch.equal(maps[0], maps[2])
    assert not torch.equal(maps[0], maps[1])
    assert not torch.equal(maps[0], Drawn(kind="gaussian", dim=8, seed=4).at(0))
    turned = Drawn(kind="orthogonal", dim=8, seed=3).at(5)
    torch.testing.assert_close(turned @ turned.mT, torch.eye(8, dtype=torch.float64))
    x = drawn(1, 4, 8)
    system = attention_system(
        Uniform(heads=1, rule=parse_mask("causal")), Drawn(kind="gaussian", dim=8, seed=3)
    )
    tokens = x.numpy()
    for step, state in enumerate(islice(iterate(system, x), 5)):
        torch.testing.assert_close(state, torch.from_numpy(tokens), rtol=1e-11, atol=1e-12)
        value = Drawn(kind="gaussian", dim=8, seed=3).at(step).numpy()
        tokens = one_step(tokens, parse_mask("causal").matrix(4), value, "none")


def test_tokens_that_become_equal_end_at_consensus_while_their_common_token_turns():
    value = haar_orthogonal(drawn(0, 3, 3))
    done = run(uniform("causal", value), drawn(1, 20, 5, 3), 500)
    assert set(done.endings) == {Ending.CONSENSUS}
    spread = (done.final - done.final.mean(dim=-2, keepdim=True)).abs().amax()
    assert float(spread) < 1e-12
    assert (done.steps > 10).all()
    assert (done.steps < 200).all()


def test_rest_is_an_equilibrium_and_its_step_changes_nothing():
    # blocks that never meet: the first token of each block goes to e_d, which the shear keeps
    system = uniform("blocks:2", torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64)))
    x = torch.tensor([[0.6, 0.8], [0.6, -0.8]], dtype=torch.float64)
    done = run(system, x, 200)
    assert done.endings == (Ending.EQUILIBRIUM,)
    torch.testing.assert_close(
        done.final, torch.tensor([[0.0, 1.0], [0.0, -1.0]]).double(), atol=1e-12, rtol=0
    )
    assert 30 < int(done.steps) < 50  # the error halves: 2^-40 is 1e-12
    assert "each has a limit of its own" in done.describe()


@pytest.mark.parametrize("period", [2, 3, 4, 7, 12, 64])
def test_cycles_have_their_least_period(period):
    system = uniform("blocks:2", turn(2 * math.pi / period))
    done = run(system, torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64), 1000)
    assert done.endings == (Ending.CYCLE,)
    assert int(done.periods) == period


def test_a_turn_that_never_closes_is_a_shape_at_rest():
    system = uniform("blocks:2", turn(1.0))
    done = run(system, torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64), 1000)
    assert done.endings == (Ending.SHAPE,)
    assert "turn or grow together" in done.describe()


def test_close_tokens_that_still_approach_are_no_shape_at_rest():
    """Their inner products hardly change any more, their distance does."""
    system = uniform("causal", turn(1.0))
    x = torch.tensor([[1.0, 0.0], [math.cos(1e-6), math.sin(1e-6)]], dtype=torch.float64)
    done = run(system, x, 1000)
    assert done.endings == (Ending.CONSENSUS,)


def test_opposite_blocks_that_creep_to_rest_are_no_shape_at_rest():
    """Their inner products are at rest to high order, but the tokens slow down like 1 / steps^2."""
    x = torch.tensor([[[0.1, 1.0], [0.1, 1.0], [-0.2, -1.0], [-0.2, -1.0]]], dtype=torch.float64)
    done = run(uniform("blocks:2", shear(2, 3.0)), x, 1500)
    assert done.endings == (Ending.PLATEAU,)


@pytest.mark.slow
def test_a_slow_approach_is_a_plateau_and_can_be_followed_further():
    system = uniform("causal", shear(2, 3.0))
    x = torch.tensor([[0.1, 0.995], [-0.4, -0.9]], dtype=torch.float64)
    done = run(system, x, 1500)
    assert done.endings == (Ending.PLATEAU,)
    further = run(system, x, 1500, slowness=None)
    assert further.endings == (Ending.RUNNING,)
    # token 0 tends to (0, 1) like 1 / (3 t)
    assert float(further.final[0, 0]) == pytest.approx(1 / (3 * 1500), rel=0.02)
    later = run(system, x, 1500, slowness=Slowness(patience=400))
    assert int(later.steps) > int(done.steps)


def test_a_geometric_approach_is_no_plateau_however_slow_it_starts():
    system = uniform("blocks:2", torch.diag(torch.tensor([1.0, 1.02], dtype=torch.float64)))
    x = torch.tensor([[1e-2, 1.0], [1.0, 3.0]], dtype=torch.float64)
    done = run(system, x, 5000)
    assert done.endings == (Ending.EQUILIBRIUM,)


def test_growth_without_a_norm_ends_at_the_end_of_the_range():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    value = torch.tensor([[1e30, 0.0], [0.0, 2e30]], dtype=torch.float64)
    done = run(uniform("blocks:2", value, "none"), x, 100)
    assert done.endings == (Ending.RANGE,)


def test_steps_that_run_out_are_said():
    done = run(uniform("window:1", torch.eye(3, dtype=torch.float64)), drawn(0, 20, 3), 3)
    assert done.endings == (Ending.RUNNING,)
    assert int(done.steps) == 3


@pytest.mark.parametrize("mask", ["causal", "window:1"])
def test_a_batch_of_starts_equals_single_runs(mask):
    """Starts end at different times, so the batch shrinks on the way."""
    x = drawn(5, 40, 4, 3)
    system = uniform(mask, drawn(6, 3, 3))
    together = run(system, x, 300, record=(0, 3, 100, 300))
    assert len(set(together.steps.tolist())) > 3
    for start in range(0, 40, 7):
        alone = run(system, x[start], 300, record=(0, 3, 100, 300))
        assert alone.endings[0] is together.endings[start]
        assert int(alone.steps) == int(together.steps[start])
        torch.testing.assert_close(alone.final, together.final[start], rtol=1e-9, atol=1e-9)
        for step, state in alone.recorded.items():
            torch.testing.assert_close(state, together.recorded[step][start], rtol=1e-9, atol=1e-9)


def test_starts_may_have_weights_of_their_own():
    x, value = drawn(0, 6, 4, 3), haar_orthogonal(drawn(1, 6, 3, 3))
    query, key = drawn(2, 6, 3, 3), drawn(3, 6, 3, 3)
    rule = parse_mask("causal")
    together = run(attention_system(Softmax(query, key, heads=1, rule=rule), value, Sphere()), x, 300)
    for start in range(6):
        mixer = Softmax(query[start], key[start], heads=1, rule=rule)
        alone = run(attention_system(mixer, value[start], Sphere()), x[start], 300)
        assert int(alone.steps) == int(together.steps[start])
        torch.testing.assert_close(alone.final, together.final[start], rtol=1e-9, atol=1e-9)


def test_a_tree_is_a_system_and_so_is_a_stack_of_them():
    spec = Spec(layers=2, heads=2, dim=8, norm="sphere", variant="transformer", mask="causal")
    networks = [build(spec, torch.Generator().manual_seed(seed)) for seed in range(3)]
    x = drawn(0, 3, 5, 8)
    together = run(stack(networks), x, 50, record=(1, 2))
    for seed, network in enumerate(networks):
        once = network(x[seed])
        torch.testing.assert_close(together.recorded[1][seed], once, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(together.recorded[2][seed], network(once), rtol=1e-9, atol=1e-9)


def test_records_keep_what_ended():
    done = run(uniform("full", torch.eye(2, dtype=torch.float64)), drawn(0, 3, 2), 50, record=(0, 1, 50))
    assert list(done.recorded) == [0, 1, 50]
    assert torch.equal(done.recorded[50], done.final)
    assert torch.equal(done.recorded[0], drawn(0, 3, 2))


def test_a_token_sent_to_zero_is_refused_by_name():
    nothing = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    x = torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    with pytest.raises(NumericalError, match=r"step 2 sends token 0 of start 0 to zero .* is singular"):
        run(uniform("blocks:2", nothing), x, 10)
    flips = run(
        uniform("blocks:2", nothing, "layer"), x, 10
    )  # (-1, 1) to (0, -1) to (1, -1): nothing vanishes
    assert (flips.endings, int(flips.periods)) == ((Ending.CYCLE,), 2)


def test_a_small_token_of_a_badly_scaled_map_is_no_rounding():
    """Its length is 1e-20 of the largest that the map can give, but nothing cancels."""
    x = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    done = run(uniform("blocks:2", torch.diag(torch.tensor([1e20, 1.0], dtype=torch.float64))), x, 50)
    assert done.endings == (Ending.EQUILIBRIUM,)
    torch.testing.assert_close(done.final, torch.eye(2, dtype=torch.float64), atol=1e-12, rtol=0)


def test_a_step_beyond_the_range_is_refused_under_the_sphere():
    x = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64) * 1e200
    with pytest.raises(NumericalError, match="token 0 of start 0 beyond the range"):
        run(uniform("causal", torch.eye(2, dtype=torch.float64)), x, 5)


def test_an_oscillation_that_dies_out_is_no_cycle():
    """Multiplier -0.98: two steps change little long before one step does."""
    flip = torch.diag(torch.tensor([1.0, -0.98], dtype=torch.float64))
    done = run(uniform("blocks:2", flip), torch.tensor([[1.0, 1e-3], [1.0, -0.5]], dtype=torch.float64), 5000)
    assert done.endings == (Ending.EQUILIBRIUM,)
    torch.testing.assert_close(done.final[:, 1], torch.zeros(2, dtype=torch.float64), atol=1e-11, rtol=0)


def test_equal_tokens_are_no_end_where_the_mask_keeps_them_apart():
    x = torch.tensor([[1e-13, 1.0], [-1e-13, 1.0]], dtype=torch.float64)
    done = run(uniform("window:0", torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))), x, 500)
    assert done.endings == (Ending.EQUILIBRIUM,)
    torch.testing.assert_close(
        done.final, torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64), atol=1e-12, rtol=0
    )


def test_a_short_token_that_grows_is_not_at_rest_beside_a_long_one():
    x = torch.tensor([[1e14, 0.0], [0.0, 1.0]], dtype=torch.float64)
    system = uniform("window:0", torch.diag(torch.tensor([1.0, 1.5], dtype=torch.float64)), "none")
    assert run(system, x, 20).endings == (Ending.RUNNING,)


def test_a_slow_drift_above_rounding_is_not_at_rest():
    """Tokens that turn by 5e-13 a step, in opposite senses in two blocks: slower than anything but rounding."""
    done = run(uniform("window:0", turn(5e-13)), torch.eye(2, dtype=torch.float64), 400)
    assert done.endings == (Ending.PLATEAU,)


def test_a_state_of_zeros_is_at_rest():
    x = torch.zeros(3, 2, dtype=torch.float64)
    assert run(uniform("causal", shear(2, 1.0), "none"), x, 5).endings == (Ending.CONSENSUS,)
    assert run(uniform("blocks:3", shear(2, 1.0), "layer"), x, 5).endings == (Ending.EQUILIBRIUM,)


def test_opposite_tokens_that_cancel_to_rounding_are_refused():
    c, s = math.cos(0.3), math.sin(0.3)
    x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[c, s], [-c, -s]]], dtype=torch.float64)
    maps = torch.full((1, 2, 2), 0.5, dtype=torch.float64)
    maps[0, 1] = torch.tensor([0.5 + 1e-16, 0.5 - 1e-16])
    with pytest.raises(NumericalError, match="token 0 of start 1"):
        run(attention_system(Fixed(maps), torch.eye(2, dtype=torch.float64), Sphere()), x, 10)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, 2, dtype=torch.float64), "token 0 of start 0 is zero"),
        (torch.zeros(0, 2, dtype=torch.float64), "at least one token"),
        (torch.full((3, 2), torch.nan, dtype=torch.float64), "NaN"),
        (torch.ones(3, 2), "float64, the start is float32"),
        (torch.ones(3, 5, dtype=torch.float64), "5 channels, the value map takes 2"),
    ],
)
def test_starts_that_cannot_run_are_refused(x, message):
    with pytest.raises(ShapeError, match=message):
        run(uniform("causal", torch.eye(2, dtype=torch.float64)), x, 5)


def test_settings_that_make_no_sense_are_refused():
    eye, x = torch.eye(2, dtype=torch.float64), drawn(0, 3, 2)
    with pytest.raises(ConfigError, match="at least one step"):
        run(uniform("causal", eye), x, 0)
    with pytest.raises(ConfigError, match="from 0 to 5"):
        run(uniform("causal", eye), x, 5, record=(6,))
    with pytest.raises(ConfigError, match="longest_cycle=0"):
        run(uniform("causal", eye), x, 5, longest_cycle=0)
    with pytest.raises(ConfigError, match="tolerance=nan"):
        run(uniform("causal", eye), x, 5, tolerance=math.nan)
    with pytest.raises(ShapeError, match="finite float64 numbers, got float32"):
        uniform("causal", eye.float())
    with pytest.raises(ConfigError, match="has one head, the mixer has 2"):
        attention_system(Uniform(heads=2), eye)
    with pytest.raises(ShapeError, match="square"):
        attention_system(Uniform(heads=1), torch.ones(2, 3, dtype=torch.float64))
    with pytest.raises(ShapeError, match="for 4 starts, tokens hold 3"):
        run(uniform("causal", eye.expand(4, 2, 2)), drawn(0, 3, 3, 2), 5)
    with pytest.raises(ConfigError, match="frozen only where every step"):
        attention_system(Uniform(heads=1), Drawn(kind="gaussian", dim=2, seed=0)).frozen(x)


def test_the_note_is_about_the_mask():
    eye = torch.eye(2, dtype=torch.float64)
    assert run(uniform("causal", eye), drawn(0, 3, 2), 5).note is None
    note = run(uniform("blocks:2", eye), drawn(0, 4, 2), 5).note
    assert note is not None
    assert "tokens 0-1 | 2-3" in note


def test_repeat_leaves_the_final_norm_out():
    spec = Spec(layers=1, heads=1, dim=4, norm="layer", placement="pre", variant="san+skip")
    network = build(spec, torch.Generator().manual_seed(0))
    x = drawn(0, 3, 4)
    torch.testing.assert_close(repeat(network).step(x), network.states(x)[-1])
    assert not torch.allclose(repeat(network).step(x), network(x))
    assert np.isfinite(repeat(network).step(x).numpy()).all()
