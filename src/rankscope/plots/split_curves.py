"""Curves of the split pass: the residual itself, far below where ordinary arithmetic goes flat."""

import math
from typing import Any

import polars as pl

from rankscope.plots.axes import Ticks, log_axis, log_ticks, power_of_ten
from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import by_series, in_panels, layer_axis, lines_of, panel_size
from rankscope.plots.curves import definitions_of, facts_of, named
from rankscope.plots.style import GRAY, Look, configured, look
from rankscope.results import Table, layer_summary

DEEP = 60.0
"""Runs that fall further than so many decades get an axis on which the number of decades grows geometrically."""

DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
"""Binary digits of each dtype; floors of two dtypes differ by the power of two of the digits between them."""


def split_curves(table: Table, *, definition: str | None = None, title: str | None = None) -> Chart:
    """The split pass (filled) beside the float pass (hollow), with the floors of float64 and float32.

    The table is that of ``collapse --split``: ``log10_value`` from the split pass, ``float_value`` and
    ``float_floor`` from the ordinary one. On a deep axis each tick is ten times as many decades down as the one
    before, and a residual that is cubed by every layer runs along a straight line.
    """
    summary = named(layer_summary(table).filter(pl.col("layer").is_not_null()))
    wanted = definitions_of(summary, definition)
    series = look(summary["series"].unique(maintain_order=True).to_list())
    points = _points(table, summary)
    charts = [
        _figure(
            points.filter(pl.col("definition") == name),
            series,
            title or f"{name} by layer, split pass",
            table,
        )
        for name in wanted
    ]
    whole: Any = charts[0] if len(charts) == 1 else alt.vconcat(*charts, spacing=40)
    words = (
        f"Curves over layers of {', '.join(wanted)}: split pass and float pass of {', '.join(series.names)}."
    )
    return configured(whole.properties(description=words))


def _points(table: Table, summary: pl.DataFrame) -> pl.DataFrame:
    """Mean logarithms of the split pass, of the float pass, and of the latter's floor, in decades."""
    keys = ("model", "variant", "semantics", "mask", "norm", "site", "head", "definition", "layer")
    size = pl.col("float_value").abs().log10()
    ordinary = table.frame.group_by(*keys, maintain_order=True).agg(
        pl.when(pl.col("float_value") > 0).then(size).mean().alias("float"),
        pl.when(pl.col("float_floor") > 0).then(pl.col("float_floor").log10()).mean().alias("ran_floor"),
    )
    filled = ordinary.with_columns(pl.col("mask", "norm").fill_null("-"))
    joined = summary.join(filled, on=keys, how="left", nulls_equal=True, maintain_order="left")
    ran_in = DIGITS.get(_dtype(table), DIGITS["float64"])
    floors = [
        (pl.col("ran_floor") + (ran_in - DIGITS[name]) * math.log10(2)).alias(f"floor{DIGITS[name]}")
        for name in ("float64", "float32")
    ]
    resolved = (pl.col("share_resolved") == 1.0).alias("resolved")
    return joined.with_columns(pl.col("log10_mean").alias("split"), resolved, *floors)


def _figure(points: pl.DataFrame, series: Look, title: str, table: Table) -> Any:
    lowest = min(_least(points[name]) for name in ("log10_min", "float", "floor53"))
    highest = max(_most(points[name]) for name in ("log10_max", "float", "floor24"))
    is_deep = lowest < -DEEP
    place = placed if is_deep else float
    drawn = points.with_columns(
        _moved(points[source], place).alias(target)
        for source, target in (
            *(("split", "y"), ("log10_min", "low"), ("log10_max", "high")),
            *(("float", "float_y"), ("floor53", "floor53"), ("floor24", "floor24")),
        )
    )
    ticks = deep_ticks(lowest, highest) if is_deep else log_ticks(lowest - 1, highest + 1)
    bottom, top = place(lowest * 1.1 if is_deep else lowest - 1), place(highest + 1)
    axis = log_axis(
        ticks, title="value (log scale of the exponent)" if is_deep else "value (log scale)", domain=False
    )
    scale = alt.Scale(domain=[bottom, top], nice=False, zero=False)
    width, height, total = panel_size(points)
    layered = alt.layer(*_marks(drawn, series, axis, scale)).properties(width=width, height=height)
    notes = [facts_of(table), "filled: split pass", f"hollow: the same in ordinary {_dtype(table)}"]
    if not bool(points["resolved"].all()):
        notes.append(UNRESOLVED if _has_error(table) else NO_ERROR)
    if bool((table.frame["float_value"] == 0).any()):
        notes.append("where that is exactly 0 there is no hollow point")
    heading = alt.TitleParams(title, subtitle=lines_of([note for note in notes if note], total))
    return in_panels(layered, drawn.select(*_DRAWN), heading)


_DRAWN = (
    "layer",
    "mask",
    "norm",
    "series",
    "y",
    "low",
    "high",
    "float_y",
    "floor53",
    "floor24",
    "count",
    "resolved",
)

UNRESOLVED = "faint: not above the floor that a perturbed run gives"
NO_ERROR = "faint: run without an error"


def _has_error(table: Table) -> bool:
    return bool(table.sections.get("split", {}).get("error"))


def placed(decades: float) -> float:
    """Where a power of ten stands on the deep axis: equal steps for 1, 10, 100, ... decades, odd around 1.

    >>> [placed(x) for x in (0.0, -9.0, -99.0)]
    [0.0, -1.0, -2.0]
    """
    return math.copysign(math.log10(1 + abs(decades)), decades)


def deep_ticks(low: float, high: float) -> Ticks:
    """Ticks at 1 and at 1e-1, 1e-10, 1e-100, ... down to ``10**low``.

    >>> deep_ticks(-2000.0, 0.5).labels
    ['1e-1000', '1e-100', '1e-10', '1e-1', '1']
    """
    down = [-(10**k) for k in range(int(math.log10(-low)), -1, -1)] if low < -1 else []
    up = [10**k for k in range(int(math.log10(high)) + 1)] if high >= 1 else []
    exponents = [*down, 0, *up]
    # Rounded, because the label of a tick is found by its position, which must survive being written as text.
    return Ticks(
        positions=[round(placed(float(e)), 6) for e in exponents], labels=[power_of_ten(e) for e in exponents]
    )


def _marks(drawn: pl.DataFrame, series: Look, axis: Any, scale: Any) -> list[Any]:
    first, last = int(drawn["layer"].min()), int(drawn["layer"].max())  # type: ignore[arg-type]  # integers
    base = alt.Chart().encode(x=layer_axis(first, last))

    def height(field: str) -> Any:
        return alt.Y(f"{field}:Q", axis=axis, scale=scale)

    color = by_series(alt.Color, series, series.colors, in_legend=True)
    shape = by_series(alt.Shape, series, series.shapes, in_legend=True)
    dash = by_series(alt.StrokeDash, series, series.dashes, in_legend=False)
    fill = by_series(alt.Fill, series, series.colors, in_legend=False)
    marks = []
    for field, words in (("floor53", "float64 floor"), ("floor24", "float32 floor")):
        mean = alt.Y(f"mean({field}):Q", axis=axis, scale=scale)
        marks.append(base.mark_line(strokeDash=[4, 3], strokeWidth=1, color=GRAY).encode(y=mean))
        text = alt.Chart().mark_text(
            text=words, align="right", dx=-4, dy=-6, color=GRAY, fontSize=10, fontStyle="italic"
        )
        marks.append(text.encode(x=alt.value("width"), y=mean))
    band = base.mark_area(opacity=0.16).encode(y=height("low"), y2="high:Q", color=color)
    line = base.mark_line(strokeWidth=1.8).encode(y=height("y"), color=color, strokeDash=dash)
    few = last - first <= 40
    points = [
        base.transform_filter(alt.datum.resolved == is_resolved)
        .mark_point(size=38 if few else 8, strokeWidth=1.4, opacity=1 if is_resolved else 0.25)
        .encode(y=height("y"), color=color, shape=shape, fill=fill)
        for is_resolved in (False, True)
    ]
    ordinary = base.mark_point(size=34 if few else 8, strokeWidth=1.1, opacity=0.9, fill="white").encode(
        y=height("float_y"), color=color, shape=shape
    )
    return [*marks, band, line, ordinary, *points]


def _dtype(table: Table) -> str:
    config = table.provenance.get("config")
    return str(config.get("dtype", "float64")) if isinstance(config, dict) else "float arithmetic"


def _moved(values: pl.Series, place: Any) -> pl.Series:
    return pl.Series(
        values.name, [None if value is None else place(value) for value in values], dtype=pl.Float64
    )


def _least(series: pl.Series) -> float:
    return math.inf if series.null_count() == len(series) else float(series.min())  # type: ignore[arg-type]


def _most(series: pl.Series) -> float:
    return -math.inf if series.null_count() == len(series) else float(series.max())  # type: ignore[arg-type]
