"""Rules of the verdicts on made-up curves, true and false ones: a rule must be able to fail."""

import numpy as np
import pytest

from rankscope.findings.reproduce import Statement
from rankscope.papers.figures.figure import decided
from rankscope.papers.figures.kept import Pushed
from rankscope.papers.figures.stacks import Shape, recorded_layers
from rankscope.papers.figures.wu_counterexample import SIZES, WuCounterexampleConfig, _verdict
from rankscope.papers.figures.wu_geometry import (
    ABOVE,
    COSINE,
    KIND,
    LEFT,
    RANK,
    SMALLEST,
)
from rankscope.papers.figures.wu_geometry import _verdict as geometry_verdict
from rankscope.papers.figures.wu_masks_found import Found, forecast_rate
from rankscope.papers.figures.wu_masks_limits import float32_point, isometry_point, kept_point
from rankscope.papers.figures.wu_masks_words import norm_point, order_point, pure_point
from rankscope.papers.figures.wu_temperature import Setting, WuTemperatureFound, slowing
from rankscope.papers.figures.wu_temperature import points as temperature_points

SHAPE = Shape(layers=64, dim=16, tokens=16)
FULL, CAUSAL, WINDOW, ONE_SIDED = SHAPE.masks
SEEDS = 6
LAYERS = np.arange(SHAPE.layers + 1.0)
KEPT = list(recorded_layers(SHAPE.layers))
RATES = {CAUSAL: 0.45, WINDOW: 0.05, ONE_SIDED: 0.35}


def curve(mask, *, decades=None):
    """Log10 of a ratio that the complete mask cubes, the others shrink by decades per layer; seeds a little apart."""
    if decades is None and mask == FULL:
        return np.repeat(-(3.0**LAYERS)[:, None], SEEDS, axis=1)
    rate = RATES.get(mask, 0.0) if decades is None else decades
    return -LAYERS[:, None] * (rate + 1e-4 * np.arange(SEEDS)) - 0.1


def made(*, single=None, **changed):
    """Curves of all networks; ``changed`` maps value maps to ``{(norm, mask): curve}``, float32 stops at 1e-7."""
    found = Found()
    for values in ("gaussian", "small", "orthogonal", "identity"):
        for norm in ("none", "sphere", "layer"):
            for mask in SHAPE.masks:
                log10 = changed.get(values, {}).get((norm, mask), curve(mask))
                shown = np.maximum(10 ** log10[KEPT], 1e-7) if single is None else single(log10[KEPT])
                found.add(
                    {"values": values, "norm": norm, "mask": mask},
                    curves=log10,
                    single=shown,
                    floors=np.full_like(shown, 1e-5),
                    size=shown[-1],
                )
    return found


def with_norms(mask, new):
    return {(norm, mask): new for norm in ("sphere", "layer")}


def test_collapse_without_a_norm():
    assert pure_point(made(), SHAPE)["agrees"] is True
    flat = {("none", WINDOW): np.zeros((65, SEEDS))}
    assert pure_point(made(gaussian=flat), SHAPE)["agrees"] is None
    every = {("none", mask): np.zeros((65, SEEDS)) for mask in SHAPE.masks}
    assert pure_point(made(gaussian=every), SHAPE)["agrees"] is False


@pytest.mark.parametrize("mask", [WINDOW, ONE_SIDED])
def test_windows_count_in_the_order_of_masks(mask):
    assert order_point(made(), SHAPE)["agrees"] is True
    wrong = {(norm, mask): curve(mask, decades=0.9) for norm in ("none", "sphere", "layer")}
    assert order_point(made(gaussian=wrong), SHAPE)["agrees"] is False  # in no seed
    some = curve(mask)
    some[:, 0] = curve(mask, decades=0.9)[:, 0]
    mixed = {(norm, mask): some for norm in ("none", "sphere", "layer")}
    assert order_point(made(gaussian=mixed), SHAPE)["agrees"] is None


def test_few_seeds_do_not_decide_the_order():
    few = {(norm, mask): curve(mask)[:, :2] for norm in ("none", "sphere", "layer") for mask in SHAPE.masks}
    assert order_point(made(gaussian=few), SHAPE)["agrees"] is None


def test_a_norm_stops_collapse_or_does_not():
    point = norm_point(made(), SHAPE)
    assert point["agrees"] is False
    assert "one head, Gaussian tokens and weights, no skips" in point["measured"]
    level = {(norm, mask): np.full((65, SEEDS), -0.5) for norm in ("sphere", "layer") for mask in SHAPE.masks}
    assert norm_point(made(gaussian=level), SHAPE)["agrees"] is True


@pytest.mark.parametrize("mask", SHAPE.masks)
@pytest.mark.parametrize("norm", ["sphere", "layer"])
def test_every_mask_and_norm_must_fall(norm, mask):
    level = {(norm, mask): np.full((65, SEEDS), -0.5)}
    assert norm_point(made(gaussian=level), SHAPE)["agrees"] is None


def test_the_forecast_on_the_sphere_is_the_gap_of_lyapunov_exponents():
    """By simulation: lengths of a Gaussian image in d dimensions, and of what is left off one direction of it."""
    draws = np.random.default_rng(0).normal(size=(200_000, 6))
    logs = np.log(np.linalg.norm(draws[:, 1:], axis=1)) - np.log(np.linalg.norm(draws, axis=1))
    shape = Shape(layers=2, dim=6, tokens=6)
    # 200,000 draws of standard deviation about 0.14: the mean is good to 3e-4
    assert forecast_rate("causal", "sphere", shape) == pytest.approx(0.5 * np.exp(logs.mean()), rel=2e-3)
    assert forecast_rate("causal", "none", shape) == 0.5
    assert forecast_rate("causal", "layer", shape) < forecast_rate("causal", "sphere", shape)


def test_float32_levels_off_at_rounding_alone():
    assert float32_point(made(), SHAPE)["agrees"] is True
    exact = float32_point(made(single=lambda log10: 10**log10), SHAPE)
    assert exact["agrees"] is None  # it goes on falling with the residual

    def falling(log10):
        """Above the residual by far, and falling all the same."""
        return np.maximum(10**log10, 1e-7 * 10.0 ** (-0.05 * np.array(KEPT))[:, None])

    assert float32_point(made(single=falling), SHAPE)["agrees"] is False
    assert float32_point(made(single=np.zeros_like), SHAPE)["agrees"] is False
    above = float32_point(made(single=lambda log10: np.maximum(10**log10, 1e-3)), SHAPE)
    assert above["agrees"] is None  # stands still above the floor: not rounding


@pytest.mark.parametrize("mask", [FULL, WINDOW])
@pytest.mark.parametrize("values", ["orthogonal", "identity"])
def test_isometries_must_fall_for_strongly_connected_masks(values, mask):
    assert isometry_point(made(), SHAPE)["agrees"] is True
    level = {values: with_norms(mask, np.full((65, SEEDS), -0.5))}
    assert isometry_point(made(**level), SHAPE)["agrees"] is None


def test_isometries_that_never_fall_do_not_agree():
    level = {(norm, mask): np.full((65, SEEDS), -0.5) for norm in ("sphere", "layer") for mask in SHAPE.masks}
    assert isometry_point(made(orthogonal=level, identity=level), SHAPE)["agrees"] is False


def kept(*, residual=1e-16, sphere=0.0, none=-0.3):
    found = Found()
    found.pushed = [
        Pushed(rank=2, equation_residual=residual, second=0.03, pushes=64, size=1e-6, steps=10, collapsed=64,
               second_low=0.0, second_high=1e-12)
    ]  # fmt: skip
    found.kept = {
        "sphere": -0.1 + sphere * LAYERS[:, None] * np.ones(3),
        "none": none * LAYERS[:, None] * np.ones(3),
    }
    return kept_point(found)


def test_built_states_rest_and_their_weights_collapse_without_the_norm():
    point = kept()
    assert point["agrees"] is True
    assert "Existence, not attraction" in point["measured"]
    assert "64 of 64 (95% interval 94.3% to 100.0%)" in point["measured"]
    assert kept(residual=1e-6)["agrees"] is False
    assert kept(sphere=-0.01)["agrees"] is False
    assert kept(none=-0.01)["agrees"] is False


def slowings(gaps, **other):
    """What is found if ``gaps`` of a mask are the differences by layer, for both norms, or ``other`` for one."""

    def one(gaps, mask):
        sharp = np.asarray(gaps(mask))[:, None] + 1e-3 * np.arange(SEEDS)
        return slowing(sharp, np.zeros_like(sharp))

    return WuTemperatureFound(
        setting=Setting(
            layers=64, dim=16, tokens=16, window=2, masks=SHAPE.masks, temperatures=("1/64", "64")
        ),
        networks=(),
        slowing={
            norm: {mask: one(other.get(norm, gaps), mask) for mask in SHAPE.masks}
            for norm in ("none", "sphere")
        },
    )


def bump(size, at):
    return size * np.exp(-((np.arange(65.0) - at) ** 2) / 50)


def agreed(gaps, **other):
    return [one.agrees for one in temperature_points(slowings(gaps, **other))]


def test_temperature_rules():
    large = {FULL: 3.0, CAUSAL: 2.0, WINDOW: 0.5, ONE_SIDED: 0.4}

    def early(mask):
        return bump(large[mask], 3) + 0.01

    def late_if_full(mask):
        return bump(large[mask], 60 if mask == FULL else 3) + 0.01

    assert agreed(early) == [True, True, True]
    assert agreed(lambda mask: -bump(1 / large[mask], 3) - bump(1, 60))[0] is False
    assert agreed(lambda mask: bump(1 / large[mask], 60) + 0.01) == [True, False, False]
    assert agreed(late_if_full)[2] is None  # the complete mask counts as well
    for norm in ("none", "sphere"):  # and either norm does
        assert agreed(early, **{norm: late_if_full})[2] is None


def geometry(*, smallest=(0.1, 1e-9), cosine=(0.2, 0.9), above=16.0, built_cosine=0.99):
    spread = 1 + 0.01 * np.arange(SEEDS)
    found = {}
    for values, norm in (("gaussian", "none"), ("gaussian", "sphere"), ("orthogonal", "sphere")):
        for mask in SHAPE.masks:
            found[values, norm, mask] = {
                SMALLEST: [list(value * spread) for value in smallest],
                COSINE: [list(value + 0.001 * spread) for value in cosine],
                **{name: [[above] * SEEDS] * 2 for name in (RANK, ABOVE, LEFT)},
            }
    numbers = {RANK: 3.0, ABOVE: 4.0, SMALLEST: 1e-4, COSINE: built_cosine}
    found[KIND, "sphere", "causal"] = {name: [[value]] * len(KEPT) for name, value in numbers.items()}
    return [one["agrees"] for one in geometry_verdict(found, SHAPE)]


def test_geometry_rules():
    assert geometry() == [True, True, True, True]
    assert geometry(above=8.0)[0] is None  # another kind of network than the published one
    assert geometry(smallest=(0.1, 0.2))[1] is False
    assert geometry(smallest=(0.1, 0.1))[1] is None
    assert geometry(cosine=(0.9, 0.2))[2] is False
    assert geometry(cosine=(0.9, 0.9))[2] is None
    assert geometry(built_cosine=0.5)[3] is False


def system(**changed):
    about = {"alpha": 0.5, "shear": 3.0, "least_shear": 1.0, "exists": True, "stable": True, "share": 0.1,
             "distance": 1e-4, "multiplier": 0.05, "measured_multiplier": 0.05,
             "log10_ratio_without_norm": -20.0}  # fmt: skip
    return about | changed


def below(**changed):
    return system(exists=False, stable=None, share=0.0, multiplier=None, measured_multiplier=None) | changed


@pytest.mark.parametrize(
    ("systems", "expected"),
    [
        ([system(), below()], [True, True, True, True]),
        ([system(share=0.0), below()], [False, None, True, True]),
        ([system(), below(share=0.1)], [True, False, True, True]),
        ([system(), system(shear=1.01, distance=0.2), below()], [True, False, True, True]),  # no filter near the edge
        ([system(measured_multiplier=0.06), below()], [True, True, False, True]),
        ([system(log10_ratio_without_norm=-1.0), below()], [True, True, True, False]),
    ],
)  # fmt: skip
def test_counterexample_rules(systems, expected):
    config = WuCounterexampleConfig.of(size="fast", **SIZES["fast"])
    assert [one["agrees"] for one in _verdict(systems, config)] == expected


def test_labels_tell_whose_statement_it_is():
    def said(**more):
        one = Statement(**{"source": "ours", "statement": "s", "measured": "m", "agrees": False} | more)
        return one.label, one.judged

    assert said() == ("stated here", "does not hold")
    assert said(source="reported") == ("reported", "does not agree")
    assert said(source="paper", agrees=True) == ("published", "agrees")
    assert said(source="paper", agrees=None) == ("published", "in part, or not decided")
    assert decided([]) is None
