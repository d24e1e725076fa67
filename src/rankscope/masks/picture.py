"""Masks as pictures: which keys (columns) a query (row) may read, and what that means for the flow of information."""

from collections.abc import Sequence

import numpy as np

from rankscope.charts import Chart, Grid, GridCell
from rankscope.core.words import clipped, count, percent, ranges
from rankscope.errors import ConfigError
from rankscope.masks.graph import MaskGraph
from rankscope.masks.rule import MaskRule

MOST_TOKENS = 4096

MOST_CELLS = 64
"""Cells to a side. More tokens are drawn in square blocks, each as bright as the share of its pairs that is allowed."""

WIDE, SMALL = 620, 300
"""Width of a picture of one mask at most, and of one among several."""


def mask_chart(rules: MaskRule | Sequence[MaskRule], tokens: int) -> Chart:
    """A grid per mask on that many tokens, with its radius and its centers.

    >>> from rankscope.masks import parse_mask
    >>> mask_chart(parse_mask("causal"), 4).pictures[0].title
    'mask causal on 4 tokens'
    """
    if not isinstance(rules, MaskRule) and not rules:
        raise ConfigError("a picture of no masks was asked for; give at least one rule")
    if not 1 <= tokens <= MOST_TOKENS:
        raise ConfigError(f"masks are drawn for 1 to {MOST_TOKENS} tokens, got {tokens}")
    if isinstance(rules, MaskRule) or len(rules) == 1:
        return Chart([_alone(rules if isinstance(rules, MaskRule) else rules[0], tokens)])
    return Chart(
        [_beside(rule, tokens) for rule in rules],
        title=f"Which keys a query may read: masks on {count(tokens, 'token')}",
        notes=[
            f"rows: queries; columns: keys; {_legend(tokens)}",
            "radius: layers until one token, a center, has reached all",
        ],
    )


def _alone(rule: MaskRule, tokens: int) -> Grid:
    graph, names, cells = _drawn(rule, tokens)
    return Grid(
        title=f"mask {clipped(rule.text)} on {count(tokens, 'token')}",
        rows=names,
        columns=names,
        cells=cells,
        down="query",
        across="key",
        ends=("", "") if tokens <= MOST_CELLS else ("no pair", "all pairs"),
        notes=[
            f"{percent(graph.edges / tokens**2, 3)} of the pairs are allowed; {_legend(tokens)}",
            _reach(graph),
        ],
        width=min(WIDE, max(SMALL, 60 + 24 * len(names))),
        is_square=True,
    )


def _beside(rule: MaskRule, tokens: int) -> Grid:
    graph, names, cells = _drawn(rule, tokens)
    centers, radius = len(graph.centers()), graph.radius()
    reach = "no token reaches all" if radius is None else f"radius {radius}, {count(centers, 'center')}"
    return Grid(
        title=clipped(rule.text),
        rows=names,
        columns=names,
        cells=cells,
        down="query",
        across="key",
        notes=[reach],
        width=SMALL,
        is_square=True,
    )


def _legend(tokens: int) -> str:
    if tokens <= MOST_CELLS:
        return "bright: the query may read the key"
    return f"a cell is a block of {_side(tokens)} x {_side(tokens)} tokens: the brighter, the more pairs are allowed"


def _reach(graph: MaskGraph) -> str:
    radius, centers = graph.radius(), graph.centers().tolist()
    if radius is None:
        return "no center: no token reaches all others, whatever the depth"
    named = clipped(ranges(centers), 40)
    return f"radius {radius}: a center reaches all tokens within {count(radius, 'layer')}; centers: {named}"


def _side(tokens: int) -> int:
    """Tokens to the side of a cell."""
    return -(-tokens // MOST_CELLS)


def _drawn(rule: MaskRule, tokens: int) -> tuple[MaskGraph, list[str], list[list[GridCell]]]:
    """The graph, names of rows and columns, and cells."""
    graph, side = rule.graph(tokens), _side(tokens)
    starts = range(0, tokens, side)
    names = [ranges(range(start, min(start + side, tokens))) for start in starts]
    queries = np.repeat(np.arange(tokens), np.diff(graph.mask.indptr)) // side
    places = queries * len(names) + graph.mask.indices // side
    allowed = np.bincount(places, minlength=len(names) ** 2).reshape(len(names), -1)
    sizes = np.array([min(start + side, tokens) - start for start in starts])
    cells = [
        [GridCell(share, tip=_tip(share, side)) for share in row]
        for row in (allowed / (sizes[:, None] * sizes)).tolist()
    ]
    return graph, names, cells


def _tip(share: float, side: int) -> str:
    if side > 1:
        return f"{percent(share, 3)} of the pairs are allowed"
    return "may be read" if share else "blocked"
