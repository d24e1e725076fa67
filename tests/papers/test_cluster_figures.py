"""The figure clusters: its table and verdict."""

import math

import pytest
import torch

from rankscope.dynamics import iterate
from rankscope.dynamics.clusters import cluster_system, uniform_starts
from rankscope.papers.figures.cluster_words import cluster_points
from rankscope.papers.figures.clusters import ClusterConfig, clusters
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
