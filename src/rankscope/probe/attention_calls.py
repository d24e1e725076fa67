"""What torch computes inside the blocks of a live model, function by function.

A map is hidden from hooks, which see modules only: fused attention never returns it, and every library keeps it
somewhere else. But all of them call one of two torch functions, ``softmax`` or ``scaled_dot_product_attention``, and
those calls can be seen without changing the model.
"""

import math
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rankscope.sources.family import Layout, Stack
from rankscope.sources.taps import first_tensor, plain_code

Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BlockCall:
    """One run of one block: where it is, and the shape of the state that entered it without its channels."""

    stack: Stack
    layer: int
    path: str
    sizes: tuple[int, ...]

    @property
    def texts_and_tokens(self) -> tuple[tuple[int, int], ...]:
        """Ways to read the shape: texts first, or tokens first; a lone text, and patches on a grid, are texts first."""
        first, *rest = self.sizes
        if not rest:
            return ((1, first),)
        return ((first, math.prod(rest)),) if len(rest) > 1 else ((first, rest[0]), (rest[0], first))

    def __str__(self) -> str:
        return f"block {self.layer} ({self.path}) of stack {self.stack.name!r}"


def listed(things: Sequence[str], most: int = 4) -> str:
    """The first few of them in a row, and how many more there are.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    rest = f" and {len(things) - most} more" if len(things) > most else ""
    return ", ".join(things[:most]) + rest


class Listener(Protocol):
    """What is told of every block call and of every torch function inside it."""

    def opened(self, call: BlockCall, state: Tensor) -> Tensor | None:
        """A block is about to read ``state``; a tensor that is returned takes its place."""

    def called(
        self, call: BlockCall, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Stands for ``function(*args, **kwargs)`` inside a block: must return what the model goes on with."""

    def closed(self, call: BlockCall, output: object) -> None:
        """A block has returned ``output``."""

    def passed(self) -> None:
        """A forward pass of the whole model is over."""


@contextmanager
def watched(model: nn.Module, layout: Layout, listener: Listener) -> Iterator[None]:
    """The listener follows every forward pass inside; afterwards the model is as before, whatever happened."""
    mode = _Mode(listener)
    with ExitStack() as undo:
        undo.enter_context(plain_code(model))
        undo.enter_context(python_attention(model))
        for handle in _hooks(model, layout, mode):
            undo.callback(handle.remove)
        undo.enter_context(mode)
        yield


class _Mode(TorchFunctionMode):
    """Passes the torch functions that are called inside a block on to the listener, all others straight through."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener
        self.open: list[BlockCall] = []
        self.counts: Counter[str] = Counter()

    def __torch_function__(
        self, func: Function, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.open:
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:  # a mode is off inside its own handler; what this function calls must be seen
                return _multi_head_attention(*args, **kwargs)
        return self.listener.called(self.open[-1], func, args, kwargs)


def _opened_up(function: Function) -> Function:
    """A Python function of torch without its own hand-over to modes, which would never come to its inside."""
    assert isinstance(function, types.FunctionType)  # noqa: S101 - tells mypy what torch's stubs do not
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    return types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)


_multi_head_attention = _opened_up(F.multi_head_attention_forward)


def _hooks(model: nn.Module, layout: Layout, mode: _Mode) -> Iterator[Any]:
    """Hooks that tell the mode which block is running. The first forward pass of the root starts the count anew."""

    def start(*_: object) -> None:
        mode.open.clear()
        mode.counts.clear()

    def finish(*_: object) -> None:
        mode.listener.passed()

    yield model.register_forward_pre_hook(start)
    for stack in layout.stacks:
        for path in stack.blocks:
            block = model.get_submodule(path)
            yield block.register_forward_pre_hook(_enter(mode, stack, path), with_kwargs=True)
            yield block.register_forward_hook(_leave(mode))
    yield model.register_forward_hook(finish)


def _enter(mode: _Mode, stack: Stack, path: str) -> Function:
    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        layer = mode.counts[stack.name] % stack.calls + 1
        mode.counts[stack.name] += 1
        state = first_tensor((args, kwargs))
        if state is None:
            return None
        call = BlockCall(stack=stack, layer=layer, path=path, sizes=tuple(state.shape[:-1]))
        instead = mode.listener.opened(call, state)
        mode.open.append(call)
        if instead is None:
            return None
        return (
            tuple(instead if value is state else value for value in args),
            {name: instead if value is state else value for name, value in kwargs.items()},
        )

    return enter


def _leave(mode: _Mode) -> Function:
    def leave(_: nn.Module, __: object, output: object) -> None:
        if mode.open:
            mode.listener.closed(mode.open.pop(), output)

    return leave


@contextmanager
def python_attention(model: nn.Module) -> Iterator[None]:
    """Attention kernels outside torch (flash, flex, paged, from the Hub) replaced by eager attention inside.

    Only models of transformers have such a setting; the setting of every part of the model is restored.
    """
    configs = {id(config): config for module in model.modules() if (config := _config(module)) is not None}
    before = [(config, config._attn_implementation) for config in configs.values()]
    hidden = [(config, name) for config, name in before if _is_kernel(name)]
    try:
        for config, _ in hidden:
            config._attn_implementation = {
                "": "eager"
            }  # a dict changes this part alone, not the parts below it
        yield
    finally:
        for config, name in hidden:
            config._attn_implementation = {"": name}


def _config(module: nn.Module) -> Any:
    config = getattr(module, "config", None)
    return config if hasattr(config, "_attn_implementation") else None


def _is_kernel(name: object) -> bool:
    return isinstance(name, str) and (name.startswith(("flash", "flex", "paged")) or "/" in name)
