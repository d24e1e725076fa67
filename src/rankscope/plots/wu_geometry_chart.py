"""The figure ``wu-geometry``: share of full rank, smallest singular value and absolute cosine against depth."""

import math
from typing import Any

import polars as pl

from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.paths_marks import Row, finished, rows_chart
from rankscope.plots.style import Look, look
from rankscope.plots.wu_curves import depth_axis, series_key
from rankscope.results import Table

WIDTH, HEIGHT = 215, 140

ABOVE, RANK = "numerical_rank[rounding]", "numerical_rank[relative]"
SMALLEST, COSINE = "smallest_singular_value[ratio]", "cosine[absolute]"

TITLES = {
    ABOVE: "rank, above rounding",
    RANK: "rank, above 1e-3",
    SMALLEST: "smallest sing. value",
    COSINE: "mean absolute cosine",
}
LOWEST = -18.0
"""Singular values of a float64 state are rounding from about 1e-16 on; the axis of their ratio ends a little below."""


def geometry_chart(table: Table) -> Chart:
    """Rows are the measures, columns the norms and value maps; one line per mask."""
    setting, frame = table.sections["setting"], table.frame
    masks = look(setting["masks"])
    columns = [
        ("gaussian", "none", "no norm, Gaussian values"),
        ("gaussian", "sphere", "sphere, Gaussian values"),
        ("orthogonal", "sphere", "sphere, orthogonal values"),
    ]
    kept = frame.filter(pl.col("model") == "constructed")
    if len(kept):
        columns.append((kept["values"][0], "sphere", "sphere, W = I + w S, built start"))
    rows: list[Any] = [series_key(masks, [("above the floor", "filled"), ("not resolved", "hollow")])]
    for name in TITLES:
        panels = [
            _panel(
                _points(frame, name, values, norm, setting),
                name,
                words if name == ABOVE else "",
                masks,
                is_first=place == 0,
                is_last=name == COSINE,
            )
            for place, (values, norm, words) in enumerate(columns)
        ]
        rows.append(alt.hconcat(*panels, spacing=16))
    notes = [
        f"dim {setting['dim']}, {setting['tokens']} tokens, one head, float64",
        f"{frame['seed'].drop_nulls().n_unique()} seeds",
        "rank as a share of full rank, singular values over the largest",
        "lines: mean over seeds, geometric for singular values",
        "hollow: at least half of the seeds are at rounding",
        f"built start: {setting['kept_full_rank']} dimensions, causal",
    ]
    title = alt.TitleParams(
        "Token geometry against depth: random value maps, and one that keeps full rank",
        subtitle=lines_of(notes, 4 * WIDTH),
    )
    words = "Ranks, smallest singular value and mean absolute cosine against layers, by mask, norm and value maps."
    return finished(alt.vconcat(*rows, spacing=14).properties(title=title, description=words))


def _points(frame: pl.DataFrame, name: str, values: str, norm: str, setting: Row) -> list[Row]:
    shown = frame.filter(
        (pl.col("definition") == name)
        & (pl.col("values") == values)
        & (pl.col("norm") == norm)
        & (pl.col("layer") > 0)
    )
    full = setting["full_rank" if values in ("gaussian", "orthogonal") else "kept_full_rank"]
    number = {
        ABOVE: pl.col("value").mean() / full,
        RANK: pl.col("value").mean() / full,
        SMALLEST: pl.col("log10_value").mean(),
        COSINE: pl.col("value").mean(),
    }
    found = shown.group_by("mask", "layer", maintain_order=True).agg(
        number[name].alias("y"), pl.col("resolved").mean().alias("resolved")
    )
    return [
        {
            "x": math.log10(row["layer"]),
            "y": row["y"] if name != SMALLEST or row["y"] is None else max(row["y"], LOWEST),
            "series": row["mask"],
            "layer": row["layer"],
            "hollow": row["resolved"] <= 0.5,
        }
        for row in found.to_dicts()
    ]


def _panel(rows: list[Row], name: str, words: str, series: Look, *, is_first: bool, is_last: bool) -> Any:
    scale, axis = _height(name, is_first=is_first)
    color = alt.Color("series:N", scale=alt.Scale(domain=series.names, range=series.colors), legend=None)
    base = rows_chart(rows).encode(
        x=depth_axis(max(row["layer"] for row in rows), is_last=is_last),
        y=alt.Y("y:Q", scale=scale, axis=axis),
    )
    dash = alt.StrokeDash("series:N", scale=alt.Scale(domain=series.names, range=series.dashes), legend=None)
    shape = alt.Shape("series:N", scale=alt.Scale(domain=series.names, range=series.shapes), legend=None)
    fill = alt.Fill("series:N", scale=alt.Scale(domain=series.names, range=series.colors), legend=None)
    line = base.mark_line(strokeWidth=1.5).encode(color=color, strokeDash=dash)
    point = base.mark_point(size=22, strokeWidth=1, opacity=1).encode(
        color=color, shape=shape, fill=alt.when("datum.hollow").then(alt.value("white")).otherwise(fill)
    )
    heading = alt.TitleParams(words, fontSize=12, anchor="middle", offset=6)
    return alt.layer(line, point).properties(width=WIDTH, height=HEIGHT, title=heading)


def _height(name: str, *, is_first: bool) -> tuple[Any, Any]:
    title = TITLES[name] if is_first else None
    if name == SMALLEST:
        scale = alt.Scale(domain=[LOWEST, 0], nice=False, zero=False)
        return scale, log_axis(log_ticks(LOWEST, 0.0), title=title, domain=False, minExtent=44, maxExtent=44)
    return alt.Scale(domain=[0, 1.03], nice=False), alt.Axis(
        title=title,
        format=".1f" if name == COSINE else ".0%",
        values=[0, 0.2, 0.4, 0.6, 0.8, 1],
        domain=False,
        minExtent=44,
        maxExtent=44,
    )
