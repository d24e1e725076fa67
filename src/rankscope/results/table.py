"""The tidy table that every study returns."""

import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, TypeGuard, cast

import numpy as np
import polars as pl

from rankscope.errors import ConfigError, MissingExtraError, ShapeError
from rankscope.results import formats
from rankscope.results.html import table_html
from rankscope.results.plain import plain, whole_text
from rankscope.results.record import Record
from rankscope.results.schema import COLUMNS, conform, unknown_column


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
            "provenance": lambda: _shared([part.provenance for part in parts]),
            "sections": lambda: _merged([part.sections for part in parts]),
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


def _shared(found: list[dict[str, Any]]) -> dict[str, Any]:
    if all(one == found[0] for one in found):
        return found[0]
    same = {
        key: value
        for key, value in found[0].items()
        if all(key in one and one[key] == value for one in found)
    }
    return same | {"parts": found}


def _merged(found: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name, value in (item for one in found for item in one.items()):
        if name in merged and merged[name] != value:
            raise ConfigError(
                f"two tables carry different sections called {name!r}; pass sections= to say which to keep"
            )
        merged[name] = value
    return merged
