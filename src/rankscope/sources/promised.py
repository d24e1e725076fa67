"""Weights that are promised and not yet read: a model whose files may be larger than memory, read a block at a time.

A model is built by its library as ever, only that it is given promises in place of tensors. A promise has a shape and
a dtype; what the library does to it on the way into the model (renaming, casting, joining the maps of experts) is
written down, and done once the tensor is read. So names, dtypes and ties of weights stay the library's business here
too. Built, the model reads a weight when its own code asks for it by name, and not before (:class:`Promises`).
"""

import json
import mmap
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from rankscope.errors import FileError, NotTapped, Option
from rankscope.results.files import from_json
from rankscope.sources.roles import every_module
from rankscope.sources.weights import Counts, counts_of

_DTYPES = {
    "BOOL": torch.bool,
    **{f"I{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": getattr(torch, f"uint{bits}") for bits in (8, 16, 32, 64)},
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""Names of dtypes in the header of a safetensors file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """Where a tensor lies in a safetensors file."""

    name: str
    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """Bytes before it in the file."""

    size: int
    """Bytes that it takes."""


def stored_tensors(file: Path) -> Iterator[Stored]:
    """Every tensor of a safetensors file whose header was looked at before; nothing but the header is read."""
    with open(file, "rb") as content:
        (length,) = struct.unpack("<Q", content.read(8))
        header = json.loads(content.read(length))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _DTYPES:
            raise FileError(
                f"the tensor {name!r} of {str(file)!r} is of the dtype {entry['dtype']}, which cannot be read block by "
                f"block; expected one of {', '.join(_DTYPES)}"
            )
        start, stop = entry["data_offsets"]
        yield Stored(
            name=name,
            file=file,
            dtype=_DTYPES[entry["dtype"]],
            shape=tuple(entry["shape"]),
            start=8 + length + start,
            size=stop - start,
        )


def read_stored(one: Stored) -> Tensor:
    """The tensor, in memory of its own that is given back when it is dropped.

    It lies as far from the border of a page as in the file, because sums may depend on that: a model whose file is
    mapped into memory computes the same bits.
    """
    if not one.size:
        return torch.empty(one.shape, dtype=one.dtype)
    before = one.start % mmap.PAGESIZE
    room = _room(before + one.size)
    with open(one.file, "rb", buffering=0) as content:
        content.seek(one.start)
        view, done = memoryview(room)[before:], 0
        while done < one.size:
            count = content.readinto(view[done : done + _AT_ONCE])
            if not count:
                raise FileError(
                    f"cannot read {one.name!r} in {str(one.file)!r}: the file ends {one.size - done} bytes too early; "
                    "it is damaged or was changed while it was read, copy it again"
                )
            done += count
    flat = torch.frombuffer(room, dtype=one.dtype, offset=before, count=one.size // one.dtype.itemsize)
    return flat.reshape(one.shape)


def _room(size: int) -> mmap.mmap:
    """Fresh memory, the process's own alone where the system tells that from shared memory."""
    try:
        if hasattr(mmap, "MAP_ANONYMOUS"):
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return mmap.mmap(-1, size)
    except OSError as error:  # also where an address space is limited
        raise MemoryError(f"there is no room for {size} bytes") from error


_AT_ONCE = 2**30
"""Bytes that are read at a time: systems read at most 2 GB."""


# ------------------------------------------------------------------------------------------------------ one promise


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """What is to be done to tensors once they are there; ``place`` picks one of several results."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    place: int | None


class Promise(Tensor):
    """A tensor that is not in memory: its shape and dtype, and how to make it."""

    shadow: Tensor
    source: "Stored | _Step"
    made_by: "Promises"
    counts: Counts | None
    """How many entries are NaN and how many infinite, once it was read."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as subclasses do

    @staticmethod
    def __new__(cls, shadow: Tensor, source: "Stored | _Step", made_by: "Promises") -> "Promise":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            shadow.size(),
            strides=shadow.stride(),
            storage_offset=shadow.storage_offset(),
            dtype=shadow.dtype,
            device=torch.device("cpu"),
        )
        made.shadow, made.source, made.made_by, made.counts = shadow, source, made_by, None
        return made

    @property
    def memory(self) -> int:
        """The same for all views of one tensor."""
        return int(self.shadow.untyped_storage()._cdata)

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"Promise({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # as torch calls it
        cls,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Write down what is done to promises; they have no numbers, so that what asks for some is an error."""
        kwargs = kwargs or {}
        promise = next(one for one in tree_flatten((args, kwargs))[0] if isinstance(one, Promise))
        if not promise.made_by.is_planning and function is not torch.ops.aten.detach.default:
            raise NotTapped(
                f"{function} was asked of a weight that is not in memory: only a block at a time is, where ",
                Option("stream", True),
                " is asked for; leave it out",
            )
        shown = dict(kwargs) | ({"device": "meta"} if kwargs.get("device") is not None else {})
        made = function(*_shadows(args), **_shadows(shown))
        if function._schema.is_mutable:  # of something that is thrown away, or else settling says so
            promise.made_by.changed.add(promise.memory)
            return promise
        if isinstance(made, Tensor):
            return cls(made, _Step(function, args, kwargs, None), promise.made_by)
        if isinstance(made, list | tuple) and all(isinstance(one, Tensor) for one in made):
            return type(made)(
                cls(one, _Step(function, args, kwargs, place), promise.made_by)
                for place, one in enumerate(made)
            )
        raise NotTapped(
            f"loading this model asks for the numbers of a weight ({function}), so that it cannot be read block by "
            "block; leave out ",
            Option("stream", True),
        )


def _shadows(value: Any) -> Any:
    """The same with tensors that have shapes only in place of promises and of tensors."""
    return tree_map_only(
        Tensor, lambda one: one.shadow if isinstance(one, Promise) else one.to("meta"), value
    )


def _made_of(promise: Promise) -> Iterator[Promise]:
    """The promise and all that it is made of, as often as it asks for each."""
    yield promise
    if isinstance(promise.source, _Step):
        for part in tree_flatten((promise.source.args, dict(promise.source.kwargs)))[0]:
            if isinstance(part, Promise):
                yield from _made_of(part)


# ----------------------------------------------------------------------------------------------------- all of a model


@dataclass(slots=True, eq=False)
class Promises:
    """All promised weights of one model, and those of them that are in memory now.

    A weight is read when it is first asked for where ``is_open``, and stays until :meth:`drop`.
    """

    is_planning: bool = True
    """Whether the library still builds the model."""

    changed: set[int] = field(default_factory=set)
    """Memory of promises that were changed in place while the library built the model."""

    reads: Counter[str] = field(default_factory=Counter)
    """How often each tensor of the files was read."""

    is_open: bool = False
    """Whether the model's own code runs: it gets real weights, all other code gets promises, with shapes and dtypes."""

    within: bool = False
    """Whether a block is running: what it asks for is not needed after it."""

    _here: dict[int, tuple[Promise, nn.Parameter]] = field(default_factory=dict)
    _kept: set[int] = field(default_factory=set)  # needed again, or by several parts
    _users: Counter[int] = field(
        default_factory=Counter
    )  # of each tensor in a file: weights not yet made of it
    _parts: dict[int, Tensor] = field(
        default_factory=dict
    )  # tensors in files that further weights are made of
    _all: dict[int, Promise] = field(default_factory=dict)
    _has_dropped: bool = False

    def of(self, files: Iterable[Path]) -> dict[str, Tensor]:
        """The tensors of these files by name, as promises; of two of one name the later one, as when they are read."""
        stored = {one.name: one for file in files for one in stored_tensors(file)}
        return {
            name: Promise(torch.empty(one.shape, dtype=one.dtype, device="meta"), one, self)
            for name, one in stored.items()
        }

    def settle(self, model: nn.Module) -> None:
        """The library has built the model: its weights are read when asked for from here on, its buffers now."""
        modules = every_module(model)
        holders: Counter[int] = Counter()
        for module in modules:
            for held in module._parameters.values():
                if isinstance(held, Promise):
                    self._all[id(held)] = held
                    holders[id(held)] += 1
        self._kept = {key for key, count in holders.items() if count > 1}
        buffers = [
            (module, name, held)
            for module in modules
            for name, held in module._buffers.items()
            if isinstance(held, Promise)
        ]
        for promise in (*self._all.values(), *(buffer for _, _, buffer in buffers)):
            parts = list(_made_of(promise))
            self._users.update(id(part) for part in parts if isinstance(part.source, Stored))
            if any(part.memory in self.changed for part in parts):
                raise NotTapped(
                    "loading this model changes weights in place, so that they cannot be read block by block; leave "
                    "out ",
                    Option("stream", True),
                )
        self.is_planning = False
        for module, name, buffer in buffers:
            module._buffers[name] = self._made(buffer)
        for module in modules:
            if any(isinstance(held, Promise) for held in module._parameters.values()):
                module._parameters = _Asked(module._parameters, self)

    def forget(self) -> None:
        """Give back the memory of all weights."""
        self.is_open = False
        self._here.clear()
        self._parts.clear()

    def asked(self, promise: Promise) -> Tensor:
        """The weight itself, or the promise where no weights are to be read."""
        if not self.is_open:
            return promise
        found = self._here.get(id(promise))
        if found is None:
            if self._has_dropped and (not self.within or promise.counts is not None):
                self._kept.add(id(promise))  # between blocks, or again: it may be asked for at every block
            found = self._here[id(promise)] = (promise, self._weight(promise))
        return found[1]

    def whole(self, tensor: Tensor) -> Tensor:
        """The weight itself where this is a promise, also one that the model was not built with, such as a head's."""
        return self.asked(tensor) if isinstance(tensor, Promise) else tensor

    def counts(self, value: Tensor, *, infinite: bool) -> Counts:
        """As ``counts_of``, of weights as they were when they were read."""
        if isinstance(value, Promise):
            return value.counts or (0, 0)
        return counts_of(value, infinite=infinite)

    def keep(self, promises: Iterable[Tensor]) -> None:
        """These are needed to the end: they stay once they were read."""
        self._kept |= {id(promise) for promise in promises}

    def drop(self) -> None:
        """Give back the memory of all weights but those that are needed by several parts or between blocks."""
        self._has_dropped = True
        self._here = {key: found for key, found in self._here.items() if key in self._kept}

    def look_at_the_rest(self) -> None:
        """Read what no text has asked for, one at a time, to see whether its entries are numbers."""
        for promise in self._all.values():
            if promise.counts is None:
                self._weight(promise)

    def _weight(self, promise: Promise) -> nn.Parameter:
        with torch.no_grad():
            value = self._made(promise)
        promise.counts = counts_of(value, infinite=True)
        return nn.Parameter(value, requires_grad=promise.requires_grad)

    def _made(self, promise: Promise) -> Tensor:
        """Read from the files and made as the library would have; nothing that only led to it stays in memory."""
        step = promise.source
        if isinstance(step, Stored):
            return self._read(promise, step)
        args, kwargs = tree_map_only(Promise, self._made, (step.args, dict(step.kwargs)))
        value = step.function(*args, **kwargs)
        return value if step.place is None else value[step.place]  # type: ignore[no-any-return]

    def _read(self, promise: Promise, stored: Stored) -> Tensor:
        """A tensor of a file; it stays as long as further weights are to be made of it."""
        value = self._parts.pop(id(promise), None)
        if value is None:
            self.reads[stored.name] += 1
            value = read_stored(stored)
        self._users[id(promise)] -= 1
        if self._users[id(promise)] > 0:
            self._parts[id(promise)] = value
        return value


class _Asked(dict[str, Any]):
    """The parameters of a module: promises where they are looked over, weights where one is asked for by name."""

    def __init__(self, held: Mapping[str, Any], promises: Promises) -> None:
        super().__init__(held)
        self.promises = promises

    def __getitem__(self, name: str) -> Any:
        held = super().__getitem__(name)
        return self.promises.asked(held) if isinstance(held, Promise) else held


def check_index(files: Sequence[Path], names: Collection[str]) -> None:
    """Raise if the index of these files names tensors that none of them holds."""
    for index in sorted(files[0].parent.glob("*.safetensors.index.json")):
        named = from_json(index.read_text(encoding="utf-8"))["weight_map"]
        if set(named.values()) != {file.name for file in files}:
            continue  # of other files
        missing = sorted(set(named) - set(names))
        if missing:
            raise FileError(
                f"{str(index)!r} says that {missing[0]!r} is in {named[missing[0]]!r}, which does not hold it"
                + (f" ({len(missing)} such tensors)" if len(missing) > 1 else "")
                + "; copy the whole folder again"
            )
