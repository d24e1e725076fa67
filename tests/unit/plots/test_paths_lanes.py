"""Where routes run: every path on a track of its own, the lane that passes by at the bottom, ends in order of rank."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import paths_tables
from rankscope.plots.paths_lanes import HIGHEST, LIST_LINE, plan_routes
from rankscope.plots.paths_routes import bends
from rankscope.plots.paths_sections import Place, TopPath, places_of, top_of


@st.composite
def networks(draw):
    """Attention parts and up to 30 different paths through them."""
    heads = draw(st.lists(st.integers(1, 24), min_size=1, max_size=8))
    places = [Place(layer=n, site="attention", heads=count, label=str(n)) for n, count in enumerate(heads, 1)]
    step = [st.one_of(st.none(), st.integers(0, count - 1)) for count in heads]
    found = draw(st.lists(st.tuples(*step), min_size=1, max_size=30, unique=True))
    scores = sorted(draw(st.lists(st.floats(0, 9), min_size=len(found), max_size=len(found))), reverse=True)
    paths = [
        TopPath(rank=rank, heads=path, norm=score, residual=score, share=0.1)
        for rank, (path, score) in enumerate(zip(found, scores, strict=True), start=1)
    ]
    return places, paths


@given(networks())
def test_routes_side_by_side_never_cover_each_other(network):
    places, paths = network
    plan = plan_routes(paths, places)
    for column in range(1, len(places) + 1):
        bands = sorted(
            (route.heights[column] - route.width / 2, route.heights[column] + route.width / 2)
            for route in plan.routes
        )
        assert all(lower[1] <= upper[0] for lower, upper in pairwise(bands))


@given(networks())
def test_routes_stay_in_the_lanes_of_their_heads(network):
    places, paths = network
    plan = plan_routes(paths, places)
    lanes = {lane.head: lane for lane in plan.lanes}
    assert plan.lanes[-1].head is None
    assert [lane.head for lane in plan.lanes[:-1]] == sorted(head for head in lanes if head is not None)
    assert all(upper.top + upper.height == pytest.approx(lower.top) for upper, lower in pairwise(plan.lanes))
    for route in plan.routes:
        for head, height in zip(route.path.heads, route.heights[1:-1], strict=True):
            assert lanes[head].top < height - route.width / 2
            assert height + route.width / 2 < lanes[head].top + lanes[head].height


@given(networks())
def test_ends_are_listed_by_rank_inside_the_picture(network):
    places, paths = network
    plan = plan_routes(paths, places)
    ends = [route.heights[-1] for route in plan.routes]
    assert all(after - before == pytest.approx(LIST_LINE) for before, after in pairwise(ends))
    assert ends[0] - LIST_LINE / 2 >= -1e-9
    assert ends[-1] + LIST_LINE / 2 <= plan.height + 1e-9
    widths = [route.width for route in plan.routes]
    assert widths == sorted(widths, reverse=True)
    assert {route.heights[0] for route in plan.routes} == {plan.lanes[-1].middle}


def test_unused_lanes_are_drawn_only_where_there_are_few_heads():
    small, deep = paths_tables.gpt2(), paths_tables.deep()
    plan = plan_routes(top_of(small), places_of(small))
    assert [lane.head for lane in plan.lanes] == [*range(12), None]
    plan = plan_routes(top_of(deep), places_of(deep))
    used = {head for path in top_of(deep) for head in path.heads if head is not None}
    assert [lane.head for lane in plan.lanes] == [*sorted(used), None]
    # Fifty lines of the list need more than the lanes do.
    assert plan.height <= max(1.35 * HIGHEST, 50 * LIST_LINE)


def test_a_smooth_line_is_flat_at_every_column_and_runs_to_the_right():
    table = paths_tables.gpt2()
    plan = plan_routes(top_of(table), places_of(table))
    spots = [0.0, *(40.0 + 50.0 * n for n in range(12)), 700.0]
    for route in plan.routes:
        points = bends(route, spots)
        across = [x for x, _ in points]
        assert across == sorted(across)
        assert [y for x, y in points if x in spots] == pytest.approx(list(route.heights))
        low, high = min(route.heights), max(route.heights)
        assert all(low - 1e-9 <= y <= high + 1e-9 for _, y in points)


def test_scores_of_zero_still_have_a_width():
    places = [Place(layer=1, site="attention", heads=2, label="1")]
    paths = [TopPath(rank=n, heads=(n - 1,), norm=0.0, residual=None, share=None) for n in (1, 2)]
    for score in ("norm", "residual"):
        assert all(route.width > 1 for route in plan_routes(paths, places, score=score).routes)
