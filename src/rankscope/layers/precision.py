"""The precision in which a layer computes: read off its steps, whatever dtype its output has."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rankscope.core.numerics import computed_in
from rankscope.errors import is_out_of_memory

REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
"""The dtype of the parts of complex numbers."""


class Steps(TorchDispatchMode):
    """Every step of a call: the floating numbers that went in, and those that came out.

    Whole numbers and truth values end a chain: a mask or an index that follows from rounded numbers is exact itself.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what would be skipped is the compiler, which takes seconds to import

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps = list[tuple[list[Tensor], list[Tensor]]]()  # what is held keeps its identity

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.steps.append((_floating((args, kwargs)), _floating(out)))
        return out

    def between(self, first: Tensor, last: Tensor) -> list[Tensor]:
        """All that is made from the first and that the last is made from."""
        after, before = {id(first)}, {id(last)}
        for given, out in self.steps:
            if not after.isdisjoint(map(id, given)):
                after.update(map(id, out))
        for given, out in reversed(self.steps):
            if not before.isdisjoint(map(id, out)):
                before.update(map(id, given))
        return [one for _, out in self.steps for one in out if id(one) in after & before]


def _floating(values: Any) -> list[Tensor]:
    return [
        one
        for one in tree_leaves(values)
        if isinstance(one, Tensor) and (one.is_floating_point() or one.is_complex())
    ]


def precision_of(call: Callable[[Tensor], Tensor], x: Tensor) -> torch.dtype:
    """The coarsest dtype that numbers pass through on the way from the tokens to the output.

    It is seen from the steps of torch. Where a layer leaves torch, it is found from the numbers: those of float32 do
    not change where a token changes by much less than its spacing.
    """
    given = x.clone()
    with torch.no_grad():
        plain = call(x.clone())
        seen = computed_in([plain.double()], x.dtype)
        steps = Steps()
        try:
            with steps:
                out = call(given)
        except Exception as error:  # code that cannot be watched
            if is_out_of_memory(error):
                raise
            return _of_numbers(call, x, plain, seen)
        chain = steps.between(given, out)
        if not chain:
            return _of_numbers(call, x, plain, seen)
    return _coarsest([seen, *(REAL.get(one.dtype, one.dtype) for one in chain)])


def _coarsest(dtypes: list[torch.dtype]) -> torch.dtype:
    return max(dtypes, key=lambda one: torch.finfo(one).eps)


def _of_numbers(call: Callable[[Tensor], Tensor], x: Tensor, plain: Tensor, seen: torch.dtype) -> torch.dtype:
    if seen != torch.float64:
        return seen
    spacing = torch.finfo(torch.float32).eps
    stays, moves = (
        (call(x * (1 + step)) != plain).double().mean() for step in (spacing / 1000, 100 * spacing)
    )
    return torch.float32 if float(stays) == 0 and float(moves) > 0.5 else seen
