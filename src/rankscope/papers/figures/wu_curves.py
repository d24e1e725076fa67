"""Pictures of the stacks of Wu et al.: a measure against depth, one line per network, with float32 beside it."""

from collections.abc import Sequence

import polars as pl

from rankscope.charts import Line, Panel, Point
from rankscope.core.words import power
from rankscope.findings.blocks import LN10
from rankscope.papers.figures.statistics import Mean, Median, mean_of, median_of

RATIO = "residual_ratio[frobenius,mean]"

NAMES = {"residual[frobenius,mean]": "mu(X)", RATIO: "mu(X) / ||X||_F"}
"""The symbols of the paper."""

PANEL_NOTES = (
    "rings: float32, where it is not exactly 0; shaded: below its rounding floor",
    "lines that leave the axis go on falling",
)
"""How to read the panels of these figures."""

FAR_ABOVE = 3.0
"""Decades. A floor that lies deeper below every number is left out: the panel would be empty paper above it."""


def depth_panel(
    frame: pl.DataFrame,
    series: str,
    *,
    title: str,
    names: Sequence[tuple[str, str]],
    deepest: float,
    by_median: bool = False,
) -> Panel:
    """One line per value of the column ``series``: the mean over seeds of log10 with its 95% interval, or the median.

    ``frame`` has rows of one definition, ``names`` the values of the column in order, each with its name in the
    picture. Layer 0 has no place on a logarithmic axis. The axis ends at ``deepest`` decades, or above where nothing
    lies so deep.
    """
    definition = str(frame["definition"][0])
    lines = list[Line]()
    for place, (value, name) in enumerate(names):
        own = frame.filter((pl.col(series) == value) & (pl.col("layer") > 0))
        split, single = list[Point](), list[Point]()
        for (layer,), rows in own.group_by("layer", maintain_order=True):
            at = int(str(layer))
            band = (median_of if by_median else mean_of)(rows["log10_value"].to_list())
            split.append(_point(at, band, name, is_ratio=definition == RATIO))
            positive = rows.filter(pl.col("float_value") > 0)["float_value"].log10().to_list()
            if positive:
                level = median_of(positive).median if by_median else mean_of(positive).mean
                said = f"{name} in float32: {power(level * LN10)}"
                single.append(Point(at, level, said, hollow=True))
        lines.append(Line(name="", points=single, style="none", color=place))
        lines.append(Line(name=name, points=_until_out(split, deepest), color=place))
    floor = frame.filter((pl.col("layer") > 0) & (pl.col("float_floor") > 0)).group_by("layer")
    highest = floor.agg(pl.col("float_floor").log10().max()).sort("layer")
    shaded = [Point(int(layer), log) for layer, log in highest.iter_rows()]
    seen = [point.y for line in lines for point in line.points if point.y is not None]
    if shaded and min(seen) < FAR_ABOVE + max(point.y for point in shaded if point.y is not None):
        lines.insert(0, Line(name="", points=shaded, style="dotted", color=-1, dots=False, shade=True))
    ends = [point.y for line in lines for point in line.points if point.y is not None]
    return Panel(
        title=title,
        lines=lines,
        value=NAMES[definition],
        inside=(max(deepest, min(-1.0, *ends)), max(ends)),
        along="log",
    )


def _point(layer: int, band: Mean | Median, name: str, *, is_ratio: bool) -> Point:
    """No ratio exceeds 1, so neither does the band around it."""
    middle, low, high = band.middle, band.low, band.high
    said = f"{name}: {power(middle * LN10)}"
    if low is None or high is None:
        return Point(layer, middle, said)
    said += f" ({power(low * LN10)} to {power(high * LN10)})"
    return Point(layer, middle, said, low=low, high=min(high, 0.0) if is_ratio else high)


def _until_out(points: Sequence[Point], deepest: float) -> list[Point]:
    """Points up to the first one beyond the axis: the line leaves there for good."""
    gone = [at for at, point in enumerate(points) if point.y is not None and point.y < deepest]
    return list(points[: gone[0] + 1] if gone else points)
