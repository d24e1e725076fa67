"""Ready tensors: as inputs of a model, or as hidden states that are measured without any model."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final, overload

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rankscope.errors import ConfigError, FileError, RankscopeError, ShapeError
from rankscope.sources.axes import Axes, find_axes
from rankscope.sources.batch import POSITIONAL, Batch
from rankscope.sources.family import Layout
from rankscope.sources.files import load_array, natural
from rankscope.sources.layout import layout_of
from rankscope.sources.loaded import dtype_of, inputs_of, kind_of
from rankscope.sources.safety import first_line
from rankscope.sources.taps import unwrapped
from rankscope.sources.texts import with_decoder

Source = str | os.PathLike[str] | Tensor | NDArray[Any] | Mapping[str, Tensor]

SHAPES = "(tokens, dim), (texts, tokens, dim) or (layers, texts, tokens, dim)"
_SAFE_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One named tensor that has not been read yet."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    """None if it is not floating point."""

    read: Callable[[int | None], Tensor]
    """The whole tensor, or the part of it with this index on the first axis."""


@final
class Layers(Sequence[Tensor]):
    """Token states layer by layer, ``(texts, tokens, dim)`` each, read when they are asked for."""

    def __init__(self, readers: Sequence[Callable[[], Tensor]]) -> None:
        self._readers = tuple(readers)

    def __len__(self) -> int:
        return len(self._readers)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> "Layers": ...
    def __getitem__(self, index: int | slice) -> "Tensor | Layers":
        return Layers(self._readers[index]) if isinstance(index, slice) else self._readers[index]()


@dataclass(frozen=True, kw_only=True, slots=True)
class States:
    """Hidden states from outside. The dtype is kept, because it says how far down differences are real."""

    name: str
    layers: Layers
    labels: tuple[str, ...]
    """What the file calls each layer."""

    texts: int
    dtype: torch.dtype

    def notes(self) -> tuple[str, ...]:
        """Which layers hold numbers that are not finite, in words; reads every layer once."""
        found = []
        for label, layer in zip(self.labels, self.layers, strict=True):
            count = int((~torch.isfinite(layer)).sum())
            if count:
                found.append(
                    f"{label}: {count} of {layer.numel()} numbers are not finite; measures there are null"
                )
        return tuple(found)


def read_states(source: Source, *, name: str | None = None) -> States:
    """Hidden states from ``.npy``, ``.safetensors``, a tensor, an array, or tensors by name.

    One tensor is (tokens, dim), (texts, tokens, dim) or (layers, texts, tokens, dim). Several named tensors are
    one layer each, (tokens, dim) or (texts, tokens, dim), in the natural order of their names: ``layer_2`` comes
    before ``layer_10``. Layer 0 is the first.

    >>> states = read_states(torch.zeros(5, 2, 7, 4))
    >>> len(states.layers), states.layers[4].shape, states.texts, states.labels[0]
    (5, torch.Size([2, 7, 4]), 2, 'layer 0')
    """
    entries = _entries(source)
    title = name or (Path(source).stem if isinstance(source, str | os.PathLike) else "tensors")
    for entry in entries:
        _check_states(entry, several=len(entries) > 1)
    if len(entries) == 1 and len(entries[0].shape) == 4:
        stacked = entries[0]
        readers = [_reader(stacked, layer) for layer in range(stacked.shape[0])]
        labels = tuple(f"layer {layer}" for layer in range(stacked.shape[0]))
    else:
        readers = [_reader(entry, None) for entry in entries]
        labels = tuple(entry.name for entry in entries)
    counts = {entry.shape[-3] if len(entry.shape) > 2 else 1 for entry in entries}
    if len(counts) > 1:
        raise ShapeError(
            f"the layers of {title!r} hold different numbers of texts ({', '.join(map(str, sorted(counts)))}); "
            "expected the same texts in every layer"
        )
    dtypes = [entry.dtype for entry in entries if entry.dtype is not None]
    coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
    return States(name=title, layers=Layers(readers), labels=labels, texts=counts.pop(), dtype=coarsest)


@final
class TensorBatches(Iterator[Batch]):
    """Ready inputs in batches; ``axes`` tells along which axes texts lie."""

    def __init__(self, whole: Batch, axes: Axes, batch_size: int) -> None:
        self.axes = axes
        self._parts = (whole.part(n, n + batch_size) for n in range(0, len(whole), batch_size))

    def __next__(self) -> Batch:
        return next(self._parts)


def tensor_batches(
    source: Source, model: nn.Module, *, batch_size: int = 8, layout: Layout | None = None
) -> TensorBatches:
    """Ready inputs of a model as batches, cut along the axis that holds texts.

    Whole numbers are token ids, (tokens) or (texts, tokens); floating-point numbers are token embeddings,
    (tokens, dim) or (texts, tokens, dim), cast to the model's dtype, or whatever a model of images or sound
    reads. A model that reads tokens before texts is given them so; which of the two axes holds texts is found on the
    model, whose blocks ``layout`` names. Several named tensors are passed under their names; where a mask of padding
    is among them, the tokens it leaves out are not measured.
    """
    if batch_size < 1:
        raise ConfigError(f"a batch of {batch_size} texts cannot be made; expected 1 or more")
    entries = _entries(source)
    takes = inputs_of(model)
    found = {entry.name: entry for entry in entries}
    if len(entries) == 1 and entries[0].name not in takes:
        found = {_input_name(entries[0], model, takes): entries[0]}
    unknown = [key for key in found if key != POSITIONAL and key not in takes]
    if unknown:
        raise ConfigError(
            f"the tensor {unknown[0]!r} is not an input of {type(model).__name__}; its inputs are {', '.join(takes)}"
        )
    inputs = {key: _with_texts(entry, key, model) for key, entry in found.items()}
    inputs = with_decoder(inputs, takes)
    model = unwrapped(model)
    if layout is None:
        with suppress(RankscopeError):  # a module without blocks has no states to look at
            layout = layout_of(model)
    axes = find_axes(model, layout, inputs)
    for key, entry in found.items():
        if (
            axes.axis == 1 and len(entry.shape) < inputs[key].ndim
        ):  # one text: its axis goes where the model wants it
            inputs[key] = inputs[key].movedim(0, 1)
        _check_tokens(entry, key, inputs[key], axes.inputs[key])
    texts = next((inputs[key].shape[axis] for key, axis in axes.inputs.items() if axis is not None), 1)
    labels = tuple(f"input {number + 1}" for number in range(texts))
    whole = Batch(inputs=inputs, is_token=None, labels=labels, text_axes=axes.inputs)
    return TensorBatches(replace(whole, is_token=_measured(whole)), axes, batch_size)


def _measured(batch: Batch) -> Tensor | None:
    """Which tokens are measured, ``(texts, tokens)``, as the inputs tell; None if they do not."""
    mask = batch.by_text("attention_mask")
    if mask is not None:
        return mask != 0
    padding = batch.by_text("src_key_padding_mask")
    if padding is not None:
        return padding == 0  # true, or minus infinity, on padding
    for key in ("input_ids", "inputs_embeds"):
        value = batch.by_text(key)
        if value is not None:
            return torch.ones(value.shape[:2], dtype=torch.bool)
    return None


def _input_name(entry: Entry, model: nn.Module, takes: tuple[str, ...]) -> str:
    """Under which name a single tensor is passed, from its dtype and what the model reads."""
    by_kind = {"image": ("pixel_values",), "audio": ("input_values", "input_features")}
    wanted = ("input_ids",) if entry.dtype is None else by_kind.get(kind_of(model), ("inputs_embeds",))
    return next((name for name in wanted if name in takes), POSITIONAL)


def _with_texts(entry: Entry, key: str, model: nn.Module) -> Tensor:
    """The tensor with an axis of texts, its numbers of the type that the model reads."""
    value = entry.read(None)
    axes = _axes_of(entry, key, model)
    if axes is not None and value.ndim == axes - 1:
        value = value[None]
    if axes is not None and (value.ndim != axes or not value.numel()):
        raise _wrong_shape(entry, axes)
    if entry.dtype is None:
        return value if value.dtype == torch.bool else value.long()
    if "mask" not in key and not bool(value.isfinite().all()):
        count = int((~value.isfinite()).sum())
        raise ShapeError(
            f"the input {entry.name!r} holds {count} numbers that are NaN or infinite, of {value.numel()}; "
            "expected finite numbers"
        )
    return value.to(dtype_of(model))


def _axes_of(entry: Entry, key: str, model: nn.Module) -> int | None:
    """How many axes an input has with that of texts; None where any number is taken."""
    if key == POSITIONAL and kind_of(model) == "tensor":
        return 2 if entry.dtype is None else 3 if len(entry.shape) <= 3 else None  # pictures go as they are
    return {"input_ids": 2, "attention_mask": 2, "inputs_embeds": 3}.get(key)


def _check_tokens(entry: Entry, key: str, value: Tensor, axis: int | None) -> None:
    is_tokens = key in ("input_ids", "inputs_embeds") or (key == POSITIONAL and value.ndim <= 3)
    if is_tokens and axis is not None and value.ndim > 1 and value.shape[1 - axis] < 2:
        raise _wrong_shape(entry, value.ndim, axis)


def _wrong_shape(entry: Entry, axes: int, axis: int = 0) -> ShapeError:
    names = ("texts", "tokens", "dim") if axis == 0 else ("tokens", "texts", "dim")
    expected = f"({', '.join(names[:axes])}) with at least two tokens"
    return ShapeError(f"the input {entry.name!r} has shape {entry.shape}; expected {expected}")


def _check_states(entry: Entry, *, several: bool) -> None:
    ranks = (2, 3) if several else (2, 3, 4)
    if len(entry.shape) not in ranks or 0 in entry.shape:
        expected = "(tokens, dim) or (texts, tokens, dim)" if several else SHAPES
        raise ShapeError(f"the states {entry.name!r} have shape {entry.shape}; expected {expected}")
    if entry.shape[-2] < 2:
        raise ShapeError(
            f"the states {entry.name!r} have shape {entry.shape}, one token per text; at least two are needed"
        )
    if entry.dtype is None:
        raise ShapeError(f"the states {entry.name!r} are not floating-point numbers of 16, 32 or 64 bits")


def _reader(entry: Entry, index: int | None) -> Callable[[], Tensor]:
    def read() -> Tensor:
        value = entry.read(index)
        return value if value.ndim == 3 else value[None]

    return read


def _entries(source: Source) -> list[Entry]:
    if isinstance(source, Tensor):
        return [_of_tensor("tensor", source)]
    if isinstance(source, np.ndarray):
        return [_of_array("array", source)]
    if isinstance(source, Mapping):
        found = [_of_tensor(name, value) for name, value in source.items()]
    else:
        found = _in_file(Path(source).expanduser())
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


def _of_slice(file: Path, name: str, part: Any) -> Entry:
    def read(index: int | None) -> Tensor:
        with safe_open(file, framework="pt") as stored:
            value: Tensor = stored.get_tensor(name) if index is None else stored.get_slice(name)[index]
            return value

    return Entry(
        name=name, shape=tuple(part.get_shape()), dtype=_SAFE_DTYPES.get(part.get_dtype()), read=read
    )


def _of_tensor(name: str, value: Tensor) -> Entry:
    known = value.dtype if value.dtype in _SAFE_DTYPES.values() else None
    return Entry(
        name=name,
        shape=tuple(value.shape),
        dtype=known,
        read=lambda index: value.detach() if index is None else value[index].detach(),
    )


def _of_array(name: str, array: NDArray[Any]) -> Entry:
    native = array.dtype.newbyteorder("=")
    if native.kind not in "fiub" or native.itemsize > 8:
        raise ShapeError(f"the array {name!r} has dtype {array.dtype}; expected numbers that torch can hold")

    def read(index: int | None) -> Tensor:
        # A copy of the part that was asked for: the file is mapped read-only, and torch wants to own its memory.
        return torch.from_numpy(np.array(array if index is None else array[index], dtype=native))

    return Entry(
        name=name,
        shape=tuple(array.shape),
        dtype={2: torch.float16, 4: torch.float32, 8: torch.float64}[native.itemsize]
        if native.kind == "f"
        else None,
        read=read,
    )
