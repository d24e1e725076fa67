"""The circle: its data, the steps of the variants, the orbit in closed form, runs, and the verdict."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.errors import ConfigError
from rankscope.network import generators
from rankscope.papers.figures import circle as figure
from rankscope.papers.figures import circle_words as words
from rankscope.papers.figures.circle_cases import CASES
from rankscope.papers.figures.circle_orbits import (
    ATTRACTING,
    attracting_weights,
    multipliers,
    one_head,
    opposite,
    orbit_network,
)
from rankscope.papers.figures.circle_rules import is_fastest, last_ratio, leaving_growth
from rankscope.papers.figures.circle_runs import (
    described,
    ending,
    follow,
    growth,
    jacobians,
    left_at,
    merged_at,
    turned,
)
from rankscope.papers.figures.figure import Job
from rankscope.papers.figures.store import Store
from rankscope.papers.tasks.circle import (
    CIRCLE,
    CircleConfig,
    CircleModel,
    batches,
    circle_pairs,
    circle_points,
    held_out,
    lines,
    score,
)
from rankscope.papers.tasks.training import train_task

ANGLE = 2 * math.pi / 1000


def model(variant, **fields):
    config = CircleConfig.of(dim=6, heads=2, variant=variant, initial_std=1.0, **fields)
    return CircleModel(config, generators(3)[0]).double().requires_grad_(requires_grad=False)


PAIRS = torch.tensor([[[0.3, -0.1], [-0.2, 0.25]], [[0.0, 0.3], [0.4, -0.1]]], dtype=torch.float64)


# data


def test_points_are_at_equal_angles():
    found = circle_points(12, 0.5).numpy()
    for k in range(12):
        assert found[k] == pytest.approx(
            [0.5 * math.cos(k * math.pi / 6), 0.5 * math.sin(k * math.pi / 6)], abs=1e-15
        )
    with pytest.raises(ConfigError, match="circle of 3 points"):
        circle_points(3, 0.5)


def test_odd_circles_have_no_opposite_points():
    with pytest.raises(ConfigError, match="on 101 points; ask for an even number"):
        circle_pairs(101, 0.3)
    with pytest.raises(ConfigError, match="multiple of 2"):
        CircleConfig.of(points=101)


def test_targets_are_one_step_further_and_tokens_opposite_up_to_one_step():
    inputs, targets = circle_pairs(1000, 0.3)
    assert inputs.shape == targets.shape == (499, 2, 2)
    flat, aims = (one.numpy() @ [1, 1j] for one in (inputs, targets))
    np.testing.assert_allclose(aims / flat, np.exp(1j * ANGLE), atol=1e-14)
    np.testing.assert_allclose(flat[:, 1] / flat[:, 0], np.exp(1j * (math.pi - ANGLE)), atol=1e-14)
    # published code: the arcs start at angle 0 and at point 499 of 1000
    assert inputs[0, 0].tolist() == [0.3, 0.0]


def test_noise_is_on_inputs_alone_and_new_in_every_epoch():
    config = CircleConfig.of(points=100, epochs=2, batch=100, noise=0.1)
    clean = held_out(config)[1]
    (first,), (second,) = batches(config)
    for inputs, targets in (first, second):
        off = inputs - turned_back(targets, 100)
        assert 0.02 < float(off.std()) < 0.04  # 0.1 of a radius of 0.3, over 196 numbers
        assert {tuple(row) for row in targets.flatten(1).tolist()} == {
            tuple(row) for row in clean.flatten(1).tolist()
        }
    assert not torch.equal(first[0].sort(dim=0).values, second[0].sort(dim=0).values)


def turned_back(pairs, points):
    back = np.exp(-2j * math.pi / points) * (pairs.double().numpy() @ np.array([1, 1j]))
    return torch.from_numpy(np.stack([back.real, back.imag], axis=-1))


def test_in_order_keeps_the_walk():
    config = CircleConfig.of(points=100, epochs=1, batch=30, in_order=True)
    (epoch,) = batches(config)
    assert [len(one) for one, _ in epoch] == [30, 19]
    assert torch.equal(torch.cat([one for one, _ in epoch]), held_out(config)[0])


def test_scores_of_standing_still_of_zero_and_of_the_truth():
    config = CircleConfig()
    inputs, targets = held_out(config)
    assert score(targets, targets) == 1
    assert score(torch.zeros_like(targets), targets) == lines(config)["zero"] == 0
    # float32 points of a circle of radius 0.3 are off by 1e-8, a step is 2e-3 long
    assert score(inputs, targets) == pytest.approx(lines(config)["no movement"], abs=1e-6)


# steps


def test_a_step_of_attention_alone_is_that_of_loops():
    one = model("san")
    embed, attention, read = one.network.blocks[0].parts
    out = one(PAIRS).numpy()
    mixer, values = attention.mixer, attention.values
    for batch in range(2):
        h = PAIRS[batch].numpy() @ embed.weight.numpy() + embed.bias.numpy()
        q, k, v = (h @ m.numpy() for m in (mixer.query, mixer.key, values.value))
        mixed = np.zeros_like(h)
        for head in range(2):
            own = slice(3 * head, 3 * head + 3)
            for i in range(2):
                logits = [q[i, own] @ k[j, own] / math.sqrt(3) for j in range(2)]
                share = 1 / (1 + math.exp(logits[1] - logits[0]))
                mixed[i, own] = share * v[0, own] + (1 - share) * v[1, own]
        expected = mixed @ values.out.numpy() @ read.weight.numpy()
        np.testing.assert_allclose(out[batch], expected, rtol=1e-12, atol=1e-14)  # biases start at zero


@pytest.mark.parametrize(("with_skip", "without"), [("san+skip", "san"), ("transformer", "san+mlp")])
def test_the_skip_is_that_of_the_recurrence(with_skip, without):
    torch.testing.assert_close(model(with_skip)(PAIRS) - PAIRS, model(without)(PAIRS), rtol=1e-12, atol=1e-12)


def test_the_official_step_does_not_see_how_far_out_the_points_are():
    # its embedding is normed and has no bias at the start; attention alone sees it
    official, san = model("official"), model("san")
    torch.testing.assert_close(official(2 * PAIRS), official(PAIRS), rtol=1e-3, atol=0)  # eps of LayerNorm
    assert float((san(2 * PAIRS) - san(PAIRS)).abs().max()) > 0.05


def test_every_variant_trains(tmp_path):
    for variant in ("san", "san+skip", "san+mlp", "transformer", "official", "official+mlp"):
        config = CIRCLE.configured("fast", variant=variant, epochs=6, dim=8)
        curve = train_task(CIRCLE, config).curve
        assert curve[-1].loss < curve[0].loss


def test_resumed_training_is_the_same(tmp_path):
    config = CIRCLE.configured("fast", epochs=3, dim=8, noise=0.1)
    whole = train_task(CIRCLE, config)
    again = train_task(CIRCLE, config, folder=tmp_path)
    read = train_task(CIRCLE, config, folder=tmp_path)
    assert whole.curve == again.curve == read.curve


# the orbit in closed form


def plain_step(x, strengths, weights, radius, angle):
    """Attention with isotropic logits as loops over complex numbers; tokens are two of them."""
    out = [0j, 0j]
    for z, w in zip(strengths, weights, strict=True):
        for i in range(2):
            scores = [math.exp(z / radius**2 * (x[i] * x[j].conjugate()).real) for j in range(2)]
            mean = sum(s * one for s, one in zip(scores, x, strict=True)) / sum(scores)
            out[i] += w * mean * complex(math.cos(angle), math.sin(angle))
    return out


def difference_quotient(strengths, weights, radius, angle, mean, half):
    """Change of mean and half difference after a step, over the change before, in the frame that turns."""
    size = 1e-6
    ends = []
    for sign in (1, -1):
        m, d = sign * size * mean, radius + sign * size * half
        a, b = plain_step([m + d, m - d], strengths, weights, radius, angle)
        back = complex(math.cos(angle), -math.sin(angle))
        ends.append(((a + b) / 2 * back, (a - b) / 2 * back))
    return [(one - other) / (2 * size) for one, other in zip(*ends, strict=True)]


@settings(max_examples=40, deadline=None)
@given(
    strengths=st.lists(st.floats(0.1, 3.0), min_size=1, max_size=3),
    others=st.lists(st.floats(-2.0, 2.0), min_size=2, max_size=2),
)
def test_multipliers_are_difference_quotients(strengths, others):
    weights = [0.0, *others[: len(strengths) - 1]]
    rest = sum(w * math.tanh(z) for z, w in zip(strengths, weights, strict=True))
    weights[0] = (1 - rest) / math.tanh(strengths[0])
    found = multipliers(strengths, weights)
    setting = (strengths, weights, 0.3, 0.01)
    size = 1 + sum(map(abs, weights))
    # second-order quotients at 1e-6: rounding 1e-10, the third derivative over r^2 times 1e-12
    close = {"abs": 1e-6 * size}
    assert difference_quotient(*setting, 0, 1)[1] == pytest.approx(found.difference_along, **close)
    assert difference_quotient(*setting, 0, 1j)[1] == pytest.approx(1j, **close)
    assert found.difference_across == pytest.approx(1, abs=1e-12 * size)
    assert difference_quotient(*setting, 1, 0)[0] == pytest.approx(found.mean_along, **close)
    assert difference_quotient(*setting, 1j, 0)[0] == pytest.approx(1j * found.mean_across, **close)


def test_one_head_never_holds_the_points():
    for z in np.geomspace(1e-3, 15, 60):
        found = multipliers([z], one_head(z))
        assert found.mean_across > 1
        assert 1 < found.difference_along <= 3
        assert found.difference_along == pytest.approx(1 + 4 * z / math.sinh(2 * z), rel=1e-12)


def test_two_heads_can_and_take_pushed_points_back():
    weights = attracting_weights()
    assert multipliers(ATTRACTING, weights).largest < 0.5
    step = orbit_network(ATTRACTING, weights, radius=0.3, angle=ANGLE)
    start = opposite(0.3) + torch.tensor([[0.03, 0.02], [0.01, -0.02]], dtype=torch.float64)
    run = follow(step, start, 200)
    assert run.distance[-1] == pytest.approx(0.6, rel=1e-12)
    assert run.mean[-1] < 1e-15
    # one head, pushed in the same way, does not
    lost = follow(orbit_network([1.0], one_head(1.0), radius=0.3, angle=ANGLE), start, 200)
    assert ending(lost.distance) != "apart"


def test_the_tree_of_the_orbit_is_the_plain_step():
    weights = attracting_weights()
    step = orbit_network(ATTRACTING, weights, radius=0.3, angle=0.2)
    out = step(PAIRS[0]).numpy() @ [1, 1j]
    expected = plain_step(list(PAIRS[0].numpy() @ [1, 1j]), ATTRACTING, weights, 0.3, 0.2)
    np.testing.assert_allclose(out, expected, rtol=1e-13)


# runs


def test_a_run_halves_and_merges():
    run = follow(lambda x: x / 2, opposite(0.3), 20)
    assert run.distance == pytest.approx([0.6 / 2**k for k in range(21)])
    assert merged_at(run.distance) == 7  # 2^-7 < 0.01 < 2^-6
    assert left_at(run.distance, run.mean, 0.3) is None
    assert ending(run.distance) == "merged"


def test_a_run_ends_where_rounding_hides_the_distance_and_at_nan():
    out = follow(lambda x: x + 1e8, opposite(0.3), 2000)
    # 32 u sqrt(step) |x| = 0.01 * 0.6 with |x| about 2e8 step: at step 414, so that a step more or less is 0.4%
    last = len(out.distance)
    assert 32 * 2**-53 * math.sqrt(last) * 2e8 * last == pytest.approx(0.006, rel=0.01)
    assert left_at(out.distance, out.mean, 0.3) == 1
    assert len(follow(lambda x: x * math.nan, opposite(0.3), 5).distance) == 1


def test_endings():
    assert ending([1.0, 0.6]) == "apart"
    assert ending([1.0, 0.3]) == "nearer"
    assert ending([1.0, 3.0]) == "ran off"
    assert ending([1.0, 0.001]) == "merged"
    assert ending([1.0, 0.001, 0.9]) == "apart"


def test_whole_turns_are_counted():
    path = torch.stack([opposite(0.3, 0.1 * k) for k in range(101)])
    assert turned(path) == pytest.approx(10.0)
    assert turned(path.flip(0)) == pytest.approx(-10.0)


def test_derivatives_are_of_mean_and_half_difference():
    mix = torch.tensor([[0.7, 0.2], [0.2, 0.7]], dtype=torch.float64)  # mean 0.9, difference 0.5
    channels = torch.tensor([[1.0, 2.0], [0.0, 3.0]], dtype=torch.float64)
    found = jacobians(lambda x: mix @ x @ channels, PAIRS)
    expected = torch.block_diag(0.9 * channels.mT, 0.5 * channels.mT).expand(2, 4, 4)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


def test_growth_is_per_step_and_follows_the_order():
    maps = torch.tensor([[[8.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [2.0, 0.0]]], dtype=torch.float64)
    assert growth(maps) == pytest.approx(4.0)  # second after first: 16 in two steps; the other order gives 0
    turn = torch.tensor(
        [[math.cos(1.0), -math.sin(1.0)], [math.sin(1.0), math.cos(1.0)]], dtype=torch.float64
    )
    assert growth(turn.expand(50, 2, 2)) == pytest.approx(1.0)
    assert growth(torch.zeros(3, 2, 2, dtype=torch.float64)) == growth(maps.flip(0)) == 0.0


def test_growth_of_the_built_orbit_is_its_largest_multiplier():
    config = CircleConfig()
    step = orbit_network([1.0], one_head(1.0), radius=0.3, angle=ANGLE)
    found = described(step, config, 5)
    # the pairs are opposite up to one step of a thousand only, which moves logits by some 1e-5
    assert found["growth"] == pytest.approx(multipliers([1.0], one_head(1.0)).difference_along, rel=1e-3)
    assert found["difference_growth"] == pytest.approx(2.1029, rel=1e-3)
    # that leaves a mean of half a step, across the difference, which grows
    grown = (multipliers([1.0], one_head(1.0)).mean_across - 1) / 2
    assert found["error_over_staying"] == pytest.approx(grown**2, rel=1e-3)


# the verdict


def network(case, hidden, *, distances, means=None, **fields):
    about = {
        "case": case,
        "hidden": hidden,
        "seed": 0,
        "distance": distances,
        "floor": [0.0] * len(distances),
    }
    about |= {"mean": means or [0.0] * len(distances), "path": [[0.0] * 4 for _ in distances]}
    about |= {"merged_at": merged_at(distances), "left_at": None, "ending": ending(distances), "turned": 1.0}
    about |= {"growth": 1.0, "mean_growth": 1.0, "difference_growth": 1.0}
    return about | {"error_over_zero": 1e-4, "error_over_staying": 1.0} | fields


MERGES, STAYS, RUNS = [1.0, 0.5, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 4.0, 8.0]


def group(case, *curves, **fields):
    return [network(case, 32, distances=list(one), **fields) for one in curves]


def test_verdict_on_merging():
    everywhere = group("san", *[MERGES] * 5) + group("official", *[MERGES] * 5)
    assert words.merging_point(everywhere, 3)["agrees"] is True
    nowhere = group("san", *[RUNS] * 5) + group("official", *[STAYS] * 5)
    assert words.merging_point(nowhere, 3)["agrees"] is False
    partly = group("san", *[MERGES] * 4, RUNS) + group("official", *[MERGES] * 5)
    found = words.merging_point(partly, 3)
    assert found["agrees"] is None
    assert "4 of 5" in found["measured"]
    assert "1 run away" in found["measured"]
    too_few = group("san", MERGES) + group("official", MERGES)
    assert words.merging_point(too_few, 3)["agrees"] is None


def by_width(case, *steps):
    """Networks of 32, 64 and 128 channels that merge at these steps; None never does."""
    sizes = zip((32, 64, 128), steps, strict=True)
    return [network(case, hidden, distances=run_to(at)) for hidden, own in sizes for at in own]


def ordered(*steps):
    return words.order_point(by_width("san", *steps) + by_width("official", *steps))


NEVER = [None] * 10


def test_verdict_on_the_order_of_widths():
    early, late = list(range(10, 20)), list(range(50, 60))
    assert ordered(early, late, NEVER)["agrees"] is True
    assert ordered(NEVER, late, early)["agrees"] is False
    mixed = by_width("san", early, late, NEVER) + by_width("official", NEVER, late, early)
    assert words.order_point(mixed)["agrees"] is None
    assert words.order_point(group("san", MERGES) + group("official", MERGES))["agrees"] is None
    assert ordered(NEVER, NEVER, NEVER)["agrees"] is None


def test_the_order_of_widths_is_not_decided_by_medians():
    # all merge, a step apart: 32 is the fastest, but at 128 it is seen in all, which three seeds cannot tell
    few = ordered([10] * 3, [11] * 3, [12] * 3)
    assert few["agrees"] is None
    assert "32 is the fastest: yes (p = 0.024), 128 merges in fewer than half: not decided" in few["measured"]
    many = ordered([10] * 10, [11] * 10, [12] * 10)
    assert many["agrees"] is None
    assert "128 merges in fewer than half: no" in many["measured"]
    scattered = ordered([10, 50, 90], [9, 51, 91], [None, 60, None])
    assert scattered["agrees"] is None
    assert "32 is the fastest: not decided" in scattered["measured"]


def test_ranks_are_those_of_all_ways_to_choose_a_group():
    steps = [[3, 9, None], [4, 5, 20, None], [30, 40]]
    groups = [[network("san", 32, distances=by) for by in map(run_to, own)] for own in steps]
    flat = [math.inf if one is None else one for own in steps for one in own]
    rank = [sum(b < a for b in flat) + (sum(b == a for b in flat) + 1) / 2 for a in flat]
    sums = [sum(rank[i] for i in chosen) for chosen in itertools.combinations(range(9), 3)]
    own = sum(rank[:3])
    tails = [sum(one <= own for one in sums), sum(one >= own for one in sums)]
    assert is_fastest(groups) == (None, pytest.approx(min(1.0, 2 * min(tails) / len(sums))))


def run_to(step):
    return [1.0] * 100 if step is None else [1.0] * step + [0.0] * (100 - step)


@pytest.mark.parametrize(
    ("point", "case"), [(words.skip_point, "skip"), (words.both_point, "both"), (words.law_point, "around")]
)
def test_verdict_on_staying_apart(point, case):
    assert point(group(case, *[STAYS] * 5), 3)["agrees"] is True
    assert point(group(case, *[MERGES] * 5), 3)["agrees"] is False
    assert point(group(case, *[RUNS] * 5), 3)["agrees"] is False
    assert point(group(case, STAYS, MERGES, STAYS), 3)["agrees"] is None


def test_verdict_on_mlps_needs_both_readings():
    base = group("official", *[MERGES] * 5)
    ours, theirs = group("mlp", *[STAYS] * 5), group("official-mlp", *[STAYS] * 5)
    assert words.mlp_point(base + ours + theirs, 3)["agrees"] is True
    assert words.mlp_point(base + group("mlp", *[MERGES] * 5) + theirs, 3)["agrees"] is None


def test_verdict_on_lag_and_cause():
    assert words.lag_point(group("skip", *[STAYS] * 5, turned=0.5))["agrees"] is True
    assert words.lag_point(group("skip", *[STAYS] * 5, turned=1.0))["agrees"] is False
    fast, slow, other = (
        [one | {"seed": seed} for seed, one in enumerate(group(case, *[STAYS] * 5, growth=growth))]
        for case, growth in (("san", 5.0), ("skip", 1.01), ("skip", 6.0))
    )
    assert words.cause_point(fast + slow, 300, 1000)["agrees"] is True
    assert words.cause_point(fast + other, 300, 1000)["agrees"] is None
    # it grows, but leaves after more steps than were followed
    held = [one | {"growth": 1.015} for one in fast]
    assert words.cause_point(held + slow, 300, 1000)["agrees"] is None
    assert words.cause_point(held + slow, 400, 1000)["agrees"] is True
    assert words.cause_point([one | {"growth": 0.9} for one in fast] + slow, 300, 1000)["agrees"] is False


def test_the_growth_that_leaves_is_that_of_a_mean_that_reaches_the_radius():
    inputs, _ = circle_pairs(1000, 0.3)
    mean = float(torch.linalg.vector_norm(inputs[0].mean(dim=0)))
    assert mean * leaving_growth(300, 1000) ** 300 == pytest.approx(0.3)


def test_the_residual_ratio_of_two_points():
    x = torch.tensor([[0.5, 0.1], [0.3, -0.4]], dtype=torch.float64)
    distance, mean = (float(torch.linalg.vector_norm(one)) for one in (x[0] - x[1], x.mean(dim=0)))
    residual = torch.linalg.matrix_norm(x - x.mean(dim=0)) / torch.linalg.matrix_norm(x)
    one = network("san", 32, distances=[1.0, distance], means=[0.0, mean])
    assert last_ratio(one) == pytest.approx(float(residual))
    assert last_ratio(one | {"distance": [1.0, 0.0], "floor": [0.0, 1e-3]}) == pytest.approx(
        1e-3 / (2 * mean), rel=1e-4
    )
    assert last_ratio(network("san", 32, distances=[1.0, 0.0])) == 0.0


def test_collapse_is_relative():
    far = [0.0, 1.0, 100.0, 1e4]
    gone, kept = group("san", *[STAYS] * 5, means=far), group("skip", *[STAYS] * 5)
    assert words.collapse_point(gone + kept, 3)["agrees"] is True
    # the points stay at their distance, but their mean runs away
    assert words.collapse_point(gone + group("skip", *[STAYS] * 5, means=far), 3)["agrees"] is None
    assert (
        words.collapse_point(group("san", *[STAYS] * 5) + group("skip", *[STAYS] * 5, means=far), 3)["agrees"]
        is False
    )


def test_one_network_of_each_kind_is_told_but_not_judged():
    one = [network(case.name, 32, distances=list(MERGES)) for case in CASES]
    points, notes = words.verdict_and_notes(one, 3, 1000)
    assert [point["agrees"] for point in points] == [None] * 9 + [True]
    assert "1 of 1" in points[0]["measured"]
    assert "to 0)" not in points[5]["measured"]
    assert notes[0].startswith("Of each kind 1 network was trained.")
    assert points[-1]["measured"].startswith("Calculated, nothing random enters")


def test_the_figure_is_the_same_when_it_goes_on(tmp_path, monkeypatch):
    tiny = {"hidden": (4,), "seeds": range(1), "points": 40, "steps": 6, "epochs": 1, "around_epochs": 1}
    monkeypatch.setitem(figure.SIZES, "fast", tiny)
    first = figure.make(Job(size="fast"))
    kept = figure.make(Job(size="fast", store=Store(tmp_path)))
    again = figure.make(Job(size="fast", store=Store(tmp_path)))
    assert first.frame.equals(kept.frame)
    assert kept.frame.equals(again.frame)
    assert first.sections == kept.sections == again.sections
    assert {row["case"] for row in first.sections["networks"]} == {case.name for case in CASES}
    start = first.where(step=0, measure="distance").frame
    assert start["value"].to_list() == [1.0] * len(CASES)
