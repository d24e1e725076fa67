"""The figures of Wu et al. at their fast size: what is found must follow from the rows, and obey the laws."""

from functools import cache

import numpy as np
import polars as pl
import pytest

from rankscope.findings.reproduce import ReproduceFinding
from rankscope.papers.figures import FIGURES, Job
from rankscope.papers.figures.resting import push_states, random_starts
from rankscope.papers.figures.run import finding_of
from rankscope.papers.figures.wu_temperature import slowing
from rankscope.results import COLUMNS

NAMES = ("wu-masks", "wu-temperature", "wu-geometry", "wu-counterexample")

STEPS = []
"""Progress of the last figure."""


@cache
def made():
    """The fast size on two seeds: tables, and what was found."""
    two = {name: FIGURES[name].make(Job(size="fast", seeds=(5, 8))) for name in NAMES[:-1]}
    last = FIGURES["wu-counterexample"].make(
        Job(size="fast", advance=lambda done, total: STEPS.append((done, total)))
    )
    return two | {"wu-counterexample": last}


@pytest.fixture(scope="module")
def tables():
    return {name: table for name, (table, _) in made().items()}


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_obeys_the_laws(name, tmp_path):
    """It draws and says the same after it was saved; statements are sentences; columns and definitions are named."""
    found = finding_of(FIGURES[name], "fast", *made()[name])
    assert all(one.statement.endswith(".") and one.measured.endswith(".") for one in found.verdict)
    assert all(found.notes)
    assert set(FIGURES[name].durations) == set(FIGURES[name].sizes) == {"fast", "usual", "full"}
    assert set(found.table.frame["definition"]) <= set(found.definitions)
    assert set(found.table.frame.columns) <= {*COLUMNS, *ReproduceFinding.columns}
    chart = found.chart()
    assert chart.title
    assert chart.title != FIGURES[name].title
    assert len(chart.pictures) <= 8
    found.save(tmp_path / "found.json")
    again = ReproduceFinding.load(tmp_path / "found.json")
    assert again == found
    assert str(again) == str(found)
    assert again.chart().svg() == chart.svg()


def test_a_norm_does_not_stop_collapse_at_random_value_maps(tables):
    frame = tables["wu-masks"].frame
    last = frame.filter(
        (pl.col("layer") == 40)
        & (pl.col("definition") == "residual_ratio[frobenius,mean]")
        & (pl.col("values") == "gaussian")
    )
    # 40 layers at the causal rate 1/2 are 12 decades; a thousandth of the start would already be collapse
    for norm in ("none", "sphere", "layer"):
        assert last.filter((pl.col("mask") == "causal") & (pl.col("norm") == norm))["log10_value"].max() < -5
        assert last.filter((pl.col("mask") == "full") & (pl.col("norm") == norm))["log10_value"].max() < -1e6


def test_float32_stops_where_the_split_pass_goes_on(tables):
    causal = tables["wu-masks"].frame.filter(
        (pl.col("mask") == "causal") & (pl.col("norm") == "sphere") & (pl.col("values") == "gaussian")
    )
    last = causal.filter((pl.col("layer") == 40) & (pl.col("measure") == "residual_ratio"))
    assert (last["float_value"] < last["float_floor"]).all()
    resolved = causal.filter(pl.col("float_value") > 10 * pl.col("float_floor"))
    off = (resolved["float_value"] / resolved["value"] - 1).abs()
    assert off.max() < 0.1  # ten floors up, float32 and the split pass see the same residual


def test_the_order_of_masks_is_counted_from_the_curves(tables):
    frame = tables["wu-masks"].frame.filter(
        (pl.col("layer") == 40) & (pl.col("measure") == "residual_ratio") & (pl.col("values") == "gaussian")
    )
    wide = frame.filter(pl.col("norm") == "none").pivot("mask", index="seed", values="log10_value")
    lower = int((wide["causal"] < wide["window:1"]).sum())
    (line,) = (
        one
        for one in made()["wu-masks"][1].order
        if (one.norm, one.faster, one.slower) == ("none", "causal", "window:1")
    )
    assert line.lower_at_last_layer == lower == line.seeds == 2


def test_what_is_found_of_a_network_follows_from_its_rows(tables):
    found = made()["wu-masks"][1].network("gaussian", "sphere", "causal")
    frame = tables["wu-masks"].frame.filter(
        (pl.col("mask") == "causal") & (pl.col("norm") == "sphere") & (pl.col("values") == "gaussian")
    )
    ratio = frame.filter(pl.col("measure") == "residual_ratio")
    last, first = (ratio.filter(pl.col("layer") == layer) for layer in (40, 0))
    # Sums of a few numbers in another order: rounding alone.
    assert found.log10_ratio_at_last_layer.mean == pytest.approx(last["log10_value"].mean(), rel=1e-12)
    fall = (last["log10_value"] - first["log10_value"]).mean()
    assert found.log10_fall.mean == pytest.approx(fall, rel=1e-12)
    assert found.float32_log10_ratio_at_last_layer.mean == pytest.approx(
        last["float_value"].log10().mean(), rel=1e-12
    )
    mu = frame.filter((pl.col("measure") == "residual") & (pl.col("layer") == 40))["float_value"]
    assert found.float32_log10_mu_at_last_layer.mean == pytest.approx(mu.log10().mean(), rel=1e-12)
    assert 10**found.float32_log10_floor == pytest.approx(last["float_floor"].max(), rel=1e-12)


def test_geometry_is_that_of_its_rows(tables):
    found = made()["wu-geometry"][1]
    frame = tables["wu-geometry"].frame
    ends = found.ends("orthogonal", "cosine[absolute]")["causal"]
    own = frame.filter(
        (pl.col("definition") == "cosine[absolute]")
        & (pl.col("values") == "orthogonal")
        & (pl.col("mask") == "causal")
    )
    first, last = (own.filter(pl.col("layer") == layer)["value"] for layer in (0, 24))
    assert ends.first.mean == pytest.approx(first.mean(), rel=1e-12)
    assert ends.last.mean == pytest.approx(last.mean(), rel=1e-12)
    assert ends.change.median == pytest.approx(
        (last - first).median(), rel=1e-9
    )  # a difference of two cosines
    built = frame.filter((pl.col("model") == "constructed") & (pl.col("layer") == found.built.layer))
    assert found.built.cosine == built.filter(pl.col("definition") == "cosine[absolute]")["value"].item()


def test_one_value_map_keeps_tokens_apart_with_the_norm_alone(tables):
    kept = tables["wu-masks"].frame.filter(
        (pl.col("model") == "constructed") & (pl.col("measure") == "residual_ratio")
    )
    sphere, none = (kept.filter(pl.col("norm") == norm) for norm in ("sphere", "none"))
    for rank in (2, 3, 4):
        stays = sphere.filter(pl.col("rank") == rank)["value"]
        assert stays.max() - stays.min() < 1e-6  # at rest, up to rounding that 40 steps may enlarge
        assert stays.min() > 0.1
    assert (
        none.filter(pl.col("layer") == 40)["log10_value"].max() < -6
    )  # 40 halvings, times a power of the layer


def test_random_starts_are_counted_once():
    found = random_starts(20, 200, seed=1)
    assert 0 <= found.opposite + found.higher <= found.apart <= found.starts == 20
    assert found.rank_two == found.apart - found.opposite - found.higher


def test_pushed_states_collapse_and_unpushed_ones_stay():
    for one in push_states(4, 1e-6, 300, seed=0):
        assert one.collapsed == 4  # the push in token 0 has grown to 1e-6 w^3 t^3 / 6 >> 1
        assert one.second_high < 1e-3 < one.second
    for one in push_states(2, 0.0, 30, seed=0):
        assert one.collapsed == 0
        assert one.equation_residual < 1e-15
        assert one.second_low == pytest.approx(
            one.second, rel=1e-9
        )  # rank 4: rounding grows 1.4-fold per step


def test_sharper_attention_delays_the_complete_mask(tables):
    early = tables["wu-temperature"].frame.filter(
        (pl.col("layer") == 4) & (pl.col("mask") == "full") & (pl.col("measure") == "residual_ratio")
    )
    wide = early.filter(pl.col("norm") == "none").pivot("temperature", index="seed", values="log10_value")
    assert (wide["1/64"] > wide["64"]).all()


@pytest.mark.parametrize(
    ("gaps", "until", "overtaken", "peak"),
    [
        ([0.5, 0.9, 0.2], 3, None, 2),
        ([0.5, -0.1, -0.9], 1, 2, 1),
        ([-0.5, -0.1, 0.9], 0, None, 3),
        ([-0.5, -0.1, -0.9], 0, 1, 2),
        ([0.5, 0.0, -0.9], 1, 3, 1),
    ],
)
def test_slowing_is_told_for_all_layers(gaps, until, overtaken, peak):
    """Six seeds: the interval is from the least to the greatest, 0.001 to both sides."""
    flat = np.zeros((4, 6))
    sharp = np.array([[0.0] * 6, *(gap + np.linspace(-0.001, 0.001, 6) for gap in gaps)])
    one = slowing(sharp, flat)
    assert (one.slowed_until_layer, one.overtaken_from_layer, one.peak_layer) == (until, overtaken, peak)


def test_the_built_start_has_full_rank_and_one_direction(tables):
    built = tables["wu-geometry"].frame.filter(pl.col("model") == "constructed")
    assert set(built.filter(pl.col("definition") == "numerical_rank[rounding]")["value"]) == {4.0}
    assert (
        built.filter(pl.col("definition") == "cosine[absolute]")["value"].min() > 0.98
    )  # at least 0.985 in theory


@pytest.mark.usefixtures("tables")
def test_rank_two_is_kept_only_above_the_boundary():
    for one in made()["wu-counterexample"][1].systems:
        odds = one.alpha / (1 - one.alpha)
        if one.shear < 0.999 * odds:  # on the boundary the two are one point
            assert one.share == 0
            assert not one.exists
        if one.stable:
            p, q = one.limit
            assert p == pytest.approx(-odds / one.shear)
            assert one.measured_multiplier == pytest.approx(1 + odds * q, abs=1e-7)  # central difference
        assert one.log10_ratio_without_norm < -6


def test_seeds_are_taken_as_given(tables):
    assert set(tables["wu-temperature"].frame["seed"]) == {5, 8}
    assert tables["wu-temperature"].provenance["seeds"] == [5, 8]
    assert FIGURES["wu-counterexample"].config("fast", [4]).seeds == (4,)  # one arrangement is drawn


@pytest.mark.usefixtures("tables")
def test_progress_ends_where_it_said():
    assert STEPS == [(1, 3), (2, 3), (3, 3)]
