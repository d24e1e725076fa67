"""The table: tidy rows of numbers in fixed columns, with where they come from. No torch."""

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
import os
import platform
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib import metadata
from numbers import Real
from typing import Any, TypeGuard, TypeVar, cast

from rankscope.errors import ConfigError, MissingExtraError
from rankscope.results import formats
from rankscope.results.files import json_of, plain, whole_text

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
    columns = [_fixed_column(frame, name, dtype) for name, dtype in COLUMNS.items()]
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


def _fixed_column(frame: pl.DataFrame, name: str, dtype: Dtype) -> pl.Series:
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


PACKAGES = ("numpy", "scipy", "torch", "polars", "pydantic", "safetensors", "transformers", "timm")
"""Packages whose version can move a number."""


def provenance(config: Mapping[str, Any], seeds: Sequence[int] | None = None) -> dict[str, Any]:
    """What a reader needs to make the same numbers again, as a JSON object.

    Versions are read from the installed metadata, so that nothing heavy is imported for them.

    >>> provenance({"layers": 12}, seeds=[0, 1])["seeds"]
    [0, 1]
    """
    found: dict[str, Any] = {
        "rankscope": rankscope_version(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
        "config": plain(config, "config"),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if seeds is not None:
        found["seeds"] = plain(list(seeds), "seeds")
    return found


def rankscope_version() -> str | None:
    """The installed version of this package."""
    return _version("rankscope")


def versions() -> dict[str, str]:
    """Installed versions of the packages that can move a number."""
    return {name: version for name in PACKAGES if (version := _version(name)) is not None}


@cache
def _version(name: str) -> str | None:
    """Read once: what is installed is read from files, and does not change while a program runs."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One row of a table. ``log10_value`` and ``resolved`` follow from ``value`` and ``floor`` unless given.

    >>> Record(measure="diameter", definition="diameter[l2]", value=0.5, floor=1e-15, layer=3).row()["layer"]
    3
    """

    measure: str
    definition: str
    value: float | None
    floor: float | None
    run: str | None = None
    model: str | None = None
    variant: str | None = None
    semantics: str | None = None
    mask: str | None = None
    norm: str | None = None
    seed: int | None = None
    sample: int | None = None
    layer: int | None = None
    site: str | None = None
    head: int | None = None
    log10_value: float | None = None
    resolved: bool | None = None
    extra: Row = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        clash = sorted(set(self.extra) & set(COLUMNS))
        if clash:
            raise ConfigError(
                f"added columns must have names of their own; {', '.join(clash)} is a fixed column: "
                f"pass it as Record({clash[0]}=...)"
            )

    def row(self) -> dict[str, Cell]:
        """Column name to entry: the fixed columns in order, then the added ones."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: own[name] for name in COLUMNS} | dict(self.extra)


T = TypeVar("T")


def read_rows(frame: pl.DataFrame, kind: type[T]) -> list[T]:
    """The rows of a frame as values of a dataclass, whose fields are the columns that are read.

    >>> from rankscope.results.statistics import LayerMean
    >>> read_rows(pl.DataFrame([], schema=[one.name for one in fields(LayerMean)]), LayerMean)
    []
    """
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]  # a dataclass, as the text above says
    return [kind(**dict(zip(names, row, strict=True))) for row in frame.select(names).iter_rows()]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Table:
    """Tidy rows plus where they come from: one row is one number.

    ``frame`` is brought to the fixed columns (``rankscope.results.COLUMNS``) at birth; others follow.
    ``provenance`` and ``sections`` (named JSON values beside the rows) are copied; non-finite numbers become
    null.

    >>> table = Table.from_columns(
    ...     {"measure": "diameter", "definition": "diameter[l2]", "value": [1.0, 1e-20], "floor": 1e-15}
    ... )
    >>> table.frame["resolved"].to_list()
    [True, False]
    """

    frame: pl.DataFrame
    provenance: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    sections: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        taken = sorted(set(self.sections) & formats.RESERVED)
        if taken:
            raise ConfigError(
                f"a section cannot be called {', '.join(taken)}: the JSON object uses that key itself"
            )
        for name, value in (
            ("frame", conform(self.frame)),
            ("provenance", plain(self.provenance, "provenance")),
            ("sections", plain(self.sections, "sections")),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def from_records(cls, records: Iterable[Record], **about: Any) -> "Table":
        """The table of those rows; ``about`` is provenance, command and sections."""
        rows = [record.row() for record in records]
        names = list(dict.fromkeys(name for row in rows for name in row)) or list(COLUMNS)
        return cls(
            frame=pl.DataFrame([_column(name, [row.get(name) for row in rows]) for name in names]), **about
        )

    @classmethod
    def from_columns(cls, columns: Mapping[str, object], **about: Any) -> "Table":
        """The table of those columns: sequences or arrays of one common length, scalars repeated to it.

        This is the way for many rows; a table of scalars alone has one row.
        """
        lengths = {name: len(entries) for name, entries in columns.items() if _is_column(entries)}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ShapeError(f"columns must be of one length, or scalars to be repeated: {listed}")
        height = next(iter(lengths.values()), 1)
        series = [
            _column(name, entries) if name in lengths else _column(name, [entries]).new_from_index(0, height)
            for name, entries in columns.items()
        ]
        return cls(frame=pl.DataFrame(series), **about)

    @classmethod
    def concat(cls, tables: Iterable["Table"], **about: Any) -> "Table":
        """All rows, one table after the other; a column that only some have is null in the others.

        Provenance: what all share, and the whole of each under ``parts`` where they differ. Sections are
        merged; two different ones of one name are an error. ``about`` replaces any of the three.
        """
        parts = list(tables)
        if not parts:
            return cls.from_records([], **about)
        try:
            frame = pl.concat([part.frame for part in parts], how="diagonal")
        except pl.exceptions.PolarsError as error:
            raise ShapeError(
                f"tables whose added columns differ in dtype cannot be joined: {error}"
            ) from error
        commands = list(dict.fromkeys(part.command for part in parts if part.command))
        merged: dict[str, Any] = {
            "provenance": lambda: _shared_entries([part.provenance for part in parts]),
            "sections": lambda: _merge_entries([part.sections for part in parts]),
            "command": lambda: "; ".join(commands),
        }
        return cls(
            frame=frame, **{name: make() for name, make in merged.items() if name not in about}, **about
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Table":
        """The table saved at ``path`` (.parquet, .csv or .json); from CSV, rows only."""
        return cls(**formats.load(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write .parquet, .csv or .json by the extension of ``path``, atomically. CSV holds the rows only."""
        formats.save(path, self.frame, self._about())

    def to_json(self) -> dict[str, Any]:
        """The JSON object: schema, command, rows, provenance, then the named sections."""
        return formats.json_object(self.frame, self._about())

    def to_json_text(self) -> str:
        """The JSON object as text; never holds NaN."""
        return formats.json_text(self.frame, self._about())

    def to_csv(self) -> str:
        """The rows as comma-separated text with a header; null is empty, empty text is quoted."""
        return formats.csv_text(self.frame)

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars frame."""
        return self.frame.clone()

    def to_pandas(self) -> Any:
        """The rows as a pandas frame: floats with NaN for null, integers and booleans as nullable dtypes."""
        try:
            import pandas as pd  # type: ignore[import-untyped]
        except ModuleNotFoundError as error:
            raise MissingExtraError("a pandas frame needs: pip install pandas") from error
        nullable = {
            pl.Int64(): "Int64",
            pl.Boolean(): "boolean",
            pl.Float64(): "float64",
            pl.String(): "object",
        }
        columns = {
            name: pd.Series(self.frame[name].to_list(), dtype=nullable[dtype], name=name)
            for name, dtype in self.frame.schema.items()
        }
        return pd.DataFrame(columns)

    def where(self, **equals: object) -> "Table":
        """The rows in which every named column equals its value; a list means any of its entries, None null.

        >>> table = Table.from_columns({"measure": "m", "definition": "m", "value": [1, 2], "floor": 0})
        >>> table.where(value=2).frame["value"].to_list()
        [2.0]
        """
        frame = self.frame
        for name, wanted in equals.items():
            if name not in frame.columns:
                raise unknown_column(name, frame.columns)
            options = list(wanted) if isinstance(wanted, list | tuple | set | frozenset) else [wanted]
            present = [option for option in options if option is not None]
            try:
                keep = frame[name].is_in(pl.Series(present, dtype=frame.schema[name]).to_list())
            except (pl.exceptions.PolarsError, TypeError) as error:
                raise ShapeError(
                    f"column {name!r} holds {frame.schema[name]}, so it never equals {wanted!r}"
                ) from error
            if None in options:
                keep = keep.fill_null(value=False) | frame[name].is_null()
            frame = frame.filter(keep)
        return replace(self, frame=frame)

    def _about(self) -> dict[str, Any]:
        return {"command": self.command, "provenance": self.provenance, "sections": self.sections}

    def __len__(self) -> int:
        return self.frame.height

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        same_rows = self.frame.schema == other.frame.schema and self.frame.equals(other.frame)
        return same_rows and self._about() == other._about()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Table({self.frame.height} rows, {self.frame.width} columns, command={self.command!r})"

    def _repr_html_(self) -> str:
        return table_html(self.frame, command=self.command, provenance=self.provenance)


def _is_column(entries: object) -> TypeGuard[Sized]:
    if isinstance(entries, np.ndarray):
        return entries.ndim > 0
    return isinstance(entries, pl.Series | Sequence) and not isinstance(entries, str | bytes)


def _column(name: str, entries: object) -> pl.Series:
    if isinstance(entries, pl.Series):
        return entries.alias(name)
    if isinstance(entries, np.ndarray):
        if entries.ndim > 1:
            raise ShapeError(
                f"column {name!r} needs one entry per row, got an array of shape {entries.shape}; flatten it"
            )
        return pl.Series(name, entries)
    plain_entries = list(cast("Sequence[Any]", entries))
    kinds = {type(entry) for entry in plain_entries if entry is not None}
    if kinds == {str}:
        plain_entries = [
            entry and whole_text(entry) for entry in plain_entries
        ]  # polars holds whole characters only
    mixed_numbers = len(kinds) > 1 and bool not in kinds and all(issubclass(kind, Real) for kind in kinds)
    try:
        if bool in kinds and COLUMNS.get(name, pl.Boolean) != pl.Boolean:
            raise TypeError("a truth value is not a number here")  # polars would store 0 or 1
        return pl.Series(name, plain_entries, dtype=COLUMNS.get(name, pl.Float64 if mixed_numbers else None))
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        wanted = f"holds {COLUMNS[name].__name__}" if name in COLUMNS else "needs entries of one kind"
        raise ShapeError(
            f"column {name!r} {wanted}, got {', '.join(sorted(k.__name__ for k in kinds))}"
        ) from error


def _shared_entries(found: list[dict[str, Any]]) -> dict[str, Any]:
    if all(one == found[0] for one in found):
        return found[0]
    same = {
        key: value
        for key, value in found[0].items()
        if all(key in one and one[key] == value for one in found)
    }
    return same | {"parts": found}


def _merge_entries(found: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name, value in (item for one in found for item in one.items()):
        if name in merged and merged[name] != value:
            raise ConfigError(
                f"two tables carry different sections called {name!r}; pass sections= to say which to keep"
            )
        merged[name] = value
    return merged


ROWS_SHOWN = 10


def table_html(frame: pl.DataFrame, *, command: str, provenance: dict[str, Any]) -> str:
    """Shape, the first rows (columns that are null throughout left out), command and provenance."""
    empty = [name for name in frame.columns if frame.height and frame[name].null_count() == frame.height]
    shown = frame.head(ROWS_SHOWN).drop(empty)
    head = "".join(f"<th>{escape(name)}</th>" for name in shown.columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown.rows())
    more = f", first {ROWS_SHOWN} shown" if frame.height > ROWS_SHOWN else ""
    without = f", all null: {escape(', '.join(empty))}" if empty else ""
    command_line = f"<p><code>{escape(command)}</code></p>" if command else ""
    origin = escape(json_of(provenance, indent=2))
    return (
        f"<div><p>rankscope table: {frame.height} rows, {frame.width} columns{more}{without}</p>"
        f"{command_line}"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<details><summary>provenance</summary><pre>{origin}</pre></details></div>"
    )


def _cell(entry: object) -> str:
    if entry is None:
        return "<td></td>"
    return f"<td>{escape(f'{entry:.4g}' if isinstance(entry, float) else str(entry))}</td>"
