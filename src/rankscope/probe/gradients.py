"""Gradients of query, key and value weights of a live model: where tokens collapse, the first two vanish.

With all tokens equal every row of the map is the same whatever queries and keys are, so a loss cannot depend on them;
values still count. So the ratio of query to value gradients falls with the residual.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.core.numerics import relative_floor
from rankscope.core.processor import safe_products
from rankscope.errors import ConfigError, NotTapped
from rankscope.probe.attention_calls import BlockCall, Function, watched
from rankscope.probe.gradients_loss import Loss, LossFn, default_loss, own_loss
from rankscope.probe.gradients_roles import ROLES, Projections, Roles, operands
from rankscope.probe.run import coarsest_dtype
from rankscope.sources.axes import located
from rankscope.sources.batch import Batch
from rankscope.sources.family import Layout
from rankscope.sources.live import run_batch

GRADIENT_DEFINITIONS = {
    **{
        f"gradient_norm[{role}]": f"Frobenius norm of the gradient of the {role} weights: ‖∂loss/∂W‖"
        for role in ROLES
    },
    **{
        f"gradient_ratio[{role},value]": f"gradient of the {role} weights over that of the value weights of the same "
        "block; falls to zero where tokens are all equal"
        for role in ROLES[:2]
    },
}
"""What each number is, in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientRow:
    """One number of one block. ``floor`` is what rounding alone may leave; NaN where a number is 0/0 or not finite."""

    stack: str
    layer: int
    measure: str
    definition: str
    value: float
    floor: float

    @property
    def resolved(self) -> bool:
        """Whether the value is above its floor."""
        return self.value > self.floor


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradients:
    """Numbers of every block, over how many texts, and for which loss, in words."""

    loss: str
    texts: int
    rows: tuple[GradientRow, ...]


def gradient_norms(
    model: nn.Module,
    layout: Layout,
    batches: Iterable[Batch],
    *,
    loss: LossFn | None = None,
    seed: int = 0,
    mask_token: int | None = None,
) -> Gradients:
    """Frobenius norms of the gradients of query, key and value weights in every block, and their ratios.

    The gradient is that of the mean loss over all texts, in evaluation mode. ``loss`` is a function of model and
    batch that returns a scalar; left out, it is the model's own loss if the batches bring ``labels``, or else what
    ``default_loss`` finds: the loss the model was made for, or a random direction of its final state.

    Biases are not counted. A block that is shared between layers gets one number per call: the part of the gradient
    that comes through that call; the parts add up to the gradient of the shared weight.

    The floor of a norm is ``32 u sqrt(calls)`` (u the unit round-off of what the model computes in, calls the block
    calls of the stack) times the largest of the three norms of that block: gradients of queries and keys are
    differences of terms of that size. The floor of a ratio is that of the norm above the line, divided by the one
    below it.

    The model is as before afterwards: training mode, ``requires_grad``, ``grad`` and random state.
    """
    waiting = iter(batches)
    first = next(waiting, None)
    if first is None:
        raise ConfigError("no text was given; gradients need at least one batch")
    if loss is not None:
        chosen = Loss(words="a loss given by the user", fn=loss)
    elif "labels" in first.inputs:
        chosen = Loss(words="the model's own loss for the labels given", fn=own_loss)
    else:
        chosen = default_loss(model, layout, seed=seed, mask_token=mask_token)
    with _undisturbed(model), safe_products(model):
        first, axes = located(model, layout, first)
        projections = _projections(model, layout, first, seed=seed)
        totals = _Totals(projections)
        for batch in chain([first], waiting):
            totals.add(model, layout, located(model, layout, batch, axes)[0], chosen.fn)
    return Gradients(
        loss=chosen.words, texts=totals.texts, rows=tuple(_rows(layout, totals, coarsest_dtype(model)))
    )


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no parameter with a gradient inside; everything as before afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    kept = [(weight, weight.requires_grad, weight.grad) for weight in model.parameters()]
    devices = {weight.device for weight, _, _ in kept if weight.device.type == "cuda"}
    model.eval()
    try:
        with torch.random.fork_rng(list(devices)), torch.inference_mode(mode=False), torch.enable_grad():
            for weight, _, _ in kept:
                weight.requires_grad_(False)
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for weight, wanted, gradient in kept:
            weight.requires_grad_(wanted)
            weight.grad = gradient


def _projections(model: nn.Module, layout: Layout, batch: Batch, *, seed: int) -> Projections:
    """Query, key and value weights of every block call, found on the longest text of a batch."""
    roles = Roles(model, torch.Generator().manual_seed(seed))
    with watched(model, layout, roles):
        run_batch(model, _one_text(batch))
    roles.passed()
    if not roles.found:
        raise NotTapped(f"no block of {type(model).__name__} ran, so there are no gradients to compare")
    return roles.found


def _one_text(batch: Batch) -> Batch:
    """The text with the most measured tokens alone."""
    longest = 0 if batch.is_token is None else int(batch.is_token.sum(dim=-1).argmax())
    return batch.part(longest, longest + 1)


class _Aliases:
    """Gives every block call its own copy of the weights it projects with, sharing the numbers, not the gradient."""

    def __init__(self, projections: Projections) -> None:
        self.weights = {place: {id(one.weight): one for one in found} for place, found in projections.items()}
        self.aliases: dict[tuple[str, int, int], Tensor] = {}

    def opened(self, call: BlockCall, state: Tensor) -> None:
        pass

    def called(
        self, call: BlockCall, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        known = self.weights.get((call.stack.name, call.layer), {})
        if not any(id(value) in known for value in operands(args, kwargs)):
            return function(*args, **kwargs)

        def alias(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(alias(item) for item in value)
            if id(value) not in known:
                return value
            place = (call.stack.name, call.layer, id(value))
            if place not in self.aliases:
                self.aliases[place] = known[id(value)].weight.detach().requires_grad_()
            return self.aliases[place]

        return function(*map(alias, args), **{name: alias(value) for name, value in kwargs.items()})

    def closed(self, call: BlockCall, output: object) -> None:
        pass

    def passed(self) -> None:
        pass


class _Totals:
    """Gradients summed over batches, each weighted by its number of texts."""

    def __init__(self, projections: Projections) -> None:
        self.projections = projections
        self.sums: dict[tuple[str, int, int], Tensor] = {}
        self.texts = 0

    def add(self, model: nn.Module, layout: Layout, batch: Batch, loss: LossFn) -> None:
        aliases = _Aliases(self.projections)
        with watched(model, layout, aliases):
            value = loss(model, batch)
        _check_loss(value)
        gradients = torch.autograd.grad(value, list(aliases.aliases.values()), allow_unused=True)
        found = {place: one for place, one in zip(aliases.aliases, gradients, strict=True) if _is_used(one)}
        for stack, layer in self.projections:
            for weight in aliases.weights[stack, layer]:
                if (stack, layer, weight) not in found:
                    raise ConfigError(
                        f"the loss does not depend on the attention of block {layer} of stack {stack!r}; "
                        "use a loss that depends on every block"
                    )
        for place, gradient in found.items():
            part = len(batch) * (gradient if gradient.dtype == torch.float64 else gradient.float())
            self.sums[place] = self.sums[place] + part if place in self.sums else part
        self.texts += len(batch)

    def norm(self, place: tuple[str, int], role: str) -> float:
        """Norm of the mean gradient of everything in a block that has a role."""
        parts = [
            one.part(self.sums[*place, id(one.weight)], role).double().square().sum()
            for one in self.projections[place]
        ]
        return math.sqrt(torch.stack(parts).sum().item()) / self.texts


def _is_used(gradient: Tensor | None) -> bool:
    return gradient is not None


def _check_loss(value: object) -> None:
    if not isinstance(value, Tensor) or value.numel() != 1:
        found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(f"a loss must be one number, got {found}; return a scalar tensor")
    if not value.requires_grad:
        raise ConfigError(
            "the loss does not depend on the query, key and value weights of any block; "
            "compute it from the model's output, outside torch.no_grad"
        )


def _rows(layout: Layout, totals: _Totals, dtype: torch.dtype) -> Iterator[GradientRow]:
    calls = {stack.name: stack.calls for stack in layout.stacks}
    for stack, layer in totals.projections:
        norms = {role: totals.norm((stack, layer), role) for role in ROLES}
        floor = relative_floor(calls[stack], dtype) * max(norms.values())
        for role in ROLES:
            yield _row(stack, layer, f"gradient_norm[{role}]", norms[role], floor)
        for role in ROLES[:2]:
            ratio, least = (x / norms["value"] if norms["value"] else math.nan for x in (norms[role], floor))
            yield _row(stack, layer, f"gradient_ratio[{role},value]", ratio, least)


def _row(stack: str, layer: int, definition: str, value: float, floor: float) -> GradientRow:
    measure = definition.partition("[")[0]
    return GradientRow(
        stack=stack, layer=layer, measure=measure, definition=definition, value=value, floor=floor
    )
