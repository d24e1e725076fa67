"""Copies in float64 of modules and arguments, and the way back from a copy's numbers to the model's own memory.

Memory is copied in spans, not tensor by tensor: tensors that share memory in the model (tied weights, views of one
buffer) share it in the copy, at the same strides, so that a view of the copy names a view of the model.
"""

import copy
import types
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from rankscope.errors import is_out_of_memory
from rankscope.network.norms import default_eps
from rankscope.sources.operations.graph import NotCaptured

RAISED = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
"""The dtypes that are too coarse to compare by, and what they become."""

_NUMBERS_OF = {
    torch.complex128: torch.float64,
    torch.complex64: torch.float32,
    torch.complex32: torch.float16,
}
_FIXED = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, type}
    | {types.BuiltinFunctionType}
)
"""Types of what nobody can write into, which needs no copy."""

_RMS_NORMS = frozenset({functional.rms_norm, torch.rms_norm})
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_OTHER_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_HELD = ("_parameters", "_buffers", "_modules")
_CONTAINERS = (dict, OrderedDict, list, tuple, set)
_EVERY = frozenset(vars(nn.Module()))
"""What every module holds: most of it are containers of hooks, and empty."""


@dataclass(frozen=True, slots=True, eq=False)
class _Span:
    """A piece of the model's memory, from element ``start`` on, and the same numbers in a row of their own."""

    model: Tensor
    start: int
    copy: Tensor


class Memory:
    """What has been copied so far: from tensors of the model to their twins, and back.

    Once it ``is_whole``, what is copied further (arguments) is not the model's and has no way back.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.is_whole = False
        self._spans: dict[tuple[int, torch.dtype], list[_Span]] = {}
        self._back: dict[int, _Span] = {}
        wanted: dict[tuple[int, torch.dtype], list[tuple[int, int, Tensor]]] = {}
        for tensor in tensors:
            if _checked(tensor).numel():
                wanted.setdefault(_place(tensor), []).append((*_extent(tensor), tensor))
        for pieces in wanted.values():
            start, end, model = min(pieces, key=lambda piece: piece[0])
            for first, last, tensor in sorted(pieces, key=lambda piece: piece[0]):
                if first >= end:  # nothing so far reaches as far as this one begins
                    self._add(model, start, end)
                    start, model = first, tensor
                end = max(end, last) if first < end else last
            self._add(model, start, end)

    def _add(self, model: Tensor, start: int, end: int) -> _Span:
        row = _plain(model).as_strided((end - start,), (1,), start)
        span = _Span(model, start, row.to(RAISED.get(row.dtype, row.dtype), copy=True))
        self._spans.setdefault(_place(model), []).append(span)
        if not self.is_whole:
            self._back[span.copy.untyped_storage().data_ptr()] = span
        return span

    def twin(self, tensor: Tensor) -> Tensor:
        """The same numbers in the copy, in float64 where they are floating; parameters stay parameters."""
        if not _checked(tensor).numel():
            found = _plain(tensor).to(RAISED.get(tensor.dtype, tensor.dtype), copy=True)
        else:
            start, end = _extent(tensor)
            spans = self._spans.get(_place(tensor), ())
            inside = (one for one in spans if one.start <= start and end <= one.start + len(one.copy))
            span = next(inside, None) or self._add(tensor, start, end)
            found = span.copy.as_strided(tensor.shape, tensor.stride(), start - span.start)
        if type(tensor) is not Tensor:
            found = Tensor._make_subclass(type(tensor), found, False)
            found.__dict__.update(tensor.__dict__)
        return found

    def own(self, tensor: Tensor) -> Tensor | None:
        """The model's own numbers at the place of a view of the copy; None where there are no such, or others now."""
        if not tensor.numel() or tensor.is_conj() or tensor.is_neg():
            return None
        span = self._back.get(tensor.untyped_storage().data_ptr())
        if span is None:
            return None
        row = _plain(span.model).as_strided((len(span.copy),), (1,), span.start)
        if span.copy.is_complex() and tensor.dtype == _NUMBERS_OF[span.copy.dtype]:
            row = torch.view_as_real(row).flatten()
        elif tensor.dtype != span.copy.dtype:
            return None
        offset = row.storage_offset() + tensor.storage_offset()
        found = row.as_strided(tensor.shape, tensor.stride(), offset)
        return found if torch.equal(found.to(tensor.dtype), tensor) else None


def _plain(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        return tensor.detach()


def _place(tensor: Tensor) -> tuple[int, torch.dtype]:
    return tensor.untyped_storage().data_ptr(), tensor.dtype


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The first element of its memory that a tensor reads, and the first after the last."""
    start = tensor.storage_offset()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return int(start), int(start + sum((size - 1) * stride for size, stride in steps) + 1)


def _checked(tensor: Tensor) -> Tensor:
    """The tensor itself, if its numbers lie in ordinary memory."""
    kind = type(tensor).__name__
    if tensor.is_meta or is_lazy(tensor):
        raise NotCaptured(f"a tensor without numbers ({kind}, shape {_shape(tensor)})")
    if type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        raise NotCaptured(f"a tensor of the class {kind}, which is not held as ordinary numbers")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise NotCaptured(f"a tensor with the layout {tensor.layout} and dtype {tensor.dtype}")
    return tensor


def _shape(tensor: Tensor) -> str:
    with suppress(RuntimeError):
        return str(tuple(tensor.shape))
    return "not known yet"


class _Raising(TorchFunctionMode):
    """Tensors that ``deepcopy`` meets, wherever they hide, become twins."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.__deepcopy__, Tensor.clone):  # a parameter copies itself by a clone
            return self._memory.twin(args[0])
        return func(*args, **(kwargs or {}))


class OwnEps(TorchFunctionMode):
    """``rms_norm`` without an eps takes that of its dtype: in a copy in float64 it is given that of the model."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._eps = default_eps(dtype)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _RMS_NORMS and kwargs.get("eps") is None:
            kwargs = dict(kwargs)
            if len(args) < 4:
                kwargs["eps"] = self._eps
            elif args[3] is None:
                args = (*args[:3], self._eps)
        return func(*args, **kwargs)


def one_by_one(twin: nn.Module, modules: Iterable[nn.Module]) -> None:
    """Let a copy multiply its experts one by one: the fused products of transformers have no float64.

    ``modules`` are those it is a copy of; a configuration that the copy shares with them stays as it is.
    """
    configs = [getattr(inner, "config", None) for inner in modules]
    if not any(hasattr(one, "_experts_implementation") for one in configs):
        return
    own = set(map(id, configs))
    for inner in twin.modules():
        settings: Any = getattr(inner, "config", None)
        if hasattr(settings, "_experts_implementation") and id(settings) not in own:
            settings._experts_implementation = "eager"


class Walk:
    """What a module holds, module by module, as copies ask for it: looked up once where a module is copied often.

    It is that of the moment, so the module must not be run or changed between two copies.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.named = dict(module.named_modules())
        scripted = [path for path, one in self.named.items() if isinstance(one, torch.jit.ScriptModule)]
        if scripted:
            raise NotCaptured("a TorchScript module; give the module it was made from", path=scripted[0])
        self.parameters = {id(one): one for one in module.parameters()}
        self.tensors = list(_tensors(self.named.values()))
        self.holds = {path: _Held.of(one) for path, one in self.named.items() if not _is_compiled(one)}


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """The attributes of one module.

    Args:
        plain: all of them, in order; those of the other fields have to be replaced in a copy.
        empty: containers that every module has, here without contents, and their types.
        others: what has to be copied.
        hooks: forward hooks, by the name of their container.
    """

    plain: dict[str, Any]
    empty: list[tuple[str, type]]
    others: list[tuple[str, Any]]
    hooks: list[tuple[str, Any]]

    @classmethod
    def of(cls, module: nn.Module) -> "_Held":
        inside = dict(vars(module)) | {"_compiled_call_impl": None}
        hooks = [(name, inside.get(name)) for name in _HOOKS]
        inside |= dict.fromkeys((*_HOOKS, *_OTHER_HOOKS))
        empty: list[tuple[str, type]] = [(name, OrderedDict) for name in _OTHER_HOOKS]
        others = list[tuple[str, Any]]()
        for name, value in inside.items():
            kind = type(value)
            if kind in _FIXED:
                continue
            if kind in _CONTAINERS and not value and name in _EVERY:  # its own, shared with no other module
                empty.append((name, kind))
            else:
                others.append((name, value))
        return cls(inside, empty, others, hooks)


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule"  # its class would import the compiler


class Copies:
    """A module and arguments copied with one memory: what they share is shared in the copies.

    Hooks of others stay behind, because they would write into what belongs to others; hooks of torch itself
    (``weight_norm``, ``spectral_norm``, pruning) are part of what a module computes and come along. What cannot be
    copied (locks, files, handles) is shared.

    Args:
        shared: whether parameters stay the same tensors: a copy of a copy, for one more call.
        hooked: paths of the modules whose hooks stayed behind.
    """

    def __init__(self, module: nn.Module | Walk, *, shared: bool = False) -> None:
        walk = module if isinstance(module, Walk) else Walk(module)
        held = walk.parameters if shared else {}
        self.memory = Memory(one for one in walk.tensors if id(one) not in held)
        self.hooked: list[str] = []
        self._memo: dict[int, Any] = dict(held)
        self.module = self._module(walk)

    def _module(self, walk: Walk) -> nn.Module:
        for one in walk.named.values():
            self._memo[id(one)] = object.__new__(type(one))
        for one in reversed(walk.named.values()):  # of compiled modules, those inside come first
            if _is_compiled(one):
                self._memo[id(one)] = self._memo[id(one._orig_mod)]
        for tensor in walk.tensors:
            if id(tensor) not in self._memo:
                self._memo[id(tensor)] = self.memory.twin(tensor)
        for path, held in walk.holds.items():
            fresh = vars(self._memo[id(walk.named[path])])
            fresh.update(held.plain)
            for name, hooks in held.hooks:
                kept = self._hooks(hooks, path)
                fresh[name] = self.copied(kept) if kept else kept
            for name, kind in held.empty:
                fresh[name] = kind()
            for name, value in held.others:
                fresh[name] = self.copied(value)
        self.memory.is_whole = True
        found: nn.Module = self._memo[id(walk.module)]
        one_by_one(found, walk.named.values())
        return found

    def _hooks(self, hooks: Any, path: str) -> Any:
        kept = OrderedDict[int, Any]()
        for key, hook in (hooks or {}).items():
            if is_torchs(hook):
                kept[key] = hook
            elif path not in self.hooked:
                self.hooked.append(path)
        return kept

    def copied(self, value: Any) -> Any:
        """A copy with twins in place of tensors; the thing itself where it cannot be copied."""
        if type(value) in _FIXED:
            return value
        if type(value) in (dict, OrderedDict) and id(value) not in self._memo and self._is_flat(value):
            found = type(value)((name, self._memo.get(id(leaf), leaf)) for name, leaf in value.items())
            self._memo[id(value)] = found
            self._memo.setdefault(id(self._memo), []).append(
                value
            )  # alive, as deepcopy keeps what it has copied
            return found
        known = len(self._memo)
        self._replaced(value)
        try:
            with _Raising(self.memory):
                return copy.deepcopy(value, self._memo)
        except Exception as error:
            if isinstance(error, NotCaptured) or is_out_of_memory(error):
                raise
            for key in list(self._memo)[known:]:  # half-made copies
                del self._memo[key]
            return value

    def _is_flat(self, value: dict[Any, Any]) -> bool:
        """Whether a dict holds nothing but what is known: parameters and modules, most of what there is to copy."""
        return all(
            type(name) is str and (type(leaf) in _FIXED or id(leaf) in self._memo)
            for name, leaf in value.items()
        )

    def _replaced(self, value: Any) -> None:
        """A function put in place of a method keeps its way to the model in a closure, or in the values of its
        arguments, which copies do not enter."""
        if not isinstance(value, types.FunctionType) or id(value) in self._memo:
            return
        cells, held = (
            value.__closure__ or (),
            (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()),
        )
        if not any(_leads_to_module(cell) for cell in cells) and not any(map(_is_of_module, held)):
            return
        fresh = tuple(types.CellType() for _ in cells)
        twin = types.FunctionType(value.__code__, value.__globals__, value.__name__, None, fresh)
        self._memo[id(value)] = twin
        if value.__defaults__:
            twin.__defaults__ = tuple(map(self.copied, value.__defaults__))
        if value.__kwdefaults__:
            twin.__kwdefaults__ = {name: self.copied(one) for name, one in value.__kwdefaults__.items()}
        for cell, new in zip(cells, fresh, strict=True):
            with suppress(ValueError):  # an empty cell
                new.cell_contents = self.copied(cell.cell_contents)


def is_torchs(hook: object) -> bool:
    """Whether a hook belongs to torch itself (``weight_norm``, pruning): a part of what the module computes."""
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return str(home).startswith("torch.")


def _leads_to_module(cell: Any) -> bool:
    try:
        inside = cell.cell_contents
    except ValueError:
        return False
    return _is_of_module(inside)


def _is_of_module(value: object) -> bool:
    owner = getattr(value, "__self__", value)
    return isinstance(owner, nn.Module | Tensor | types.FunctionType)


def _tensors(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    """Parameters, buffers and tensors that are plain attributes, each once."""
    seen = set[int]()
    for one in modules:
        others = [
            held
            for name, held in vars(one).items()
            if type(held) not in _FIXED and name not in _HELD and not (type(held) in _CONTAINERS and not held)
        ]
        for value in [*one._parameters.values(), *one._buffers.values(), *tree_leaves(others)]:
            if isinstance(value, Tensor) and id(value) not in seen:
                seen.add(id(value))
                yield value
