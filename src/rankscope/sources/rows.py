"""Rows of embeddings that someone else computed: arrays, files and streams of them, read piece by piece."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankscope.core.words import article, count
from rankscope.errors import FileError, ShapeError
from rankscope.sources.entries import entries_of_source
from rankscope.sources.files import load_array
from rankscope.sources.safety import first_line
from rankscope.sources.tensor_files import read_inputs

ROW_FILES = (".npy", ".npz", ".safetensors", ".pt", ".pth", ".csv", ".parquet")
"""Endings of files of rows."""

PIECE = 2**21
"""Numbers that are read at a time."""

NAMED = {"label": "labels", "labels": "labels", "group": "groups", "groups": "groups"}
"""Columns of a table, and arrays of an .npz, that are no embedding but say what a row is."""

Read = Callable[[int, int], np.ndarray]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows of one width. ``count`` is None, and ``read`` too, where they come one piece after the other."""

    name: str
    dim: int
    dtype: str
    count: int | None
    read: Read | None
    """The rows from a place on, before another, as float64."""

    stream: Iterator[np.ndarray] | None = None
    labels: np.ndarray | None = None
    groups: np.ndarray | None = None

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """Rows in order, each piece with the place of its first row. NaN and infinity are an error."""
        if self.read is None:
            place = 0
            for piece in self.stream or ():
                yield place, self._finite(piece, place)
                place += len(piece)
            return
        size = max(1, PIECE // max(self.dim, 1))
        stop = self.count if stop is None else stop
        for place in range(start, stop or 0, size):
            yield place, self._finite(self.read(place, min(place + size, stop or 0)), place)

    def _finite(self, rows: np.ndarray, place: int) -> np.ndarray:
        wrong = ~np.isfinite(rows).all(axis=1)
        if wrong.any():
            first, many = place + int(np.argmax(wrong)), int(wrong.sum())
            said = f"row {first}" if many == 1 else f"{count(many, 'row')}, the first of them row {first},"
            raise ShapeError(
                f"{said} of {self.name!r} (counted from 0) {'holds' if many == 1 else 'hold'} NaN or infinity; drop or "
                "repair these rows"
            )
        return rows


def is_rows(model: object) -> bool:
    """Whether a name is that of a file of rows."""
    return (
        isinstance(model, str | os.PathLike)
        and Path(model).suffix.lower() in ROW_FILES
        and not Path(model).is_dir()
    )


def read_rows(source: Any, *, labels: Any = None, groups: Any = None, name: str | None = None) -> Rows:
    """Rows of an array, a tensor, a list of lists, a file, or an iterator over arrays of some rows each.

    Of a file: the one array of two axes in .npy, .npz, .safetensors or .pt; of .csv and .parquet the columns of
    numbers, or the one column of lists. Arrays or columns named ``labels`` and ``groups`` beside them say what rows
    are.
    """
    found = _rows(source)
    if name is not None:
        found = _with(found, name=name)
    for role, given in (("labels", labels), ("groups", groups)):
        own = getattr(found, role)
        if given is None and own is None:
            continue
        if found.count is None:
            raise ShapeError(
                f"{role} need rows that can be read again; give an array or a file, not an iterator"
            )
        found = _with(found, **{role: _marks(own if given is None else given, role, found.count)})
    return found


def _with(rows: Rows, **changes: Any) -> Rows:
    return replace(rows, **changes)


def _marks(given: Any, role: str, many: int) -> np.ndarray:
    """One name or number per row."""
    plain = given.detach().cpu().numpy() if isinstance(given, Tensor) else given
    marks = np.asarray(plain if isinstance(plain, np.ndarray) else list(plain))
    if marks.ndim != 1 or len(marks) != many:
        raise ShapeError(f"{role} have shape {marks.shape}, expected one for each of {count(many, 'row')}")
    if marks.dtype.kind == "O":
        marks = marks.astype(str)
    return marks


def _rows(source: Any) -> Rows:
    if isinstance(source, str | os.PathLike):
        return _of_file(Path(source).expanduser())
    if isinstance(source, Tensor):
        return _of_tensor("array", source)
    if hasattr(source, "to_numpy"):  # a frame of pandas or polars
        source = source.to_numpy()
    if isinstance(source, np.ndarray):
        return _of_array("array", source)
    if isinstance(source, Sequence):
        try:
            made = np.asarray([np.asarray(one) for one in source])
        except ValueError:
            raise ShapeError(
                "the rows have different lengths; expected one row of numbers per input"
            ) from None
        return _of_array("array", made)
    if isinstance(source, Iterable) and not isinstance(source, Mapping):
        return _of_stream(iter(source))
    raise ShapeError(
        f"{article(type(source).__name__)} holds no rows; expected an array of inputs x dimensions, a file of one, or "
        "an iterator over arrays of some rows each"
    )


def _checked_shape(name: str, shape: tuple[int, ...], kind: str) -> None:
    if kind not in "fiub":
        raise ShapeError(f"{name!r} holds {_kind_words(kind)}, expected numbers: one row per input")
    if len(shape) == 3:
        raise ShapeError(
            f"{name!r} has shape {shape}, expected two axes, inputs x dimensions; pool the tokens of every input "
            "first, as in states.mean(axis=1)"
        )
    if len(shape) != 2:
        raise ShapeError(f"{name!r} has shape {shape}, expected two axes: inputs x dimensions")
    if shape[1] < 1:
        raise ShapeError(
            f"{name!r} has shape {shape}: its rows hold no numbers; expected inputs x dimensions"
        )
    if shape[0] < 2:
        raise ShapeError(
            f"{name!r} has {count(shape[0], 'row')} of width {shape[1]}; at least two inputs are needed to differ or "
            "not"
        )


def _kind_words(kind: str) -> str:
    return {"U": "text", "S": "text", "O": "objects or text", "c": "complex numbers", "V": "records"}.get(
        kind, "no numbers"
    )


def _of_array(name: str, array: np.ndarray) -> Rows:
    _checked_shape(name, array.shape, array.dtype.kind)

    def read(start: int, stop: int) -> np.ndarray:
        return np.array(array[start:stop], dtype=np.float64)

    dtype = str(array.dtype.newbyteorder("=")) if array.dtype.kind == "f" else "float64"
    return Rows(name=name, dim=array.shape[1], dtype=dtype, count=array.shape[0], read=read)


def _of_tensor(name: str, tensor: Tensor) -> Rows:
    if tensor.is_meta or tensor.layout != torch.strided:
        raise ShapeError(f"{name!r} is a tensor without its numbers, or sparse; expected a plain one")
    _checked_shape(name, tuple(tensor.shape), "c" if tensor.is_complex() else "f")

    def read(start: int, stop: int) -> np.ndarray:
        found: np.ndarray = tensor[start:stop].detach().cpu().double().numpy()
        return found

    dtype = str(tensor.dtype).removeprefix("torch.") if tensor.is_floating_point() else "float64"
    return Rows(name=name, dim=tensor.shape[1], dtype=dtype, count=tensor.shape[0], read=read)


def _of_stream(pieces: Iterator[Any]) -> Rows:
    def plain(piece: Any) -> np.ndarray:
        array = piece.detach().cpu() if isinstance(piece, Tensor) else np.asarray(piece)
        array = (
            array.float().numpy() if isinstance(array, Tensor) and array.dtype == torch.bfloat16 else array
        )
        array = np.asarray(array)
        if array.dtype.kind not in "fiub" or array.ndim != 2:
            raise ShapeError(
                f"an iterator over embeddings gave {array.dtype} of shape {array.shape}, expected arrays of some rows"
            )
        return array

    first = next(pieces, None)
    if first is None:
        raise ShapeError("the iterator gave no rows")
    first = plain(first)
    dim, dtype = first.shape[1], str(first.dtype) if first.dtype.kind == "f" else "float64"

    def rows() -> Iterator[np.ndarray]:
        yield first.astype(np.float64)
        for piece in pieces:
            array = plain(piece)
            if array.shape[1] != dim:
                raise ShapeError(f"rows of width {dim} and of width {array.shape[1]} came from one iterator")
            yield array.astype(np.float64)

    return Rows(name="rows of an iterator", dim=dim, dtype=dtype, count=None, read=None, stream=rows())


# ------------------------------------------------------------------------------------------------------------- files


def _of_file(file: Path) -> Rows:
    suffix = file.suffix.lower()
    if suffix not in ROW_FILES:
        raise FileError(
            f"cannot read rows from {str(file)!r}: expected a file ending in {', '.join(ROW_FILES)}"
        )
    if not file.is_file():
        raise FileError(f"cannot read rows from {str(file)!r}: no such file")
    if suffix == ".npy":
        return _of_array(file.name, load_array(file))
    if suffix in (".csv", ".parquet"):
        return _of_table(file)
    if suffix == ".safetensors":
        held: dict[str, Any] = {entry.name: entry for entry in entries_of_source(file)}
        _, entry = _only(file, {key: one for key, one in held.items() if len(one.shape) == 2})
        _checked_shape(file.name, entry.shape, "f")

        def read(start: int, stop: int) -> np.ndarray:
            found: np.ndarray = entry.read((slice(start, stop),)).double().numpy()
            return found

        dtype = "float64" if entry.dtype is None else str(entry.dtype).removeprefix("torch.")
        return Rows(name=file.name, dim=entry.shape[1], dtype=dtype, count=entry.shape[0], read=read)
    content = read_inputs(file)
    if isinstance(content, Tensor):
        return _of_tensor(file.name, content)
    if not isinstance(content, dict):
        raise FileError(f"{str(file)!r} holds {article(type(content).__name__)}; expected one array of rows")
    arrays = {key: one for key, one in content.items() if getattr(one, "ndim", 0) == 2}
    _, array = _only(file, arrays)
    found = _of_tensor(file.name, array) if isinstance(array, Tensor) else _of_array(file.name, array)
    return _with(found, **{NAMED[key]: one for key, one in content.items() if key in NAMED})


def _only(file: Path, arrays: dict[str, Any]) -> tuple[str, Any]:
    if len(arrays) != 1:
        names = ", ".join(sorted(map(str, arrays))) or "none"
        raise FileError(
            f"{str(file)!r} holds {count(len(arrays), 'array')} of two axes ({names}); expected one: inputs x "
            "dimensions"
        )
    return next(iter(arrays.items()))


def _of_table(file: Path) -> Rows:
    import polars as pl

    try:
        frame = pl.read_csv(file) if file.suffix.lower() == ".csv" else pl.read_parquet(file)
    except Exception as error:  # polars has many errors of its own
        raise FileError(f"cannot read {str(file)!r}: {first_line(error)}") from error
    marks = {NAMED[name]: frame[name].to_numpy() for name in frame.columns if name in NAMED}
    frame = frame.drop([name for name in frame.columns if name in NAMED])
    lists = [name for name, kind in frame.schema.items() if isinstance(kind, pl.List | pl.Array)]
    if len(lists) == 1:
        try:
            rows = np.asarray(frame[lists[0]].to_list(), dtype=np.float64)
        except (ValueError, TypeError):
            raise ShapeError(
                f"the column {lists[0]!r} of {file.name!r} holds lists of different lengths, or no numbers"
            ) from None
        return _with(_of_array(file.name, rows), **marks)
    texts = [name for name, kind in frame.schema.items() if not kind.is_numeric()]
    if texts or not frame.columns:
        what = f"the column {texts[0]!r} holds no numbers" if texts else "it has no columns of numbers"
        raise ShapeError(
            f"{file.name!r}: {what}; expected columns of numbers, one row per input (columns named label and group may "
            "hold texts)"
        )
    if frame.null_count().sum_horizontal().item():
        raise ShapeError(f"{file.name!r} has empty cells; expected a number in each")
    return _with(_of_array(file.name, frame.to_numpy().astype(np.float64)), **marks)
