"""Rules of the verdicts on made-up curves, true and false ones: a rule must be able to fail."""

import numpy as np
import pytest

from rankscope.findings.reproduce import Statement
from rankscope.papers.figures import wu_geometry, wu_masks, wu_temperature
from rankscope.papers.figures.figure import all_or_none
from rankscope.papers.figures.resting import KIND, PushedState, RandomStarts
from rankscope.papers.figures.stacks import Shape, recorded_layers
from rankscope.papers.figures.wu_counterexample import (
    TokenEquilibrium,
    WeightPair,
    WuCounterexampleFound,
    WuCounterexampleSetting,
    points,
)
from rankscope.papers.figures.wu_geometry import ABOVE, COSINE, LEFT, RANK, SMALLEST
from rankscope.papers.figures.wu_masks import forecast_rate, network_of
from rankscope.papers.figures.wu_temperature import WuTemperatureFound, slowing

SHAPE = Shape.of(layers=64, dim=16, tokens=16)
FULL, CAUSAL, WINDOW, ONE_SIDED = SHAPE.masks
SEEDS = 6
LAYERS = np.arange(SHAPE.layers + 1.0)
KEPT = list(recorded_layers(SHAPE.layers))
RATES = {CAUSAL: 0.45, WINDOW: 0.05, ONE_SIDED: 0.35}
NORMS = ("none", "sphere", "layer")
PURE, ORDER, NORM, SINGLE, ISOMETRY, BUILT = range(6)
"""Places of the statements of wu-masks."""


def curve(mask, *, decades=None):
    """Log10 of a ratio that the complete mask cubes, the others shrink by decades per layer; seeds a little apart."""
    if decades is None and mask == FULL:
        return np.repeat(-(3.0**LAYERS)[:, None], SEEDS, axis=1)
    rate = RATES.get(mask, 0.0) if decades is None else decades
    return -LAYERS[:, None] * (rate + 1e-4 * np.arange(SEEDS)) - 0.1


def built(*, residual=1e-16, sphere=0.0, none=-0.3):
    """Curves of three built states by norm, and how they end when they are pushed."""
    one = PushedState(rank=2, equation_residual=residual, second=0.03, pushes=64, size=1e-6, steps=10, collapsed=64,
                 second_low=0.0, second_high=1e-12)  # fmt: skip
    starts = RandomStarts(starts=10, steps=10, apart=2, opposite=0, higher=0, second_low=0.01, second_high=0.02,
                          unfinished=0)  # fmt: skip
    slopes = {"sphere": sphere, "none": none}
    curves = {norm: -0.1 + slope * LAYERS[:, None] * np.ones(3) for norm, slope in slopes.items()}
    return curves, [one], starts


def masks(*, single=None, states=None, **changed):
    """What is found of all networks; ``changed`` has curves by value maps, norm and mask; float32 ends at 1e-7."""
    curves = {
        (values, norm, mask): changed.get(values, {}).get((norm, mask), curve(mask))
        for values in ("gaussian", "small", "orthogonal", "identity")
        for norm in NORMS
        for mask in SHAPE.masks
    }
    networks = []
    for key, log10 in curves.items():
        shown = np.maximum(10 ** log10[KEPT], 1e-7) if single is None else single(log10[KEPT])
        networks.append(network_of(key, log10=log10, single=shown, mu=shown[-1], floor=1e-5))
    return wu_masks.found_of(SHAPE, networks, curves, *(states or built()))


def agreed(place, **changed):
    return wu_masks.points(masks(**changed))[place].agrees


def with_norms(mask, new):
    return {(norm, mask): new for norm in ("sphere", "layer")}


LEVEL = np.full((65, SEEDS), -0.5)


def test_collapse_without_a_norm():
    assert agreed(PURE) is True
    assert agreed(PURE, gaussian={("none", WINDOW): LEVEL}) is None
    assert agreed(PURE, gaussian={("none", mask): LEVEL for mask in SHAPE.masks}) is False


@pytest.mark.parametrize("mask", [WINDOW, ONE_SIDED])
def test_windows_count_in_the_order_of_masks(mask):
    assert agreed(ORDER) is True
    wrong = {(norm, mask): curve(mask, decades=0.9) for norm in NORMS}
    assert agreed(ORDER, gaussian=wrong) is False  # in no seed
    some = curve(mask)
    some[:, 0] = curve(mask, decades=0.9)[:, 0]
    assert agreed(ORDER, gaussian={(norm, mask): some for norm in NORMS}) is None


def test_few_seeds_do_not_decide_the_order():
    few = {(norm, mask): curve(mask)[:, :2] for norm in NORMS for mask in SHAPE.masks}
    assert agreed(ORDER, gaussian=few) is None


def test_one_seed_decides_nothing_and_says_so_without_intervals():
    one = {(norm, mask): curve(mask)[:, :1] for norm in NORMS for mask in SHAPE.masks}
    said = wu_masks.points(masks(**dict.fromkeys(("gaussian", "small", "orthogonal", "identity"), one)))
    assert [point.agrees for point in said[:3]] == [None, None, None]
    assert said[ISOMETRY].agrees is None
    assert not any("nan" in point.measured.lower() for point in said)


def test_a_norm_stops_collapse_or_does_not():
    assert agreed(NORM) is False
    every = {(norm, mask): LEVEL for norm in ("sphere", "layer") for mask in SHAPE.masks}
    assert agreed(NORM, gaussian=every) is True


@pytest.mark.parametrize("mask", SHAPE.masks)
@pytest.mark.parametrize("norm", ["sphere", "layer"])
def test_every_mask_and_norm_must_fall(norm, mask):
    assert agreed(NORM, gaussian={(norm, mask): LEVEL}) is None


def test_the_forecast_on_the_sphere_is_the_gap_of_lyapunov_exponents():
    """By simulation: lengths of a Gaussian image in d dimensions, and of what is left off one direction of it."""
    draws = np.random.default_rng(0).normal(size=(200_000, 6))
    logs = np.log(np.linalg.norm(draws[:, 1:], axis=1)) - np.log(np.linalg.norm(draws, axis=1))
    shape = Shape.of(layers=2, dim=6, tokens=6)
    # 200,000 draws of standard deviation about 0.14: the mean is good to 3e-4
    assert forecast_rate("causal", "sphere", shape) == pytest.approx(0.5 * np.exp(logs.mean()), rel=2e-3)
    assert forecast_rate("causal", "none", shape) == 0.5
    assert forecast_rate("causal", "layer", shape) < forecast_rate("causal", "sphere", shape)


def test_float32_levels_off_at_rounding_alone():
    assert agreed(SINGLE) is True
    assert agreed(SINGLE, single=lambda log10: 10**log10) is None  # it goes on falling with the residual

    def falling(log10):
        """Above the residual by far, and falling all the same."""
        return np.maximum(10**log10, 1e-7 * 10.0 ** (-0.05 * np.array(KEPT))[:, None])

    assert agreed(SINGLE, single=falling) is False
    assert agreed(SINGLE, single=np.zeros_like) is False
    # stands still above the floor: not rounding
    assert agreed(SINGLE, single=lambda log10: np.maximum(10**log10, 1e-3)) is None


@pytest.mark.parametrize("mask", [FULL, WINDOW])
@pytest.mark.parametrize("values", ["orthogonal", "identity"])
def test_isometries_must_fall_for_strongly_connected_masks(values, mask):
    assert agreed(ISOMETRY) is True
    assert agreed(ISOMETRY, **{values: with_norms(mask, LEVEL)}) is None


def test_isometries_that_never_fall_do_not_agree():
    level = {(norm, mask): LEVEL for norm in ("sphere", "layer") for mask in SHAPE.masks}
    assert agreed(ISOMETRY, orthogonal=level, identity=level) is False


def test_built_states_rest_and_their_weights_collapse_without_the_norm():
    point = wu_masks.points(masks())[BUILT]
    assert point.agrees is True
    assert "Existence, not attraction" in point.measured
    assert "64 of 64" in point.measured
    assert agreed(BUILT, states=built(residual=1e-6)) is False
    assert agreed(BUILT, states=built(sphere=-0.01)) is False
    assert agreed(BUILT, states=built(none=-0.01)) is False


def test_falls_is_a_matter_of_intervals():
    found = masks().network("gaussian", "none", CAUSAL)
    assert found.falls is True
    rate = found.log10_rate_last_half
    assert (
        found.model_copy(update={"log10_rate_last_half": rate.model_copy(update={"high": 0.1})}).falls is None
    )
    assert (
        found.model_copy(update={"log10_rate_last_half": rate.model_copy(update={"low": None})}).falls is None
    )


def slowings(gaps, **other):
    """What is found if ``gaps`` of a mask are the differences by layer, for both norms, or ``other`` for one."""

    def one(gaps, mask):
        sharp = np.asarray(gaps(mask))[:, None] + 1e-3 * np.arange(SEEDS)
        return slowing(sharp, np.zeros_like(sharp))

    return WuTemperatureFound(
        setting=wu_temperature.WuTemperatureSetting.of(
            layers=64, dim=16, tokens=16, temperatures=("1/64", "64")
        ),
        networks=(),
        slowing={
            norm: {mask: one(other.get(norm, gaps), mask) for mask in SHAPE.masks}
            for norm in ("none", "sphere")
        },
    )


def bump(size, at):
    return size * np.exp(-((np.arange(65.0) - at) ** 2) / 50)


def slowed(gaps, **other):
    return [one.agrees for one in wu_temperature.points(slowings(gaps, **other))]


def test_temperature_rules():
    large = {FULL: 3.0, CAUSAL: 2.0, WINDOW: 0.5, ONE_SIDED: 0.4}

    def early(mask):
        return bump(large[mask], 3) + 0.01

    def late_if_full(mask):
        return bump(large[mask], 60 if mask == FULL else 3) + 0.01

    assert slowed(early) == [True, True, True]
    assert slowed(lambda mask: -bump(1 / large[mask], 3) - bump(1, 60))[0] is False
    assert slowed(lambda mask: bump(1 / large[mask], 60) + 0.01) == [True, False, False]
    assert slowed(late_if_full)[2] is None  # the complete mask counts as well
    for norm in ("none", "sphere"):  # and either norm does
        assert slowed(early, **{norm: late_if_full})[2] is None


def geometry(*, smallest=(0.1, 1e-9), cosine=(0.2, 0.9), above=16.0, built_cosine=0.99, seeds=SEEDS):
    spread = 1 + 0.01 * np.arange(seeds)
    found = {}
    for values, norm in (("gaussian", "none"), ("gaussian", "sphere"), ("orthogonal", "sphere")):
        for mask in SHAPE.masks:
            found[values, norm, mask] = {
                SMALLEST: [list(value * spread) for value in smallest],
                COSINE: [list(value + 0.001 * spread) for value in cosine],
                **{name: [[above] * seeds] * 2 for name in (RANK, ABOVE, LEFT)},
            }
    numbers = {RANK: 3.0, ABOVE: 4.0, LEFT: 3.0, SMALLEST: 1e-4, COSINE: built_cosine}
    found[KIND, "sphere", "causal"] = {name: [[value]] * len(KEPT) for name, value in numbers.items()}
    return [one.agrees for one in wu_geometry.points(wu_geometry.found_of(SHAPE, found))]


def test_geometry_rules():
    assert geometry() == [True, True, True, True]
    assert geometry(above=8.0)[0] is None  # another kind of network than the published one
    assert geometry(smallest=(0.1, 0.2))[1] is False
    assert geometry(smallest=(0.1, 0.1))[1] is None
    assert geometry(cosine=(0.9, 0.2))[2] is False
    assert geometry(cosine=(0.9, 0.9))[2] is None
    assert geometry(built_cosine=0.5)[3] is False
    assert geometry(seeds=2)[1:3] == [None, None]  # too few for an interval


def system(**changed):
    about = {"alpha": 0.5, "shear": 3.0, "least_shear": 1.0, "greatest_stable_shear": None, "exists": True,
             "stable": True, "share": 0.1, "limit": (-0.3, -0.9), "distance": 1e-4, "multiplier": 0.05,
             "measured_multiplier": 0.05, "log10_ratio_without_norm": -20.0}  # fmt: skip
    return WeightPair(**about | changed)


def below(**changed):
    none = dict.fromkeys(("stable", "multiplier", "measured_multiplier", "limit", "distance"))
    return system(**none | {"exists": False, "share": 0.0} | changed)


@pytest.mark.parametrize(
    ("systems", "expected"),
    [
        ([system(), below()], [True, True, True, True]),
        ([system(share=0.0, distance=None), below()], [False, None, True, True]),
        ([system(), below(share=0.1)], [True, False, True, True]),
        ([system(), system(shear=1.01, distance=0.2), below()], [True, False, True, True]),  # no filter near the edge
        ([system(measured_multiplier=0.06), below()], [True, True, False, True]),
        ([system(log10_ratio_without_norm=-1.0), below()], [True, True, True, False]),
        ([below()], [False, None, None, True]),
    ],
)  # fmt: skip
def test_counterexample_rules(systems, expected):
    example = [TokenEquilibrium(name=name, token=(0.0, 1.0), multiplier=0.5, stable=True) for name in "AB"]
    found = WuCounterexampleFound(
        setting=WuCounterexampleSetting(starts=100, steps=1000, layers=128), systems=systems, example=example
    )
    said = points(found)
    assert [one.agrees for one in said] == expected
    assert not any("nan" in one.measured.split() for one in said)


def test_labels_tell_whose_statement_it_is():
    def said(**more):
        one = Statement(**{"source": "ours", "statement": "s", "measured": "m", "agrees": False} | more)
        return one.label, one.judged

    assert said() == ("stated here", "does not hold")
    assert said(source="reported") == ("reported", "does not agree")
    assert said(source="paper", agrees=True) == ("published", "agrees")
    assert said(source="paper", agrees=None) == ("published", "in part, or not decided")
    assert all_or_none([]) is None
