"""The picture of clusters: ways that meet, counts on the circle, every panel drawn."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.errors import ConfigError
from rankscope.plots import clusters_chart, description
from rankscope.plots.dynamics_clusters import (
    cells_of,
    count_on_circle,
    filled_lines,
    spread,
    to_meeting,
    ways_of,
)
from rankscope.results import Table


def table_of(**sections):
    columns = {"measure": ["m"], "definition": ["m"], "value": [1.0], "floor": [0.0]}
    return Table.from_columns(columns, provenance={}, command="equilibria", sections=sections)


def views(spec):
    """All single views of a chart, the data of all marks at hand."""
    for key in ("concat", "hconcat", "vconcat"):
        if key in spec:
            return [view for one in spec[key] for view in views(one | {"datasets": spec["datasets"]})]
    return [spec]


def clusters_table(betas=(1.0, 4.0, 16.0), **changed):
    cells = [
        {
            "dim": dim, "beta": beta, "starts": 4, "met": 4, "first_clusters": 1 + beta / 4, "first_low": 1,
            "first_high": 2 + beta / 4, "first_log10_life": None if beta == 1 else 2.0, "unseen": 0.0,
            "total_log10_life": beta, "total_low": 0.9 * beta, "total_high": 1.1 * beta,
        }
        for dim in (2, 3)
        for beta in betas
    ]  # fmt: skip
    angles = [
        [-3.0, 3.0, 0.0],
        [-3.1, 3.1, 0.0],
        [-math.pi, math.pi, 0.5],
        [-6.0, 2 * math.pi - 6.0, 2 * math.pi - 6.0],
    ]
    way = {"steps": [0, 1, 9, 99], "log10_steps": [0.0, 0.3, 1.0, 2.0], "angles": angles}
    return table_of(**({"plateaus": cells, "trajectories": {f"{beta:g}": way for beta in betas}} | changed))


def test_clusters_of_a_start_lie_on_each_other_and_meet_at_zero():
    way = ways_of(clusters_table())[0]
    degrees = to_meeting(way.angles)
    np.testing.assert_allclose(degrees[-1], 0.0, atol=1e-9)
    assert degrees[2, 0] == pytest.approx(degrees[2, 1])  # at -pi and pi: one place, one cluster
    turned = (degrees - np.degrees(way.angles)) / 360
    np.testing.assert_allclose(np.ptp(turned - np.round(turned - turned[0, 0]), axis=None), 0.0, atol=1e-9)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=12), st.floats(0.01, 1.0))
def test_clusters_on_the_circle_are_those_of_single_linkage(angles, close):
    points = np.exp(1j * np.array(angles))
    apart = np.abs(np.angle(points[:, None] / points[None, :]))
    if np.abs(apart - close).min() < 1e-6:
        return  # rounding may put such a pair on either side
    linked = np.linalg.matrix_power((apart <= close).astype(int), len(angles)) > 0
    expected = len({tuple(row) for row in linked})
    assert count_on_circle(np.array(angles), close) == expected


def test_the_chart_of_clusters_has_all_panels():
    chart = clusters_chart(clusters_table())
    spec = chart.to_dict(validate=False)
    titles = [view["title"]["text"] for view in views(spec)]
    assert titles[:3] == ["inverse temperature 1", "inverse temperature 4", "inverse temperature 16"]
    assert len(titles) == 6
    json.dumps(spec, allow_nan=False)
    assert "dim 3, inverse temperature 16: 5 clusters at first, 1e16.0 steps to consensus" in description(
        chart
    )
    assert len(views(clusters_chart(clusters_table(trajectories={})).to_dict(validate=False))) == 2


def test_the_coldest_are_shown():
    ways = ways_of(clusters_table(betas=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0)))
    assert [way.beta for way in spread(ways, 4)] == [2.0, 4.0, 16.0, 32.0]
    assert [way.beta for way in spread(ways[:2], 4)] == [1.0, 2.0]


def test_other_tables_have_no_clusters():
    with pytest.raises(ConfigError, match="rankscope reproduce clusters"):
        clusters_chart(table_of())
    cells = clusters_table().sections["plateaus"]
    for one in cells:
        del one["first_high"], one["total_low"]
    with pytest.raises(ConfigError, match="lack first_high, total_low"):
        cells_of(table_of(plateaus=cells))
    with pytest.raises(ConfigError, match="'trajectories' cannot be read"):
        ways_of(table_of(trajectories={"1": {"log10_steps": [0.0], "angles": [1.0]}}))


def test_long_notes_are_broken_into_lines():
    assert filled_lines(["6 tokens", "dim 4", "mask causal"], 120) == ["6 tokens · dim 4", "mask causal"]
    note = "a start that has met waits no more " * 5
    lines = filled_lines([note], 200)
    assert len(lines) > 2
    assert " ".join(lines) == note.strip()
