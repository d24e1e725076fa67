"""Objectives that ask for long paths: skips dropped at random, a penalty on their collapse, no skips at all.

Dong, Cordonnier and Loukas (2021) find that a network trained as usual works by its short paths, and leave open whether
the long ones fail because nothing asks for them. Each objective here asks, in its own way:

``path-dropout``  every skip around an attention is dropped with probability ``strength``, independently for every
                  example and layer in every step; what is left is not scaled. Where a skip is dropped the block is the
                  one without it: lengths below the number of dropped skips do not exist in that step. A path drawn
                  uniformly from those left has expected length ``L (H + strength) / (H + 1)``. Without scaling the mean
                  of the blocks' outputs is not that of the full network; with it neither would be, as a norm follows.
                  The trained network is used with all its skips. 0 is the plain loss, 1 trains without skips.
``spread-long``   the plain loss plus ``strength`` times ``-log r``, the mean over examples, with r the residual ratio
                  of the sum of all paths of the full length (see ``with_longest_paths``), its tokens brought to length
                  one: otherwise different scales of norms would do, with tokens that all point the same way. It is
                  zero if these tokens have nothing in common. It asks for tokens that stay apart, not for right
                  answers. r is held away from zero by the rounding floor of float64, in which it is computed: at the
                  start of training it is about 4e-6 in six layers, no more than what float32 can tell from collapse.
``long-only``     the loss of the network without the skips around attention: only paths of the full length exist. The
                  trained network is that one, and scores are of it: what ``without_attention_skip`` makes of the
                  model. The model with its skips was never trained.

Skips around MLPs are left alone in all of them: a path is as long as it has heads.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from rankscope.core.numerics import relative_floor
from rankscope.errors import ConfigError
from rankscope.network import (
    Attention,
    Chain,
    Context,
    Mlp,
    Network,
    Norm,
    Part,
    Scale,
    Skip,
    without_attention_skip,
)
from rankscope.network.known import NORMS, interpreter
from rankscope.network.parts import affine, leaves, scaled
from rankscope.network.surgery import is_mlp, rewritten
from rankscope.papers.tasks.model import TaskModel
from rankscope.papers.tasks.objectives import Loss, Objective, register
from rankscope.pathways.frozen import FrozenAttention, FrozenMlp, FrozenNorm, FrozenScale, Leaf

M = TypeVar("M", bound=nn.Module)


def with_dropped_skips(network: Network, chance: float, count: int, *, generator: torch.Generator) -> Network:
    """A copy whose skips around attention are dropped with that probability, independently for ``count`` examples.

    Weights are shared. The copy takes batches of exactly that many examples, ``count tokens dim``.
    """

    def dropped(part: Part) -> Part:
        if not (isinstance(part, Skip) and _attentions(part) == 1 and not _has_mlp(part)):
            return part
        is_kept = torch.rand(count, 1, generator=generator) >= chance
        like = next(part.inner.parameters())  # the scales are of the dtype of the network, as all its numbers
        return Skip(part.inner, is_kept.to(like) * part.scale)

    return rewritten(network, dropped)


def expected_length(layers: int, heads: int, chance: float) -> float:
    """Expected length of a uniformly drawn path when every skip is dropped with that probability.

    >>> expected_length(6, 2, 0.0), expected_length(6, 2, 0.5), expected_length(6, 2, 1.0)
    (4.0, 5.0, 6.0)
    """
    return layers * (heads + chance) / (heads + 1)


def without_long_skips(module: nn.Module, inputs: Tensor) -> Tensor:
    """Logits of the model without its skips around attention: what ``long-only`` trains."""
    model = _task_model(module)
    return model.classify(without_attention_skip(model.network)(model.embed(inputs)))


def with_longest_paths(network: Network, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the sum of all paths through as many heads as there are attention parts: ``*batch tokens dim``.

    Of the sum, maps, scales of norms and gates are held at their values in the full network, and biases are sources: it
    is the last term of ``rankscope.pathways.spectrum``, in the dtype of the network. Gradients go through both, also
    through what is held. One pass: the ordinary state and the longest paths go through the blocks side by side.
    """
    stream = _Stream(state=x, longest=x, passed=0)
    for block in network.blocks:
        stream = _pass(block, stream)
    if network.final_norm is not None:
        stream = _pass(network.final_norm, stream)
    return stream.state, stream.longest


def collapse_penalty(states: Tensor, layers: int) -> Tensor:
    """``-log r`` of token matrices of any size, the mean over examples; r is ``residual_ratio[frobenius,mean,unit]``.

    ``-log sqrt(mean_i |u_i - m|^2 + floor^2)``, u the tokens at length one, m their mean, floor that of a float64
    network of that many layers. It is at least about zero and at most ``-log floor``, with gradients that end there in
    place of growing without limit.
    """
    lengths = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
    unit = states / lengths.clamp(min=torch.finfo(states.dtype).tiny)
    spread = (unit - unit.mean(dim=-2, keepdim=True)).square().sum(dim=-1).mean(dim=-1)
    penalty: Tensor = -0.5 * (spread + relative_floor(layers, torch.float64) ** 2).log().mean()
    return penalty


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Stream:
    """The ordinary state, the sum of the longest paths up to here, and how many attention parts were passed."""

    state: Tensor
    longest: Tensor
    passed: int


LONGEST = interpreter("longest paths")


@LONGEST.rules
def _pass(part: Part, stream: _Stream) -> _Stream: ...  # type: ignore[empty-body]


@_pass.register
def _chain(part: Chain, stream: _Stream) -> _Stream:
    for child in part.parts:
        stream = _pass(child, stream)
    return stream


@_pass.register
def _skip(part: Skip, stream: _Stream) -> _Stream:
    inner = _pass(part.inner, stream)
    longest = inner.longest
    if (
        inner.passed == stream.passed
    ):  # who takes another skip misses an attention and is not among the longest
        longest = longest + scaled(stream.longest, part.scale)
    return _Stream(state=inner.state + scaled(stream.state, part.scale), longest=longest, passed=inner.passed)


@_pass.register
def _attention(part: Attention, stream: _Stream) -> _Stream:
    leaf = FrozenAttention(part, part.mixer(stream.state, Context()), stream.passed)
    return _through(leaf, stream, stream.passed + 1)


@_pass.register(*NORMS)
def _norm(part: Norm, stream: _Stream) -> _Stream:
    return _through(FrozenNorm(part, stream.state), stream, stream.passed)


@_pass.register
def _mlp(part: Mlp, stream: _Stream) -> _Stream:
    if part.gate is None:
        gate = part.activation.secant(affine(stream.state, part.up, part.up_bias))
    else:
        gate = part.activation(affine(stream.state, part.gate, part.gate_bias))
    return _through(FrozenMlp(part, gate), stream, stream.passed)


@_pass.register
def _scale(part: Scale, stream: _Stream) -> _Stream:
    return _through(FrozenScale(part.value), stream, stream.passed)


def _through(leaf: Leaf, stream: _Stream, passed: int) -> _Stream:
    """Both behind a leaf. All its sources join the state; those that passed every attention join the longest paths."""
    state, longest = leaf.linear(torch.stack([stream.state, stream.longest]))
    for constant in leaf.constants():
        state = state + constant.value
        if constant.degree[0] == passed:
            longest = longest + constant.value
    return _Stream(state=state, longest=longest, passed=passed)


def in_float64(model: M, value: Callable[[M], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A scalar that ``value`` makes of a copy of the model in float64, and what else it gives.

    The gradient of the scalar, computed in float64 too, reaches the weights of the model itself in their own dtype.
    """
    twin = copy.deepcopy(model).double()
    scalar, found = value(twin)
    slopes = torch.autograd.grad(scalar, list(twin.parameters()), allow_unused=True)
    carried = scalar.detach()
    for weight, slope in zip(model.parameters(), slopes, strict=True):
        if slope is not None:  # adds zero, and its slope
            carried = carried + ((weight - weight.detach()) * slope.to(weight.dtype)).sum()
    return carried, found.detach()


def _task_model(model: nn.Module) -> TaskModel:
    if not isinstance(model, TaskModel):
        raise ConfigError(
            f"objectives for long paths need a network of the tree between reader and classifier, got "
            f"{type(model).__name__}; use the objective 'plain'"
        )
    return model


def _path_dropout(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, strength: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    own = _task_model(model)
    thinned = with_dropped_skips(own.network, strength, len(inputs), generator=generator)
    outputs = own.classify(thinned(own.embed(inputs)))
    return loss(outputs, targets), outputs


def _spread_long(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, strength: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    own = _task_model(model)
    if not strength:
        outputs: Tensor = own(inputs)
        return loss(outputs, targets), outputs

    def penalized(twin: TaskModel) -> tuple[Tensor, Tensor]:
        states, longest = with_longest_paths(twin.network, twin.embed(inputs))
        outputs = twin.classify(states)
        return loss(outputs, targets) + strength * collapse_penalty(
            longest, len(twin.network.blocks)
        ), outputs

    return in_float64(own, penalized)


def _long_only(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, strength: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    outputs = without_long_skips(model, inputs)
    return loss(outputs, targets), outputs


def _attentions(part: Part) -> int:
    return sum(isinstance(leaf, Attention) for leaf in leaves(part))


def _has_mlp(part: Part) -> bool:
    return any(is_mlp(leaf) for leaf in leaves(part))


PATH_DROPOUT = register(
    Objective(
        name="path-dropout",
        about="the loss while skips around attention are dropped at random; strength is the probability",
        strengths=(0.0, 1.0),
        minimize=_path_dropout,
    )
)
SPREAD_LONG = register(
    Objective(
        name="spread-long",
        about="the loss plus strength times -log of the residual ratio of the longest paths",
        strengths=(0.0, math.inf),
        minimize=_spread_long,
    )
)
LONG_ONLY = register(
    Objective(
        name="long-only",
        about="the loss of the network without its skips around attention",
        strengths=None,
        minimize=_long_only,
        answer=without_long_skips,
    )
)
