"""Where the points of a curve stand: on logarithms where values span decades, on the values otherwise."""

import math
from dataclasses import dataclass
from typing import cast

import polars as pl

from rankscope.errors import ConfigError

DECADES_FOR_LOG = 1.5
"""Values that span fewer decades are drawn on a linear axis."""

DECADES_TO_FLOOR = 3.0
"""A floor further below all data is mentioned and not drawn: it would press the curves flat."""

FLOOR_SPREAD = 0.3
"""Floors of different lines within a factor of two are drawn as one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panels:
    """All points of one definition, and how the value axis runs.

    ``points`` has layer, mask, norm, series, position ``y`` with band ``low`` to ``high``, ``floor`` and the
    lower end ``below`` of its shade (all in logarithms to base ten if ``is_log``), ``hollow``, ``count``, and
    ``shown``, the position as a number in text.
    """

    points: pl.DataFrame
    is_log: bool
    bottom: float
    top: float
    has_floor: bool
    floors_differ: bool
    missing: int
    has_zeros: bool
    grounded: int
    """Zeros whose floor is zero too: they have no logarithm and stand on the bottom of the axis."""

    @property
    def layers(self) -> tuple[int, int]:
        """The first and the last layer."""
        return cast(int, self.points["layer"].min()), cast(int, self.points["layer"].max())


def panels(summary: pl.DataFrame) -> Panels:
    """The points of one definition, from its layer summary with a ``series`` column."""
    numbered = summary.filter(pl.col("mean").is_not_null() | pl.col("log10_mean").is_not_null())
    if numbered.is_empty():
        name = summary["definition"][0]
        raise ConfigError(
            f"nothing to draw: no row of {name} holds a number; check the run that made the table"
        )
    is_log = _spans_decades(numbered)
    points = _placed(numbered, is_log=is_log)
    has_floor = _floor_is_near(points, is_log=is_log)
    bottom, top = _range(points, is_log=is_log, has_floor=has_floor)
    grounded = points["y"].null_count()
    is_signed = not is_log and bottom < 0
    below = -pl.col("floor") if is_signed else pl.lit(bottom)
    points = points.with_columns(pl.col("y", "low", "high").fill_null(bottom), below.alias("below"))
    return Panels(
        points=points,
        is_log=is_log,
        bottom=bottom,
        top=top,
        has_floor=has_floor,
        floors_differ=_floors_differ(points, is_log=is_log),
        missing=summary.height - numbered.height,
        has_zeros=is_log and _least(numbered["min"]) == 0 and bool(numbered["floor"].max()),
        grounded=grounded,
    )


def _spans_decades(summary: pl.DataFrame) -> bool:
    if _least(summary["min"]) < 0:
        return False
    decades = _most(summary["log10_max"]) - _least(summary["log10_min"])
    has_zeros = _least(summary["min"]) == 0 and decades >= 0
    return decades >= DECADES_FOR_LOG or has_zeros


def _placed(summary: pl.DataFrame, *, is_log: bool) -> pl.DataFrame:
    prefix = "log10_" if is_log else ""
    return summary.select(
        "layer",
        "mask",
        "norm",
        "series",
        pl.col(f"{prefix}mean").alias("y"),
        pl.col(f"{prefix}min").alias("low"),
        pl.col(f"{prefix}max").alias("high"),
        pl.col(f"{prefix}floor").alias("floor"),
        (pl.col("share_resolved") < 1).alias("hollow"),
        "count",
        pl.Series(
            "shown", [_number(mean, is_log=is_log) for mean in summary[f"{prefix}mean"]], dtype=pl.String
        ),
    )


def _number(position: float | None, *, is_log: bool) -> str:
    if position is None:
        return "0"
    if not is_log:
        return f"{position:.3g}"
    exponent = math.floor(position)
    return f"{10 ** (position - exponent):.2f}e{exponent}"


def _floor_is_near(points: pl.DataFrame, *, is_log: bool) -> bool:
    top_floor, low = _most(points["floor"]), _least(points["low"])
    if not is_log:
        return top_floor >= 0.01 * (_most(points["high"]) - low) and top_floor > 0
    return top_floor >= low - DECADES_TO_FLOOR


def _range(points: pl.DataFrame, *, is_log: bool, has_floor: bool) -> tuple[float, float]:
    """Ends of the axis: all bands, the floor if it is drawn, and a margin of a twentieth."""
    ends = [points["low"], points["high"], *([points["floor"]] if has_floor else [])]
    low, high = min(map(_least, ends)), max(map(_most, ends))
    # Equal values still need an axis; on a logarithmic one it must be long enough to hold a tick.
    margin = 0.05 * (high - low) or (0.0 if is_log else 0.05 * abs(high)) or 0.15
    starts_at_zero = not is_log and 0 <= low <= 0.4 * high
    return (0.0 if starts_at_zero else low - margin), high + margin


def _floors_differ(points: pl.DataFrame, *, is_log: bool) -> bool:
    if not is_log:
        return False
    spread = points.group_by("mask", "norm", "layer").agg(pl.col("floor").max() - pl.col("floor").min())
    return _most(spread["floor"]) > FLOOR_SPREAD


def _least(series: pl.Series) -> float:
    """The smallest entry; plus infinity if all are null, which no comparison here takes for a number."""
    return math.inf if series.null_count() == len(series) else cast(float, series.min())


def _most(series: pl.Series) -> float:
    """The largest entry; minus infinity if all are null."""
    return -math.inf if series.null_count() == len(series) else cast(float, series.max())
