"""A mask as a matrix: query rows, key columns, a cell where the query may read the key."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.errors import ConfigError
from rankscope.plots.backend import Chart, alt
from rankscope.plots.mask_rules import Rule, check_size, plural, reach_in_words
from rankscope.plots.style import PALETTE, configured

MOST_TOKENS = 512
CELLS_UP_TO = 40
"""Above this many tokens the cells of a row that touch are drawn as one bar."""

SHEET_COLUMNS = 4
NOT_ALLOWED = "#efefef"


def mask_matrix(rule: Rule, tokens: int) -> Chart:
    """The mask with token 0 at the top left; a blue cell where the query (row) may read the key (column)."""
    check_size(tokens, MOST_TOKENS, "the matrix of a mask")
    allowed = rule.matrix(tokens)
    share = f"{plural(tokens, 'token')} · {100 * allowed.mean():.3g} % of the pairs allowed"
    lines = [share, reach_in_words(rule.graph(tokens)), "blue: the query (row) may read the key (column)"]
    title = alt.TitleParams(f"mask {rule.text}", subtitle=lines)
    chart = _matrix(allowed, size=min(420, max(200, 18 * tokens)), ticks=8, named=True)
    words = f"Mask {rule.text} as a matrix of {share}; {lines[1]}."
    return configured(chart.properties(title=title, description=words))


def mask_sheet(rules: Sequence[Rule], tokens: int) -> Chart:
    """Small matrices of several masks side by side, each with its radius and number of centers."""
    if not rules:
        raise ConfigError("a sheet of masks was asked for no masks; give at least one rule")
    check_size(tokens, MOST_TOKENS, "a sheet of masks")
    facts = [reach_in_words(rule.graph(tokens)) for rule in rules]
    small = [
        _matrix(rule.matrix(tokens), size=170, ticks=4, named=False).properties(
            title=alt.TitleParams(rule.text, subtitle=fact, fontSize=12.5, offset=8, limit=200)
        )
        for rule, fact in zip(rules, facts, strict=True)
    ]
    subtitle = "rows: queries · columns: keys · blue: the query may read the key"
    listed = "; ".join(f"{rule.text}: {fact}" for rule, fact in zip(rules, facts, strict=True))
    sheet = alt.concat(*small, columns=SHEET_COLUMNS, spacing=26).properties(
        title=alt.TitleParams(f"Masks on {plural(tokens, 'token')}", subtitle=subtitle),
        description=f"Masks on {plural(tokens, 'token')} as matrices. {listed}.",
    )
    return configured(sheet)


def _matrix(allowed: NDArray[np.bool_], *, size: int, ticks: int, named: bool) -> Any:
    tokens = len(allowed)
    merge = tokens > CELLS_UP_TO
    scale: dict[str, Any] = {"domain": [-0.5, tokens - 0.5], "nice": False, "zero": False}
    step = max(1, -(-(tokens - 1) // ticks))
    axis: dict[str, Any] = {
        "values": list(range(0, tokens, step)),
        "format": "d",
        "grid": False,
        "domain": False,
    }
    x = alt.X(
        "left:Q",
        scale=alt.Scale(**scale),
        axis=alt.Axis(title="key" if named else None, orient="top", **axis),
    )
    y = alt.Y(
        "top:Q",
        scale=alt.Scale(reverse=True, **scale),
        axis=alt.Axis(title="query" if named else None, **axis),
    )
    gap: dict[str, Any] = {} if merge else {"stroke": "white", "strokeWidth": min(1.5, size / tokens / 12)}
    return (
        alt.Chart(alt.InlineData(values=_bars(allowed, merge=merge)))
        .mark_rect(color=PALETTE[0], **gap)
        .encode(x=x, x2="right:Q", y=y, y2="bottom:Q")
        .properties(width=size, height=size, view=alt.ViewConfig(fill=NOT_ALLOWED, stroke="#b5b5b5"))
    )


def _bars(allowed: NDArray[np.bool_], *, merge: bool) -> list[dict[str, float]]:
    """Rectangles that cover the allowed cells: one per cell, or one per run of a row."""
    bars = []
    for query, row in enumerate(allowed):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(np.int8), [0]))))
        for start, end in edges.reshape(-1, 2).tolist():
            cuts = [start, end] if merge else list(range(start, end + 1))
            bars += [
                {"left": left - 0.5, "right": right - 0.5, "top": query - 0.5, "bottom": query + 0.5}
                for left, right in pairwise(cuts)
            ]
    return bars
