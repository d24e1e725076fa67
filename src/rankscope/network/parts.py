"""The inner nodes of the tree of parts, and the leaf for row-wise modules we know nothing about.

Axis letters: b batch, i query token, j key token, h head, d e model dim. Leading axes of ``x`` are texts;
parameters may have leading axes too (seeds), aligned with those of ``x``: every product broadcasts.
"""

import copy
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankscope.core.types import TokenMatrix
from rankscope.network.context import Context
from rankscope.network.heads import join_maps

M = TypeVar("M", bound=nn.Module)


class Part(nn.Module):
    """A node of the tree: a map from a token matrix and its context to a token matrix."""

    def pieces(self) -> tuple[object, ...]:
        """What the part is made of besides weights and other parts: whoever interprets the part must know them."""
        return ()

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, context: Context) -> Tensor: ...


class Parts(nn.ModuleList):
    """A list of parts, of which the type checker knows that its items are parts."""

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Part]: ...


@overload
def weight(value: Tensor) -> nn.Parameter: ...
@overload
def weight(value: None) -> None: ...
def weight(value: Tensor | None) -> nn.Parameter | None:
    """``value`` as a parameter that shares its storage; frozen unless it already asks for gradients."""
    if value is None or isinstance(value, nn.Parameter):
        return value
    return nn.Parameter(value, requires_grad=value.requires_grad and value.is_leaf)


def held_matrix(module: nn.Module, name: str) -> Tensor:
    """A parameter as one matrix ``*seeds dim (heads width)``, joined where ``module.per_head`` keeps heads apart."""
    held = held_parameter(module, name)
    if held is None:
        raise AttributeError(f"{type(module).__name__} has no {name}")
    return join_maps(held) if module.per_head else held


def held_bias(module: nn.Module, name: str) -> Tensor | None:
    """A bias as one vector ``*seeds (heads width)``, joined where ``module.per_head`` keeps heads apart."""
    held = held_parameter(module, name)
    return held.flatten(-2) if held is not None and module.per_head else held


def held_parameter(module: nn.Module, name: str) -> nn.Parameter | None:
    """The parameter registered under ``name``, also where a property of that name stands before it."""
    if name not in module._parameters:
        raise AttributeError(f"{type(module).__name__} has no {name} yet")
    return module._parameters[name]


def row(value: Tensor) -> Tensor:
    """A vector ``*seeds d`` made ready to broadcast over the tokens of ``*batch tokens d``."""
    return value.unsqueeze(-2)


def affine(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ matrix + bias`` for every token."""
    if matrix.ndim == 2 and (bias is None or bias.ndim == 1):
        return F.linear(x, matrix.mT, bias)  # one fused operation, the same that live models run
    y = x @ matrix
    return y if bias is None else y + row(bias)


def shallow_copy(module: M) -> M:
    """A copy that shares weights and children with ``module`` but can be given other attributes."""
    twin = copy.copy(module)
    for name in ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"):
        twin.__dict__[name] = copy.copy(module.__dict__[name])
    return twin


class Chain(Part):
    """Parts applied one after the other; an empty chain is the identity."""

    def __init__(self, parts: Iterable[Part]) -> None:
        super().__init__()
        self.parts = Parts(parts)

    def forward(self, x: TokenMatrix, context: Context) -> TokenMatrix:
        for part in self.parts:
            x = part(x, context)
        return x


class Sum(Part):
    """Parallel branches that read the same tokens and are added; an empty sum is zero."""

    def __init__(self, parts: Iterable[Part]) -> None:
        super().__init__()
        self.parts = Parts(parts)

    def forward(self, x: TokenMatrix, context: Context) -> TokenMatrix:
        if not self.parts:
            return torch.zeros_like(x)
        first, *others = self.parts
        total: Tensor = first(x, context)
        for part in others:
            total = total + part(x, context)
        return total


class Skip(Part):
    """``scale * x + inner(x)``; ``scale`` is a number or a tensor ``*seeds 1`` or ``*seeds dim``."""

    def __init__(self, inner: Part, scale: float | Tensor = 1.0) -> None:
        super().__init__()
        self.inner = inner
        self.scale = weight(scale) if isinstance(scale, Tensor) else float(scale)

    def forward(self, x: TokenMatrix, context: Context) -> TokenMatrix:
        inner: Tensor = self.inner(x, context)
        return inner + (x if isinstance(self.scale, float) and self.scale == 1.0 else scaled(x, self.scale))


class Scale(Part):
    """``value * x``: LayerScale (a vector ``*seeds dim``), ReZero and residual multipliers (``*seeds 1``)."""

    def __init__(self, value: float | Tensor) -> None:
        super().__init__()
        tensor = value if isinstance(value, Tensor) else torch.tensor([value], dtype=torch.float64)
        self.value = weight(tensor if tensor.ndim else tensor.unsqueeze(0))

    def forward(self, x: TokenMatrix, context: Context) -> TokenMatrix:
        return scaled(x, self.value)


def scaled(x: Tensor, scale: float | Tensor) -> Tensor:
    """``x`` times a number, or times a tensor ``*seeds 1`` or ``*seeds dim`` for every token."""
    return x * (row(scale).to(x.dtype) if isinstance(scale, Tensor) else scale)


class TokenMap(Part):
    """Any module that maps each token by itself: a mixture of experts, an unusual MLP.

    ``what`` is in it and ``where`` it stands, the user's own line, are told where they are known.
    """

    def __init__(self, module: nn.Module, site: str = "mlp", *, what: str = "", where: str = "") -> None:
        super().__init__()
        self.module = module
        self.site = site
        self.what, self.where = what, where

    def refused(self) -> str:
        """Said where an interpreter has no rule for it."""
        place = f": {self.what} at {self.where}" if self.where else ""
        return f"it maps each token by itself, and nothing else is known inside it{place}"

    def forward(self, x: TokenMatrix, context: Context) -> TokenMatrix:
        # many foreign modules want exactly (texts, tokens, dim)
        y: Any = self.module(x if x.ndim == 3 else x.reshape(-1, *x.shape[-2:]))
        return y if x.ndim == 3 else y.reshape(x.shape)  # type: ignore[no-any-return]  # a foreign module promises nothing


CONTAINERS = (Chain, Sum, Skip)


def children(part: Part) -> list[Part]:
    """The parts directly inside a container; leaves have none, nor has a subclass, which may do anything with them."""
    if type(part) in (Chain, Sum):
        return list(part.parts)  # type: ignore[arg-type]
    return [part.inner] if type(part) is Skip else []


def every_part(part: Part) -> Iterator[Part]:
    """``part`` and every part below it, containers before what they hold."""
    yield part
    for child in children(part):
        yield from every_part(child)


def leaves(part: Part) -> Iterator[Part]:
    """Every part below ``part`` that is not a container, in order of execution."""
    if type(part) in CONTAINERS:
        for child in children(part):
            yield from leaves(child)
    else:
        yield part


def flat(part: Part) -> list[Part]:
    """What the stream passes one after the other: the parts of nested chains, everything else whole."""
    return [one for child in children(part) for one in flat(child)] if type(part) is Chain else [part]


def around(part: Part) -> tuple[list[float | Tensor], Part]:
    """The factors with which the input of a part goes around everything in it, and the rest of it as one part.

    ``s x + F(x)`` has the factor s and the rest F; so has a sum of which one branch does nothing.
    """
    if type(part) is Skip:
        more, rest = around(part.inner)
        return [part.scale, *more], rest
    if type(part) is Sum:
        scales, rests = list[float | Tensor](), list[Part]()
        for child in part.parts:
            found, rest = around(child)
            scales += found
            if not found or not (type(rest) is Sum and not len(rest.parts)):
                rests.append(rest)
        return scales, Sum(rests)
    if type(part) is Chain:
        inner = flat(part)
        if not inner:
            return [1.0], Sum(())
        if len(inner) == 1:
            return around(inner[0])
    return [], part


def carries(part: Part) -> bool:
    """Whether something of its input goes around a part: it has a skip, and not one that carries it times zero."""
    return any(bool((torch.as_tensor(scale) != 0).any()) for scale in around(part)[0])
