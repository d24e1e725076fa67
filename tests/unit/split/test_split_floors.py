"""Floors of the split pass: what follows from the distance of the twin, and what they say where nothing is known."""

import math
import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kit.trees import DIM, Draws, attention, values
from rankscope.errors import NumericalError
from rankscope.measures import MEASURES, Bracket, Measure, find_measure
from rankscope.network import (
    Attention,
    Chain,
    Context,
    Fixed,
    Mlp,
    Network,
    RMSNorm,
    Skip,
    Softmax,
    Spec,
    Sphere,
    Uniform,
    Values,
    build,
    stack,
)
from rankscope.split import Split, can_measure, floors, log_measure, of_measured, split_states, split_tokens
from rankscope.split.noise import SIZE, Noise
from rankscope.split.twin import paired, parted

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
OFFERED = [measure for measure in MEASURES.values() if can_measure(measure)]
FROBENIUS = find_measure("residual[frobenius,mean]")


def ends(measure: Measure, x: Tensor) -> tuple[float, float]:
    value = measure(x)
    return (
        (float(value.low), float(value.high)) if isinstance(value, Bracket) else (float(value), float(value))
    )


@pytest.mark.parametrize("measure", OFFERED, ids=str)
def test_a_floor_covers_the_distance_to_the_twin(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its factor of safety the floor is an inequality: |m(X) - m(Y)| is at most what it says of X and Y."""
    monkeypatch.setattr(floors, "SAFETY", 1.0)
    slow = measure.is_bracket or "linf]" in measure.definition  # the center is searched for
    # fifteen have every number of tokens with every size of the common row, and five every number of tokens
    for seed in range((8 if slow else 40) if SOAK else (5 if slow else 15)):
        draw = Draws(seed)
        x = draw(2 + seed % 5, 1 + seed % 4) + (seed % 3) * draw(1 + seed % 4)
        y = x + 10.0 ** (-(seed % 5)) * draw(*x.shape) + draw(x.shape[-1]) * 10.0 ** (-(seed % 4))
        found = log_measure(measure, replace(split_tokens(x), twins=(split_tokens(y),)))
        (low, high), (least, most) = ends(measure, x), ends(measure, y)
        floor = float(found.log_floor.exp())
        assert least - high <= floor * (1 + 1e-9), (
            f"seed {seed}: {high} and {most} differ by more than {floor}"
        )
        assert low - most <= floor * (1 + 1e-9), f"seed {seed}: {high} and {most} differ by more than {floor}"


def test_the_composite_norm_has_a_floor_although_it_is_no_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the composite norm of the difference is less than the difference of the composite norms."""
    monkeypatch.setattr(floors, "SAFETY", 1.0)
    measure = find_measure("residual[composite,mean]")
    x = torch.tensor([[1.0, 1, 1, 1], [-1, -1, -1, -1], [0, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    moved = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0], [-1, 0, 0, 0], [-1, 0, 0, 0]], dtype=torch.float64)
    apart = float(measure(x + moved)) - float(measure(x))
    assert apart > float(measure(moved)) * 0.5
    found = log_measure(measure, replace(split_tokens(x), twins=(split_tokens(x + moved),)))
    assert float(found.log_floor.exp()) >= apart


def test_floors_go_on_where_floats_end() -> None:
    net = build(Spec(layers=12, heads=2, dim=32), torch.Generator().manual_seed(0))
    last = log_measure(FROBENIUS, split_states(net, Draws(1)(16, 32))[-1])
    assert float(last.log10) < -50_000
    assert float(last.log10) - 12 < float(last.log10_floor) < float(last.log10) - 4
    assert bool(last.resolved)


def test_the_twin_leaves_the_run_alone() -> None:
    spec = Spec(
        layers=4, heads=2, dim=8, variant="transformer", norm="layer", placement="pre", position="rotary"
    )
    net, x = build(spec, torch.Generator().manual_seed(0)), Draws(1)(5, 8)
    for one, other in zip(split_states(net, x), split_states(net, x, error=False), strict=True):
        assert_close(one.log_scale, other.log_scale, rtol=1e-13, atol=1e-13)
        assert_close(one.residual, other.residual, rtol=1e-11, atol=1e-13)
        assert one.twins
        assert not other.twins
        assert log_measure(FROBENIUS, other).log_floor is None
        assert not bool(log_measure(FROBENIUS, other).resolved)


def test_input_tokens_are_not_touched() -> None:
    x = Draws(0)(4, DIM)
    x[1] = 0.0  # carried directly, as the tensor that was given
    before = x.clone()
    split_states(Network([Skip(attention(Draws(1)))]), x)
    assert torch.equal(x, before)


def test_disturbances_differ_from_entry_to_entry_and_are_small() -> None:
    x = torch.ones(3, 4, dtype=torch.float64) * Draws(0)(4)
    pair = paired(replace(split_tokens(x), residual=torch.ones(3, 4, dtype=torch.float64)))
    changed = pair.residual[1] / pair.residual[0] - 1
    assert len(set(changed.flatten().tolist())) > 4, "equal rows come apart"
    assert float(changed.abs().max()) <= 2 * SIZE
    assert torch.equal(pair.residual[0], torch.ones(3, 4, dtype=torch.float64))
    assert all(float(twin.log_scale) == -math.inf for twin in parted(pair).twins)  # and zero stays zero


def test_neighbours_that_move_together_in_one_twin_come_apart_in_the_other() -> None:
    """LayerNorm takes away what two channels share: were they to move alike in both twins, nothing would be seen."""
    runs = Noise(3).disturb(torch.ones(3, 5, 8, dtype=torch.float64))
    assert bool((runs[0] == 1).all())
    first, second = (one.flatten().sign() for one in runs[1:] - 1)
    assert bool((first[1:] * first[:-1] == -second[1:] * second[:-1]).all())
    assert not torch.equal((runs[1] - 1).abs(), (runs[2] - 1).abs()), "sizes are drawn for each"


@pytest.mark.parametrize(("tokens", "dim", "count"), [(2, 1, 2), (16, 32, 2), (128, 64, 1), (512, 2, 1)])
def test_small_states_have_two_twins(tokens: int, dim: int, count: int) -> None:
    start = split_tokens(Draws(0)(tokens, dim))
    assert len(parted(paired(start)).twins) == count


@pytest.mark.parametrize("far", [0, 1])
def test_the_twin_that_is_farther_off_gives_the_floor(far: int) -> None:
    one = state(0.0, 1e-14)
    other = replace(one.twins[0], log_scale=torch.tensor(1e-6, dtype=torch.float64))
    both = (one.twins[0], other) if far else (other, one.twins[0])
    found = log_measure(FROBENIUS, replace(one, twins=both))
    assert float(found.log_floor) == float(log_measure(FROBENIUS, replace(one, twins=(other,))).log_floor)
    assert float(found.log_floor) > float(log_measure(FROBENIUS, one).log_floor) + 10


def state(log: float, twin: float, **fields: object) -> Split:
    residual = torch.nn.functional.normalize(Draws(0)(3, 2) - Draws(0)(3, 2).mean(dim=0), dim=(0, 1))
    base = Split(
        common=torch.ones(2, dtype=torch.float64),
        residual=residual,
        log_scale=torch.tensor(log, dtype=torch.float64),
    )
    return replace(base, twins=(replace(base, log_scale=torch.tensor(twin, dtype=torch.float64)),), **fields)


@pytest.mark.parametrize("twin", [math.nan, math.inf, -math.inf])
def test_a_twin_that_ends_elsewhere_says_that_nothing_is_known(twin: float) -> None:
    found = log_measure(FROBENIUS, state(0.0, twin))
    assert float(found.log_floor) == math.inf
    assert not bool(found.resolved)


def test_lost_digits_leave_nothing_known() -> None:
    found = log_measure(FROBENIUS, state(0.0, 0.0, lost=torch.tensor(True)))
    assert float(found.log_floor) == math.inf


def test_equal_tokens_have_the_floor_of_underflow() -> None:
    part = Attention(Uniform(heads=2), values(Draws(0)))
    last = split_states(Network([part]), Draws(1)(5, DIM))[-1]
    for name in ("residual[frobenius,mean]", "residual_ratio[composite,mean]", "diameter[l2]"):
        found = log_measure(find_measure(name), last)
        assert float(found.log) == -math.inf
        assert -700 < float(found.log_floor) < -600
        assert not bool(found.resolved)


def test_what_no_pass_can_know_is_below_its_floor() -> None:
    """One live unit makes tokens multiples of one row; a norm then shows nothing but the rounding of the others."""
    draw = Draws(2)
    one = Mlp(draw(4, 1).abs(), draw(1, 4), activation="relu")
    net = Network([Chain([one, RMSNorm(eps=1e-30)])])  # the truth is of the order of eps
    x = draw(5, 4).abs() + 1
    found = log_measure(FROBENIUS, split_states(net, x)[-1])
    assert float(found.log) < -20
    assert not bool(found.resolved)


def test_clusters_that_merge_are_below_their_floor() -> None:
    """Differences of 1e-20 inside two clusters that are apart by one: the floats of the input do not hold them."""
    draw = Draws(3)
    centers = draw(2, 4)
    x = centers[[0, 0, 1, 1]]
    x[1] += 2.0**-52 * x[1].abs()  # next to nothing, and yet all there is inside the first cluster
    eye = torch.eye(4, dtype=torch.float64)
    reads = torch.zeros(1, 4, 4, dtype=torch.float64)
    reads[0, range(4), [0, 1, 0, 1]] = 1.0  # only the first cluster is read
    plain = Values(eye, eye, heads=1)
    net = Network([Skip(Attention(Uniform(heads=1), plain), 0.37), Attention(Fixed(reads), plain)])
    found = log_measure(FROBENIUS, split_states(net, x)[-1])
    assert not bool(found.resolved)


@pytest.mark.parametrize("place", ["none", "rotary", "alibi", "relative", "transformer-xl"])
def test_padded_batches_have_the_floors_of_their_texts(place: str) -> None:
    """Floors are draws: those of a text on its own are within a hundredfold of those in a batch."""
    draw = Draws(4)
    net = Network([attention(draw, rule="causal", place=place), attention(draw, place=place)])
    x, is_token = draw(2, 6, DIM), torch.tensor([[True] * 6, [False, True, True, True, False, False]])
    batch = split_states(net, x, Context(is_token=is_token))
    for measure in (
        FROBENIUS,
        find_measure("residual_ratio[composite,best]"),
        find_measure("diameter[linf]"),
    ):
        for text in range(2):
            single = split_states(net, x[text][is_token[text]])[-1]
            one, found = log_measure(measure, single), log_measure(measure, batch[-1])
            assert float(found.log[text]) == pytest.approx(float(one.log), abs=1e-9)
            assert abs(float(found.log_floor[text] - one.log_floor)) < math.log(100.0)
            assert bool(found.resolved[text])


def test_stacked_seeds_have_floors_each() -> None:
    spec = Spec(layers=3, heads=2, dim=8)
    nets = [build(spec, torch.Generator().manual_seed(seed)) for seed in range(3)]
    x = Draws(0)(5, 8)  # the same tokens for all: the axis of seeds is that of the weights alone
    found = log_measure(FROBENIUS, split_states(stack(nets), x)[-1])
    assert found.log.shape == found.log_floor.shape == (3,)
    for seed, net in enumerate(nets):
        alone = log_measure(FROBENIUS, split_states(net, x)[-1])
        assert float(found.log[seed]) == pytest.approx(float(alone.log), abs=1e-9)
        assert abs(float(found.log_floor[seed] - alone.log_floor)) < math.log(100.0)


def test_some_tokens_alone_have_a_floor_of_the_rounding_of_all() -> None:
    draw = Draws(5)
    x = draw(DIM) + 1e-9 * draw(6, DIM)
    x[0] = 1e3 * draw(DIM)
    keep = torch.tensor([False] + [True] * 5)
    split = split_states(Network([Chain([])]), x)[-1]
    own, _ = of_measured(split, keep, 1)
    found, whole = log_measure(FROBENIUS, own), log_measure(FROBENIUS, split)
    assert float(found.log_floor - found.log) > float(whole.log_floor - whole.log) + 15


def test_bad_inputs_get_a_number_with_its_floor_or_one_line() -> None:
    draw = Draws(6)
    net = Network([Chain([attention(draw), Sphere()]), attention(draw, rule="causal")])
    zeros = split_states(net, torch.zeros(4, DIM, dtype=torch.float64))
    assert float(log_measure(FROBENIUS, zeros[0]).log) == -math.inf
    assert float(log_measure(FROBENIUS, zeros[0]).log_floor) < -600
    alone = split_states(net, draw(1, DIM))[-1]
    assert float(alone.log_scale) == -math.inf
    one = torch.eye(2, dtype=torch.float64)
    hot = Network([Attention(Softmax(1e4 * one, one, heads=1), Values(one, one, heads=1))])
    found = log_measure(
        FROBENIUS, split_states(hot, torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]).double())[-1]
    )
    assert not math.isnan(float(found.log_floor))
    with pytest.raises(NumericalError, match="after layer 1 is beyond the range of float64"):
        split_states(net, torch.full((3, DIM), 1e300, dtype=torch.float64) * draw(3, DIM))
