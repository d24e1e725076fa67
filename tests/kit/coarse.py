"""Arithmetic that errs visibly: tensors that carry the exact number beside the computed one.

Bounds count how far computed tokens may be from the exact ones. In float64 that distance is about 1e-15, and a wrong
count of it changes nothing that a test could see. Here the distance is made large in two ways: tokens that start at a
chosen distance from the exact ones, and operations that round as coarsely as a chosen unit allows, always by as much
as it allows. ``Shadow`` is a computed tensor that knows the exact one: every operation is done on both.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

FLOAT64 = 2.0**-53
FLOAT32 = 2.0**-24
FLOAT16 = 2.0**-11


class Shadow(Tensor):
    """A computed tensor; ``true`` is what it would be without any error."""

    true: Tensor


def shadow(computed: Tensor, true: Tensor) -> Shadow:
    """Both numbers as one tensor."""
    found = Tensor._make_subclass(Shadow, computed)
    found.true = true
    return found


def plain(x: Any) -> Any:
    """The computed numbers alone, also of tensors in lists, tuples and dictionaries."""
    return _each(x, lambda one: one.as_subclass(Tensor))


def true(x: Any) -> Any:
    """The exact numbers alone."""
    return _each(x, lambda one: one.true)


def _each(x: Any, of: Callable[[Shadow], Tensor]) -> Any:
    if isinstance(x, Shadow):
        return of(x)
    if type(x) in (tuple, list):
        return type(x)(_each(one, of) for one in x)
    return {name: _each(one, of) for name, one in x.items()} if type(x) is dict else x


def _is_followed(x: Any) -> bool:
    if type(x) in (tuple, list):
        return any(_is_followed(one) for one in x)
    return isinstance(x, Shadow) or (type(x) is dict and any(_is_followed(one) for one in x.values()))


# What each operation may be off by, in units of rounding, as a function of what it computed and of its arguments. A sum
# of k products in any order errs by at most k units of the sum of absolute values, a library function by two.


def _once(y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return y.abs()


def _twice(y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return 2 * y.abs()


def _product(y: Tensor, a: Tensor, b: Tensor, *args: Any) -> Tensor:
    return a.shape[-1] * (a.abs() @ b.abs())


def _linear(y: Tensor, x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    size = x.abs() @ matrix.abs().mT
    return x.shape[-1] * (size if bias is None else size + bias.abs()) + y.abs()


def _total(y: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return x.numel() / max(y.numel(), 1) * torch.sum(x.abs(), *args, **kwargs)


def _mean(y: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return x.numel() / max(y.numel(), 1) * torch.mean(x.abs(), *args, **kwargs)


def _length(y: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return (x.numel() / max(y.numel(), 1) / 2 + 2) * y


def _softmax(y: Tensor, logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Differences to the largest logit round relative to themselves, then exponential, sum and quotient."""
    below = logits.amax(dim=-1, keepdim=True) - logits
    return torch.where(
        y > 0, y * (torch.where(torch.isfinite(below), below, 0.0) + logits.shape[-1] + 4), 0.0
    )


def _activated(y: Tensor, h: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """``h Phi(h)`` with a factor that cancels where it is small: relative to the argument."""
    return 4 * h.abs()


def _same(y: Tensor, *args: Any, **kwargs: Any) -> None:
    return None


NOISE: dict[str, Callable[..., Tensor | None]] = {
    **dict.fromkeys(("add", "sub", "rsub", "mul", "div", "sqrt", "rsqrt", "square", "pow"), _once),
    **dict.fromkeys(("exp", "expm1", "tanh", "sigmoid", "cos", "sin", "cosh", "erfc", "log1p"), _twice),
    **dict.fromkeys(("matmul", "bmm", "mm"), _product),
    **{"linear": _linear, "sum": _total, "mean": _mean, "vector_norm": _length, "softmax": _softmax},
    **dict.fromkeys(("gelu", "silu"), _activated),
}

BOOKS = ("abs", "log", "vector_norm", "matrix_norm", "svdvals", "eigvalsh", "qr")
"""Operations by which bounds are begun: what comes out of them is no longer a value that is followed."""


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", "")).removeprefix("linalg_").removeprefix("special_").strip("_")


def _by_hand(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """LayerNorm in single operations, each of which rounds."""
    apart = x - x.mean(dim=-1, keepdim=True)
    y = apart / (apart.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


class Coarse(TorchFunctionMode):
    """While it is active, values of networks and rules carry their exact numbers, and round to ``unit``.

    Norms of matrices and distances of rows are computed exactly: their rounding is covered by margins.
    """

    def __init__(self, unit: float = 0.0) -> None:
        super().__init__()
        self.unit = unit

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ordinary arithmetic for a while."""
        with torch._C.DisableTorchFunction():
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, _name(func)
        with torch._C.DisableTorchFunctionSubclass():
            followed = _is_followed(args) or _is_followed(kwargs)
            starts = self.unit > 0 and (name in NOISE or name == "layer_norm")
            if not (followed or starts):
                return func(*args, **kwargs)
            place = _caller()
            if place == "exact" or not (followed or place == "network"):
                return func(*plain(args), **plain(kwargs))
            if name == "layer_norm" and self.unit > 0:
                with self:
                    return _by_hand(*args, **kwargs)
            return self._both(func, name, place, args, kwargs)

    def _both(self, func: Any, name: str, place: str, args: Any, kwargs: Any) -> Any:
        given = plain(args), plain(kwargs)
        found = func(*given[0], **given[1])
        if name == "setitem" or (func.__name__.endswith("_") and not func.__name__.startswith("__")):
            func(*true(args), **true(kwargs))
            return args[0]
        if not _is_value(found) or name.startswith("new_") or name.endswith("_like"):
            return found
        found = self._rounded(found, name, *given) if isinstance(found, Tensor) else found
        if place == "bounds" and name in BOOKS:
            return found
        exact = func(*true(args), **true(kwargs))
        if isinstance(found, Tensor):
            return shadow(found, exact)
        return type(found)(shadow(a, b) for a, b in zip(found, exact, strict=True))

    def _rounded(self, y: Tensor, name: str, args: Any, kwargs: Any) -> Tensor:
        """Moved by all that the unit allows, up or down by the digits of ``y``: the same for the same numbers."""
        if self.unit == 0 or not y.is_floating_point():
            return y
        size = NOISE.get(name, _same)(y, *args, **kwargs)
        if size is None:
            return y
        hashed = y.double().contiguous().view(torch.int64) * -7046029254386353131
        way = torch.where((hashed >> 40) % 2 == 0, 1.0, -1.0)
        return torch.where(torch.isfinite(y), y + self.unit * way * torch.nan_to_num(size), y).to(y.dtype)


def _is_value(found: Any) -> bool:
    if isinstance(found, Tensor):
        return found.is_floating_point()
    return (
        type(found) in (tuple, list)
        and bool(found)
        and all(isinstance(one, Tensor) and one.is_floating_point() for one in found)
    )


def _caller() -> str:
    """Whose operation this is: of the network, of the rules of bounds, or of what computes norms."""
    frame = sys._getframe(2)
    while frame is not None and (
        "/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__
    ):
        if frame.f_code.co_name == "_by_hand":
            return "network"
        frame = frame.f_back  # type: ignore[assignment]
    name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    if name.startswith("rankscope.network"):
        return "network"
    if name.startswith("rankscope.bounds") and name != "rankscope.bounds.contraction":
        return "bounds"
    return "exact"


MARGINS = 64
"""Margins in units of rounding. In float64 they are ten million units; here they must not hide what rules count."""


@contextmanager
def unit_of(unit: float) -> Iterator[None]:
    """All rules of bounds count in this unit, and their margins for rounding are a few of it."""
    values: dict[str, Any] = {
        "U": unit,
        "MARGIN": MARGINS * unit,
        "LOG_MARGIN": math.log1p(MARGINS * unit),
        "SLOPE_MARGIN": MARGINS * unit,
        "_ULPS": 16 * unit,
        "unit_roundoff": lambda dtype: unit,
    }
    with ExitStack() as stack:
        for module in list(sys.modules.values()):
            name = getattr(module, "__name__", "")
            if name.startswith("rankscope.bounds") or name == "rankscope.core.operator_norms":
                for constant, value in values.items():
                    if constant in vars(module):
                        stack.enter_context(patch.object(module, constant, value))
        yield
