"""What a live model does to its tokens after its last block: its own last state, and the modules on the way there.

A tree ends with the last block or with a final norm that it knows. Whether the model ends there too is a matter of
cause and effect: every tensor that is made from the output of the last block is followed, through modules and through
functions between them, until the tokens are handed to something that is no longer a state of all tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from rankscope.sources.family import Stack
from rankscope.sources.paths import is_inside, resolve
from rankscope.sources.runs import find_runs, holds_attention

_READERS = (
    *("linear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "einsum", "tensordot"),
    *("__getitem__", "select", "narrow", "index_select", "mean", "amax", "max"),
)
"""Functions that read a state to make something else of it: a projection, a token, a mean over tokens.

A sum is none of them: what is summed over tokens may be the state times the weights of a pooling.
"""

Passed = tuple[str, ...]
"""Paths of the modules that a tensor has come through since the last block."""


class Ending(TorchFunctionMode):
    """Follows the last state of a stack through the rest of one forward pass.

    The model's last state is what the outermost module around the blocks returns for every token and in the width of
    the blocks (``last_hidden_state``); where none returns such a thing, it is the last such tensor that enters or
    leaves a module beside the blocks, or is read by a function such as a matrix product.
    """

    def __init__(self, model: nn.Module, stack: Stack) -> None:
        super().__init__()
        self.last: Tensor | None = None
        self.passed: Passed = ()
        self._model, self._stack = model, stack
        self._derived: dict[
            int, tuple[Tensor, Passed]
        ] = {}  # the tensor itself, so that no other takes its id
        self._state: Tensor | None = None
        self._raw = torch.Size()
        self._turn: Callable[[Tensor], Tensor] = lambda x: x
        self._depth = self._calls = 0
        self._takes: Passed | None = (
            None  # what the open module beside the blocks got of the state, if anything
        )
        self._is_on = False

    @contextmanager
    def following(self) -> Iterator[Self]:
        """Hooks in place, functions watched."""
        blocks = [self._model.get_submodule(path) for path in self._stack.blocks]
        inside = {module for block in blocks for module in block.modules()}
        around = set(_around(self._model, self._stack.blocks[-1]))
        with ExitStack() as undo:
            handles = [block.register_forward_hook(self._block_left) for block in blocks]
            for path, module in self._model.named_modules():
                if module in around:
                    handles.append(module.register_forward_hook(self._owner_left))
                elif module not in inside:
                    handles.append(module.register_forward_pre_hook(self._entered, with_kwargs=True))
                    handles.append(module.register_forward_hook(self._left(path)))
            handles += [
                block.register_forward_pre_hook(self._stop) for block in _others(self._model, self._stack)
            ]
            for handle in handles:
                undo.callback(handle.remove)
            undo.callback(self._derived.clear)
            undo.enter_context(self)
            yield self

    def named(self, passed: Iterable[str]) -> tuple[str, ...]:
        """Paths with the class of what is there, for reading."""
        return tuple(f"{path} ({type(self._model.get_submodule(path)).__name__})" for path in passed)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not self._is_on or self._depth:
            return func(*args, **kwargs)
        known = self._known((*args, *kwargs.values()))
        if not known:
            return func(*args, **kwargs)
        name = (resolve_name(func) or "").rpartition(".")[2]
        if name in _READERS:
            self._reached(known)
        output = func(*args, **kwargs)
        self._mark(output, max((passed for _, passed in known), key=len))
        if "norm" in name:
            self._reached(self._known((output,)))
        return output

    def begin(self, state: Tensor) -> None:
        """The state after the last block as it was recorded, ``texts tokens dim``; the block returns right after."""
        self._state = state

    def _block_left(self, _: nn.Module, __: object, output: object) -> None:
        self._calls += 1
        raw = next((found for found in _tensors((output,)) if _is_state(found)), None)
        if self._calls == self._stack.calls and raw is not None and self._state is not None:
            self._turn, self._raw = _turned(raw, self._state), raw.shape
            self._derived[id(raw)] = (raw, ())
            self.last, self._is_on = self._state, True

    def _entered(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_on:
            return
        if self._depth == 0:
            found = list(_tensors((*args, kwargs)))
            known = self._known(found)
            if known and id(found[0]) not in self._derived and holds_attention(module):
                self._stop()  # a decoder: it has states of its own, and looks at these from there
                return
            self._reached(known)
            self._takes = max((passed for _, passed in known), key=len) if known else None
        self._depth += 1

    def _left(self, path: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: object, output: object) -> None:
            if self._is_on and self._depth:
                self._depth -= 1
                if self._depth == 0 and self._takes is not None:
                    self._mark(output, (*self._takes, path))
                    self._reached(self._known((output,)))

        return hook

    def _owner_left(self, _: nn.Module, __: object, output: object) -> None:
        """A module around the blocks returns: what it returns of the tokens is the last state so far."""
        if not self._is_on or getattr(output, "logits", None) is not None:
            return
        named = getattr(output, "last_hidden_state", None)
        known = self._known((named if isinstance(named, Tensor) else output,))
        if not self._reached(known) and isinstance(named, Tensor) and known:
            self.last, self.passed = (
                None,
                known[0][1],
            )  # of another width, or of other tokens than the blocks'
            self._stop()

    def _stop(self, *_: object) -> None:
        self._is_on = False

    def _known(self, values: Iterable[object]) -> list[tuple[Tensor, Passed]]:
        return [self._derived[id(found)] for found in _tensors(values) if id(found) in self._derived]

    def _mark(self, output: object, passed: Passed) -> None:
        for found in _tensors((output,)):
            known = self._derived.get(id(found))
            if known is None or len(known[1]) < len(passed):
                self._derived[id(found)] = (found, passed)

    def _reached(self, known: list[tuple[Tensor, Passed]]) -> bool:
        """Take the first of these that is a state of all tokens for the last one."""
        for found, passed in known:
            with torch._C.DisableTorchFunction():
                state = self._laid(found)
                if state is not None:
                    self.last, self.passed = state.detach().clone(), passed
                    return True
        return False

    def _laid(self, found: Tensor) -> Tensor | None:
        """A tensor as ``texts tokens dim``, if it has the tokens and the width of the blocks."""
        if self._state is None or not _is_state(found) or found.numel() != self._state.numel():
            return None
        texts, tokens, dim = self._state.shape
        if found.shape == self._raw:
            return self._turn(found)
        if found.shape == (texts, tokens, dim):
            return found
        if found.shape == (tokens, texts, dim):
            return found.transpose(0, 1)
        return found.reshape(texts, tokens, dim) if found.shape[-1] == dim and found.ndim != 3 else None


def _turned(raw: Tensor, state: Tensor) -> Callable[[Tensor], Tensor]:
    """How a tensor of a block's own shape is laid out as ``texts tokens dim``, read off one of which both are known."""
    ways: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: x,
        lambda x: x.transpose(0, 1),
        lambda x: x.flatten(2).mT,
        lambda x: x.reshape(state.shape),
    )
    with torch._C.DisableTorchFunction():
        for way in ways[:2] if raw.ndim == 3 else ways[2:]:
            if way(raw).shape == state.shape and torch.allclose(
                way(raw), state, rtol=0, atol=0, equal_nan=True
            ):
                return way
    return lambda x: x.reshape(state.shape)


def _is_state(found: Tensor) -> bool:
    return found.is_floating_point() and found.ndim >= 2


def _around(model: nn.Module, path: str) -> Iterator[nn.Module]:
    """The modules that a module is part of, up to the model itself."""
    while path:
        path = path.rpartition(".")[0]
        owner = resolve(model, path)
        if owner is not None:
            yield owner


def _others(model: nn.Module, stack: Stack) -> Iterator[nn.Module]:
    """Blocks of other runs: what they make of the tokens belongs to them. Where a stack has only some blocks of a run,
    the others of that run are something that the model does after it, or before."""
    for run in find_runs(model):
        if not any(
            is_inside(path, own) or is_inside(own, path) for path, _ in run.entries for own in stack.blocks
        ):
            yield from (block for _, block in run.entries)


def _tensors(values: Iterable[object]) -> Iterator[Tensor]:
    """All tensors in nested arguments or outputs, in order."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(value.values())
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
        elif is_dataclass(value) and not isinstance(value, type):
            yield from _tensors(getattr(value, one.name) for one in fields(value))
