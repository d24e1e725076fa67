"""Points in the plane and the vertices of their convex hulls, against rational loops, Qhull and closed forms."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial import ConvexHull

from rankscope.errors import ConfigError, ShapeError
from rankscope.papers.tasks import hull
from rankscope.papers.tasks.hull import expected_vertices, hull_points, naive_accuracy, on_hull
from reference import hull_loops

ULP = 2.0**-53
GRID = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8)
WILD = st.floats(allow_nan=False, allow_infinity=False)
ANYWHERE = st.lists(st.tuples(WILD, WILD), min_size=1, max_size=6)
NEARLY = st.lists(st.tuples(st.integers(0, 6), st.integers(-1, 1)), min_size=3, max_size=5)


def tensor(points):
    return torch.tensor(points, dtype=torch.float64)


def drawn(count, points, generator):
    return hull_points(count, points, scale=10.0, shift=3.3, generator=generator)


@pytest.mark.parametrize("points", [4, 10, 30])
def test_qhull_finds_the_same_vertices(points, generator):
    sets = drawn(60, points, generator)
    found = on_hull(sets)
    for one, is_vertex in zip(sets.numpy(), found, strict=True):
        assert set(is_vertex.nonzero().flatten().tolist()) == set(ConvexHull(one).vertices.tolist())


@given(GRID)
def test_degenerate_sets_on_a_grid(points):
    """Equal points, points inside edges, all on one line, all in one place."""
    assert on_hull(tensor(points)).tolist() == hull_loops.vertices(points)


@given(ANYWHERE)
def test_points_of_any_size(points):
    """Products and differences overflow and underflow here, where floating point decides nothing."""
    assert on_hull(tensor(points)).tolist() == hull_loops.vertices(points)


@given(NEARLY)
def test_points_that_are_on_one_line_but_for_the_last_bit(steps):
    points = [(0.5 + 3 * k * ULP, 0.5 + (7 * k + off) * 2 * ULP) for k, off in steps] + [
        (12.0, 12.0),
        (24.0, 24.0),
    ]
    assert on_hull(tensor(points)).tolist() == hull_loops.vertices(points)


def test_floating_point_alone_gets_the_last_bit_wrong():
    """Near (1/2, 1/2) the rounded orientation to (12, 12) and (24, 24) has the wrong sign: why there are fractions."""
    b, c = (12.0, 12.0), (24.0, 24.0)
    wrong = 0
    for i, j in itertools.product(range(16), repeat=2):
        a = (0.5 + 2 * i * ULP, 0.5 + 2 * j * ULP)
        rounded = (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
        exact = hull_loops.area(*([hull_loops.Fraction(x) for x in p] for p in (a, b, c)))
        wrong += np.sign(rounded) != np.sign(exact)
        assert on_hull(tensor([a, b, c])).tolist() == [True, exact != 0, True]
    assert wrong > 50


def on_one_line(count, exponent):
    """Three points on ``y = 4097 x``, exactly, whose differences have too many bits; the second is in the middle.

    Leading digits are near one, where a rounding error is largest beside its number.
    """
    chance = torch.Generator().manual_seed(1)
    x = 2**39 + torch.randint(2**35, (count, 3), generator=chance)
    x = x.double() * torch.tensor([2.0**-24, 1.0, 2.0**24], dtype=torch.float64) * 2.0 ** (exponent - 40)
    return torch.stack([x, 4097 * x], dim=-1)


@pytest.mark.parametrize("exponent", [0, -530])
def test_rounding_is_not_taken_for_a_turn(exponent):
    """A bound below 1.9 round-offs is too small here; so is one without offset at 2^-530, where products underflow."""
    sets = on_one_line(2000, exponent)
    steps = sets[:, ::2] - sets[:, 1:2]
    left, right = steps[:, 0, 0] * steps[:, 1, 1], steps[:, 0, 1] * steps[:, 1, 0]
    assert int((left != right).sum()) > 20  # floating point alone sees turns
    if exponent == 0:
        assert float(((left - right) / (left + right)).abs().max()) > 1.9 * ULP
    else:
        assert float(left.abs().max()) < 2.0**-1022
    assert torch.equal(on_hull(sets), torch.tensor([True, False, True]).expand(2000, 3))


def test_a_point_one_bit_outside_an_edge_is_a_vertex():
    inside, beyond = (0.5, 0.5), (0.5, 0.5 - ULP)
    corners = [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    assert on_hull(tensor([*corners, inside])).tolist() == [True, True, True, False]
    assert on_hull(tensor([*corners, beyond])).tolist() == [True, True, True, True]


@given(GRID, st.randoms(use_true_random=False))
def test_the_order_of_the_points_does_not_matter(points, random):
    order = random.sample(range(len(points)), len(points))
    found = on_hull(tensor(points))
    assert on_hull(tensor(points)[order]).tolist() == found[order].tolist()


@given(GRID, st.integers(-40, 40), st.integers(-8, 40))
def test_scaling_and_moving_by_powers_of_two_changes_nothing(points, scale, shift):
    """Small integers times a power of two, plus a larger one: nothing is rounded."""
    moved = tensor(points) * 2.0**scale + 2.0 ** (scale + shift)
    assert on_hull(moved).tolist() == on_hull(tensor(points)).tolist()


@given(GRID)
def test_turned_and_mirrored_sets_have_the_same_vertices(points):
    found = on_hull(tensor(points)).tolist()
    assert on_hull(tensor([(-y, x) for x, y in points])).tolist() == found
    assert on_hull(tensor([(y, x) for x, y in points])).tolist() == found


@given(GRID)
def test_the_vertices_alone_are_all_vertices(points):
    sets = tensor(points)
    kept = sets[on_hull(sets)]
    assert len(kept) >= 1
    assert on_hull(kept).all()


@given(GRID, GRID)
def test_adding_points_never_makes_a_vertex_of_an_old_point(points, others):
    before = on_hull(tensor(points))
    after = on_hull(tensor(points + others))[: len(points)]
    assert not (after & ~before).any()


@pytest.mark.parametrize("batch", [(), (1,), (5,), (5, 2), (0,)])
def test_any_batch_is_decided_one_set_at_a_time(batch, generator, monkeypatch):
    monkeypatch.setattr(hull, "AT_ONCE", 3 * 25)  # three sets in a step: the last step is smaller
    sets = torch.randint(4, (*batch, 5, 2), generator=generator).double()
    found = on_hull(sets)
    assert found.shape == sets.shape[:-1]
    assert found.dtype == torch.bool
    for one, is_vertex in zip(sets.reshape(-1, 5, 2), found.reshape(-1, 5), strict=True):
        assert is_vertex.tolist() == hull_loops.vertices(one.tolist())


def test_float32_points_are_taken_as_they_are(generator):
    sets = drawn(20, 10, generator).float()
    assert torch.equal(on_hull(sets), on_hull(sets.double()))


def test_few_points_are_all_vertices():
    assert on_hull(tensor([(3.0, 4.0)])).tolist() == [True]
    assert on_hull(tensor([(3.0, 4.0)] * 3)).tolist() == [True] * 3
    assert on_hull(tensor([(0.0, -0.0), (-0.0, 0.0), (1.0, 0.0)])).tolist() == [True] * 3


@pytest.mark.parametrize(
    ("points", "match"),
    [
        (torch.zeros(3, 0, 2), r"at least one point in a set, got float32 of shape \(3, 0, 2\)"),
        (torch.zeros(3, 3), r"\(\*batch, points, 2\).*shape \(3, 3\)"),
        (torch.zeros(2), r"shape \(2,\)"),
        (torch.zeros(3, 2, dtype=torch.int64), "got int64"),
        (torch.tensor([[0.0, math.nan], [1.0, 2.0]]), "NaN or infinity"),
        (torch.tensor([[0.0, math.inf], [1.0, 2.0]]), "NaN or infinity"),
    ],
)
def test_what_is_no_set_of_points_is_refused(points, match):
    with pytest.raises(ShapeError, match=match):
        on_hull(points)


def test_points_fill_a_moved_square(generator):
    sets = hull_points(4000, 3, scale=10.0, shift=3.3, generator=generator)
    assert sets.dtype == torch.float64
    assert sets.shape == (4000, 3, 2)
    assert float((sets.amax(dim=1) - sets.amin(dim=1)).max()) <= 10 + 1e-9  # rounding of a shift below 20
    # 4 standard errors: the middle of a set has variance 3.3^2 + 100/12/3, over 8000 coordinates
    middle = sets.mean(dim=1)
    spread = 3.3**2 + 100 / 36
    assert float(middle.mean()) == pytest.approx(5, abs=4 * math.sqrt(spread / 8000))
    assert float(middle.var()) == pytest.approx(spread, rel=4 * math.sqrt(2 / 8000))
    still = hull_points(50, 10, scale=1.0, shift=0.0, generator=generator)
    assert 0 <= float(still.min()) < 0.02
    assert 0.98 < float(still.max()) < 1


def test_the_same_generator_draws_the_same_points():
    first, second = (drawn(3, 10, torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"count": -1}, "count=-1"),
        ({"points": 0}, "points=0"),
        ({"scale": 0.0}, "scale=0.0"),
        ({"scale": math.nan}, "scale=nan"),
        ({"shift": -1.0}, "shift=-1.0"),
        ({"shift": math.inf}, "shift=inf"),
    ],
)
def test_impossible_draws_are_refused(fields, match, generator):
    asked = {"count": 2, "points": 3, "scale": 1.0, "shift": 1.0} | fields
    with pytest.raises(ConfigError, match=match):
        hull_points(**asked, generator=generator)


def test_expected_vertices_that_are_known():
    """Three points make a triangle; its mean area is 11/144 (Sylvester's problem), so by Efron 4 (1 - 11/144)."""
    assert [expected_vertices(n) for n in (1, 2, 3)] == [1, 2, 3]
    assert expected_vertices(4) == 4 * (1 - hull_loops.Fraction(11, 144))


def test_expected_vertices_grow_as_renyi_and_sulanke_say():
    """8/3 (log n + Euler's constant - log 2) + o(1); the rest falls as 1/n."""
    rest = [
        float(expected_vertices(n)) - 8 / 3 * (math.log(n) + float(np.euler_gamma) - math.log(2))
        for n in (100, 200)
    ]
    assert 0 < rest[1] < rest[0] < 0.02
    assert rest[0] / rest[1] == pytest.approx(2, rel=0.01)  # terms of order 1/n^2 are left


@pytest.mark.parametrize("points", [5, 10])
def test_expected_vertices_are_the_mean_over_drawn_sets(points, generator):
    counts = on_hull(drawn(4000, points, generator)).sum(dim=-1).double()
    error = float(counts.std()) / math.sqrt(4000)
    assert float(counts.mean()) == pytest.approx(float(expected_vertices(points)), abs=4 * error)


def test_efron_links_vertices_and_area(generator):
    """The mean area of the hull of n points of the unit square is ``1 - E N_{n+1} / (n + 1)``."""
    sets = hull_points(100, 4, scale=1.0, shift=0.0, generator=generator)
    areas = np.array([float(hull_loops.hull_area(one)) for one in sets.tolist()])
    expected = 1 - float(expected_vertices(5)) / 5
    assert areas.mean() == pytest.approx(expected, abs=4 * areas.std() / math.sqrt(100))


def test_the_naive_line():
    assert naive_accuracy(10) == pytest.approx(0.59621, abs=5e-6)
    assert naive_accuracy(3) == 1.0
    assert naive_accuracy(100) == 1 - float(expected_vertices(100) / 100)  # most points are inside
    with pytest.raises(ConfigError, match="points=0"):
        naive_accuracy(0)
