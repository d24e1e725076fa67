"""Pictures of masks show exactly the matrix, cell by cell, or block by block where tokens are many."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.charts import Grid
from rankscope.errors import ConfigError, MaskError
from rankscope.masks import ExplicitMask, FileMask, mask_chart, parse_mask
from rankscope.masks.picture import MOST_CELLS, MOST_TOKENS

matrices = st.integers(1, 9).flatmap(
    lambda n: st.lists(st.booleans(), min_size=n * n, max_size=n * n).map(
        lambda bits: np.array(bits).reshape(n, n) | np.eye(n, dtype=bool)
    )
)


def grid_of(rule, tokens) -> Grid:
    (grid,) = mask_chart(rule, tokens).pictures
    assert isinstance(grid, Grid)
    return grid


def shares(grid: Grid) -> np.ndarray:
    return np.array([[cell.share for cell in row] for row in grid.cells])


@settings(deadline=None)
@given(matrices)
def test_a_cell_is_bright_where_the_query_may_read_the_key(allowed):
    grid = grid_of(ExplicitMask(allowed), len(allowed))
    np.testing.assert_array_equal(shares(grid), allowed.astype(float))
    assert [[cell.tip == "may be read" for cell in row] for row in grid.cells] == allowed.tolist()
    assert (grid.down, grid.across) == ("query", "key")
    assert list(grid.rows) == list(grid.columns) == [str(token) for token in range(len(allowed))]


@pytest.mark.parametrize("tokens", [MOST_CELLS, MOST_CELLS + 1, 200, 512])
def test_many_tokens_are_drawn_in_blocks(tokens):
    rule = parse_mask("longformer:9:2")
    grid, matrix = grid_of(rule, tokens), rule.matrix(tokens)
    side = -(-tokens // MOST_CELLS)
    assert len(grid.rows) == -(-tokens // side) <= MOST_CELLS
    for row, column in ((0, 0), (0, -1), (-1, -1), (3, 7)):
        at, to = range(len(grid.rows))[row], range(len(grid.rows))[column]
        block = matrix[at * side : (at + 1) * side, to * side : (to + 1) * side]
        assert grid.cells[row][column].share == pytest.approx(block.mean())
    assert grid.rows[1] == ("1" if side == 1 else f"{side}-{2 * side - 1}")


def test_one_mask_says_share_radius_and_centers():
    assert " ".join(grid_of(parse_mask("causal"), 12).notes).startswith("54.2% of the pairs are allowed")
    assert "centers: 0-1" in grid_of(parse_mask("prefix:2"), 6).notes[1]
    assert "no center" in grid_of(parse_mask("blocks:2"), 6).notes[1]


def test_several_masks_stand_side_by_side_with_radius_and_centers():
    rules = [parse_mask(text) for text in ("full", "causal", "window:2", "blocks:2", "strided:4")]
    chart = mask_chart(rules, 8)
    assert "8 tokens" in chart.title
    assert [(part.title, part.notes[0]) for part in chart.pictures] == [
        ("full", "radius 1, 8 centers"),
        ("causal", "radius 1, 1 center"),
        ("window:2", "radius 2, 8 centers"),
        ("blocks:2", "no token reaches all"),
        ("strided:4", f"radius {rules[-1].graph(8).radius()}, 8 centers"),
    ]
    assert str(chart.svg()).count("translate(900 ") == 1  # four in a row


@pytest.mark.parametrize("tokens", [0, MOST_TOKENS + 1])
def test_what_cannot_be_read_is_not_drawn(tokens):
    with pytest.raises(ConfigError, match=f"1 to {MOST_TOKENS} tokens, got {tokens}"):
        mask_chart(parse_mask("causal"), tokens)


def test_a_picture_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="at least one rule"):
        mask_chart([], 8)


def test_a_rule_shows_itself_in_a_notebook(tmp_path):
    assert "mask causal on 16 tokens" in parse_mask("causal")._repr_svg_()
    assert parse_mask("causal").only_tokens is None
    own = ExplicitMask(np.tri(5, dtype=bool))
    np.save(tmp_path / "mask.npy", np.tri(5, dtype=bool))
    for rule in (own, FileMask(path=str(tmp_path / "mask.npy")), parse_mask("window:1") + own):
        assert rule.only_tokens == 5
        assert "on 5 tokens" in rule._repr_svg_()
    assert "on 3 tokens" in str(parse_mask("causal").chart(3).svg())
    with pytest.raises(MaskError, match="asked for 6 tokens"):
        own.chart(6)
    nothing = own + ExplicitMask(np.tri(4, dtype=bool))  # exists for no number of tokens: shown as text
    assert nothing._repr_svg_() is None
