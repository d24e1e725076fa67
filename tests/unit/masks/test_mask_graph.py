"""Graphs of masks: the published table of centers and radii, and brute force on random masks."""

from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.errors import MaskError
from rankscope.masks import ExplicitMask, describe, parse_mask
from reference import mask_loops

ALL = None
# mask, centers (None: all tokens), radius as a function of the number of tokens n >= 2
PUBLISHED = [
    ("full", ALL, lambda n: 1),
    ("causal", 1, lambda n: 1),
    ("window:1", ALL, lambda n: ceil((n - 1) / 2)),
    ("window:2", ALL, lambda n: ceil((n - 1) / 4)),
    ("window:5", ALL, lambda n: ceil((n - 1) / 10)),
    ("causal-window:1", 1, lambda n: n - 1),
    ("causal-window:3", 1, lambda n: ceil((n - 1) / 3)),
    ("prefix:1", 1, lambda n: 1),
    ("prefix:3", 3, lambda n: 1),
    ("prefix:2+causal", 2, lambda n: 1),
    ("longformer:1:1", ALL, lambda n: 1),
    ("bigbird:1:1:2", ALL, lambda n: 1),
    ("blocks:2", 0, lambda n: None),
]
BRUTE = [
    "dilated:2:2",
    "dilated:1:3+window:1",
    "strided:5",
    "bigbird:0:0:1",
    "bigbird:1:0:2",
    "blocks:3+causal-window:1",
]


@pytest.mark.parametrize(("text", "centers", "radius"), PUBLISHED, ids=[case[0] for case in PUBLISHED])
def test_centers_and_radius_equal_the_published_table(text, centers, radius):
    for tokens in range(2, 65):
        graph = parse_mask(text).graph(tokens)
        expected = list(range(tokens if centers is ALL else min(centers, tokens)))
        assert graph.centers().tolist() == expected
        assert graph.radius() == radius(tokens)
        assert graph.is_quasi_strongly_connected == bool(expected)
        assert graph.is_strongly_connected == (len(expected) == tokens)


@pytest.mark.parametrize("text", [case[0] for case in PUBLISHED] + BRUTE)
@pytest.mark.parametrize("tokens", [3, 4, 9, 17, 64])
def test_centers_and_radius_equal_a_search_from_every_token(text, tokens):
    rule = parse_mask(text)
    centers, radius = mask_loops.centers_and_radius(rule.matrix(tokens).tolist())
    assert rule.graph(tokens).centers().tolist() == centers
    assert rule.graph(tokens).radius() == radius


@st.composite
def random_masks(draw, largest=9):
    """Any mask without an empty row; sparse ones are as likely as dense ones, loops are not implied."""
    tokens = draw(st.integers(1, largest))
    extra = draw(st.integers(0, tokens))
    rows = [
        draw(st.sets(st.integers(0, tokens - 1), min_size=1, max_size=max(1, extra))) for _ in range(tokens)
    ]
    return np.array([[j in row for j in range(tokens)] for row in rows])


@given(random_masks())
def test_any_mask_against_brute_force(matrix):
    mask = matrix.tolist()
    graph = ExplicitMask(matrix).graph(len(matrix))
    centers, radius = mask_loops.centers_and_radius(mask)
    assert graph.centers().tolist() == centers
    assert graph.radius() == radius
    assert graph.is_quasi_strongly_connected == bool(centers)
    assert graph.is_strongly_connected == (len(centers) == len(matrix))
    assert graph.self_loops == all(mask[i][i] for i in range(len(mask)))
    assert graph.edges == sum(map(sum, mask))
    assert {frozenset(part.tolist()) for part in graph.components()} == mask_loops.components(mask)


@given(random_masks())
def test_components_come_in_the_order_in_which_information_flows(matrix):
    parts = [part.tolist() for part in ExplicitMask(matrix).graph(len(matrix)).components()]
    place = {token: k for k, part in enumerate(parts) for token in part}
    assert sorted(place) == list(range(len(matrix)))
    assert all(part == sorted(part) for part in parts)
    for query, key in np.argwhere(matrix):
        assert place[int(key)] <= place[int(query)]


@given(random_masks(), st.integers(0, 12))
def test_reach_is_walks_of_exactly_that_length(matrix, layers):
    expected = mask_loops.reach(matrix.tolist(), layers)
    np.testing.assert_array_equal(ExplicitMask(matrix).graph(len(matrix)).reach(layers), np.array(expected))


@given(random_masks())
def test_with_self_loops_the_radius_is_when_a_center_has_reached_all(matrix):
    graph = ExplicitMask(matrix | np.eye(len(matrix), dtype=bool)).graph(len(matrix))
    radius = graph.radius()
    if radius is None:
        assert not graph.reach(len(matrix)).all(axis=0).any()
    else:
        assert graph.reach(radius).all(axis=0).any()
        assert radius == 0 or not graph.reach(radius - 1).all(axis=0).any()
        np.testing.assert_array_equal(np.flatnonzero(graph.reach(len(matrix)).all(axis=0)), graph.centers())


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 130])
def test_reach_across_word_boundaries(tokens):
    """Rows are kept as 64-bit words; the window after L layers is the window L times as wide."""
    for layers in (0, 1, 5):
        expected = parse_mask(f"window:{2 * layers}").matrix(tokens)
        np.testing.assert_array_equal(parse_mask("window:2").graph(tokens).reach(layers), expected)


def test_reach_is_gathered_in_pieces(monkeypatch):
    monkeypatch.setattr("rankscope.masks.graph._GATHER_WORDS", 5)
    matrix = np.random.default_rng(3).random((70, 70)) < 0.05
    matrix[:, 3] = True
    expected = mask_loops.reach(matrix.tolist(), 3)
    np.testing.assert_array_equal(ExplicitMask(matrix).graph(70).reach(3), np.array(expected))


def test_reach_without_self_loops_forgets():
    """Two tokens that read only each other: after an even number of layers each is back to itself."""
    graph = ExplicitMask([[0, 1], [1, 0]]).graph(2)
    np.testing.assert_array_equal(graph.reach(1), np.array([[False, True], [True, False]]))
    np.testing.assert_array_equal(graph.reach(2), np.eye(2, dtype=bool))
    with pytest.raises(MaskError, match="-1 layers; the number of layers must be 0 or more"):
        graph.reach(-1)


@given(random_masks())
def test_the_uniform_map_spreads_evenly_over_the_allowed_keys(matrix):
    uniform = ExplicitMask(matrix).graph(len(matrix)).uniform_map()
    expected = [[float(weight) for weight in row] for row in mask_loops.uniform_map(matrix.tolist())]
    np.testing.assert_array_equal(uniform.toarray(), np.array(expected))


def test_a_map_can_be_changed_without_changing_the_graph():
    graph = parse_mask("window:1").graph(4)
    uniform = graph.uniform_map()
    uniform.indices[:] = 0
    uniform.data[:] = 0
    np.testing.assert_array_equal(graph.mask.toarray(), parse_mask("window:1").matrix(4))


def test_one_token_alone():
    graph = parse_mask("causal").graph(1)
    assert graph.centers().tolist() == [0]
    assert graph.radius() == 0
    assert graph.is_strongly_connected
    assert graph.slem() == 0.0


def test_a_description_says_it_all():
    assert describe(parse_mask("prefix:2+causal"), 5) == {
        "mask": "prefix:2+causal",
        "tokens": 5,
        "edges": 16,
        "density": 0.64,
        "self_loops": True,
        "centers": [0, 1],
        "radius": 1,
        "quasi_strongly_connected": True,
        "strongly_connected": False,
        "slem": pytest.approx(1 / 3, abs=1e-15),
        "slem_bracket": pytest.approx((1 / 3, 1 / 3), abs=1e-15),
    }
    nowhere = describe(parse_mask("blocks:2"), 6)
    assert (nowhere["centers"], nowhere["radius"], nowhere["slem"]) == ([], None, 1.0)
