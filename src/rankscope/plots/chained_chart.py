"""The figure ``chained-attention``: boxes of the distance to rank one against depth, by model, order and distance."""

import math
from typing import Any

import numpy as np
import polars as pl

from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.paths_marks import Row, finished, rows_chart
from rankscope.plots.style import FLOOR_FILL, GRAY, INK, look
from rankscope.plots.wu_curves import series_key
from rankscope.results import Table

WIDTH, HEIGHT = 360, 250
BOX = 0.3
"""Width of a box, in depths; the two orders stand beside each other."""

WORDS = {
    "rank_one_ratio[composite,svd]": "to the best rank one (SVD)",
    "residual_ratio[composite,mean]": "to the mean row",
}
ORDERS = {"true": "true order P_k ... P_1", "notebook": "notebook's order P_1 ... P_k"}
SIDES = {"true": -0.19, "notebook": 0.19}
OFF = math.log10(1.1)
"""Ordinary products are drawn where they are off by more than this many decades."""

TALL = 0.03
"""A box of this part of the axis or more has its median drawn in it."""

QUANTILES = {"low": 0.05, "first": 0.25, "median": 0.5, "third": 0.75, "high": 0.95}


def chained_chart(table: Table) -> Chart:
    """Rows are models, columns the two distances; a pair of boxes per depth, and ordinary float64 as crosses."""
    frame = table.frame.filter(pl.col("start") == 1)
    series = look(list(ORDERS.values()))
    blocks: list[Any] = [series_key(series, [("ordinary float64 product, where off by 10%", "hollow")])]
    models = frame.select("model", "weights").unique(maintain_order=True).rows()
    for place, (model, weights) in enumerate(models):
        own = frame.filter((pl.col("model") == model) & (pl.col("weights") == weights))
        bottom, top = _ends(own)
        panels = [
            _panel(
                own.filter(pl.col("definition") == name),
                f"{model}, {weights} weights: {words}",
                (bottom, top),
                is_first=column == 0,
                is_last=place == len(models) - 1,
            )
            for column, (name, words) in enumerate(WORDS.items())
        ]
        blocks.append(alt.hconcat(*panels, spacing=26))
    setting = table.sections["setting"]
    seeds = frame["seed"].drop_nulls().n_unique()
    remarks = [
        f"{setting['paths']} random paths, {setting['tokens']} tokens",
        f"initial weights of {seeds} seed{'s' if seeds > 1 else ''}",
        "box: quartiles and median over paths, line: 5% to 95%",
        "composite norms, distance over the norm of the product",
        "dashed: decades per layer fitted in the true order",
        "shaded: below the rounding of float64",
    ]
    title = alt.TitleParams(
        "Products of attention maps along single paths fall to rank one",
        subtitle=lines_of(remarks, 2 * WIDTH + 80),
    )
    words = "Boxes of the distance of products of attention maps to rank one against the number of layers, log scale."
    return finished(alt.vconcat(*blocks, spacing=18).properties(title=title, description=words))


def box_rows(frame: pl.DataFrame) -> list[Row]:
    """Five quantiles of log10 over all paths and seeds, per order and depth."""
    groups = frame.group_by("order", "depth", maintain_order=True).agg(
        pl.col("log10_value"), pl.col("float_value")
    )
    return [
        {
            "series": ORDERS[group["order"]],
            "x": group["depth"] + SIDES[group["order"]],
            "left": group["depth"] + SIDES[group["order"]] - BOX / 2,
            "right": group["depth"] + SIDES[group["order"]] + BOX / 2,
            "depth": group["depth"],
            "plain": _plain(group["float_value"], group["log10_value"]),
            **{
                name: float(np.quantile(group["log10_value"], part, method="linear"))
                for name, part in QUANTILES.items()
            },
        }
        for group in groups.to_dicts()
    ]


def fitted(frame: pl.DataFrame) -> list[Row]:
    """The least-squares line through the mean logarithm of the true order, at its two ends."""
    own = (
        frame.filter(pl.col("order") == "true")
        .group_by("depth", maintain_order=True)
        .agg(pl.col("log10_value").mean())
    ).sort("depth")
    depth, mean = own["depth"].to_numpy(), own["log10_value"].to_numpy()
    if len(depth) < 2:
        return []
    slope, level = np.polyfit(depth, mean, 1)
    return [
        {"x": int(at), "y": float(level + slope * at), "slope": float(slope)} for at in (depth[0], depth[-1])
    ]


def _plain(values: list[float | None], logs: list[float]) -> float | None:
    """The median of ordinary products, where it is off; the same paths are compared."""
    seen = [
        (math.log10(value), log)
        for value, log in zip(values, logs, strict=True)
        if value is not None and value > 0
    ]
    if not seen:
        return None
    plain, split = (float(np.median(side)) for side in zip(*seen, strict=True))
    return plain if abs(plain - split) > OFF else None


def _ends(frame: pl.DataFrame) -> tuple[float, float]:
    shown = frame.filter(pl.col("definition").is_in(list(WORDS)))["log10_value"]
    low, high = float(shown.min()), float(shown.max())  # type: ignore[arg-type]  # numbers
    room = 0.04 * (high - low)
    return low - room, high + room


def _panel(
    frame: pl.DataFrame, heading: str, ends: tuple[float, float], *, is_first: bool, is_last: bool
) -> Any:
    rows, line = box_rows(frame), fitted(frame)
    last = max(row["depth"] for row in rows)
    scale = alt.Scale(domain=list(ends), nice=False, zero=False)
    axis = log_axis(
        log_ticks(*ends),
        title="distance / norm" if is_first else None,
        domain=False,
        minExtent=44,
        maxExtent=44,
    )
    x = alt.Scale(domain=[0.5, last + 0.5], nice=False, zero=False)
    across = alt.Axis(
        values=list(range(1, last + 1)),
        title="maps in the product" if is_last else None,
        grid=False,
        format="d",
        labelOverlap=False,
    )
    names = list(ORDERS.values())
    color = alt.Color("series:N", scale=alt.Scale(domain=names, range=look(names).colors), legend=None)

    stroke = alt.Stroke("series:N", scale=alt.Scale(domain=names, range=look(names).colors), legend=None)
    tall = [row for row in rows if row["third"] - row["first"] >= TALL * (ends[1] - ends[0])]

    def height(field: str) -> Any:
        return alt.Y(f"{field}:Q", scale=scale, axis=axis)

    base = rows_chart(rows)
    center, left = alt.X("x:Q", scale=x, axis=across), alt.X("left:Q", scale=x, axis=across)
    marks = [*_floor(ends, last, x, scale)]
    if line:
        own = rows_chart(line).mark_line(color=INK, strokeDash=[5, 4], strokeWidth=1, clip=True)
        marks.append(own.encode(x=alt.X("x:Q", scale=x, axis=across), y=height("y")))
    marks += [
        base.mark_rule(strokeWidth=1.2).encode(x=center, y=height("low"), y2="high:Q", color=color),
        base.mark_rect(opacity=0.8, strokeWidth=1.6).encode(
            x=left, x2="right:Q", y=height("first"), y2="third:Q", color=color, stroke=stroke
        ),
        rows_chart(tall)
        .mark_rule(color="white", strokeWidth=1.6)
        .encode(x=left, x2="right:Q", y=height("median")),
        base.mark_point(size=26, strokeWidth=1.1, fill="white", color=GRAY, opacity=1, clip=True).encode(
            x=center, y=height("plain")
        ),
    ]
    return alt.layer(*marks).properties(
        width=WIDTH, height=HEIGHT, title=alt.TitleParams(heading, fontSize=12, anchor="middle", offset=6)
    )


def _floor(ends: tuple[float, float], last: int, x: Any, y: Any) -> list[Any]:
    """What an ordinary float64 product cannot resolve, shaded, where the axis reaches so deep."""
    level = math.log10(32 * 2.0**-53)
    if ends[0] >= level:
        return []
    row = {"x": 0.5, "end": last + 0.5, "y": level, "bottom": ends[0]}
    mark = rows_chart([row]).mark_rect(color=FLOOR_FILL, opacity=0.18)
    return [mark.encode(x=alt.X("x:Q", scale=x), x2="end:Q", y=alt.Y("y:Q", scale=y), y2="bottom:Q")]
