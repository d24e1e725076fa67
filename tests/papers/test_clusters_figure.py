"""The figure clusters: rows and what is found, against the system itself; statements; the picture."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankscope.charts import Panel
from rankscope.dynamics import iterate
from rankscope.dynamics.clusters import cluster_system, uniform_starts
from rankscope.errors import ConfigError
from rankscope.findings.reproduce import ReproduceFinding
from rankscope.papers.figures import FIGURES, Job
from rankscope.papers.figures.clusters import (
    ClusterCell,
    ClusterConfig,
    ClustersFound,
    ClustersSetting,
    Estimates,
    LifeFit,
    MaskedClusters,
    Resting,
    Trajectory,
    angle_panel,
    chart,
    compute,
    notes,
    points,
    to_meeting,
)
from rankscope.papers.figures.run import finding_of
from rankscope.results import Table

FIGURE = FIGURES["clusters"]


@pytest.fixture(scope="module")
def cold() -> tuple[Table, ClustersFound]:
    config = ClusterConfig(
        size="fast", tokens=8, dims=(2,), betas=(1.0, 10.0, 24.0), starts=2, masks=("full",)
    )
    return compute(config, Job())


def test_rows_are_plateaus(cold: tuple[Table, ClustersFound]) -> None:
    frame = cold[0].frame.filter(cold[0].frame["beta"] == 24)
    assert frame["definition"].unique().to_list() == ["cosine[off_diagonal]"]
    for row in frame.to_dicts():
        barrier = 24 * (1 - math.cos(row["gap"])) / math.log(10)
        # the law has log10(K beta sin^2 gap) beside the barrier, K >= 2
        assert -4 < row["log10_estimate"] - barrier < 0.5
        assert row["clusters"] >= 2
        assert row["seen_by_float64"] == (row["log10_speed"] > math.log10(2.0**-53))


def test_what_is_found_follows_from_the_rows(cold: tuple[Table, ClustersFound]) -> None:
    table, found = cold
    assert [one.met for one in found.plateaus] == [2, 2, 2]
    (fit,) = found.fits
    assert fit.slope == pytest.approx(fit.barrier, rel=0.2)  # logs beside the barrier, over a short range
    assert fit.betas == (10.0, 24.0)
    assert {one.agrees for one in points(found)} == {True}
    assert set(found.trajectories) == {"1", "10", "24"}
    for cell in found.plateaus:
        own = table.frame.filter((table.frame["beta"] == cell.beta) & (table.frame["layer"] == 1))
        counts = own["clusters"].to_list() + [1] * (cell.starts - own.height)
        assert (cell.first_clusters, cell.first_low, cell.first_high) == (
            sum(counts) / cell.starts,
            min(counts),
            max(counts),
        )


def test_trajectories_are_those_of_the_system(cold: tuple[Table, ClustersFound]) -> None:
    path = cold[1].trajectories["1"]
    x = uniform_starts(2, 8, 2, generator=torch.Generator().manual_seed(0))[:1]
    walked = dict(zip(range(40), iterate(cluster_system(1.0, 2), x), strict=False))
    assert len(path.steps) > 2
    for done, angles in zip(path.steps, path.angles, strict=True):
        state = walked[round(done)][0]
        near = torch.tensor([[math.cos(a), math.sin(a)] for a in angles], dtype=torch.float64)
        torch.testing.assert_close(near, state, rtol=0, atol=3e-6)  # angles are kept to six digits


def test_one_seed_draws_all_starts() -> None:
    assert FIGURE.config("fast", (7,)).seeds == (7,)
    with pytest.raises(ConfigError, match="seeds"):
        FIGURE.config("fast", (0, 1))


def cell(beta: float, **more: float) -> ClusterCell:
    fields = {
        "dim": 2, "starts": 4, "met": 4, "first_clusters": 2.0, "first_low": 1, "first_high": 3,
        "first_log10_life": 2.0, "total_log10_life": beta, "total_low": 0.9 * beta, "total_high": 1.1 * beta,
        "unseen": 0.0,
    }  # fmt: skip
    return ClusterCell.model_validate({**fields, "beta": beta, **more})


ANGLES = (
    (-3.0, 3.0, 0.0),
    (-3.1, 3.1, 0.0),
    (-math.pi, math.pi, 0.5),
    (-6.0, 2 * math.pi - 6.0, 2 * math.pi - 6.0),
)
WAY = Trajectory(steps=(0, 1, 9, 99), log10_steps=(0.0, math.log10(2), 1.0, 2.0), angles=ANGLES)


def found_with(**more: object) -> ClustersFound:
    fields: dict[str, object] = {
        "setting": ClustersSetting(tokens=3),
        "plateaus": (cell(1.0), cell(4.0)),
        "trajectories": {"1": WAY, "4": WAY},
        "fits": (LifeFit(dim=2, slope=0.2, low=0.1, high=0.3, barrier=0.2, starts=4, betas=(1.0, 4.0)),),
        "estimates": Estimates(plateaus=3, median=0.1, largest=1.0),
        "float64": (),
        "masks": (),
    }
    return ClustersFound.model_validate(fields | more)


@pytest.mark.parametrize(("met", "low", "high", "later", "miss", "expected"), [
    (4, 0.1, 0.3, 3.0, 0.1, [True, True, True, True]),
    (3, -0.1, 0.3, 2.0, 0.1, [None, None, True, True]),
    (0, -0.3, -0.1, 1.0, 0.9, [False, False, False, False]),
])  # fmt: skip
def test_rules(
    met: int, low: float, high: float, later: float, miss: float, expected: list[bool | None]
) -> None:
    found = found_with(
        plateaus=(cell(1.0, met=met), cell(4.0, met=met, first_clusters=later)),
        fits=(LifeFit(dim=2, slope=0.0, low=low, high=high, barrier=0.2, starts=4, betas=(8.0, 9.0)),),
        estimates=Estimates(plateaus=3, median=miss, largest=1.0),
    )
    said = points(found)
    assert [one.agrees for one in said] == expected
    assert [one.source for one in said] == ["reported", "paper", "ours", "ours"]
    title = chart(found, None).title  # type: ignore[arg-type]  # the table is not read
    assert ("exponentially" in title) == (expected[1] is True)


def test_nothing_is_said_of_what_was_not_found() -> None:
    bare = found_with(fits=(), estimates=Estimates(plateaus=0, median=None, largest=None), trajectories={})
    assert [one.source for one in points(bare)] == ["reported", "ours"]
    assert len(chart(bare, None).pictures) == 2  # type: ignore[arg-type]  # the table is not read
    assert len(notes(bare)) == 2
    resting = Resting(dim=2, beta=16.0, clusters=2, log10_speed=-14.3, ending="equilibrium")
    full = found_with(
        float64=(resting,), masks=(MaskedClusters(beta=1.0, mask="full", steps=200, clusters=1.5),)
    )
    assert len(notes(full)) == 4
    moving = found_with(float64=(resting.model_copy(update={"ending": "consensus"}),))
    assert len(notes(moving)) == 2


def test_clusters_of_a_start_lie_on_each_other_and_meet_at_zero() -> None:
    angles = np.array(ANGLES)
    degrees = to_meeting(angles)
    np.testing.assert_allclose(degrees[-1], 0.0, atol=1e-9)
    assert degrees[2, 0] == pytest.approx(degrees[2, 1])  # at -pi and pi: one place, one cluster


@given(st.integers(0, 2**16))
def test_angles_are_moved_by_whole_turns_and_one_common_angle(seed: int) -> None:
    angles = np.random.default_rng(seed).normal(scale=5.0, size=(4, 5))
    turns = (to_meeting(angles) - np.degrees(angles)) / 360
    off = turns - turns[0, 0]
    np.testing.assert_allclose(off, np.round(off), atol=1e-9)  # rounding of degrees, a few turns
    assert np.abs(to_meeting(angles)[-1]).max() <= 180 + 1e-9


def test_a_panel_says_whether_tokens_meet() -> None:
    assert "tokens meet after 99 steps" in angle_panel("4", WAY).title
    apart = Trajectory(steps=WAY.steps[:2], log10_steps=WAY.log10_steps[:2], angles=ANGLES[:2])
    assert "are apart" in angle_panel("4", apart).title
    assert [len(line.points) >= 2 for line in angle_panel("4", WAY).lines] == [True] * 3


def test_the_coldest_are_drawn() -> None:
    betas = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    drawn = chart(found_with(trajectories={f"{beta:g}": WAY for beta in betas}), None)  # type: ignore[arg-type]
    titles = [one.title.partition(":")[0] for one in drawn.pictures if isinstance(one, Panel)]
    assert titles[:4] == [f"Inverse temperature {beta}" for beta in (2, 4, 16, 32)]
    assert len(titles) == 6


def test_a_saved_figure_says_and_shows_the_same(cold: tuple[Table, ClustersFound], tmp_path) -> None:  # type: ignore[no-untyped-def]
    finding = finding_of(FIGURE, "fast", *cold)
    finding.save(tmp_path / "clusters.json")
    again = ReproduceFinding.load(tmp_path / "clusters.json")
    assert FIGURE.read(again) == cold[1]
    assert str(again) == str(finding)
    assert again.chart().svg() == finding.chart().svg()
