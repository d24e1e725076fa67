"""Pictures of masks show exactly the matrix: cell by cell, edge by edge."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.errors import ConfigError
from rankscope.masks import parse_mask
from rankscope.plots import description, mask_graph, mask_matrix, mask_sheet, save_figure
from rankscope.plots.mask_matrix import _bars


@dataclass(frozen=True)
class FakeGraph:
    allowed: np.ndarray

    def centers(self):
        return np.array([0])

    def radius(self):
        return 1


@dataclass(frozen=True)
class FakeRule:
    """Any object with a text, a matrix and a graph will do."""

    allowed: np.ndarray
    text: str = "fake:1"

    def matrix(self, tokens):
        return self.allowed

    def graph(self, tokens):
        return FakeGraph(self.allowed)


matrices = st.integers(1, 7).flatmap(
    lambda n: st.lists(st.booleans(), min_size=n * n, max_size=n * n).map(
        lambda bits: np.array(bits).reshape(n, n)
    )
)


def covered(bars, tokens):
    """The matrix painted from the rectangles; every cell at most once."""
    painted = np.zeros((tokens, tokens), dtype=int)
    for bar in bars:
        rows = slice(round(bar["top"] + 0.5), round(bar["bottom"] + 0.5))
        painted[rows, round(bar["left"] + 0.5) : round(bar["right"] + 0.5)] += 1
    return painted


@settings(deadline=None)
@given(matrices, st.booleans())
def test_rectangles_cover_the_allowed_cells_once(allowed, merge):
    bars = _bars(allowed, merge=merge)
    np.testing.assert_array_equal(covered(bars, len(allowed)), allowed.astype(int))
    if not merge:
        assert len(bars) == allowed.sum()


def test_the_matrix_has_queries_down_and_keys_across_from_the_top_left():
    spec = mask_matrix(parse_mask("causal"), 12).to_dict()
    x, y = spec["encoding"]["x"], spec["encoding"]["y"]
    assert (x["axis"]["title"], x["axis"]["orient"]) == ("key", "top")
    assert (y["axis"]["title"], y["scale"]["reverse"]) == ("query", True)
    assert spec["title"]["text"] == "mask causal"
    assert spec["title"]["subtitle"][:2] == ["12 tokens · 54.2 % of the pairs allowed", "radius 1 · 1 center"]
    assert spec["width"] == spec["height"]


def test_many_tokens_are_drawn_as_bars():
    spec = mask_matrix(parse_mask("window:2"), 200).to_dict()
    assert len(spec["datasets"][spec["data"]["name"]]) == 200


def values(spec, layer):
    return spec["datasets"][spec["layer"][layer]["data"]["name"]]


def edges_of(spec, tokens):
    """(key, query) pairs of the arrows and unordered pairs of the plain lines, found from where they end."""
    places = [(np.sin(2 * np.pi * t / tokens), np.cos(2 * np.pi * t / tokens)) for t in range(tokens)]

    def nearest(x, y):
        return min(range(tokens), key=lambda t: (places[t][0] - x) ** 2 + (places[t][1] - y) ** 2)

    arrows, plain = set(), set()
    steps = values(spec, 0)
    for edge in {step["edge"] for step in steps}:
        start, _, end = sorted((s for s in steps if s["edge"] == edge), key=lambda s: s["step"])
        pair = (nearest(start["x"], start["y"]), nearest(end["x"], end["y"]))
        if start["flow"] == "both ways":
            plain.add(frozenset(pair))
        else:
            arrows.add(pair)
    return arrows, plain


@settings(deadline=None, max_examples=12)
@given(matrices.filter(lambda m: len(m) > 1 and (m & ~np.eye(len(m), dtype=bool)).any()))
def test_the_graph_has_an_arrow_from_key_to_query_and_a_plain_line_both_ways(allowed):
    tokens = len(allowed)
    arrows, plain = edges_of(mask_graph(FakeRule(allowed), tokens).to_dict(), tokens)
    pairs = [
        (key, query)
        for query in range(tokens)
        for key in range(tokens)
        if key != query and allowed[query, key]
    ]
    assert arrows == {(key, query) for key, query in pairs if not allowed[key, query]}
    assert plain == {frozenset(pair) for pair in pairs if allowed[pair]}


def test_arrow_heads_sit_at_the_query_and_point_at_it():
    spec = mask_graph(FakeRule(np.array([[1, 0], [1, 1]], dtype=bool)), 2).to_dict()
    (head,) = values(spec, 1)
    # Key 0 is at the top, query 1 at the bottom: the head is low and points straight down.
    assert head["y"] < -0.8
    assert head["x"] == pytest.approx(0, abs=1e-12)
    assert abs(head["angle"]) == pytest.approx(180)


def test_centers_are_filled_and_named():
    spec = mask_graph(parse_mask("prefix:2"), 6).to_dict()
    nodes = values(spec, -2)
    assert [node["token"] for node in nodes if node["kind"].startswith("center")] == ["0", "1"]
    assert spec["title"]["subtitle"] == "6 tokens · radius 1 · 2 centers · every token also reads itself"


def test_a_mask_without_a_center_says_so():
    chart = mask_graph(parse_mask("blocks:2"), 6)
    assert "no center: no token reaches all" in chart.to_dict()["title"]["subtitle"]
    assert description(chart).endswith("Centers: none.")


@pytest.mark.parametrize(
    ("diagonal", "words"),
    [([True, True], "every token also reads itself"), ([False, False], "no token reads itself"),
     ([True, False], "1 of the tokens also read themselves")],
)  # fmt: skip
def test_self_loops_are_said_in_words(diagonal, words):
    allowed = np.array([[diagonal[0], True], [True, diagonal[1]]])
    assert mask_graph(FakeRule(allowed), 2).to_dict()["title"]["subtitle"].endswith(words)


def test_the_sheet_has_every_mask_with_radius_and_centers():
    rules = [parse_mask(text) for text in ("full", "causal", "window:2", "blocks:2", "strided:4")]
    spec = mask_sheet(rules, 8).to_dict()
    assert spec["columns"] == 4
    assert [(part["title"]["text"], part["title"]["subtitle"]) for part in spec["concat"]] == [
        ("full", "radius 1 · 8 centers"),
        ("causal", "radius 1 · 1 center"),
        ("window:2", "radius 2 · 8 centers"),
        ("blocks:2", "no center: no token reaches all"),
        ("strided:4", f"radius {rules[-1].graph(8).radius()} · 8 centers"),
    ]


@pytest.mark.parametrize("draw", [mask_graph, mask_matrix, lambda rule, tokens: mask_sheet([rule], tokens)])
@pytest.mark.parametrize("tokens", [0, 100_000])
def test_what_cannot_be_read_is_not_drawn(draw, tokens):
    with pytest.raises(ConfigError, match=f"asked for {tokens} tokens; it can be read from 1 to"):
        draw(parse_mask("full"), tokens)


def test_a_sheet_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="at least one rule"):
        mask_sheet([], 8)


@pytest.mark.parametrize("tokens", [1, 7])
def test_mask_figures_render(tmp_path, tokens):
    rule = parse_mask("causal")
    for name, chart in (("graph", mask_graph(rule, tokens)), ("matrix", mask_matrix(rule, tokens)),
                        ("sheet", mask_sheet([rule, rule], tokens))):  # fmt: skip
        save_figure(chart, tmp_path / f"{name}.svg")
        assert (tmp_path / f"{name}.svg").read_text().startswith("<svg")
