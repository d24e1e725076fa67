"""Rows of many seeds brought together: one line per network, one number per layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from rankscope.results.schema import log10_of, unknown_column
from rankscope.results.table import Table

UNRESOLVED_MARK = "*"
"""Follows a cell of ``pivot`` in which at least one row is not above its rounding floor."""

GROUP = ("model", "variant", "semantics", "mask", "norm", "site", "head", "definition")
"""Rows that differ in one of these are never averaged; run, seed and sample are."""

LINE = ("variant", "mask", "norm", "definition")

FACTORS = ("residual", "residual_ratio", "diameter")
"""Measures that layers multiply: their means are geometric, in the split pass and in the ordinary one."""

MEANS = "geometric mean of residuals, ratios and diameters, arithmetic mean of everything else"
"""What a cell of ``pivot`` is, for legends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerMean:
    """What is read of a row of ``layer_summary``, which says what its columns are."""

    layer: int
    count: int
    share_resolved: float
    log10_mean: float | None
    log10_min: float | None
    log10_max: float | None
    log10_most: float | None


def layer_summary(table: Table, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """One row per network, definition and layer: what the seeds and samples say together.

    Columns: the group (model, variant, semantics, mask, norm, site, head, definition, then ``by``) and
    ``layer``; ``count`` of rows; ``mean``, ``min``, ``max``, ``std`` (``n - 1`` in the denominator) of the
    values that are not null; ``share_resolved`` of all rows; ``floor``, their mean. In logarithms to base ten
    of the sizes: ``log10_mean`` (of the geometric mean), ``log10_min``, ``log10_max``, ``log10_floor``.
    There a zero stands at its floor, since no more is known of it; with a floor of zero too it is left out. Negative
    values have no logarithms, so where there is one these columns are null.
    ``log10_most``: the same mean with the floor in place of every number below it, null where a row has no number.
    Columns added to a table are averaged over unless ``by`` names them.
    """
    check_columns(table, by)
    frame, value = with_sizes(table.frame), pl.col("value")
    most, has_logs = pl.max_horizontal("size", "log10_floor"), (value >= 0).all()
    return (
        frame.sort("layer", maintain_order=True)
        .group_by(*GROUP, *by, "layer", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            value.mean().alias("mean"),
            value.min().alias("min"),
            value.max().alias("max"),
            value.std().alias("std"),
            pl.col("resolved").mean().alias("share_resolved"),
            pl.col("floor").mean(),
            pl.when(has_logs).then(pl.col("size").mean()).alias("log10_mean"),
            pl.when(has_logs).then(pl.col("size").min()).alias("log10_min"),
            pl.when(has_logs).then(pl.col("size").max()).alias("log10_max"),
            pl.col("log10_floor").mean(),
            pl.when(has_logs & value.is_not_null().all()).then(most.mean()).alias("log10_most"),
        )
    )


def with_sizes(frame: pl.DataFrame) -> pl.DataFrame:
    """With ``size``, the logarithm of a value or, of a zero, of its floor, and ``log10_floor``."""
    floor = log10_of(frame["floor"])
    if "log10_floor" in frame.columns:  # the split pass has floors below the smallest float
        floor = frame["log10_floor"].cast(pl.Float64).fill_null(floor)
    size = pl.col("log10_value").fill_null(pl.when(pl.col("value") == 0).then(floor))
    return frame.with_columns(size.alias("size"), floor.alias("log10_floor"))


def is_split(table: Table) -> bool:
    """Whether a table comes from the split pass: the ordinary one stands beside it."""
    return "float_value" in table.frame.columns


def check_columns(table: Table, names: Sequence[str]) -> None:
    for name in names:
        if name not in table.frame.columns:
            raise unknown_column(name, table.frame.columns)
