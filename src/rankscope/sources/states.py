"""Hidden states that someone else computed, measured without any model: which axis is which, layer by layer."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import final, overload

import torch
from torch import Tensor

from rankscope.errors import Option, ShapeError
from rankscope.findings.reading import StateAxes
from rankscope.sources.entries import Entry, Index, Source, entries_of_source
from rankscope.sources.named_axes import AXES, names_of

_KNOWN = {2: AXES[2:], 4: AXES}
"""What the axes of one tensor are taken for where nobody says; three can be two things."""


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
    reading: StateAxes

    def notes(self) -> tuple[str, ...]:
        """Layers that their names leave out, and numbers that are not finite, in words; reads every layer once."""
        found = []
        places = [int(digits[-1]) for label in self.labels if (digits := re.findall(r"[0-9]+", label))]
        if len(places) == len(self.labels) and any(b - a != 1 for a, b in pairwise(places)):
            found.append(
                f"the tensors are numbered {', '.join(map(str, places))}, so that layers are missing between them; "
                "layers are counted in this order, and a factor per layer is one per tensor"
            )
        for label, layer in zip(self.labels, self.layers, strict=True):
            count = int((~torch.isfinite(layer)).sum())
            if count:
                found.append(
                    f"{label}: {count} of {layer.numel()} numbers are not finite; measures there are null"
                )
        return tuple(found)


def parse_axes(axes: str | Sequence[str]) -> tuple[str, ...]:
    """Names of axes in their order, or an error that says which there are.

    >>> parse_axes("layers, tokens, dim")
    ('layers', 'tokens', 'dim')
    """
    expected = (
        "tokens and dim, with layers and texts where there are axes of them, each once: layers,tokens,dim or "
        "texts,tokens,dim"
    )
    return names_of(axes, known=AXES, needed=("tokens", "dim"), expected=expected)


def read_states(
    source: Source, *, axes: str | Sequence[str] | None = None, name: str | None = None
) -> States:
    """Hidden states from ``.npy``, ``.safetensors``, a tensor, an array, tensors by name or one after the other.

    One tensor of two axes is (tokens, dim), of four (layers, texts, tokens, dim); of three it can be layers or texts,
    so ``axes`` must say: ``"layers,tokens,dim"``, or the names in any other order. Several tensors (a file of them, a
    mapping, the tuple ``hidden_states`` of Hugging Face) are one layer each, (tokens, dim) or (texts, tokens, dim);
    named ones in the natural order of their names: ``layer_2`` comes before ``layer_10``. Layer 0 is the first.

    >>> states = read_states(torch.zeros(5, 7, 4), axes="layers,tokens,dim")
    >>> len(states.layers), states.layers[4].shape, states.texts, states.labels[0]
    (5, torch.Size([1, 7, 4]), 1, 'layer 0')
    """
    entries = entries_of_source(source)
    title = name or (Path(source).stem if isinstance(source, str | os.PathLike) else "tensors")
    is_row = isinstance(source, Sequence) and not isinstance(source, str | Mapping)
    given = None if axes is None else parse_axes(axes)
    readings = [_reading(entry, given, is_layer=is_row or len(entries) > 1) for entry in entries]
    for entry, reading in zip(entries, readings, strict=True):
        _check(entry, reading.axes)
    counts = {_size(*one, "texts") for one in zip(entries, readings, strict=True)}
    if len(counts) > 1:
        raise ShapeError(
            f"the layers of {title!r} hold different numbers of texts ({', '.join(map(str, sorted(counts)))}); "
            "expected the same texts in every layer"
        )
    first = readings[0].axes
    if "layers" in first:
        number = _size(entries[0], readings[0], "layers")
        readers = [_reader(entries[0], first, layer) for layer in range(number)]
        labels = tuple(f"layer {layer}" for layer in range(number))
    else:
        readers = [_reader(entry, one.axes, 0) for entry, one in zip(entries, readings, strict=True)]
        labels = tuple(entry.name for entry in entries)
    dtypes = [entry.dtype for entry in entries if entry.dtype is not None]
    coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
    return States(
        name=title,
        layers=Layers(readers),
        labels=labels,
        texts=counts.pop(),
        dtype=coarsest,
        reading=readings[0],
    )


def _reading(entry: Entry, given: tuple[str, ...] | None, *, is_layer: bool) -> StateAxes:
    shape = f"the states {entry.name!r} have shape {entry.shape}"
    if given is not None:
        if len(given) != len(entry.shape):
            raise ShapeError(f"{shape}, but axes {','.join(given)!r} are {len(given)}; name every axis once")
        if is_layer and "layers" in given:
            raise ShapeError(f"{shape} and are one layer of several; leave layers out of the axes")
        return StateAxes(axes=given, how="given, one tensor per layer" if is_layer else "given")
    if is_layer:
        known = {2: AXES[2:], 3: AXES[1:]}.get(len(entry.shape))
        if known is None:
            raise ShapeError(f"{shape}; expected (tokens, dim) or (texts, tokens, dim) for each layer")
        return StateAxes(axes=known, how="one tensor per layer")
    if len(entry.shape) == 3:
        raise ShapeError(
            f"{shape}, which can be layers or texts of tokens; say which: ",
            Option("axes", "layers,tokens,dim"),
            " or ",
            Option("axes", "texts,tokens,dim"),
        )
    if len(entry.shape) not in _KNOWN:
        raise ShapeError(f"{shape}; expected (tokens, dim) or (layers, texts, tokens, dim), or axes that say")
    return StateAxes(axes=_KNOWN[len(entry.shape)], how="counted")


def _check(entry: Entry, axes: tuple[str, ...]) -> None:
    if 0 in entry.shape:
        raise ShapeError(f"the states {entry.name!r} have shape {entry.shape}: nothing to measure")
    if entry.shape[axes.index("tokens")] < 2:
        raise ShapeError(
            f"the states {entry.name!r} have shape {entry.shape}, one token per text; at least two are needed"
        )
    if entry.dtype is None:
        raise ShapeError(f"the states {entry.name!r} are not floating-point numbers of 16, 32 or 64 bits")


def _size(entry: Entry, reading: StateAxes, axis: str) -> int:
    return entry.shape[reading.axes.index(axis)] if axis in reading.axes else 1


def _reader(entry: Entry, axes: tuple[str, ...], layer: int) -> Callable[[], Tensor]:
    """Reads one layer as ``(texts, tokens, dim)``."""
    index: Index = (*(slice(None) for _ in range(axes.index("layers"))), layer) if "layers" in axes else ()
    left = [one for one in axes if one != "layers"]

    def read() -> Tensor:
        value = entry.read(index).permute(*(left.index(one) for one in AXES[1:] if one in left))
        return value if "texts" in left else value[None]

    return read
