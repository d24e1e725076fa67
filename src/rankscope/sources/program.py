"""The operations that a model runs, in order, and the states among them: for models that have no modules for blocks.

Where blocks are written into one ``forward`` (lists of norms, attentions and MLPs side by side, attributes, functions,
bare parameters), no module sees every state. There a state is what one operation of the run returns, and it is found
again by its place in the order: only where the model runs the same operations as when its blocks were found.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from rankscope.errors import NotTapped

_OWN = str(Path(__file__).parents[1])
_MODULES = str(Path(torch.nn.modules.module.__file__))

Step = Callable[["Operation"], Tensor]
"""Called with every operation that ran; returns what the model goes on with in place of its first result."""

INSTEAD = "give each block a module of its own with a forward method"


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation of a run, with the tensors that it read and returned."""

    number: int
    name: str
    reads: tuple[Tensor, ...]
    results: tuple[Tensor, ...]

    @property
    def first(self) -> Tensor:
        return self.results[0]

    @property
    def writes(self) -> bool:
        """Whether it changes the tensor that it returns, rather than making one."""
        is_named_so = self.name.startswith("__i") or (self.name.endswith("_") and self.name[-2:] != "__")
        return is_named_so and any(one is self.first for one in self.reads)


@dataclass(frozen=True, slots=True)
class Program:
    """The states of a model among its operations.

    Args:
        names: of all operations that return tensors, until the last state.
        places: the numbers of those that return the states, from layer 0 to the last.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]

    def layer(self, ran: Operation) -> int | None:
        """The layer whose state an operation returns, if any; an error if it is another one than in the program."""
        number, name = ran.number, ran.name
        if number >= len(self.names):
            return None
        if self.names[number] != name:
            raise NotTapped(
                "the blocks of the model have no modules, so that its states are found by the order of operations, and "
                f"on this batch it ran {name!r} where it ran {self.names[number]!r} before; {INSTEAD}"
            )
        return self.places.index(number) if number in self.places else None


class Steps(TorchFunctionMode):
    """Counts the operations that return tensors; those of hooks of this package are left out."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step, self._count = step, 0

    def start(self) -> None:
        """Count from here on; what a model calls inside of itself is then seen."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        found = tensors_of(result)
        if not found or _is_of_own_hook(sys._getframe(1)):
            return result
        number, self._count = self._count, self._count + 1
        changed = self._step(Operation(number, name_of(func), tensors_of((args, kwargs)), found))
        if changed is found[0]:
            return result
        return changed if result is found[0] else _with_first(result, changed)


def tensors_of(value: object) -> tuple[Tensor, ...]:
    """The tensors inside of what a function takes or returns."""
    return tuple(leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def name_of(func: Callable[..., Any]) -> str:
    """The name of an operation; of an attribute of a tensor (``x.T``) that of the attribute."""
    name = getattr(func, "__name__", str(func))
    return str(getattr(getattr(func, "__self__", None), "__name__", name)) if name == "__get__" else name


def _with_first(result: object, changed: Tensor) -> object:
    """A tuple or list of results with another first tensor."""
    if isinstance(result, tuple | list) and isinstance(result[0], Tensor):
        return type(result)((changed, *result[1:]))
    raise NotTapped(f"a state stands inside a {type(result).__name__} that an operation returns; {INSTEAD}")


def _is_of_own_hook(frame: FrameType | None) -> bool:
    """Whether an operation was called by a hook of this package, rather than by the model."""
    while frame is not None:
        where = frame.f_code.co_filename
        if where.startswith(_OWN):
            return True
        if where == _MODULES and frame.f_code.co_name == "_call_impl":
            return False
        frame = frame.f_back
    return False
