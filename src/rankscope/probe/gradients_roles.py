"""Which weights of a live model make queries, keys and values, found by cause and effect.

Libraries fuse the three into one weight in a dozen ways (side by side, interleaved per head, in groups of heads), and
no name says which. So the model is asked. In one forward pass the output of every product with a weight is replaced by
random numbers, up to the block's attention map. Then, by automatic differentiation, a channel of such an output is

- a query channel if row i of the map depends on it at token i alone,
- a key channel if row i of the map depends on it at other tokens,
- a value channel if, with the map held fixed, the mixed token i depends on it at other tokens.

These dependencies are exact zeros or not, for any weights: random numbers cannot have collapsed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankscope.errors import NotTapped, NumericalError
from rankscope.probe.attention_calls import BlockCall, Function, listed
from rankscope.probe.attention_functions import WHOLE, map_of, map_sizes, texts_of
from rankscope.sources.taps import first_tensor

ROLES = ("query", "key", "value")

_PRODUCTS: tuple[Function, ...] = (
    *(F.linear, torch.addmm, torch.mm, torch.matmul, torch.bmm, torch.einsum),
    *(Tensor.addmm, Tensor.mm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__),
)
PRODUCTS = frozenset(_PRODUCTS)
"""Functions through which a weight acts on tokens."""

TURNS: frozenset[Function] = frozenset(
    {Tensor.T.__get__, Tensor.mT.__get__, Tensor.t, torch.t, Tensor.transpose, torch.transpose}  # type: ignore[attr-defined]
)
"""Functions that turn a matrix on its side before such a product."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """A weight that makes queries, keys or values: per role, which of its output channels do."""

    weight: nn.Parameter
    channels_first: bool  # as in nn.Linear, (out, in); otherwise output channels are the trailing axes
    channels: Mapping[str, Tensor]

    def part(self, gradient: Tensor, role: str) -> Tensor:
        """The entries of a gradient of this weight that belong to a role."""
        return gradient[self.channels[role]] if self.channels_first else gradient[..., self.channels[role]]


Projections = dict[tuple[str, int], list[Projection]]
"""Projections of every block call, by name of the stack and layer."""


@dataclass(slots=True)
class _Output:
    """The output of one product, replaced by random numbers, and what is known of its channels."""

    weight: nn.Parameter
    channels_first: bool
    numbers: Tensor
    tokens_axis: int
    channels: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        none = torch.zeros(self._shape, dtype=torch.bool, device=self.numbers.device)
        self.channels = dict.fromkeys(ROLES, none)

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape[:1] if self.channels_first else self.weight.shape[1:])

    def touched(self, gradient: Tensor | None, tokens: int) -> Tensor:
        """Where a gradient is not zero, as booleans (tokens, *channels)."""
        if gradient is None:
            gradient = torch.zeros_like(self.numbers)
        if not bool(torch.isfinite(gradient).all()):
            raise NumericalError("an attention map of random queries and keys has no finite derivative")
        return (gradient != 0).movedim(self.tokens_axis, 0).reshape(tokens, *self._shape)


@dataclass(slots=True)
class _Trial:
    """One block call: the outputs replaced so far, and how far it has come."""

    tokens: int
    outputs: list[_Output] = field(default_factory=list)
    row: int | None = None  # the query whose map was looked at
    has_values: bool = False


class Roles:
    """Follows a forward pass of one text and fills ``found``; raises ``NotTapped`` where a block lacks a role."""

    def __init__(self, model: nn.Module, generator: torch.Generator) -> None:
        self.model, self.generator = type(model).__name__, generator
        self.weights = {id(weight): weight for weight in model.parameters() if weight.ndim >= 2}
        # by id; the turned tensor is kept as well, so that no other gets its id
        self.turned: dict[int, tuple[nn.Parameter, Tensor]] = {}
        self.found: Projections = {}
        self.missing: list[str] = []
        self.trial = _Trial(tokens=0)

    def opened(self, call: BlockCall, state: Tensor) -> Tensor:
        """A new trial. The state gets a gradient, so that what comes from tokens can be told from position tables."""
        self.trial = _Trial(tokens=max(tokens for _, tokens in call.texts_and_tokens))
        return state.detach().requires_grad_().clone()  # a clone: models change their states in place

    def called(
        self, call: BlockCall, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        trial = self.trial
        if trial.row is None:
            sizes = map_sizes(function, args, kwargs)
            if sizes is not None and texts_of(sizes, call) is not None:
                return self._mapped(trial, function, args, kwargs)
        output = function(*args, **kwargs)
        if function in TURNS and id(args[0]) in self.weights and args[0].ndim == 2:
            self.turned[id(output)] = (self.weights[id(args[0])], output)
        used = self._weight(function, args, kwargs)
        if used is None:
            return output
        if trial.row is not None:
            self._mixed(trial, _tokens_in(args, kwargs))
        return output if trial.has_values else self._replaced(trial, *used, output)

    def closed(self, call: BlockCall, output: object) -> None:
        """What the block's trial has shown; the block's own output stands in where nothing reads the mixed tokens."""
        trial = self.trial
        if trial.row is not None:
            self._mixed(trial, first_tensor(output))
        found = _merged(trial.outputs)
        absent = [role for role in ROLES if not any(bool(one.channels[role].any()) for one in found)]
        if absent:
            self.missing.append(f"{' and '.join(absent)} in {call}")
        self.found[call.stack.name, call.layer] = found

    def passed(self) -> None:
        if self.missing:
            raise NotTapped(
                f"no weight of {self.model} was found for {listed(self.missing)}."
                " Gradients are compared in blocks whose queries, keys and values are products of tokens with weights"
                " of their own, and whose attention reads all tokens: measure this model without gradients"
            )

    def _weight(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[nn.Parameter, bool] | None:
        """The weight in a product, and whether its output channels come first."""
        if function not in PRODUCTS:
            return None
        tensors = [value for value in operands(args, kwargs) if isinstance(value, Tensor)]
        is_linear = function is F.linear
        # tokens times weight; the other way round, channels would come before tokens
        for value in tensors if is_linear else tensors[-1:]:
            if id(value) in self.weights:
                return self.weights[id(value)], is_linear
            if id(value) in self.turned:
                return self.turned[id(value)][0], not is_linear
        return None

    def _replaced(self, trial: _Trial, weight: nn.Parameter, channels_first: bool, output: Tensor) -> Tensor:
        """Random numbers in place of the output, if it comes from tokens and is one row of channels per token."""
        axis = next((axis for axis, size in enumerate(output.shape[:-1]) if size == trial.tokens), None)
        width = weight.shape[0] if channels_first else weight.shape[1:].numel()
        if axis is None or not output.requires_grad or output.numel() != trial.tokens * width:
            return output
        one = _Output(
            weight=weight, channels_first=channels_first, numbers=self._random(output), tokens_axis=axis
        )
        trial.outputs.append(one)
        return one.numbers.requires_grad_().clone()

    def _mapped(
        self, trial: _Trial, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Tell queries from keys by the row with the most keys, and go on with a map that depends on nothing."""
        output = function(*args, **kwargs)
        maps = map_of(function, args, kwargs, output).reshape(-1, trial.tokens, trial.tokens)
        trial.row = int((maps > 0).sum(dim=(0, 2)).argmax())
        row = maps[:, trial.row]
        for one, (at_row, elsewhere) in zip(trial.outputs, self._reached(trial, row), strict=True):
            one.channels |= {"query": at_row & ~elsewhere, "key": elsewhere}
        if function is WHOLE:
            return function(*(_fixed(i, x) for i, x in enumerate(args)), **_fixed_names(kwargs))
        return output.detach()

    def _mixed(self, trial: _Trial, tokens: Tensor | None) -> None:
        """Find the values, if ``tokens`` are the first that depend on any."""
        if trial.has_values or tokens is None or not tokens.requires_grad or trial.row is None:
            return
        axis = next((axis for axis, size in enumerate(tokens.shape[:-1]) if size == trial.tokens), None)
        if axis is None:
            return
        reached = self._reached(trial, tokens.select(axis, trial.row))
        for one, (_, elsewhere) in zip(trial.outputs, reached, strict=True):
            one.channels["value"] = elsewhere
        trial.has_values = any(bool(elsewhere.any()) for _, elsewhere in reached)

    def _reached(self, trial: _Trial, target: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Per output, the channels on which ``target`` depends at the chosen token, and at any other."""
        if not trial.outputs or not target.requires_grad:
            nothing = [one.touched(None, trial.tokens) for one in trial.outputs]
            return [(none[0], none[0]) for none in nothing]
        gradients = torch.autograd.grad(
            (target * self._random(target)).sum(),
            [one.numbers for one in trial.outputs],
            retain_graph=True,
            allow_unused=True,
        )
        others = torch.arange(trial.tokens, device=target.device) != trial.row
        touched = [
            one.touched(gradient, trial.tokens)
            for one, gradient in zip(trial.outputs, gradients, strict=True)
        ]
        return [(where[trial.row], where[others].any(dim=0)) for where in touched]

    def _random(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator).to(like)


def _merged(outputs: Sequence[_Output]) -> list[Projection]:
    """One projection per weight that has a role; a weight that is used twice has the roles of both uses."""
    found: dict[int, Projection] = {}
    for one in outputs:
        known = found.get(id(one.weight))
        channels = {
            role: mask | known.channels[role] if known else mask for role, mask in one.channels.items()
        }
        if any(bool(mask.any()) for mask in channels.values()):
            found[id(one.weight)] = Projection(
                weight=one.weight, channels_first=one.channels_first, channels=channels
            )
    return list(found.values())


def operands(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """All arguments of a call; ``einsum`` takes some of its own as a list."""
    flat: list[Any] = []
    for value in (*args, *kwargs.values()):
        flat.extend(value if isinstance(value, list | tuple) else [value])
    return flat


def _tokens_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The argument of a product that is not a weight."""
    tensors = (x for x in operands(args, kwargs) if isinstance(x, Tensor) and not isinstance(x, nn.Parameter))
    return next((x for x in tensors if x.requires_grad), None)


def _fixed(place: int, value: Any) -> Any:
    """Queries and keys of attention in one piece without their history; values and the rest as they are."""
    return value.detach() if place < 2 else value


def _fixed_names(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: _fixed(0 if name in ("query", "key") else 2, value) for name, value in kwargs.items()}
