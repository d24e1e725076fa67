"""Pictures of equilibria: tokens where they belong, honest intervals, every odd finding drawn."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.equilibria_findings import STEPS, finding, paths, recorded, rest, share, system, two_tokens
from rankscope.charts import Plane
from rankscope.findings.equilibria import pictures
from rankscope.findings.equilibria.values import Basins
from rankscope.results.statistics import wilson


def spots(square, shape):
    return [one for one in square.spots if one.shape == shape]


def drawn_paths(found) -> Plane:
    (plane,) = pictures.paths(found)
    return plane


# Where tokens stand


def test_on_the_circle_the_angle_is_the_token_and_the_radius_is_time():
    found = two_tokens()
    states = pictures.paths_of(found.trajectories)
    plane = drawn_paths(found)
    for start, square in zip(pictures.chosen_starts(states), plane.squares, strict=True):
        for shape, at, radius in (("ring", 0, pictures.INNER), ("dot", -1, 1.0)):
            for token, one in enumerate(spots(square, shape)):
                wanted = radius * states.states[start, at, token]
                assert (one.x, one.y) == pytest.approx(tuple(wanted), abs=1e-12)
                assert one.tip.startswith(f"token {token}, step {STEPS[at]}: ")
        lengths = [math.hypot(x, y) for way in square.ways for x, y in way.points]
        assert (min(lengths), max(lengths)) == pytest.approx((pictures.INNER, 1.0))
    assert [name for name, _ in plane.names] == ["token 0", "token 1"]


def test_equilibria_stand_just_outside_the_circle_with_both_signs_of_mirrored_ones():
    low = math.sqrt(8) / 3
    expected = {(0, 1), (0, -1), (-1 / 3, -low), (1 / 3, low), (-1 / 3, low)}
    for square in drawn_paths(two_tokens()).squares:
        crosses = [(one.x / pictures.OUTSIDE, one.y / pictures.OUTSIDE) for one in spots(square, "cross")]
        assert len(crosses) == len(expected)
        for place in expected:
            assert min(math.dist(place, one) for one in crosses) < 1e-12


def test_time_grows_with_the_logarithm_of_the_step():
    radius = pictures.time_radius(np.array([0.0, 9.0, 99.0]))
    assert radius == pytest.approx(
        [pictures.INNER, (1 + pictures.INNER) / 2, 1.0], abs=1e-12
    )  # 1 + step = 1, 10, 100
    assert pictures.time_radius(np.array([7.0])) == pytest.approx([1.0])


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(0.1, 1)), min_size=2, max_size=12))
def test_arcs_pass_through_all_points_and_never_through_other_times(polar):
    line = np.array([(radius * math.cos(turn), radius * math.sin(turn)) for turn, radius in polar])
    drawn = pictures.along_arcs(line)
    for point in line:
        assert np.linalg.norm(drawn - point, axis=1).min() < 1e-9
    lengths = np.linalg.norm(drawn, axis=1)
    assert lengths.min() >= min(radius for _, radius in polar) - 1e-9
    assert lengths.max() <= max(radius for _, radius in polar) + 1e-9


def test_words_of_rings_keep_away_from_the_paths():
    points = np.array([[0.0, -y] for y in np.linspace(0, 1, 30)])
    turn = pictures.free_direction([0.4, 0.6, 0.8], points)
    assert math.sin(turn) > 0.7  # the paths run downwards, so words stand above
    assert math.sin(pictures.free_direction([0.4, 0.6, 0.8], -points)) < -0.7


def test_without_a_norm_tokens_stand_at_their_place_in_the_plane():
    found = finding(3, 2, trajectories=paths(1, 3, 2, unit=False), system=system(3, 2, norm="none"))
    plane = drawn_paths(found)
    states = pictures.paths_of(found.trajectories).states[0]
    ends = spots(plane.squares[0], "dot")
    scale = math.hypot(ends[0].x, ends[0].y) / np.linalg.norm(states[-1, 0])
    for token, one in enumerate(ends):
        assert (one.x, one.y) == pytest.approx(tuple(scale * states[-1, token]), abs=1e-12)
    assert plane.title == "Tokens in the plane, step by step"
    assert plane.squares[0].disk is None


def test_lengths_over_many_decades_stand_at_their_logarithm():
    states = [[[[size, 0.0], [0.0, size]] for size in (1.0, 1e-3, 1e-6)]]
    plane = drawn_paths(finding(trajectories=recorded(states)))
    x = [point[0] for point in plane.squares[0].ways[0].points]
    assert x[0] == pytest.approx(1.0)
    assert x[0] - x[1] == pytest.approx(x[1] - x[2])
    assert 0 < x[2] < 0.2
    assert "log scale" in plane.notes[0]
    assert [words for _, words in plane.squares[0].rings] == ["1e-6", "1e-4", "0.01", "1"]


@pytest.mark.parametrize("dim", [3, 4, 9])
def test_the_view_is_orthonormal_and_its_share_is_that_of_the_singular_values(dim):
    points = pictures.directions(
        np.random.default_rng(dim).normal(size=(50, dim)) * np.arange(1, dim + 1) ** 2
    )
    view = pictures.view_of(points, points)
    np.testing.assert_allclose(view.basis @ view.basis.T, np.eye(3), atol=1e-12)
    values = np.linalg.svd(points, compute_uv=False)
    assert view.share == pytest.approx((values[:3] ** 2).sum() / (values**2).sum(), rel=1e-10)
    assert np.linalg.norm(view.seen(points), axis=1).max() <= 1 + 1e-12
    if dim == 3:
        assert np.linalg.det(view.basis) == pytest.approx(1.0)
        np.testing.assert_allclose(view.axes, view.seen(np.eye(3)), atol=1e-12)


def test_a_view_looks_at_the_side_where_the_paths_are():
    for near in np.eye(3):
        points = pictures.directions(near + 0.1 * np.random.default_rng(0).normal(size=(40, 3)))
        assert pictures.view_of(points, points).seen(points)[:, 2].min() > 0


def test_principal_directions_of_points_in_a_subspace_hold_them_all():
    mixing = np.linalg.qr(np.random.default_rng(3).normal(size=(7, 3)))[0].T
    points = np.random.default_rng(4).normal(size=(30, 3)) @ mixing
    rows = pictures.principal(points)
    np.testing.assert_allclose(points @ rows.T @ rows, points, atol=1e-12)


@given(st.floats(0, 6.3), st.floats(-1.5, 1.5))
def test_views_are_rotations(turn, tilt):
    found = pictures.rotation(turn, tilt)
    np.testing.assert_allclose(found @ found.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(found) == pytest.approx(1.0)


def test_lines_of_the_net_lie_on_the_sphere():
    points = pictures.directions(np.random.default_rng(5).normal(size=(9, 3)))
    for line in pictures.graticule(pictures.view_of(points, points)):
        np.testing.assert_allclose(np.linalg.norm(line, axis=1), 1.0, atol=1e-12)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_sides_part_a_path_without_gaps(depth):
    found = pictures.sides(np.array(depth))
    starts = [piece.start for _, piece in found]
    for at, value in enumerate(depth):
        owner = max(place for place, start in enumerate(starts) if start <= at)
        assert found[owner][0] == (value >= 0)
    for (_, before), (_, after) in pairwise(found):
        assert before.stop == after.start + 1


def test_on_the_sphere_what_is_behind_is_faint_and_drawn_first():
    found = finding(5, 3)
    states = pictures.paths_of(found.trajectories)
    shown = pictures.directions(states.states[pictures.chosen_starts(states)])
    view = pictures.view_of(shown.reshape(-1, 3), pictures.moving(shown))
    for own, square in zip(shown, drawn_paths(found).squares, strict=True):
        seen = view.seen(own)
        behind = sum(int(seen[at, token, 2] < 0) for at in (0, -1) for token in range(5))
        ends = [one for one in square.spots if one.shape != "cross"]
        assert sum(one.faint for one in ends) == behind
        assert [one.faint for one in ends] == sorted((one.faint for one in ends), reverse=True)
        assert all(math.hypot(one.x, one.y) <= 1 + 1e-12 for one in ends)


def test_more_dimensions_say_what_the_picture_holds():
    plane = drawn_paths(finding(6, 8))
    assert "Three principal directions, which hold" in plane.notes[0]
    assert plane.title == "Tokens on the sphere in 8 dimensions, step by step"


def test_one_dimension_is_drawn_over_steps():
    found = finding(4, 1, equilibria=(rest([[0.5]] * 4),), place=0)
    panels = pictures.paths(found)
    assert len(panels) == 3
    states = pictures.paths_of(found.trajectories).states[0]
    line = panels[0].lines[1]
    assert [point.y for point in line.points] == states[:, 1, 0].tolist()
    assert [10**point.x - 1 for point in line.points] == pytest.approx(STEPS, abs=1e-9)
    assert [(one.style, one.points[0].y) for one in panels[0].lines[4:]] == [("dashed", 0.5)]


# Which starts and equilibria


def test_starts_that_end_far_apart_are_chosen():
    states = np.zeros((5, 2, 1, 2))
    states[:, -1, 0, 0] = [0.0, 0.1, 5.0, 0.2, -3.0]
    found = pictures.paths_of(recorded(states))
    assert pictures.chosen_starts(found) == [0, 2, 4]
    assert pictures.chosen_starts(found, 9) == [0, 1, 2, 3, 4]


def test_a_start_is_said_to_end_near_an_equilibrium_only_where_it_does():
    found, low = two_tokens(), math.sqrt(8) / 3
    assert pictures.nearest(found, np.array([[0.01, 1.0], [-1 / 3, -low]])) == 1
    assert pictures.nearest(found, np.array([[0.0, -1.0], [1 / 3, low]])) == 1  # the mirror image
    assert (
        pictures.nearest(found, np.array([[0.0, -1.0], [1 / 3, -low]])) is None
    )  # of the third one, which has none
    assert pictures.nearest(found, np.array([[1.0, 0.0], [0.0, 1.0]])) is None
    assert pictures.nearest(finding(), np.zeros((2, 2))) is None


def test_the_one_that_is_shown_is_among_the_few_drawn():
    many = finding(equilibria=tuple(rest(np.eye(2) * (1 + at)) for at in range(9)), place=7)
    assert pictures.first_places(many, 3) == [0, 1, 7]
    assert pictures.marked_equilibria(many, np.eye(2) * 3) == list(range(9))
    wide = finding(16, 2, equilibria=tuple(rest(np.full((16, 2), 1.0 + at)) for at in range(3)), place=2)
    assert pictures.marked_equilibria(wide, np.full((16, 2), 1.0)) == [0, 2]


def test_states_beyond_the_range_of_numbers_are_left_out():
    starts = (((((1.0, 0.0),), ((0.5, 0.5),), ((None, 0.0),), ((1.0, 0.0),))),)
    found = recorded(np.zeros((1, 4, 1, 2))).model_copy(update={"starts": starts})
    assert pictures.paths_of(found).steps.tolist() == [0, 1]
    lost = found.model_copy(update={"starts": ((((None, 0.0),),),), "steps": (0,)})
    assert pictures.paths_of(lost) is None
    assert pictures.paths_of(None) is None
    assert pictures.paths_of(recorded([[[[1e200, 0.0]]]])) is None  # its length leaves the range


# Shares, multipliers, singular values


def test_bars_hold_counts_in_order_and_beyond_twelve_their_sum():
    found = two_tokens()
    bars = pictures.endings(found).bars
    assert [one.name for one in bars] == [
        "equilibrium 1, rank 1", "equilibrium 2, rank 2", "not at rest (unresolved)",
    ]  # fmt: skip
    assert [one.text for one in bars] == ["35 of 40, 88%", "4 of 40, 10%", "1 of 40, 2.5%"]
    assert (bars[1].value, bars[1].low, bars[1].high) == (0.1, *wilson(4, 40))
    shares = tuple(share(20 - at, ending="cycle", rank=at) for at in range(20))
    many = pictures.endings(finding(basins=Basins(starts=210, steps=9, shares=shares))).bars
    assert len(many) == 12
    assert many[-1].name == "9 other endings"
    assert sum(one.value for one in many) == pytest.approx(1.0)


def test_the_map_holds_every_start_with_its_limit():
    found = two_tokens()
    (panel,) = pictures.basins(found)
    assert [(line.name, len(line.points)) for line in panel.lines] == [
        ("equilibrium 1, rank 1", 35), ("equilibrium 2, rank 2", 4), ("no equilibrium", 1),
    ]  # fmt: skip
    points = sorted((point.x, point.y) for line in panel.lines for point in line.points)
    np.testing.assert_allclose(points, sorted(map(tuple, np.degrees(found.basins.start_angles))), atol=1e-9)
    assert pictures.basins(finding()) == []


def test_multipliers_stand_in_the_complex_plane_by_kind():
    plane = pictures.multipliers(two_tokens())
    _, stable, unstable = plane.squares
    colors = [color for _, color in pictures.KINDS]
    assert {(one.x, one.y, one.color) for one in stable.spots} == {
        (1.0, 0.0, colors[1]), (0.0572, 0.0, colors[0]), (0.0, 0.0, colors[0]),
    }  # fmt: skip
    assert {(one.x, one.y, one.color) for one in unstable.spots} == {
        (1.0, 0.0, colors[1]), (1.9428, 0.0, colors[2]), (0.3, 0.4, colors[0]),
    }  # fmt: skip
    assert unstable.name == "equilibrium 3, rank 2: unstable"
    assert any(one.tip.endswith("2 times") for one in stable.spots)
    assert all(square.extent >= 1.9428 for square in plane.squares)


def test_a_multiplier_is_neutral_within_its_error():
    one = rest(np.eye(2), multipliers=((1.0001, 0.0), (0.9, 0.0), (None, 0.0)), multiplier_error=2e-4)
    (square,) = pictures.multipliers(finding(equilibria=(one,), place=0)).squares
    assert [spot.color for spot in square.spots] == [pictures.KINDS[0][1], pictures.KINDS[1][1]]


def test_singular_values_not_above_the_threshold_are_hollow_and_zeros_at_the_lower_end():
    one = rest(np.eye(3), singular_values=(1.0, 1e-3, 1e-13, 0.0))
    panel = pictures.singular_values(finding(3, 3, equilibria=(one,), place=0))
    values, threshold = panel.lines
    assert [point.hollow for point in values.points] == [False, False, True, True]
    assert [point.y for point in values.points] == pytest.approx([0, -3, -13, -math.inf])
    assert threshold.points[0].y == pytest.approx(-12)
    assert (min(panel.inside), max(panel.inside)) == pytest.approx((-13, 0))


def test_rounding_far_below_the_threshold_does_not_stretch_the_axis():
    one = rest(np.eye(3), singular_values=(1.0, 1e-90, 1e-300))
    drawn = finding(3, 3, equilibria=(one,), place=0, trajectories=None).chart().svg()
    assert "far below the threshold" in drawn
    assert "log of exponent" not in drawn


# Every odd finding

ODD = {
    "dim 1": lambda: finding(4, 1),
    "dim 1, 300 tokens": lambda: finding(300, 1),
    "one token": lambda: finding(1, 3),
    "64 tokens in 64 dimensions": lambda: finding(64, 64),
    "300 tokens on the circle": lambda: finding(300, 2),
    "no starts": lambda: two_tokens(basins=Basins(starts=0, steps=1, shares=())),
    "no paths": lambda: two_tokens(trajectories=None),
    "one step": lambda: finding(trajectories=recorded([[[[1.0, 0.0], [0.0, 1.0]]]])),
    "zero tokens": lambda: finding(trajectories=recorded(np.zeros((1, 2, 2, 2)))),
    "zero tokens on the sphere": lambda: finding(2, 3, trajectories=recorded(np.zeros((1, 2, 2, 3)))),
    "huge tokens": lambda: finding(trajectories=recorded(np.full((1, 2, 2, 2), 1e300))),
    "no multipliers": lambda: finding(equilibria=(rest(np.eye(2), multipliers=(), components=()),), place=0),
    "a huge multiplier": lambda: finding(equilibria=(rest(np.eye(2), multipliers=((1e9, 0.0),)),), place=0),
    "rank 0": lambda: finding(equilibria=(rest(np.zeros((2, 2)), mean_abs_cosine=None, rank_threshold=0.0),), place=0),
    "200 singular values": lambda: finding(200, 200, equilibria=(rest(np.eye(200)),), place=0, trajectories=None),
    "long names": lambda: two_tokens(system=system(2, 2, mask="m" * 200, values="file:" + "v" * 3000)),
    "thousands of starts": lambda: two_tokens(basins=Basins(
        starts=5000, steps=9, shares=(share(5000, 0, rank=1),), start_angles=((0.1, 0.2),) * 5000, limit=(0,) * 5000)),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_every_odd_finding_is_drawn_and_written(name):
    found = ODD[name]()
    drawn = str(found.chart().svg())
    assert "nan" not in drawn.lower().replace("<tspan", "")
    assert "inf" not in drawn
    assert len(drawn) < 2_000_000
    assert found.words[0] in str(found)
    assert found.to_html()
    assert found._repr_html_()


def test_nothing_at_all_is_a_picture_that_says_so():
    empty = finding(trajectories=None, basins=Basins(starts=0, steps=1, shares=()))
    assert "There is nothing to draw." in empty.chart().svg()
