"""The figures clusters and wu-orthogonal: their tables, verdicts and the picture."""

import math

import pytest
import torch

from rankscope.dynamics import iterate
from rankscope.dynamics.clusters import cluster_system, uniform_starts
from rankscope.papers.figures.cluster_words import cluster_points
from rankscope.papers.figures.clusters import ClusterConfig, clusters
from rankscope.papers.figures.orthogonal import OrthogonalConfig, _verdict, connection, orthogonal
from rankscope.plots.files import svg
from rankscope.plots.wu_orthogonal import wu_orthogonal_chart
from rankscope.results import Table


@pytest.fixture(scope="module")
def cold() -> Table:
    return clusters(ClusterConfig(tokens=8, dims=(2,), betas=(1.0, 10.0, 24.0), starts=2, masks=("full",)))


def test_rows_are_plateaus(cold: Table) -> None:
    frame = cold.frame.filter(cold.frame["beta"] == 24)
    assert frame["definition"].unique().to_list() == ["cosine[off_diagonal]"]
    for row in frame.to_dicts():
        barrier = 24 * (1 - math.cos(row["gap"])) / math.log(10)
        # the law has log10(K beta sin^2 gap) beside the barrier, K >= 2
        assert -4 < row["log10_estimate"] - barrier < 0.5
        assert row["clusters"] >= 2
        assert row["seen_by_float64"] == (row["log10_speed"] > math.log10(2.0**-53))


def test_sections(cold: Table) -> None:
    sections = cold.sections
    assert [one["met"] for one in sections["plateaus"]] == [2, 2, 2]
    (fit,) = sections["fits"]
    assert fit["slope"] == pytest.approx(
        fit["barrier"], rel=0.2
    )  # logs beside the barrier, over a short range
    assert {one["agrees"] for one in sections["verdict"]} == {True}
    assert set(sections["trajectories"]) == {"1", "10", "24"}
    assert any("equilibrium, which it is not" in note for note in sections["notes"])
    assert all("first plateau does not" not in note or "dim 2" in note for note in sections["notes"])


def test_trajectories_are_those_of_the_system(cold: Table) -> None:
    path = cold.sections["trajectories"]["1"]
    x = uniform_starts(2, 8, 2, generator=torch.Generator().manual_seed(0))[:1]
    walked = dict(zip(range(40), iterate(cluster_system(1.0, 2), x), strict=False))
    assert len(path["steps"]) > 2
    for done, angles in zip(path["steps"], path["angles"], strict=True):
        state = walked[round(done)][0]
        near = torch.tensor([[math.cos(a), math.sin(a)] for a in angles], dtype=torch.float64)
        torch.testing.assert_close(near, state, rtol=0, atol=3e-6)  # angles are kept to six digits


@pytest.fixture(scope="module")
def sphere() -> Table:
    return orthogonal(
        OrthogonalConfig(
            tokens=6, dim=3, starts=20, steps=300, looks=40, masks=("full", "causal", "blocks:2")
        )
    )


def test_connected_masks_collapse_and_blocks_do_not(sphere: Table) -> None:
    found = {one["mask"]: one for one in sphere.sections["masks"]}
    assert {mask: one["collapsed"] for mask, one in found.items()} == {
        "full": 20,
        "causal": 20,
        "blocks:2": 0,
    }
    assert [connection(mask, 6) for mask in found] == ["strongly", "quasi-strongly", "not"]
    assert {point["agrees"] for point in sphere.sections["verdict"]} == {True}
    assert [point["source"] for point in sphere.sections["verdict"]] == ["reported", "reported", "ours"]
    assert "20 of 20 (95% interval 83.9% to 100.0%)" in sphere.sections["verdict"][0]["measured"]
    assert any(
        note.startswith("blocks:2: starts that collapse 0 of 20 (95% interval 0.0% to 16.1%)")
        for note in sphere.sections["notes"]
    )


def test_rows_hold_the_bound_above_what_was_measured(sphere: Table) -> None:
    frame = sphere.frame.filter(sphere.frame["bound_high"].is_not_null())
    assert frame.height > 60
    above = frame["bound_high"] * (1 + 1e-9) + frame["defect_floor"] - frame["defect_high"]
    assert float(above.min()) >= 0  # type: ignore[arg-type]
    values = (sphere.frame["value"] ** 2 / 2 - sphere.frame["defect_high"]).abs().max()
    assert float(values) < 1e-12  # type: ignore[arg-type]


def test_the_picture_has_a_panel_per_mask(sphere: Table) -> None:
    drawn = svg(wu_orthogonal_chart(sphere))
    for text in ("full", "causal", "blocks:2", "20 of 20 collapse", "not connected; 0 of 20 collapse"):
        assert text in drawn


@pytest.mark.parametrize(("collapsed", "ratio", "expected"), [
    (20, 0.9, [True, True]), (19, 0.9, [None, True]), (0, 0.9, [False, True]), (20, 1.01, [True, False]),
])  # fmt: skip
def test_rules_of_orthogonal_values(collapsed: int, ratio: float, expected: list[bool | None]) -> None:
    mask = {"mask": "full", "connected": "strongly", "starts": 20, "collapsed": collapsed, "steps_median": 5.0,
            "steps_most": 9, "worst_ratio": ratio, "steps_covered": 100}  # fmt: skip
    assert [point["agrees"] for point in _verdict([mask])] == expected


@pytest.mark.parametrize(("met", "low", "high", "later", "miss", "expected"), [
    (4, 0.1, 0.3, 3.0, 0.1, [True, True, True, True]),
    (3, -0.1, 0.3, 3.0, 0.1, [None, None, True, True]),
    (0, -0.3, -0.1, 1.0, 0.9, [False, False, False, False]),
])  # fmt: skip
def test_rules_of_clusters(
    met: int, low: float, high: float, later: float, miss: float, expected: list[bool | None]
) -> None:
    cell = {"dim": 2, "starts": 4, "met": met, "total_high": 9.0}
    cells = [cell | {"beta": 1.0, "first_clusters": 2.0}, cell | {"beta": 4.0, "first_clusters": later}]
    fit = {"dim": 2, "slope": (low + high) / 2, "low": low, "high": high, "barrier": 0.2, "starts": 4}
    points = cluster_points(cells, [fit], {"plateaus": 3, "median": miss, "largest": 1.0})
    assert [point["agrees"] for point in points] == expected
    assert [point["source"] for point in points] == ["reported", "paper", "ours", "ours"]
