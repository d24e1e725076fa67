"""Named tensors from files, mappings, sequences or the caller's memory, read when they are asked for."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rankscope.core.words import article
from rankscope.errors import FileError, ShapeError
from rankscope.sources.files import load_array, natural
from rankscope.sources.safety import first_line

Named = Tensor | NDArray[Any]
Source = str | os.PathLike[str] | Named | Mapping[str, Named] | Sequence[Named]
Index = tuple[slice | int, ...]

_SAFE_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One named tensor that has not been read yet."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    """None if it is not floating point."""

    read: Callable[[Index], Tensor]
    """The part of the tensor at an index, one entry per axis; all of it at the empty index."""


def entries_of_source(source: Source) -> list[Entry]:
    """What a source holds, by name in natural order: ``layer_2`` comes before ``layer_10``; a sequence in its own."""
    if isinstance(source, Tensor):
        return [_named("tensor", source)]
    if isinstance(source, np.ndarray):
        return [_named("array", source)]
    if isinstance(source, Mapping):
        found = [_named(name, value) for name, value in source.items()]
    elif isinstance(source, Sequence) and not isinstance(source, str):
        found = [_named(f"layer {place}", value) for place, value in enumerate(source)]
    elif isinstance(source, str | os.PathLike):
        found = _in_file(Path(source).expanduser())
    else:
        raise ShapeError(
            f"{article(type(source).__name__)} is no source of tensors; expected a tensor, an array, a list or a "
            "mapping of them, or the name of a .npy or .safetensors file"
        )
    if not found:
        raise FileError(f"{source!r} holds no tensors" if isinstance(source, str) else "there are no tensors")
    return sorted(found, key=lambda entry: natural(entry.name))


def _in_file(file: Path) -> list[Entry]:
    suffix = file.suffix.lower()
    if suffix not in (".npy", ".safetensors"):
        raise FileError(
            f"cannot read tensors from {str(file)!r}: expected a file ending in .npy or .safetensors"
        )
    if not file.is_file():
        raise FileError(f"cannot read tensors from {str(file)!r}: no such file")
    if suffix == ".npy":
        return [_of_array(file.stem, load_array(file))]
    try:
        with safe_open(file, framework="pt") as stored:
            return [_of_slice(file, name, stored.get_slice(name)) for name in stored.keys()]  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise FileError(
            f"cannot read {str(file)!r}: {first_line(error)}; the file is damaged or incomplete"
        ) from error


def _named(name: str, value: object) -> Entry:
    if isinstance(value, Tensor):
        return _of_tensor(name, value)
    if isinstance(value, np.ndarray):
        return _of_array(name, value)
    raise ShapeError(f"{name!r} is {article(type(value).__name__)}; expected a tensor or an array")


def _of_slice(file: Path, name: str, part: Any) -> Entry:
    def read(index: Index) -> Tensor:
        with safe_open(file, framework="pt") as stored:
            value: Tensor = stored.get_slice(name)[index] if index else stored.get_tensor(name)
            return value

    return Entry(
        name=name, shape=tuple(part.get_shape()), dtype=_SAFE_DTYPES.get(part.get_dtype()), read=read
    )


def _of_tensor(name: str, value: Tensor) -> Entry:
    if value.is_meta or value.layout != torch.strided:
        kind = "on the device meta, without numbers" if value.is_meta else "sparse"
        raise ShapeError(f"the tensor {name!r} is {kind}; expected a plain tensor with its numbers")
    known = value.dtype if value.dtype in _SAFE_DTYPES.values() else None
    return Entry(
        name=name,
        shape=tuple(value.shape),
        dtype=known,
        read=lambda index: value.detach()[index],
    )


def _of_array(name: str, array: NDArray[Any]) -> Entry:
    native = array.dtype.newbyteorder("=")
    if native.kind not in "fiub" or native.itemsize > 8:
        raise ShapeError(f"the array {name!r} has dtype {array.dtype}; expected numbers that torch can hold")

    def read(index: Index) -> Tensor:
        # A copy of the part that was asked for: the file is mapped read-only, and torch wants to own its memory.
        return torch.from_numpy(np.array(array[index], dtype=native))

    return Entry(
        name=name,
        shape=tuple(array.shape),
        dtype={2: torch.float16, 4: torch.float32, 8: torch.float64}[native.itemsize]
        if native.kind == "f"
        else None,
        read=read,
    )
