"""A table for reading: one line per network and definition, one column per layer, cells as text."""

import math
from collections.abc import Sequence

import polars as pl

from rankscope.core.words import number, power
from rankscope.results import UNRESOLVED_MARK, Table
from rankscope.results.statistics import FACTORS, GROUP, LINE, check_columns, is_split, with_sizes


def pivot(
    table: Table, *, rows: Sequence[str] | None = None, across: str = "layer", digits: int = 2
) -> pl.DataFrame:
    """Text cells for reading: one line per network and definition, one column per layer, the mean over seeds.

    The mean of residuals, ratios and diameters is the geometric one, as in charts with a logarithmic scale: layers
    multiply them, and those of different texts lie powers of ten apart. A zero then stands at its floor.

    ``rows`` are the columns that name a line; by default variant, mask, norm, definition and whatever else
    of model, semantics, site and head varies in the table, so that different things are never averaged. A
    cell in which some row is not resolved ends in ``*``; one with no number is ``-*``, one without rows null.
    """
    names = _line_columns(table) if rows is None else list(rows)
    check_columns(table, [*names, across])
    frame = with_sizes(table.frame.filter(pl.col(across).is_not_null()))
    cells = frame.group_by(*names, across, maintain_order=True).agg(
        pl.col("value").mean(),
        pl.col("size").mean(),
        pl.col("resolved").all().alias("resolved"),
        pl.col("measure").is_in(FACTORS).all().alias("geometric"),
    )
    text = [
        (_geometric_cell if geometric or is_split(table) else _cell)(value, log10, resolved, digits)
        for value, log10, resolved, geometric in cells.select(
            "value", "size", "resolved", "geometric"
        ).iter_rows()
    ]
    order = frame[across].unique().sort().to_list()
    lines = cells.select(names).unique(maintain_order=True)
    cells = cells.with_columns(pl.Series("cell", text, dtype=pl.String))
    for position in order:
        column = cells.filter(pl.col(across) == position).select(*names, pl.col("cell").alias(str(position)))
        lines = lines.join(column, on=names, how="left", nulls_equal=True, maintain_order="left")
    return lines


def _line_columns(table: Table) -> list[str]:
    varying = [name for name in GROUP if name not in LINE and table.frame[name].n_unique() > 1]
    return [name for name in GROUP if name in LINE or name in varying]


def _geometric_cell(value: float | None, log10: float | None, resolved: bool, digits: int) -> str:
    """The geometric mean as text, also beyond the range of floats; a value of zero has no logarithm."""
    if log10 is None:
        return _cell(value, log10, resolved, digits)
    text = number(10**log10, digits) if abs(log10) < 300 else power(log10 * math.log(10), digits=digits)
    return text if resolved else text + UNRESOLVED_MARK


def _cell(value: float | None, log10: float | None, resolved: bool, digits: int) -> str:
    """A mean as text; below the smallest float, the power of ten that is its geometric mean."""
    is_tiny = value == 0 and log10 is not None
    text = (
        power(log10 * math.log(10), digits=digits) if is_tiny and log10 is not None else number(value, digits)
    )
    return text if resolved else text + UNRESOLVED_MARK
