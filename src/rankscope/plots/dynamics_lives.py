"""How long clusters last and how many there are at first, by inverse temperature: the lower panels of ``clusters``."""

import math
from typing import Any

from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import alt
from rankscope.plots.paths_marks import Row, dashed, rows_chart
from rankscope.plots.style import DASHES, PALETTE, SHAPES

WIDE, HIGH = 285, 210


def lives_part(cells: list[Row]) -> Any:
    """Steps to consensus and of the first plateau by inverse temperature."""
    kinds = (("all steps to consensus", "total_log10_life"), ("first plateau", "first_log10_life"))
    rows = [
        {
            "beta": one["beta"],
            "y": one[field],
            "low": one["total_low"] if field.startswith("total") else one[field],
            "high": one["total_high"] if field.startswith("total") else one[field],
            "name": f"dim {one['dim']}, {kind}",
        }
        for kind, field in kinds
        for one in cells
        if one[field] is not None
    ]
    dims = sorted({one["dim"] for one in cells})
    names = [f"dim {dim}, {kind}" for dim in dims for kind, _ in kinds]
    top = max(row["high"] for row in rows)
    y_axis = log_axis(log_ticks(0.0, max(top, 0.5)), title="steps (log scale)", domain=False)
    scale = alt.Scale(domain=[0, 1.05 * max(top, 0.5)], nice=False, zero=False)

    def height(field: str) -> Any:
        return alt.Y(f"{field}:Q", axis=y_axis, scale=scale)

    return _by_beta(rows, names, height, is_log=False, title="steps: median, least to most over starts")


def firsts_part(cells: list[Row]) -> Any:
    """Clusters on the first plateau by inverse temperature."""
    rows = [
        {
            "beta": one["beta"],
            "y": one["first_clusters"],
            "low": one["first_low"],
            "high": one["first_high"],
            "name": f"dim {one['dim']}",
        }
        for one in cells
    ]
    names = [f"dim {dim}" for dim in sorted({one["dim"] for one in cells})]
    top = max(row["high"] for row in rows)
    scale = alt.Scale(domain=[0, 1.06 * top], nice=False)

    def height(field: str) -> Any:
        return alt.Y(f"{field}:Q", axis=alt.Axis(title="clusters", tickCount=6, domain=False), scale=scale)

    return _by_beta(
        rows, names, height, is_log=True, title="clusters on the first plateau: mean, least to most"
    )


def _by_beta(rows: list[Row], names: list[str], height: Any, *, is_log: bool, title: str) -> Any:
    """Lines over the inverse temperature, a series per name: colors by dim, dashed for the second of a pair."""
    placed = [
        {**row, "x": math.log10(row["beta"]) if is_log else row["beta"]} for row in rows if row["beta"] > 0
    ]
    low, high = min(row["x"] for row in placed), max(row["x"] for row in placed)
    margin = 0.04 * (high - low) or 0.5
    domain = alt.Scale(domain=[low - margin, high + margin], nice=False, zero=False)
    words = "inverse temperature"
    axis = (
        log_axis(log_ticks(low - margin, high + margin), title=f"{words} (log scale)", grid=False)
        if is_log
        else alt.Axis(title=words, tickCount=6, grid=False)
    )
    x = alt.X("x:Q", axis=axis, scale=domain)
    pairs = len({name.partition(",")[0] for name in names}) < len(names)
    colors = [PALETTE[(at // 2 if pairs else at) % len(PALETTE)] for at in range(len(names))]
    shapes = [SHAPES[at % len(SHAPES)] for at in range(len(names))]
    legend = alt.Legend(title=None, orient="bottom", columns=1 if pairs else 4, symbolOpacity=1)
    base = rows_chart(placed).encode(
        x=x, color=alt.Color("name:N", scale=alt.Scale(domain=names, range=colors), legend=legend)
    )
    shape = alt.Shape("name:N", scale=alt.Scale(domain=names, range=shapes), legend=legend)
    tips = [
        alt.Tooltip("name:N", title="of"),
        alt.Tooltip("beta:Q", title=words),
        alt.Tooltip("y:Q", format=".3g"),
    ]
    dashes = {name: DASHES[at % 2 if pairs else 0] for at, name in enumerate(names)}
    marks = [
        base.mark_rule(strokeWidth=1.2, opacity=0.6).encode(y=height("low"), y2="high:Q"),
        *dashed(base.encode(y=height("y")), "name", dashes),
        base.mark_point(size=48, filled=True, opacity=1).encode(y=height("y"), shape=shape, tooltip=tips),
    ]
    return alt.layer(*marks).properties(width=WIDE, height=HIGH, title=small_title(title))


def small_title(text: str) -> Any:
    """Title of one panel."""
    return alt.TitleParams(text, fontSize=12, offset=5, fontWeight="normal")
