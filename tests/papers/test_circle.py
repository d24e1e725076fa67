"""The circle: its data, the steps of the variants, the orbit in closed form, runs, and the verdict."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.charts import Grid, Plane
from rankscope.errors import ConfigError
from rankscope.findings.reproduce import ReproduceFinding
from rankscope.network import generators
from rankscope.papers.figures import FIGURES
from rankscope.papers.figures.circle import (
    CASES,
    REACH,
    CircleFigureConfig,
    CircleFound,
    CircleNetwork,
    CircleSetting,
    chart,
    compute,
    is_fastest,
    notes,
    plane_square,
    points,
    step_lines,
    until_out,
)
from rankscope.papers.figures.circle_orbits import (
    ATTRACTING,
    attracting_weights,
    ending,
    follow,
    growth,
    jacobians,
    left_at,
    merged_at,
    multipliers,
    one_head,
    opposite,
    orbit_network,
    record_step,
    total_turn,
)
from rankscope.papers.figures.figure import Job
from rankscope.papers.figures.run import finding_of
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
from rankscope.results import Table
from rankscope.results.store import Store

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
    assert total_turn(path) == pytest.approx(10.0)
    assert total_turn(path.flip(0)) == pytest.approx(-10.0)


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
    found = record_step(step, config, 5)
    # the pairs are opposite up to one step of a thousand only, which moves logits by some 1e-5
    assert found.growth == pytest.approx(multipliers([1.0], one_head(1.0)).difference_along, rel=1e-3)
    assert found.difference_growth == pytest.approx(2.1029, rel=1e-3)
    # that leaves a mean of half a step, across the difference, which grows
    grown = (multipliers([1.0], one_head(1.0)).mean_across - 1) / 2
    assert found.error_over_staying == pytest.approx(grown**2, rel=1e-3)


# the verdict


def network(case, hidden=32, *, distances, means=None, **fields):
    about = {"case": case, "variant": "san", "hidden": hidden, "seed": 0, "distance": distances}
    about |= {"mean": means or [0.0] * len(distances), "path": [(0.0,) * 4 for _ in distances]}
    about |= {"merged_at": merged_at(distances), "left_at": None, "ending": ending(distances), "turned": 1.0}
    about |= {"growth": 1.0, "mean_growth": 1.0, "difference_growth": 1.0, "floor": [0.0] * len(distances)}
    return CircleNetwork.model_validate(about | {"error_over_zero": 1e-4, "error_over_staying": 1.0} | fields)


MERGES, STAYS, RUNS = [1.0, 0.5, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 4.0, 8.0]

TRAINING = {case.name: CIRCLE.configured(case.setting, variant=case.variant) for case in CASES}


def group(case, *curves, **fields):
    return [network(case, distances=list(one), seed=seed, **fields) for seed, one in enumerate(curves)]


def found_with(*networks, steps=3, points=1000):
    """Those networks, and others that stay apart of every case that none is given of, with the same seeds."""
    given, seeds = {one.case for one in networks}, len({one.seed for one in networks}) or 5
    others = [one for case in CASES if case.name not in given for one in group(case.name, *[STAYS] * seeds)]
    return CircleFound(
        setting=CircleSetting(steps=steps, points=points),
        cases={case.name: case.title for case in CASES},
        networks=(*networks, *others),
        training=TRAINING,
    )


MERGING, ORDER, SKIP, MLP, LAG, COLLAPSE, CAUSE, BOTH, LAW, ORBIT = range(10)


def judged(place, *networks, **more):
    return points(found_with(*networks, **more))[place]


def test_verdict_on_merging():
    everywhere = group("san", *[MERGES] * 5) + group("official", *[MERGES] * 5)
    assert judged(MERGING, *everywhere).agrees is True
    nowhere = group("san", *[RUNS] * 5) + group("official", *[STAYS] * 5)
    assert judged(MERGING, *nowhere).agrees is False
    partly = judged(MERGING, *group("san", *[MERGES] * 4, RUNS), *group("official", *[MERGES] * 5))
    assert partly.agrees is None
    assert "4 of 5" in partly.measured
    assert "1 run away" in partly.measured
    too_few = group("san", MERGES) + group("official", MERGES)
    assert judged(MERGING, *too_few).agrees is None


def by_width(case, *steps):
    """Networks of 32, 64 and 128 channels that merge at these steps; None never does."""
    sizes = zip((32, 64, 128), steps, strict=True)
    return [network(case, hidden, distances=run_to(at)) for hidden, own in sizes for at in own]


def run_to(step):
    return [1.0] * 100 if step is None else [1.0] * step + [0.0] * (100 - step)


def widths(*networks):
    """The statement about widths; cases that are not asked for have the same three widths."""
    others = [
        one
        for case in CASES
        if case.name not in ("san", "official")
        for one in by_width(case.name, [9], [9], [9])
    ]
    return judged(ORDER, *networks, *others)


def ordered(*steps):
    return widths(*by_width("san", *steps), *by_width("official", *steps))


NEVER = [None] * 10


def test_verdict_on_the_order_of_widths():
    early, late = list(range(10, 20)), list(range(50, 60))
    assert ordered(early, late, NEVER).agrees is True
    assert ordered(NEVER, late, early).agrees is False
    mixed = by_width("san", early, late, NEVER) + by_width("official", NEVER, late, early)
    assert widths(*mixed).agrees is None
    assert judged(ORDER, *group("san", MERGES), *group("official", MERGES)).agrees is None
    assert ordered(NEVER, NEVER, NEVER).agrees is None


def test_the_order_of_widths_is_not_decided_by_medians():
    # all merge, a step apart: 32 is the fastest, but at 128 it is seen in all, which three seeds cannot tell
    few = ordered([10] * 3, [11] * 3, [12] * 3)
    assert few.agrees is None
    assert "32 is the fastest: yes, p = 0.024; 128 merges in fewer than half: not decided" in few.measured
    many = ordered([10] * 10, [11] * 10, [12] * 10)
    assert many.agrees is None
    assert "128 merges in fewer than half: no" in many.measured
    scattered = ordered([10, 50, 90], [9, 51, 91], [None, 60, None])
    assert scattered.agrees is None
    assert "32 is the fastest: not decided" in scattered.measured


def test_ranks_are_those_of_all_ways_to_choose_a_group():
    steps = [[3, 9, None], [4, 5, 20, None], [30, 40]]
    flat = [math.inf if one is None else one for own in steps for one in own]
    rank = [sum(b < a for b in flat) + (sum(b == a for b in flat) + 1) / 2 for a in flat]
    sums = [sum(rank[i] for i in chosen) for chosen in itertools.combinations(range(9), 3)]
    own = sum(rank[:3])
    tails = [sum(one <= own for one in sums), sum(one >= own for one in sums)]
    assert is_fastest(steps) == (None, pytest.approx(min(1.0, 2 * min(tails) / len(sums))))
    assert is_fastest(steps[:1]) == is_fastest([[None], [None]]) == (None, None)
    assert is_fastest([[3], [3]]) == (None, 1.0)


@pytest.mark.parametrize(("place", "case"), [(SKIP, "skip"), (BOTH, "both"), (LAW, "around")])
def test_verdict_on_staying_apart(place, case):
    assert judged(place, *group(case, *[STAYS] * 5)).agrees is True
    assert judged(place, *group(case, *[MERGES] * 5)).agrees is False
    assert judged(place, *group(case, *[RUNS] * 5)).agrees is False
    assert judged(place, *group(case, STAYS, MERGES, STAYS)).agrees is None


def test_verdict_on_mlps_needs_both_readings():
    ours, theirs = group("mlp", *[STAYS] * 5), group("official-mlp", *[STAYS] * 5)
    assert judged(MLP, *ours, *theirs).agrees is True
    assert judged(MLP, *group("mlp", *[MERGES] * 5), *theirs).agrees is None
    assert judged(MLP, *group("mlp", *[MERGES] * 5), *group("official-mlp", *[RUNS] * 5)).agrees is False


def test_verdict_on_lag_and_cause():
    assert judged(LAG, *group("skip", *[STAYS] * 5, turned=0.5)).agrees is True
    assert judged(LAG, *group("skip", *[STAYS] * 5, turned=1.0)).agrees is False
    assert judged(LAG, *group("skip", *[STAYS] * 2, turned=0.5)).agrees is None

    def cause(alone, skip, steps):
        pair = [("san", alone), ("skip", skip)]
        return judged(
            CAUSE, *(one for case, by in pair for one in group(case, *[STAYS] * 5, growth=by)), steps=steps
        ).agrees

    assert cause(5.0, 1.01, 300) is True
    assert cause(5.0, 6.0, 300) is None
    assert cause(1.015, 1.01, 300) is None  # it grows, but leaves after more steps than were followed
    assert cause(1.015, 1.01, 400) is True
    assert cause(0.9, 1.01, 300) is False


def test_the_growth_that_leaves_is_that_of_a_mean_that_reaches_the_radius():
    inputs, _ = circle_pairs(1000, 0.3)
    mean = float(torch.linalg.vector_norm(inputs[0].mean(dim=0)))
    assert mean * found_with(steps=300).leaving_growth ** 300 == pytest.approx(0.3)


def test_the_residual_ratio_of_two_points():
    x = torch.tensor([[0.5, 0.1], [0.3, -0.4]], dtype=torch.float64)
    distance, mean = (float(torch.linalg.vector_norm(one)) for one in (x[0] - x[1], x.mean(dim=0)))
    residual = torch.linalg.matrix_norm(x - x.mean(dim=0)) / torch.linalg.matrix_norm(x)
    one = network("san", distances=[1.0, distance], means=[0.0, mean])
    assert one.last_ratio == pytest.approx(float(residual))
    hidden = network("san", distances=[1.0, 0.0], means=[0.0, mean], floor=[0.0, 1e-3])
    assert hidden.last_ratio == pytest.approx(1e-3 / (2 * mean), rel=1e-4)
    assert network("san", distances=[1.0, 0.0]).last_ratio == 0.0


def test_collapse_is_relative():
    far = [0.0, 1.0, 100.0, 1e4]
    gone, kept = group("san", *[STAYS] * 5, means=far), group("skip", *[STAYS] * 5)
    assert judged(COLLAPSE, *gone, *kept).agrees is True
    # the points stay at their distance, but their mean runs away
    away = group("skip", *[STAYS] * 5, means=far)
    assert judged(COLLAPSE, *gone, *away).agrees is None
    assert judged(COLLAPSE, *group("san", *[STAYS] * 5), *away).agrees is False


def test_one_network_of_each_kind_is_described_but_not_judged():
    one = found_with(*(network(case.name, distances=list(MERGES)) for case in CASES))
    said = points(one)
    assert points(CircleFound.model_validate(one.model_dump(mode="json"))) == said
    assert [point.agrees for point in said] == [None] * 9 + [True]
    assert "1 of 1" in said[MERGING].measured
    assert notes(one)[0].startswith("1 network of each kind")
    many = found_with(*(one for case in CASES for one in group(case.name, *[MERGES] * 4)))
    assert not notes(many)[0].startswith("4 networks of each kind")
    # 17 steps of at most 1e-5 in each of 70 epochs
    assert "about 0.012 in all" in notes(many)[1]


# the picture


def test_a_way_ends_where_it_leaves_its_square():
    way = [(0.0, 0.0), (1.0, 0.5), (1.0 + 6 * REACH, 0.5 + 3 * REACH), (0.0, 0.0)]
    *inside, last = until_out(way)
    assert inside == way[:2]
    assert last == pytest.approx((REACH, 0.5 + (REACH - 1) / 2))
    assert until_out(way[:2]) == way[:2]
    corner = until_out([(0.0, 0.0), (2 * REACH, -4 * REACH)])
    assert corner[-1] == pytest.approx((REACH / 2, -REACH))


def test_squares_hold_ways_in_radii_and_how_all_networks_ended():
    path = [(0.3, 0.0, -0.3, 0.0), (0.0, 0.3, 0.0, -0.3)]
    near = network("skip", distances=[0.6, 0.6], path=path)
    wide = network("skip", 64, distances=[0.6, 0.001], path=path)
    square = plane_square(found_with(near, wide), "skip", 32)
    assert [list(way.points) for way in square.ways] == [[(1.0, 0.0), (0.0, 1.0)], [(-1.0, 0.0), (0.0, -1.0)]]
    assert [(spot.shape, spot.x, spot.y) for spot in square.spots][:2] == [
        ("ring", 1.0, 0.0),
        ("dot", 0.0, 1.0),
    ]
    assert square.note == "1 merged, 1 apart"
    back = network("skip", distances=[0.6] * 3, path=[path[0], (9.0, 0.0, -0.3, 0.0), path[1]])
    ends = [spot for spot in plane_square(found_with(back), "skip", 32).spots if spot.shape == "dot"]
    assert [spot.tip.partition(",")[0] for spot in ends] == [
        "point 2"
    ]  # point 1 has left the square and come back


def table_of(found):
    columns = {"case": [], "hidden": [], "seed": [], "step": [], "measure": [], "value": [], "floor": []}
    for one in found.networks:
        for measure in ("distance", "mean"):
            for step, value in enumerate(one.distance):
                added = (one.case, one.hidden, one.seed, step, measure, value, 1e-16)
                for name, entry in zip(columns, added, strict=True):
                    columns[name].append(entry)
    return Table.from_columns(columns | {"definition": "m"}, provenance={})


def test_curves_end_at_the_first_number_below_its_floor():
    found = found_with(*group("san", [1.0, 1e-3, 1e-20, 1e-3], MERGES))
    first, second = step_lines(table_of(found).frame, "distance", "san", "attention alone", 2)
    assert [point.y for point in first.points] == pytest.approx([0.0, -3.0, -16.0])
    assert [point.hollow for point in first.points] == [False, False, True]
    assert (first.name, second.name, first.color, second.color) == ("attention alone", "", 2, 2)


def test_the_picture_has_all_cases_and_a_true_title():
    plain = found_with(*group("san", *[MERGES] * 5), *group("skip", *[STAYS] * 5))
    drawn = chart(plain, table_of(plain))
    assert "two points merge, with a skip they stay apart" in drawn.title
    squares = [
        one.name for picture in drawn.pictures if isinstance(picture, Plane) for one in picture.squares
    ]
    assert squares == [case.title for case in CASES]
    assert not any(isinstance(one, Grid) for one in drawn.pictures)
    other = found_with(*group("san", *[STAYS] * 5), network("san", 64, distances=list(MERGES)))
    again = chart(other, table_of(other))
    assert "merge" not in again.title
    (grid,) = [one for one in again.pictures if isinstance(one, Grid)]
    assert [cell.text for cell in grid.cells[0]] == ["0 of 5", "1 of 1"]
    assert len(again.pictures) == 7


# the figure


def test_the_figure_is_the_same_when_it_goes_on_and_when_it_is_loaded(tmp_path):
    config = CircleFigureConfig(
        size="fast", hidden=(4,), seeds=(0,), points=40, steps=6, epochs=1, around_epochs=1
    )
    table, found = compute(config, Job(size="fast"))
    for _ in range(2):
        other_table, other = compute(config, Job(size="fast", store=Store(tmp_path)))
        assert other_table.frame.equals(table.frame)
        assert other == found
    assert {one.case for one in found.networks} == {case.name for case in CASES}
    start = table.where(step=0, measure="distance").frame
    assert start["value"].to_list() == [1.0] * len(CASES)
    finding = finding_of(FIGURES["circle"], "fast", table, found)
    finding.save(tmp_path / "circle.json")
    loaded = ReproduceFinding.load(tmp_path / "circle.json")
    assert FIGURES["circle"].read(loaded) == found
    assert str(loaded) == str(finding)
    assert loaded.chart().svg() == finding.chart().svg()
