"""What a table is on disk: JSON that any program reads, CSV, Parquet."""

import io
import json
import os
from typing import Any

import polars as pl

from rankscope.errors import FileError, RankscopeError
from rankscope.results.files import from_json, plain, read_bytes, suffix_of, write_atomically
from rankscope.results.table import COLUMNS, EXTRA_DTYPES, Dtype

SCHEMA = "rankscope/1"
"""Names the shape of the JSON object and of the Parquet metadata."""

FINDING = "rankscope/2"
"""That of findings, whose typed fields stand beside the rows; a table takes them as sections."""

TABLE_FORMATS = (".parquet", ".csv", ".json")

RESERVED = frozenset({"schema", "command", "rows", "provenance", "extra_columns"})
"""Keys of the JSON object that a section cannot take."""

METADATA_KEY = "rankscope"


def save(path: str | os.PathLike[str], frame: pl.DataFrame, about: dict[str, Any]) -> None:
    """Write the rows and, where the format can hold them, command, provenance and sections."""
    suffix = suffix_of(path, TABLE_FORMATS)
    if suffix == ".parquet":
        write_atomically(path, _parquet_bytes(frame, about))
    else:
        text = csv_text(frame) if suffix == ".csv" else json_text(frame, about)
        write_atomically(path, text.encode())


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """``frame``, ``command``, ``provenance`` and ``sections`` of a saved table."""
    suffix = suffix_of(path, TABLE_FORMATS)
    reader = {".parquet": _from_parquet, ".csv": _from_csv, ".json": _from_json}[suffix]
    content = read_bytes(path)
    try:
        return reader(content)
    except (
        RankscopeError,
        pl.exceptions.PolarsError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise FileError(
            f"{os.fspath(path)!r} does not hold a table of rankscope: {reason}; give a file that it wrote"
        ) from error


def json_object(frame: pl.DataFrame, about: dict[str, Any]) -> dict[str, Any]:
    """The documented JSON object. ``extra_columns`` is there only if columns were added: their dtypes."""
    extras = {name: str(dtype) for name, dtype in frame.schema.items() if name not in COLUMNS}
    return {
        "schema": SCHEMA,
        "command": about["command"],
        "rows": frame.to_dicts(),
        "provenance": about["provenance"],
        **({"extra_columns": extras} if extras else {}),
        **about["sections"],
    }


def json_text(frame: pl.DataFrame, about: dict[str, Any]) -> str:
    # not by json_of: the table made its rows and sections plain at birth, and rows are many
    return json.dumps(json_object(frame, about), allow_nan=False, ensure_ascii=False)


def csv_text(frame: pl.DataFrame) -> str:
    return frame.write_csv()


def _parquet_bytes(frame: pl.DataFrame, about: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    note = json.dumps({"schema": SCHEMA, **about}, allow_nan=False)
    frame.write_parquet(buffer, metadata={METADATA_KEY: note})
    return buffer.getvalue()


def _from_parquet(content: bytes) -> dict[str, Any]:
    note = pl.read_parquet_metadata(io.BytesIO(content)).get(METADATA_KEY)
    if note is None:
        raise ValueError("the file metadata has no entry 'rankscope'")
    about = _check_header(from_json(note))
    frame = pl.read_parquet(io.BytesIO(content))
    return {"frame": frame, **{key: about[key] for key in ("command", "provenance", "sections")}}


def frame_of(rows: Any, extra_columns: dict[str, str]) -> pl.DataFrame:
    """The rows of a JSON object; ``extra_columns`` are the dtypes of columns that are not fixed."""
    extras = {name: EXTRA_DTYPES[dtype] for name, dtype in extra_columns.items()}
    names = dict.fromkeys([*COLUMNS, *extras, *(name for row in rows for name in row)])
    dtypes = {**COLUMNS, **extras}
    return pl.DataFrame(
        [pl.Series(name, [row.get(name) for row in rows], dtype=dtypes.get(name)) for name in names]
    )


def _from_json(content: bytes) -> dict[str, Any]:
    found = _check_header(from_json(content))
    return {
        "frame": frame_of(found["rows"], found.get("extra_columns", {})),
        "command": found["command"],
        "provenance": found["provenance"],
        "sections": {name: value for name, value in found.items() if name not in RESERVED},
    }


def _from_csv(content: bytes) -> dict[str, Any]:
    frame = pl.read_csv(io.BytesIO(content), infer_schema=False)
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise ValueError(f"missing columns {', '.join(missing)}")
    return {"frame": frame.select(_with_dtype(series) for series in frame)}


def _with_dtype(series: pl.Series) -> pl.Series:
    """A text column with its dtype: by the schema if fixed, otherwise the one that writes the same text."""
    dtype = COLUMNS.get(series.name)
    if dtype is not None:
        return _parse(series, dtype)
    if series.null_count() == len(series):
        return series
    for guess in (pl.Boolean, pl.Int64, pl.Float64):
        try:
            parsed = _parse(series, guess)
        except pl.exceptions.PolarsError:
            continue
        if parsed.to_frame().write_csv() == series.to_frame().write_csv():
            return parsed
    return series


def _parse(series: pl.Series, dtype: Dtype) -> pl.Series:
    if dtype != pl.Boolean:
        return series.cast(dtype)
    words = series.replace_strict({"true": 1, "false": 0}, return_dtype=pl.Int8)
    return words.cast(pl.Boolean)


def _check_header(found: object) -> dict[str, Any]:
    if not isinstance(found, dict) or found.get("schema") not in (SCHEMA, FINDING):
        schema = found.get("schema") if isinstance(found, dict) else None
        raise ValueError(f"its schema is {schema!r}, expected {FINDING!r} or {SCHEMA!r}")
    checked: dict[str, Any] = plain(found, "file")
    return checked
