"""The fixed columns of every table, and the one place where a frame is made to obey them."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rankscope.errors import ShapeError, UnknownNameError

if TYPE_CHECKING:
    Dtype = type[pl.DataType]
else:
    Dtype = type  # the run-time checker of the tests cannot read polars' dtype classes as hints

COLUMNS: Mapping[str, Dtype] = MappingProxyType(
    {
        "run": pl.String,
        "model": pl.String,
        "variant": pl.String,
        "semantics": pl.String,
        "mask": pl.String,
        "norm": pl.String,
        "seed": pl.Int64,
        "sample": pl.Int64,
        "layer": pl.Int64,
        "site": pl.String,
        "head": pl.Int64,
        "measure": pl.String,
        "definition": pl.String,
        "value": pl.Float64,
        "log10_value": pl.Float64,
        "floor": pl.Float64,
        "resolved": pl.Boolean,
    }
)
"""Name and dtype of the fixed columns, in order; null where a column does not apply.

``norm`` is the normalization part (matrix norms appear only in ``definition``), ``measure`` the bare name
(``residual_ratio``), ``definition`` the full id (``residual_ratio[composite,mean]``)."""

Cell = str | int | float | bool | None
"""What one entry of a table holds."""

Row = Mapping[str, Cell]
"""One row, or the part of it that some rows share, by the names of columns."""

Columns = Mapping[str, Cell | Sequence[Cell]]
"""Several rows: an entry that all of them share, or a list with one entry per row."""

REQUIRED = ("measure", "definition", "value", "floor")

EXTRA_DTYPES: Mapping[str, Dtype] = MappingProxyType(
    {"String": pl.String, "Int64": pl.Int64, "Float64": pl.Float64, "Boolean": pl.Boolean}
)
"""What an added column may hold: the scalars that Parquet, CSV and JSON all keep."""


def conform(frame: pl.DataFrame) -> pl.DataFrame:
    """``frame`` with all fixed columns in order, then the added ones; defaults filled in.

    - ``log10_value`` defaults to ``log10(value)``, null for zero and for negative numbers, which have none;
    - ``resolved`` defaults to ``|value| > floor``. A value that underflowed to zero and carries its logarithm
      is compared in logarithms;
    - non-finite numbers become null, and a row without a finite value or floor is never resolved.
    """
    missing = [name for name in REQUIRED if name not in frame.columns]
    if missing:
        raise ShapeError(
            f"a table needs the columns {', '.join(REQUIRED)}; missing here: {', '.join(missing)} "
            f"(found: {', '.join(frame.columns) or 'none'})"
        )
    extras = [name for name in frame.columns if name not in COLUMNS]
    columns = [_fixed(frame, name, dtype) for name, dtype in COLUMNS.items()]
    columns += [_extra(frame[name]) for name in extras]
    return _with_defaults(pl.DataFrame(columns))


def log10_of(series: pl.Series) -> pl.Series:
    """``log10(series)``, null where that is no number; numpy's is exact at powers of ten, polars' is not."""
    size = series.fill_null(0.0).to_numpy()
    logs = np.full(size.shape, np.nan)
    np.log10(size, out=logs, where=size > 0)
    return pl.Series(series.name, logs, nan_to_null=True)


def unknown_column(name: str, known: list[str]) -> UnknownNameError:
    """The error for a column that the table does not have, with the nearest one as a suggestion."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return UnknownNameError(f"unknown column {name!r}{hint} Known: {', '.join(known)}.")


def _fixed(frame: pl.DataFrame, name: str, dtype: Dtype) -> pl.Series:
    if name not in frame.columns:
        return pl.Series(name, [None] * frame.height, dtype=dtype)
    series = frame[name]
    if series.dtype == pl.Null:
        return series.cast(dtype)
    fits = {
        pl.String: isinstance(series.dtype, pl.String | pl.Categorical | pl.Enum),
        pl.Int64: series.dtype.is_integer(),
        pl.Float64: series.dtype.is_numeric(),
        pl.Boolean: series.dtype == pl.Boolean,
    }
    if not fits[dtype]:
        raise ShapeError(f"column {name!r} holds {dtype.__name__}, got {series.dtype} ({_first(series)})")
    return _cast(series, dtype)


def _extra(series: pl.Series) -> pl.Series:
    dtype = series.dtype
    if dtype.is_integer():
        return _cast(series, pl.Int64)
    if dtype.is_float():
        return _cast(series, pl.Float64)
    if dtype == pl.Boolean:
        return series
    if dtype == pl.Null or isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
        return _cast(series, pl.String)
    raise ShapeError(
        f"added column {series.name!r} has dtype {dtype} ({_first(series)}); a table holds text, integers, "
        "floats and booleans; put anything larger into a section"
    )


def _cast(series: pl.Series, dtype: Dtype) -> pl.Series:
    try:
        return series.cast(dtype)
    except pl.exceptions.PolarsError as error:
        raise ShapeError(
            f"column {series.name!r} of {series.dtype} does not fit into {dtype.__name__}: {_first(series)}"
        ) from error


def _first(series: pl.Series) -> str:
    shown = series.drop_nulls().head(1).to_list()
    return f"first entry {shown[0]!r}" if shown else "no entries"


def _with_defaults(frame: pl.DataFrame) -> pl.DataFrame:
    floats = [name for name, dtype in frame.schema.items() if dtype == pl.Float64]
    frame = frame.with_columns(
        pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name) for name in floats
    )
    frame = frame.with_columns(pl.col("log10_value").fill_null(log10_of(frame["value"])))
    value, floor, log_floor = pl.col("value").abs(), pl.col("floor"), pl.lit(log10_of(frame["floor"]))
    underflowed = (value == 0) & pl.col("log10_value").is_not_null()
    above = (
        pl.when(underflowed).then((floor == 0) | (pl.col("log10_value") > log_floor)).otherwise(value > floor)
    )
    known = value.is_not_null() & floor.is_not_null()
    return frame.with_columns(pl.col("resolved").fill_null(above).fill_null(value=False) & known)
