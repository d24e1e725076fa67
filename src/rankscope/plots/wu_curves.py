"""Curves of a measure against depth, both axes of logarithms: one line per series, a panel per definition and norm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import polars as pl
from scipy import stats

from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import alt
from rankscope.plots.paths_marks import Row, rows_chart
from rankscope.plots.style import FLOOR_FILL, GRAY, Look

WIDTH, HEIGHT = 330, 205
LEVEL = 0.95
ROOM = 0.02

TITLES = {"residual[frobenius,mean]": "mu(X)", "residual_ratio[frobenius,mean]": "mu(X) / ||X||_F"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """What one panel shows: its heading, points, and the ends of its vertical axis in decades."""

    heading: str
    points: list[Row]
    bottom: float
    top: float
    last: int


def summarized(frame: pl.DataFrame, series: str, *, by_median: bool = False) -> pl.DataFrame:
    """Mean and 95% interval over seeds of log10 of the split pass, the same mean in float32, and its floor.

    ``by_median`` gives medians between order statistics instead (the least and the greatest below six seeds), for seeds
    that scatter over decades. Bands of ratios end at 1, which no ratio exceeds. Layer 0 has no place
    on a logarithmic axis. Values that are exactly zero in float32 have no logarithm and are left out of its mean.
    """
    single = pl.when(pl.col("float_value") > 0).then(pl.col("float_value").log10())
    kept = frame.filter(pl.col("layer") > 0).group_by(
        "definition", "norm", series, "layer", maintain_order=True
    )
    found = kept.agg(
        pl.col("log10_value"),
        (single.median() if by_median else single.mean()).alias("float_y"),
        pl.when(pl.col("float_floor") > 0).then(pl.col("float_floor").log10()).mean().alias("floor"),
    )
    bands = [(_median_band if by_median else _mean_band)(logs) for logs in found["log10_value"].to_list()]
    low, middle, high = (
        pl.Series(name, list(part))
        for name, part in zip(("low", "y", "high"), zip(*bands, strict=True), strict=True)
    )
    is_ratio = pl.col("definition").str.contains("ratio")
    return (
        found.drop("log10_value")
        .with_columns(
            pl.col(series).cast(pl.String).alias("series"),
            pl.col("layer").log10().alias("x"),
            low,
            middle,
            high,
        )
        .with_columns(
            pl.when(is_ratio)
            .then(pl.col("high").clip(upper_bound=0.0))
            .otherwise(pl.col("high"))
            .alias("high")
        )
    )


def _mean_band(logs: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95% interval by Student's t; a single value is its own band."""
    mean = math.fsum(logs) / len(logs)
    if len(logs) < 2:
        return mean, mean, mean
    spread = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1))
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(logs) - 1)) * spread / math.sqrt(len(logs))
    return mean - half, mean, mean + half


def _median_band(logs: Sequence[float]) -> tuple[float, float, float]:
    """Median between the order statistics that enclose that of the population in at least 95% of cases."""
    ranked = sorted(logs)
    outer = max(int(stats.binom.ppf((1 - LEVEL) / 2, len(ranked), 0.5)), 1)
    return ranked[outer - 1], median(ranked), ranked[-outer]


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
    end = math.log10(last)
    room = ROOM * (end or 1.0)  # else marks at the first and the last layer are cut by the frame
    domain = [round(-room, 9), round(end + room, 9)]
    return alt.X("x:Q", axis=axis, scale=alt.Scale(domain=domain, nice=False, zero=False))


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
