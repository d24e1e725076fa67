"""Steps that a float64 model computes in float32: counted, and removed, whatever file the model comes from."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class CastsCounted(TorchFunctionMode):
    """Counts operations that lead from float64 to float32 or back; single numbers do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.dtype in _OTHER and out.dim():
            given = [one for one in _tensors((*args, *(kwargs or {}).values())) if one.dim()]
            if any(one.dtype == _OTHER[out.dtype] for one in given):
                self.found.append(getattr(func, "__name__", str(func)))
        return out


class CastsRemoved(TorchFunctionMode):
    """Whatever asks for float32 gets float64."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        func = Tensor.double if func is Tensor.float else func
        given = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **given)


_OTHER = {torch.float32: torch.float64, torch.float64: torch.float32}


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
