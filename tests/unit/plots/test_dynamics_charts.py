"""Pictures of dynamics: tokens where they belong, honest intervals, every odd table drawn, nothing from outside run."""

import copy
import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.errors import ConfigError
from rankscope.plots import (
    basins_chart,
    circle_chart,
    clusters_chart,
    description,
    equilibria_chart,
    equilibria_charts,
    line_chart,
    multipliers_chart,
    singular_values_chart,
    sphere_chart,
    svg,
)
from rankscope.plots.dynamics_basins import bar_rows, map_rows
from rankscope.plots.dynamics_circle import INNER, OUTSIDE, _along_arcs, free_direction, time_radius
from rankscope.plots.dynamics_clusters import cells_of, count_on_circle, spread, to_meeting, ways_of
from rankscope.plots.dynamics_marks import directions, filled_lines, simplified
from rankscope.plots.dynamics_project import graticule, moving, principal, rotation, sides, view_of
from rankscope.plots.dynamics_sections import (
    basins_of,
    chosen_starts,
    crossed,
    equilibria_of,
    first_of,
    nearest,
    paths_of,
)
from rankscope.plots.dynamics_spectrum import KINDS
from rankscope.results import Table
from rankscope.results.statistics import wilson

HOSTILE = "</script><script>alert(1)</script><img src=x>"
STEPS = [0, 1, 2, 5, 10, 30, 100, 300, 1000]


def table_of(**sections):
    columns = {"measure": ["m"], "definition": ["m"], "value": [1.0], "floor": [0.0]}
    return Table.from_columns(columns, provenance={}, command="equilibria", sections=sections)


def paths_section(starts, tokens, dim, seed=0, *, unit=True):
    """Tokens that walk towards a common one: weight step / (step + 3) on it."""
    draw = np.random.default_rng(seed).normal(size=(starts, tokens + 1, dim))
    share = np.array(STEPS) / (np.array(STEPS) + 3.0)
    states = (1 - share)[:, None, None] * draw[:, None, :-1] + share[:, None, None] * draw[:, None, -1:]
    if unit:
        states = states / np.linalg.norm(states, axis=-1, keepdims=True)
    return {"steps": STEPS, "starts": states.tolist()}


def equilibrium(tokens, **changed):
    state = np.asarray(tokens, dtype=float)
    values = np.linalg.svd(state, compute_uv=False)
    found = {
        "rank": int((values > 1e-12).sum()),
        "rank_threshold": 1e-12,
        "singular_values": values.tolist(),
        "multipliers": [[1.0, 0.0], [0.0572, 0.0], [0.0, 0.0], [0.0, 0.0]],
        "stable": None,
        "neutral_tokens": [0],
        "tokens": state.tolist(),
        "components": [
            {"tokens": [0], "largest_multiplier": 1.0},
            {"tokens": [1], "largest_multiplier": 0.0572},
        ],
    }
    return found | changed


def system(tokens, dim, **changed):
    named = {"mask": "causal", "norm": "sphere", "values": "shear:3", "attention": "uniform", "note": None}
    return {"tokens": tokens, "dim": dim} | named | changed


def two_tokens(**changed):
    """The counter-example of Wu et al. 2024 at alpha = 1/2, w = 3, with its mirror image and its unstable partner."""
    low = math.sqrt(8) / 3
    found = [
        equilibrium([[0, 1], [0, 1]], mirrored=True),
        equilibrium([[0, 1], [-1 / 3, -low]], mirrored=True),
        equilibrium([[0, 1], [-1 / 3, low]], stable=False, multipliers=[[1, 0], [1.9428, 0], [0.3, 0.4]]),
    ]
    angles = np.random.default_rng(1).uniform(-np.pi, np.pi, size=(40, 2))
    shares = [
        {"equilibrium": 1, "ending": "equilibrium", "rank": 2, "count": 4},
        {"equilibrium": 0, "ending": "equilibrium", "rank": 1, "count": 35},
        {"equilibrium": None, "ending": "unresolved", "rank": None, "count": 1},
    ]
    basins = {"starts": 40, "steps": 1000, "shares": shares, "start_angles": angles.tolist()}
    basins["limit"] = [1] * 4 + [0] * 35 + [None]
    sections = {
        "system": system(2, 2),
        "equilibrium": found[1],
        "equilibria": found,
        "basins": basins,
        "trajectories": paths_section(4, 2, 2),
    }
    return table_of(**(copy.deepcopy(sections) | changed))


def many(tokens, dim, starts=3, **changed):
    """No equilibrium, everything collapses."""
    shares = [{"equilibrium": None, "ending": "consensus", "rank": 1, "count": starts}]
    sections = {
        "system": system(tokens, dim),
        "equilibrium": None,
        "equilibria": [],
        "basins": {"starts": starts, "steps": 1000, "shares": shares},
        "trajectories": paths_section(starts, tokens, dim),
    }
    return table_of(**(sections | changed))


def views(spec):
    """All single views of a chart, the data of all marks at hand."""
    for key in ("concat", "hconcat", "vconcat"):
        if key in spec:
            return [view for one in spec[key] for view in views(one | {"datasets": spec["datasets"]})]
    return [spec]


def rows_of(view, layer):
    one = view["layer"][layer]
    return json.loads(view["datasets"][one["data"]["name"]])


def layers_with(spec, kind):
    return [at for at, one in enumerate(spec["layer"]) if one["mark"].get("type") == kind]


# Where tokens stand


def test_on_the_circle_the_angle_is_the_token_and_the_radius_is_time():
    table = two_tokens()
    paths = paths_of(table)
    shown = chosen_starts(paths, 3)
    spec = circle_chart(table).to_dict(validate=False)
    for start, view in zip(shown, views(spec), strict=True):
        points = layers_with(view, "point")
        first, last = rows_of(view, points[-2]), rows_of(view, points[-1])
        for rows, at, radius in ((first, 0, INNER), (last, -1, 1.0)):
            for row in rows:
                token = paths.states[start, at, row["token"]]
                # Places are written with five decimals.
                assert (row["x"], row["y"]) == pytest.approx(tuple(radius * token), abs=1e-5)
        lines = rows_of(view, layers_with(view, "line")[-1])
        lengths = [math.hypot(row["x"], row["y"]) for row in lines]
        assert min(lengths) == pytest.approx(INNER, abs=1e-4)
        assert max(lengths) == pytest.approx(1.0, abs=1e-4)


def test_equilibria_stand_just_outside_the_circle_with_both_signs_of_mirrored_ones():
    view = views(circle_chart(two_tokens()).to_dict(validate=False))[0]
    crosses = rows_of(view, layers_with(view, "point")[0])
    low = math.sqrt(8) / 3
    expected = {(0, 1), (0, -1), (-1 / 3, -low), (1 / 3, low), (-1 / 3, low)}
    assert len(crosses) == len(expected)
    for x, y in expected:
        assert any(math.dist((row["x"] / OUTSIDE, row["y"] / OUTSIDE), (x, y)) < 1e-4 for row in crosses)


def test_time_grows_with_the_logarithm_of_the_step():
    radius = time_radius(np.array([0.0, 9.0, 99.0]))
    assert radius == pytest.approx([INNER, (1 + INNER) / 2, 1.0], abs=1e-12)  # 1 + step = 1, 10, 100
    assert time_radius(np.array([7.0])) == pytest.approx([1.0])


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(0.1, 1)), min_size=2, max_size=12))
def test_arcs_pass_through_all_points_and_never_through_other_times(polar):
    line = np.array([(radius * math.cos(turn), radius * math.sin(turn)) for turn, radius in polar])
    drawn = _along_arcs(line)
    for point in line:
        assert np.linalg.norm(drawn - point, axis=1).min() < 1e-9
    lengths = np.linalg.norm(drawn, axis=1)
    assert lengths.min() >= min(radius for _, radius in polar) - 1e-9
    assert lengths.max() <= max(radius for _, radius in polar) + 1e-9


def test_labels_of_rings_keep_away_from_the_paths():
    points = np.array([[0.0, -y] for y in np.linspace(0, 1, 30)])
    turn = free_direction([0.4, 0.6, 0.8], points)
    assert math.sin(turn) > 0.7  # the paths run downwards, so labels stand above
    assert math.sin(free_direction([0.4, 0.6, 0.8], -points)) < -0.7


def test_without_a_norm_tokens_stand_at_their_place_in_the_plane():
    table = many(3, 2, trajectories=paths_section(1, 3, 2, unit=False), system=system(3, 2, norm="none"))
    view = views(circle_chart(table).to_dict(validate=False))[0]
    states = paths_of(table).states[0]
    ends = rows_of(view, layers_with(view, "point")[-1])
    scale = math.hypot(ends[0]["x"], ends[0]["y"]) / np.linalg.norm(states[-1, 0])
    for row in ends:
        assert (row["x"], row["y"]) == pytest.approx(tuple(scale * states[-1, row["token"]]), abs=1e-4)
    assert circle_chart(table).title.text == "Tokens in the plane, step by step"


def test_lengths_over_many_decades_stand_at_their_logarithm():
    lengths = [1.0, 1e-3, 1e-6]
    states = [[[[size, 0.0], [0.0, size]] for size in lengths]]
    table = table_of(trajectories={"steps": [0, 1, 2], "starts": states})
    view = views(circle_chart(table).to_dict(validate=False))[0]
    lines = [row for row in rows_of(view, layers_with(view, "line")[-1]) if row["token"] == 0]
    ends = rows_of(view, layers_with(view, "point")[-1])
    assert [row["x"] for row in lines] == [
        1.0,
        pytest.approx(ends[0]["x"], abs=1e-4),
    ]  # equal steps: one line
    assert 0 < ends[0]["x"] < 0.2
    assert any("log scale" in line for line in circle_chart(table).title.subtitle)


@pytest.mark.parametrize("dim", [3, 4, 9])
def test_the_view_is_orthonormal_and_its_share_is_that_of_the_singular_values(dim):
    points = directions(np.random.default_rng(dim).normal(size=(50, dim)) * np.arange(1, dim + 1) ** 2)
    view = view_of(points, points)
    np.testing.assert_allclose(view.basis @ view.basis.T, np.eye(3), atol=1e-12)
    values = np.linalg.svd(points, compute_uv=False)
    assert view.share == pytest.approx((values[:3] ** 2).sum() / (values**2).sum(), rel=1e-10)
    assert np.linalg.norm(view.seen(points), axis=1).max() <= 1 + 1e-12
    if dim == 3:
        assert np.linalg.det(view.basis) == pytest.approx(1.0)
        np.testing.assert_allclose(view.axes, view.seen(np.eye(3)), atol=1e-12)


def test_a_view_looks_at_the_side_where_the_paths_are():
    for near in np.eye(3):
        points = directions(near + 0.1 * np.random.default_rng(0).normal(size=(40, 3)))
        assert view_of(points, points).seen(points)[:, 2].min() > 0


def test_principal_directions_of_points_in_a_subspace_hold_them_all():
    mixing = np.linalg.qr(np.random.default_rng(3).normal(size=(7, 3)))[0].T
    points = np.random.default_rng(4).normal(size=(30, 3)) @ mixing
    rows = principal(points)
    np.testing.assert_allclose(points @ rows.T @ rows, points, atol=1e-12)


@given(st.floats(0, 6.3), st.floats(-1.5, 1.5))
def test_views_are_rotations(turn, tilt):
    found = rotation(turn, tilt)
    np.testing.assert_allclose(found @ found.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(found) == pytest.approx(1.0)


def test_lines_of_the_net_lie_on_the_sphere():
    points = directions(np.random.default_rng(5).normal(size=(9, 3)))
    for line in graticule(view_of(points, points)):
        np.testing.assert_allclose(np.linalg.norm(line, axis=1), 1.0, atol=1e-12)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_sides_part_a_path_without_gaps(depth):
    found = sides(np.array(depth))
    owners = [near for near, piece in found for _ in depth[piece]][: len(depth)]
    assert len(owners) == len(depth)
    starts = [piece.start for _, piece in found]
    for at, value in enumerate(depth):
        owner = max(place for place, start in enumerate(starts) if start <= at)
        assert found[owner][0] == (value >= 0)
    for (_, before), (_, after) in pairwise(found):
        assert before.stop == after.start + 1


def test_on_the_sphere_near_lines_are_strong_and_far_ones_faint():
    table = many(5, 3)
    for view in views(sphere_chart(table).to_dict(validate=False)):
        strengths = {}
        for at in layers_with(view, "line"):
            for row in rows_of(view, at):
                if "near" in row:
                    strengths.setdefault(row["near"], set()).add(view["layer"][at]["mark"]["opacity"])
        assert all(len(found) == 1 for found in strengths.values())
        if len(strengths) == 2:
            assert min(strengths[True]) > 2 * max(strengths[False])


def test_points_of_three_dimensions_keep_their_length():
    table = many(4, 3)
    paths = paths_of(table)
    drawn = paths.states[chosen_starts(paths, 3)]
    view = view_of(drawn.reshape(-1, 3), moving(drawn))
    np.testing.assert_allclose(np.linalg.norm(view.seen(drawn), axis=-1), 1.0, atol=1e-12)
    rows = rows_of(
        found := views(sphere_chart(table).to_dict(validate=False))[0], layers_with(found, "point")[-1]
    )
    assert all(math.hypot(row["x"], row["y"]) <= 1 + 1e-5 for row in rows)


def test_more_dimensions_say_what_the_picture_holds():
    chart = sphere_chart(many(6, 8))
    assert any("three principal directions, which hold" in line for line in chart.title.subtitle)
    assert "of the squared length" in description(chart)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=2, max_size=30))
def test_a_thinned_line_passes_near_every_point(points):
    line = np.array(points)
    kept = simplified(line, 0.05)
    assert kept[0] == 0
    assert kept[-1] == len(line) - 1
    for at, point in enumerate(line):
        before = max(one for one in kept if one <= at)
        after = min(one for one in kept if one >= at)
        shares = np.linspace(0, 1, 2001)[:, None]
        between = line[before] + shares * (line[after] - line[before])
        assert np.linalg.norm(between - point, axis=1).min() <= 0.05 + 2e-3  # the grid is that coarse


# Panels are square


@pytest.mark.parametrize("make", [circle_chart, multipliers_chart])
def test_a_circle_is_round(make):
    for view in views(make(two_tokens()).to_dict(validate=False)):
        assert view["width"] == view["height"]
        encoding = view["layer"][0]["encoding"]
        assert encoding["x"]["scale"]["domain"] == encoding["y"]["scale"]["domain"]


def test_the_sphere_and_the_map_are_square():
    for view in views(sphere_chart(many(2, 3)).to_dict(validate=False)):
        assert view["width"] == view["height"]
    *_, last = views(basins_chart(two_tokens()).to_dict(validate=False))
    assert last["width"] == last["height"]


# Which starts and equilibria


def test_starts_that_end_far_apart_are_chosen():
    states = np.zeros((5, 2, 1, 2))
    states[:, -1, 0, 0] = [0.0, 0.1, 5.0, 0.2, -3.0]
    paths = paths_of(table_of(trajectories={"steps": [0, 1], "starts": states.tolist()}))
    assert chosen_starts(paths, 3) == [0, 2, 4]
    assert chosen_starts(paths, 9) == [0, 1, 2, 3, 4]


def test_a_start_is_said_to_end_near_an_equilibrium_only_where_it_does():
    found = equilibria_of(two_tokens())
    low = math.sqrt(8) / 3
    assert nearest(np.array([[0.01, 1.0], [-1 / 3, -low]]), found) is found[1]
    assert nearest(np.array([[0.0, -1.0], [1 / 3, low]]), found) is found[1]  # the mirror image
    assert nearest(np.array([[0.0, -1.0], [1 / 3, -low]]), found) is None  # of the third one, which has none
    assert nearest(np.array([[1.0, 0.0], [0.0, 1.0]]), found) is None
    assert nearest(np.zeros((3, 2)), found) is None


def test_the_one_that_was_asked_for_is_among_the_few_shown():
    found = [equilibrium(np.eye(2) * (1 + at)) for at in range(9)]
    listed = equilibria_of(table_of(equilibria=found, equilibrium=found[7]))
    assert [one.index for one in first_of(listed, 3)] == [0, 1, 7]
    assert [one.index for one in crossed(listed, np.eye(2) * 3)] == list(range(9))
    wide = [equilibrium(np.full((16, 2), 1.0 + at)) for at in range(3)]
    listed = equilibria_of(table_of(equilibria=wide, equilibrium=wide[2]))
    assert [one.index for one in crossed(listed, np.full((16, 2), 1.0))] == [0, 2]


def test_states_beyond_the_range_of_numbers_are_left_out():
    starts = [[[[1.0, 0.0]], [[0.5, 0.5]], [[math.inf, 0.0]], [[math.nan, 0.0]]]]
    paths = paths_of(table_of(trajectories={"steps": [0, 1, 2, 3], "starts": starts}))
    assert paths.steps.tolist() == [0, 1]
    with pytest.raises(ConfigError, match="not finite"):
        paths_of(table_of(trajectories={"steps": [0], "starts": [[[[math.nan, 0.0]]]]}))


# Shares, multipliers, singular values


@given(st.integers(1, 500), st.data())
def test_ends_of_the_interval_solve_its_equation(total, data):
    count = data.draw(st.integers(0, total))
    z, share = 1.959963984540054, count / total
    low, high = wilson(count, total)
    assert 0 <= low <= share <= high <= 1
    # Wilson: all p with |share - p| <= z sqrt(p (1 - p) / n), so both ends are roots of a quadratic.
    roots = np.sort(np.roots([1 + z**2 / total, -(2 * share + z**2 / total), share**2]).real)
    assert (low, high) == pytest.approx(tuple(roots), abs=1e-7)  # a double root loses half the digits


def test_a_published_interval():
    # Brown, Cai and DasGupta 2001: no success in n trials leaves z^2 / (n + z^2) as the upper end.
    assert wilson(0, 10) == (0.0, pytest.approx(0.2775, abs=5e-5))
    assert wilson(10, 10) == (pytest.approx(0.7225, abs=5e-5), 1.0)


def test_bars_hold_counts_in_order_and_beyond_twelve_their_sum():
    table = two_tokens()
    rows = bar_rows(basins_of(table), equilibria_of(table))
    assert [row["name"] for row in rows] == [
        "equilibrium 1, rank 1", "equilibrium 2, rank 2", "not at rest (unresolved)",
    ]  # fmt: skip
    assert [row["text"] for row in rows] == ["35 of 40, 88%", "4 of 40, 10%", "1 of 40, 2.5%"]
    assert (rows[1]["low"], rows[1]["high"]) == wilson(4, 40)
    shares = [{"equilibrium": None, "ending": f"e{at}", "rank": None, "count": 20 - at} for at in range(20)]
    basins = basins_of(table_of(basins={"starts": 210, "shares": shares}))
    rows = bar_rows(basins, [])
    assert len(rows) == 12
    assert rows[-1]["name"] == "9 other endings"
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)


def test_the_map_holds_every_start_with_its_limit():
    table = two_tokens()
    rows = map_rows(basins_of(table), equilibria_of(table))
    angles = np.degrees(table.sections["basins"]["start_angles"])
    np.testing.assert_allclose([(row["a"], row["b"]) for row in rows], angles, atol=0.006)
    assert [row["limit"] for row in rows].count("no equilibrium") == 1
    assert [row["limit"] for row in rows].count("equilibrium 2, rank 2") == 4


def test_multipliers_stand_in_the_complex_plane_by_kind():
    chart = multipliers_chart(two_tokens())
    _, stable, unstable = views(chart.to_dict(validate=False))
    rows = rows_of(stable, 1)
    assert {(row["x"], row["kind"], row["count"]) for row in rows} == {
        (1.0, KINDS[1], 1), (0.0572, KINDS[0], 1), (0.0, KINDS[0], 2),
    }  # fmt: skip
    assert {(row["x"], row["y"], row["kind"]) for row in rows_of(unstable, 1)} == {
        (1.0, 0.0, KINDS[1]), (1.9428, 0.0, KINDS[2]), (0.3, 0.4, KINDS[0]),
    }  # fmt: skip
    assert rows_of(unstable, 2)[0]["text"] == "1.943"
    assert "largest length 1.9428, 1 of 3 outside the unit circle, unstable" in description(chart)


def test_a_multiplier_is_neutral_within_its_error():
    found = equilibrium(np.eye(2), multipliers=[[1.0001, 0.0], [0.9, 0.0]], multiplier_error=2e-4)
    view = views(multipliers_chart(table_of(equilibria=[found])).to_dict(validate=False))[0]
    assert [row["kind"] for row in rows_of(view, 1)] == [KINDS[0], KINDS[1]]


def test_singular_values_not_above_the_threshold_are_hollow():
    found = equilibrium(np.eye(3), singular_values=[1.0, 1e-3, 1e-13, 0.0])
    spec = singular_values_chart(table_of(equilibria=[found])).to_dict(validate=False)
    rule, line = layers_with(spec, "rule")[0], layers_with(spec, "point")[0]
    assert rows_of(spec, rule)[0]["y"] == pytest.approx(-12)
    rows = rows_of(spec, line)
    assert [row["hollow"] for row in rows] == [False, False, True, True]
    assert [row["y"] for row in rows[:3]] == pytest.approx([0, -3, -13])
    assert rows[3]["y"] == spec["layer"][line]["encoding"]["y"]["scale"]["domain"][0]


# Every odd table


NOTE = "this mask lets 2 groups of tokens keep separate limits " * 5

ODD = {
    "dim 1": lambda: many(4, 1, starts=1),
    "one token": lambda: many(1, 3, starts=1),
    "dim 4": lambda: many(6, 4, starts=2),
    "dim 64, 64 tokens": lambda: many(64, 64, starts=1),
    "64 tokens on the circle": lambda: many(64, 2, starts=1),
    "one start": lambda: many(3, 3, starts=1),
    "no starts": lambda: many(2, 2, starts=1, basins={"starts": 0, "shares": []}),
    "no paths": lambda: two_tokens(trajectories=None),
    "paths of one step": lambda: many(2, 2, trajectories={"steps": [0], "starts": [[[[1.0, 0.0], [0.0, 1.0]]]]}),
    "zero tokens": lambda: many(2, 2, trajectories={"steps": [0, 1], "starts": [[[[0.0, 0.0]] * 2] * 2]}),
    "only equilibria": lambda: table_of(equilibria=[equilibrium(np.eye(2))]),
    "no multipliers": lambda: table_of(equilibria=[equilibrium(np.eye(2), multipliers=[])]),
    "a note": lambda: many(2, 3, starts=1, system=system(2, 3, note=NOTE)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ODD))
def test_every_odd_table_is_drawn(name):
    table = ODD[name]()
    for title, part in equilibria_charts(table):
        assert title
        assert len(part.description) > 20
        json.dumps(part.to_dict(validate=False), allow_nan=False)


def test_long_notes_are_broken_into_lines():
    chart = sphere_chart(ODD["a note"]())
    assert len(chart.title.subtitle) > 2
    assert max(map(len, chart.title.subtitle)) < 200
    assert " ".join(chart.title.subtitle).replace("  ", " ").count("separate limits") == 5
    assert filled_lines(["6 tokens", "dim 4", "mask causal"], 120) == ["6 tokens · dim 4", "mask causal"]


def test_what_was_not_found_is_said():
    for chart in (multipliers_chart(many(2, 2)), singular_values_chart(many(2, 2))):
        assert description(chart).endswith("no equilibrium was found.")


def test_dimensions_have_their_own_pictures():
    for make, dim in ((circle_chart, 3), (sphere_chart, 2), (line_chart, 2)):
        with pytest.raises(ConfigError, match=f"these have {dim}"):
            make(many(2, dim))


def test_a_table_of_something_else_is_refused():
    empty = table_of()
    for make in (circle_chart, sphere_chart, multipliers_chart, singular_values_chart, basins_chart):
        with pytest.raises(ConfigError, match="give the table that 'rankscope equilibria' made"):
            make(empty)
    with pytest.raises(ConfigError, match="neither trajectories nor equilibria nor basins"):
        equilibria_chart(empty)
    with pytest.raises(ConfigError, match=r"'trajectories' cannot be read .* for 1 starts, 2 steps"):
        circle_chart(table_of(trajectories={"steps": [0, 1], "starts": [[[[1.0, 0.0]]]]}))
    with pytest.raises(ConfigError, match="'basins' cannot be read"):
        basins_chart(table_of(basins={"starts": 3}))
    with pytest.raises(ConfigError, match="'equilibria' cannot be read"):
        multipliers_chart(table_of(equilibria=[{"rank": 1}]))


def test_the_whole_as_a_picture_with_names_from_outside_as_text():
    shares = [{"equilibrium": None, "ending": HOSTILE, "rank": None, "count": 3}]
    table = two_tokens(
        system=system(2, 2, mask=HOSTILE, values=HOSTILE, note=HOSTILE),
        basins={"starts": 3, "steps": 1, "shares": shares},
    )
    chart = equilibria_chart(table)
    assert all(part.description in chart.description for _, part in equilibria_charts(table))
    drawn = svg(chart)
    assert len(drawn) > 20_000
    assert "<script" not in drawn
    assert "<img" not in drawn
    assert "NaN" not in drawn
    for words in ("Tokens on the circle", "Multipliers", "Singular values", "Where 3 random starts end"):
        assert words in drawn


# Clusters


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
