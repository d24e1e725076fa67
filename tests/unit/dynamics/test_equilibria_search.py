"""Equilibria found and judged, against closed forms and the same maps iterated in plain numpy."""

import json
import math

import numpy as np
import pytest
import torch

from rankscope.dynamics import Drawn, attention_system, every_rank
from rankscope.dynamics.equilibrium import judged
from rankscope.dynamics.search import find_equilibria
from rankscope.errors import ConfigError, NumericalError, ShapeError
from rankscope.masks import parse_mask
from rankscope.network import LayerNorm, Softmax, Sphere, Uniform

F64 = torch.float64
CAUSAL = Uniform(heads=1, rule=parse_mask("causal"))
Q = math.sqrt(8) / 3
B = torch.tensor([[0, 1], [-1 / 3, -Q]], dtype=F64)


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def on_sphere(x):
    return torch.nn.functional.normalize(x, dim=-1)


def shear():
    return attention_system(CAUSAL, torch.tensor([[1.0, 3.0], [0.0, 1.0]], dtype=F64), Sphere())


@pytest.fixture(scope="module")
def two_tokens():
    return find_equilibria(shear(), on_sphere(draw(0, 200, 2, 2)), newton=60, trials=16, steps=1500)


def test_the_two_token_system_has_consensus_b_and_a(two_tokens):
    """About a tenth of random starts end at B; A repels and is found by Newton's method alone."""
    consensus, b, a = two_tokens.equilibria
    assert [one.rank for one in (consensus, b, a)] == [1, 2, 2]
    torch.testing.assert_close(
        consensus.tokens, torch.tensor([[0.0, 1.0]] * 2, dtype=F64), rtol=0, atol=1e-15
    )
    torch.testing.assert_close(b.tokens, B, rtol=0, atol=1e-15)
    torch.testing.assert_close(a.tokens, torch.tensor([[0, 1], [-1 / 3, Q]], dtype=F64), rtol=0, atol=1e-15)
    assert consensus.share + b.share == 1
    assert 0.05 < b.share < 0.17  # 0.11 of 1000 other starts; three standard errors of 200
    assert (b.found_by, a.found_by, a.share) == ("run", "newton", 0)
    assert consensus.mirrored
    assert b.mirrored


def test_what_is_said_of_b_and_a_is_the_closed_form(two_tokens):
    _, b, a = two_tokens.equilibria
    assert b.equation_residual <= 2**-52
    assert (b.largest_multiplier, b.neutral_tokens, b.stable) == (1, (0,), None)
    assert b.largest_other_multiplier == pytest.approx(1 - Q, abs=1e-14)
    assert b.mean_abs_cosine == pytest.approx(Q, abs=1e-15)
    assert b.singular_values == pytest.approx([math.sqrt(1 + Q), math.sqrt(1 - Q)], abs=1e-15)
    assert b.stability == (
        "neutral to first order: token 0 has a multiplier of modulus one; all others are at most 0.05719"
    )
    assert a.largest_multiplier == pytest.approx(1 + Q, abs=1e-14)
    assert a.stable is False
    assert a.stability == "unstable: token 1 has a multiplier of 1.943, so small changes of it grow"
    assert a.returns == 0


def test_every_start_is_counted_once_and_limits_are_what_iteration_shows(two_tokens):
    starts = on_sphere(draw(0, 200, 2, 2)).numpy()
    assert sum(one.count for one in two_tokens.basins) == 200
    x = starts.copy()
    for _ in range(3000):  # the map in plain numpy
        mixed = np.stack([x[:, 0], (x[:, 0] + x[:, 1]) / 2], axis=1) @ np.array([[1.0, 3.0], [0.0, 1.0]])
        x = mixed / np.linalg.norm(mixed, axis=-1, keepdims=True)
    tokens = torch.stack([one.tokens for one in two_tokens.equilibria])[two_tokens.limits]
    limits = tokens * two_tokens.signs[:, None, None]
    assert np.abs(x - limits.numpy()).max() < 1e-3  # token 0 is 1 / (3 steps) away, token 1 follows


@pytest.mark.slow
def test_the_shift_keeps_rank_two_for_a_few_starts():
    """W = 1 + 10 S, n = 6, d = 4: most starts collapse, a few end at rank 2 with token 0 at the last axis."""
    shift = torch.eye(4, dtype=F64) + 10 * torch.diag(torch.ones(3, dtype=F64), 1)
    found = find_equilibria(
        attention_system(CAUSAL, shift, Sphere()), on_sphere(draw(0, 200, 6, 4)), steps=800, trials=0
    )
    first, *others = found.equilibria
    assert first.rank == 1
    assert first.share > 0.9
    assert {one.rank for one in others} == {2}
    assert sum(one.share for one in found.equilibria) == pytest.approx(1)
    for one in found.equilibria:
        assert one.equation_residual <= 1e-15
        assert one.neutral_tokens[0] == 0
        assert one.tokens[0].tolist() == [0, 0, 0, 1]


def shift(dim, weight=10.0):
    return torch.eye(dim, dtype=F64) + weight * torch.diag(torch.ones(dim - 1, dtype=F64), 1)


def test_consensus_at_a_root_of_multiplicity_six_is_one_equilibrium():
    """After 200 steps tokens are 2e-3 from the last axis, and a step is blind to that: all starts end there."""
    system = attention_system(CAUSAL, shift(6), Sphere())
    found = find_equilibria(system, on_sphere(draw(0, 12, 6, 6)), steps=200, trials=0)
    (one,) = found.equilibria
    assert one.tokens.tolist() == [[0.0] * 5 + [1.0]] * 6
    assert (one.rank, one.rank_note, one.share, one.neutral_tokens) == (1, None, 1.0, (0,))
    assert [part.largest_multiplier for part in one.components] == pytest.approx(
        [1 / n for n in range(1, 7)], abs=1e-12
    )


def test_every_token_is_judged_by_its_own_uncertainty():
    """Staircase of rank 6, w = 10. Golden: multipliers of the same blocks in 100 digits (mpmath)."""
    built = every_rank(parse_mask("causal"), 6, 6, 6, shear=10.0)
    one = judged(built.system(), built.tokens, trials=0)
    found = [part.largest_multiplier for part in one.components]
    assert found == pytest.approx([1, 1, 1, 1.412, 1.617, 1.731], abs=1e-3)
    assert (one.rank, one.rank_note, one.stable, one.undecided_tokens) == (6, None, False, ())
    assert one.multiplier_error < 1e-8
    assert one.stability.startswith("unstable: token 5 has a multiplier of 1.731")


def test_what_cannot_be_decided_is_said_so():
    """The last axis under a shear in turned coordinates: a Jordan block of 5 scatters its multipliers by percents."""
    turn = torch.linalg.qr(draw(2, 6, 6))[0]
    system = attention_system(CAUSAL, turn.mT @ shift(6) @ turn, Sphere())
    x = turn[-1].expand(2, 6).contiguous()
    one = judged(system, x, trials=0)
    assert (one.stable, one.neutral_tokens, one.undecided_tokens[0]) == (None, (), 0)
    assert one.stability.startswith("not decided: token")
    vague = judged(shear(), B, uncertainty=1e-3, trials=0)
    assert vague.rank_note == "the place is known only to 1.0e-03: the rank is 2 all the same"
    worse = judged(shear(), B, uncertainty=0.3, trials=0)
    assert worse.rank_note == "the place is known only to 3.0e-01: the rank is between 1 and 2"


@pytest.mark.parametrize("norm", [Sphere(), None])
def test_two_members_make_a_family(norm):
    """Turned, and without a norm of another length: still one consensus of a continuum, of which none comes back."""
    system = attention_system(CAUSAL, torch.eye(3, dtype=F64), norm)
    x = draw(1, 2, 3, 3)
    found = find_equilibria(system, on_sphere(x) if norm else x, steps=300, trials=4)
    (one,) = found.equilibria
    assert (one.rank, one.share, one.states, one.returns) == (1, 1.0, 2, None)
    assert any("continuum" in note for note in found.notes)


def test_a_family_is_shown_once():
    """Identity values: every start ends at a consensus of its own."""
    system = attention_system(Uniform(heads=1), torch.eye(3, dtype=F64), Sphere())
    found = find_equilibria(system, on_sphere(draw(1, 20, 4, 3)), steps=200, trials=0)
    (one,) = found.equilibria
    assert (one.rank, one.share, one.states, one.stable) == (1, 1.0, 20, None)
    assert any("20 distinct states are 1" in note for note in found.notes)


def test_more_than_a_few_isolated_equilibria_with_equal_inner_products_are_no_family():
    """Consensus at each of ten axes of a diagonal map: all Gram matrices are ones, the multipliers differ."""
    values = torch.diag(torch.arange(10, 0, -1, dtype=F64))
    system = attention_system(CAUSAL, values, Sphere())
    axes = torch.eye(10, dtype=F64)[:, None, :].expand(10, 3, 10)
    found = find_equilibria(system, axes, steps=5, trials=0)
    assert len(found.equilibria) == 10
    assert [one.states for one in found.equilibria] == [1] * 10
    assert sum(one.stable is True for one in found.equilibria) == 1


def test_a_consensus_that_turns_is_not_an_equilibrium():
    turn = torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=F64)
    found = find_equilibria(
        attention_system(Uniform(heads=1), turn, Sphere()), on_sphere(draw(2, 10, 3, 2)), steps=100
    )
    assert found.equilibria == ()
    (basin,) = found.basins
    assert (basin.equilibrium, basin.ending, basin.rank, basin.count) == (None, "consensus", 1, 10)


def test_the_shared_token_is_followed_to_its_own_limit():
    """Equal tokens under diag(1, 0.9): all are at consensus at once, and go on to the first axis."""
    system = attention_system(Uniform(heads=1), torch.diag(torch.tensor([1.0, 0.9], dtype=F64)), Sphere())
    x = on_sphere(torch.tensor([[0.01, 1.0]], dtype=F64)).expand(
        1, 3, 2
    )  # near the second axis, which repels
    (one,) = find_equilibria(system, x, steps=500, trials=4).equilibria
    assert one.tokens.tolist() == [[1, 0]] * 3
    assert one.stable is True
    assert one.largest_multiplier == pytest.approx(0.9, abs=1e-15)
    assert one.returns == 1


def test_a_run_that_passes_a_repelling_equilibrium_is_not_counted_for_it():
    system = attention_system(Uniform(heads=1), torch.diag(torch.tensor([1.0, 0.9999], dtype=F64)), Sphere())
    x = on_sphere(torch.tensor([[0.001, 1.0]], dtype=F64)).expand(1, 3, 2)
    found = find_equilibria(system, x, steps=20, trials=0)
    assert [one.share for one in found.equilibria] == [0]
    assert found.equilibria[0].stable is False
    assert found.limits.tolist() == [-1]


def test_separate_components_are_named_and_the_list_is_cut():
    system = attention_system(
        Uniform(heads=1, rule=parse_mask("blocks:2")), torch.eye(3, dtype=F64), Sphere()
    )
    found = find_equilibria(system, on_sphere(draw(3, 12, 4, 3)), steps=50, trials=0, most=3)
    assert len(found.equilibria) == 3
    assert "2 components read nothing outside themselves" in found.notes[0]
    assert any("9 more equilibria" in note for note in found.notes)
    assert sum(one.count for one in found.basins) == 12
    assert {one.ending for one in found.basins} == {"equilibrium"}


def test_order_of_tokens_does_not_make_new_equilibria_where_all_are_alike():
    """Two opposite pairs on the circle at softmax(3 x.x), in any order and turn, are one repelling equilibrium."""
    eye = torch.eye(2, dtype=F64)
    system = attention_system(Softmax(3 * eye, eye, heads=1, scale=1.0), eye, Sphere())
    right = torch.tensor([1.0, 0.0], dtype=F64)
    x = torch.stack(
        [torch.stack([right, right, -right, -right]), torch.stack([right, -right, right, -right])]
    )
    found = find_equilibria(system, x, steps=5, trials=8)
    (one,) = found.equilibria
    assert (one.rank, one.share, one.states, one.stable, one.returns) == (1, 1.0, 2, False, None)


def test_with_layer_norm_consensus_attracts():
    system = attention_system(CAUSAL, draw(9, 4, 4), LayerNorm(eps=1e-5))
    found = find_equilibria(system, draw(10, 10, 4, 4), steps=500, trials=8)
    for one in found.equilibria:
        assert one.equation_residual <= 1e-14
        assert (one.stable, one.returns) == (True, 1.0)
    assert sum(one.count for one in found.basins) == 10


def test_an_equilibrium_is_plain_json():
    given = judged(shear(), B, trials=8)
    read = json.loads(json.dumps(given.as_json()))
    assert {"rank", "equation_residual", "largest_multiplier", "stable", "mean_abs_cosine", "tokens"} <= set(
        read
    )
    assert read["multipliers"] == [[1.0, 0.0], [pytest.approx(1 - Q, abs=1e-14), 0.0]]
    assert read["components"][1] == {"tokens": [1], "largest_multiplier": pytest.approx(1 - Q, abs=1e-14)}
    assert read["tokens"][0] == [0.0, 1.0]
    assert read["share"] is None


def test_a_rank_known_by_proof_is_kept_and_a_doubtful_one_is_owned():
    proven = judged(
        shear(), B, rank=2, rank_proof="by construction", rank_threshold=1e-30, digits=40, trials=0
    )
    assert (proven.rank, proven.rank_proof, proven.rank_threshold, proven.digits) == (
        2,
        "by construction",
        1e-30,
        40,
    )
    assert proven.returns is None
    doubtful = judged(shear(), B, rank_threshold=0.1, trials=0)
    assert doubtful.rank == 2
    assert (
        doubtful.rank_note
        == "singular value 2.4e-01 is near the threshold 1.0e-01: the rank is between 1 and 2"
    )


def test_questions_without_an_answer_are_refused():
    off = on_sphere(B + torch.tensor([[0.0, 0.0], [1e-6, 0.0]], dtype=F64))
    with pytest.raises(
        NumericalError, match=r"no equilibrium to rounding: one step moves an entry by 8\.\de-07"
    ):
        judged(shear(), off)
    with pytest.raises(ShapeError, match=r"\(tokens, dim\), got shape \(1, 2, 2\)"):
        judged(shear(), B[None])
    with pytest.raises(ShapeError, match="float32"):
        judged(shear(), B.float())
    with pytest.raises(ShapeError, match=r"got shape \(2, 2\)"):
        find_equilibria(shear(), B)
    with pytest.raises(ConfigError, match="drawn anew"):
        find_equilibria(attention_system(CAUSAL, Drawn(kind="gaussian", dim=2, seed=0), Sphere()), B[None])
    with pytest.raises(ConfigError, match="one system at a time"):
        find_equilibria(attention_system(CAUSAL, draw(0, 3, 2, 2), Sphere()), draw(1, 3, 2, 2))
    with pytest.raises(ConfigError, match="most=0"):
        find_equilibria(shear(), B[None], most=0)
