"""Curves of a measure against depth, both axes of logarithms: one line per series, a panel per definition and norm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from scipy import stats

from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import alt
from rankscope.plots.paths_marks import Row, rows_chart
from rankscope.plots.style import FLOOR_FILL, GRAY, Look

WIDTH, HEIGHT = 330, 205
LEVEL = 0.95

TITLES = {"residual[frobenius,mean]": "mu(X)", "residual_ratio[frobenius,mean]": "mu(X) / ||X||_F"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """What one panel shows: its heading, points, and the ends of its vertical axis in decades."""

    heading: str
    points: list[Row]
    bottom: float
    top: float
    last: int


def summarized(frame: pl.DataFrame, series: str) -> pl.DataFrame:
    """Mean and 95% interval over seeds of log10 of the split pass, the same mean in float32, and its floor.

    Layer 0 has no place on a logarithmic axis. Values that are exactly zero in float32 have no logarithm and are
    left out of its mean.
    """
    single = pl.when(pl.col("float_value") > 0).then(pl.col("float_value").log10())
    kept = frame.filter(pl.col("layer") > 0).group_by(
        "definition", "norm", series, "layer", maintain_order=True
    )
    means = kept.agg(
        pl.col("log10_value").mean().alias("y"),
        pl.col("log10_value").std().alias("spread"),
        pl.len().alias("count"),
        single.mean().alias("float_y"),
        pl.when(pl.col("float_floor") > 0).then(pl.col("float_floor").log10()).mean().alias("floor"),
    )
    half = [
        stats.t.ppf((1 + LEVEL) / 2, count - 1) * spread / math.sqrt(count)
        if count > 1 and spread is not None
        else 0.0
        for count, spread in means.select("count", "spread").iter_rows()
    ]
    return means.with_columns(
        pl.col(series).cast(pl.String).alias("series"),
        pl.col("layer").log10().alias("x"),
        (pl.col("y") - pl.Series(half)).alias("low"),
        (pl.col("y") + pl.Series(half)).alias("high"),
    )


def drawn_panel(panel: Panel, series: Look, *, y_title: str, is_last: bool) -> Any:
    """Split pass as lines with points and bands, float32 hollow, its floor shaded; what lies deeper is cut off."""
    base = rows_chart(panel.points).encode(x=depth_axis(panel.last, is_last=is_last))
    scale = alt.Scale(domain=[panel.bottom, panel.top], nice=False, zero=False)
    axis = log_axis(log_ticks(panel.bottom, panel.top), title=y_title, domain=False)

    def height(field: str, **options: Any) -> Any:
        return alt.Y(f"{field}:Q", axis=axis, scale=scale, **options)

    color = alt.Color("series:N", scale=alt.Scale(domain=series.names, range=series.colors), legend=None)
    shape = alt.Shape("series:N", scale=alt.Scale(domain=series.names, range=series.shapes), legend=None)
    dash = alt.StrokeDash("series:N", scale=alt.Scale(domain=series.names, range=series.dashes), legend=None)
    marks = []
    if any(row["floor"] is not None for row in panel.points):
        lowest = alt.Y("max(floor):Q", axis=axis, scale=scale)
        marks.append(
            base.mark_area(color=FLOOR_FILL, opacity=0.18, clip=True).encode(
                y=lowest, y2=alt.datum(panel.bottom)
            )
        )
        marks.append(base.mark_line(color=GRAY, strokeDash=[4, 3], strokeWidth=1, clip=True).encode(y=lowest))
    marks.append(base.mark_area(opacity=0.18, clip=True).encode(y=height("low"), y2="high:Q", color=color))
    marks.append(
        base.mark_line(strokeWidth=1.7, clip=True).encode(y=height("y"), color=color, strokeDash=dash)
    )
    marks.append(
        base.mark_point(size=30, strokeWidth=1, fill="white", opacity=1, clip=True).encode(
            y=height("float_y"), color=color, shape=shape
        )
    )
    filled = alt.Fill("series:N", scale=alt.Scale(domain=series.names, range=series.colors), legend=None)
    marks.append(
        base.mark_point(size=16, strokeWidth=0, opacity=1, clip=True).encode(
            y=height("y"), fill=filled, shape=shape
        )
    )
    heading = alt.TitleParams(panel.heading, fontSize=12, anchor="middle", offset=6)
    return alt.layer(*marks).properties(width=WIDTH, height=HEIGHT, title=heading)


def panel_of(points: pl.DataFrame, heading: str, *, deepest: float) -> Panel:
    """The panel over those points; its axis ends at ``deepest`` decades, or above where nothing is so deep."""
    seen = [
        value for name in ("y", "float_y", "floor") for value in points[name].to_list() if value is not None
    ]
    bottom, top = max(deepest, min(seen) - 1), max(seen) + 1
    fields = ("x", "layer", "series", "y", "low", "high", "float_y", "floor")
    rows = [
        {
            name: _near(row[name], bottom, top) if name in ("y", "low", "high") else row[name]
            for name in fields
        }
        for row in points.to_dicts()
    ]
    return Panel(
        heading=heading,
        points=_until_out(rows, bottom),
        bottom=bottom,
        top=top,
        last=int(points["layer"].max()),  # type: ignore[arg-type]  # integers
    )


def _until_out(rows: list[Row], bottom: float) -> list[Row]:
    """Rows with the split pass left out after the first point beyond the axis: the line leaves there, for good."""
    gone: set[str] = set()
    for row in rows:
        if row["series"] in gone:
            row.update(y=None, low=None, high=None)
        elif row["y"] is not None and row["y"] < bottom:
            gone.add(row["series"])
    return rows


def _near(value: float | None, bottom: float, top: float) -> float | None:
    """The value, not far beyond the panel: a line to 1e-(10^60) would be vertical all the same."""
    return None if value is None else min(max(value, bottom - 20 * (top - bottom)), top)


def depth_axis(last: int, *, is_last: bool) -> Any:
    """Layers by their logarithm, ticks at powers of two; only the lowest panels carry the title."""
    ticks = [2**k for k in range(last.bit_length()) if 2**k <= last]
    labels = [str(tick) for tick in ticks]
    positions = [round(math.log10(tick), 9) for tick in ticks]
    axis = alt.Axis(
        values=positions,
        labelExpr=f"{labels}[indexof({positions}, datum.value)]",
        title="layer (log scale)" if is_last else None,
        grid=False,
    )
    return alt.X(
        "x:Q", axis=axis, scale=alt.Scale(domain=[0, round(math.log10(last), 9)], nice=False, zero=False)
    )


def series_key(series: Look, extra: Sequence[tuple[str, str]] = ()) -> Any:
    """A legend drawn as a row of marks with their names, then the kinds of marks in words."""
    step, rows = 0.0, []
    for name, color, shape in zip(series.names, series.colors, series.shapes, strict=True):
        rows.append({"x": step, "label": name, "color": color, "shape": shape, "fill": color})
        step += 36 + 7 * len(name)
    for label, kind in extra:
        fill = {"filled": GRAY, "hollow": "white"}[kind]
        rows.append({"x": step, "label": label, "color": GRAY, "shape": "circle", "fill": fill})
        step += 36 + 7 * len(label)
    base = rows_chart(rows).encode(
        x=alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, 2 * WIDTH + 80], nice=False))
    )
    mark = base.mark_point(size=60, opacity=1, strokeWidth=1.4).encode(
        color=alt.Color("color:N", scale=None),
        fill=alt.Fill("fill:N", scale=None),
        shape=alt.Shape("shape:N", scale=None),
    )
    text = base.mark_text(align="left", dx=9, fontSize=12).encode(text="label:N")
    return alt.layer(mark, text).properties(
        width=2 * WIDTH + 80, height=16, view=alt.ViewBackground(stroke=None)
    )
