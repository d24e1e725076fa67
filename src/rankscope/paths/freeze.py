"""Freezing a network at one input, block by block."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Literal

import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.errors import ConfigError, NotUnderstood, NumericalError
from rankscope.network import Attention, Chain, Context, Mlp, Network, Norm, Part, Scale, Skip, Sum, TokenMap
from rankscope.network.parts import leaves
from rankscope.paths.frozen import (
    Frozen,
    FrozenAttention,
    FrozenChain,
    FrozenMlp,
    FrozenNorm,
    FrozenScale,
    FrozenSkip,
    FrozenSum,
    Leaf,
    Spring,
)
from rankscope.paths.path import Site, sites
from rankscope.split.run import in_dtype

Mlps = Literal["through", "source"]
"""Whether paths cross MLPs, their gates held, or begin at them."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FrozenNetwork:
    """A network, one input and the states on the way: all that is needed to freeze any of its blocks.

    Args:
        network: the tree, as it was given.
        context: padding and positions of the input.
        states: layers 0 .. L of the network's own pass in ``dtype``.
        output: the last state, after the final norm if that belongs to it.
        sites: the attention parts in order of execution.
        mlps: whether paths cross MLPs or begin there.
        has_final_norm: whether the final norm is part of what is decomposed.
    """

    network: Network
    context: Context
    states: tuple[Tensor, ...]
    output: Tensor
    sites: tuple[Site, ...]
    mlps: Mlps
    has_final_norm: bool

    @property
    def dtype(self) -> torch.dtype:
        """What everything is computed in."""
        return self.output.dtype

    @property
    def layers(self) -> int:
        """How many blocks there are."""
        return len(self.network.blocks)

    @torch.no_grad()
    def block(self, layer: int) -> Frozen:
        """Block ``layer``, from 1, frozen at the state that enters it; the last one with the final norm behind it."""
        before = [place for place in self.sites if place.layer < layer]
        part = in_dtype(list(self.network.blocks)[layer - 1], self.dtype)
        frozen, _ = _freeze(part, self.states[layer - 1], _Freezing(self.context, self.mlps, len(before)))
        if layer < self.layers or not self.has_final_norm or self.network.final_norm is None:
            return frozen
        norm = in_dtype(self.network.final_norm, self.dtype)
        return FrozenChain((frozen, FrozenNorm(norm, self.states[-1])))

    def blocks(self) -> Iterator[tuple[int, Frozen]]:
        """All blocks with their layers, one at a time."""
        for layer in range(1, self.layers + 1):
            yield layer, self.block(layer)


@torch.no_grad()
def freeze(
    network: Network,
    x: Tensor,
    context: Context | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    mlps: Mlps = "through",
    final_norm: bool = True,
) -> FrozenNetwork:
    """The network held at its values on ``x``; weights are brought to ``dtype`` block by block and dropped again.

    Args:
        network: any tree of parts whose leaves can be frozen.
        x: ``*batch tokens dim``, what enters the first block.
        context: padding and positions.
        dtype: float64 or float32.
        mlps: ``"through"``: paths cross MLPs, their gates held; ``"source"``: the output of an MLP is a source, and no
            path crosses one. A token map, of which nothing is known inside, can only be a source.
        final_norm: whether the output is taken after the final norm, as ``network(x)`` is, or before it.
    """
    _check(network, dtype, mlps)
    context = Context() if context is None else context
    context.check(x)
    states = [checked(x, tokens=1).to(dtype)]
    for block in network.blocks:
        states.append(in_dtype(block, dtype)(states[-1], context))
    output = states[-1]
    if final_norm and network.final_norm is not None:
        output = in_dtype(network.final_norm, dtype)(output)
    seen = output if context.is_token is None else output[context.is_token.expand(output.shape[:-1])]
    if not bool(torch.isfinite(seen).all()):
        raise NumericalError(
            f"the output is beyond the range of {str(dtype).removeprefix('torch.')}; scale input or weights down"
        )
    return FrozenNetwork(
        network=network,
        context=context,
        states=tuple(states),
        output=output,
        sites=sites(network),
        mlps=mlps,
        has_final_norm=final_norm,
    )


def frozen_with(
    network: Network | FrozenNetwork,
    x: Tensor | None,
    context: Context | None,
    *,
    dtype: torch.dtype | None = None,
    mlps: Mlps | None = None,
    final_norm: bool | None = None,
) -> FrozenNetwork:
    """A network that is frozen already as it is; otherwise the network frozen at ``x``, None meaning the default."""
    given = {"dtype": dtype, "mlps": mlps, "final_norm": final_norm}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if isinstance(network, FrozenNetwork):
        if x is not None or context is not None or options:
            raise ConfigError("this network is frozen at its input already; give nothing but it")
        return network
    if x is None:
        raise ConfigError(
            "a network is decomposed at one input: give x, the tokens that enter its first block"
        )
    return freeze(network, x, context, **options)


def _check(network: Network, dtype: torch.dtype, mlps: str) -> None:
    """Raise before any work unless every part can be frozen, and at values that stay what they are."""
    if not isinstance(network, Network):
        raise ConfigError(
            f"paths belong to a network, got {type(network).__name__}; translate a live model first"
        )
    if network.training:
        raise ConfigError(
            "the network is in training mode, so its weights and its values move; call network.eval() first"
        )
    if dtype not in (torch.float64, torch.float32):
        raise ConfigError(
            f"paths are computed in float64 or float32, not in {str(dtype).removeprefix('torch.')}"
        )
    if mlps not in ("through", "source"):
        raise ConfigError(f"mlps={mlps!r}; paths cross MLPs ('through') or begin at them ('source')")
    for block in network.blocks:
        for leaf in leaves(block):
            if isinstance(leaf, TokenMap) and mlps == "through":
                raise NotUnderstood(
                    leaf,
                    "paths",
                    "nothing is known inside it; mlps='source' lets paths begin at what it puts out",
                )
            if _freeze.dispatch(type(leaf)) is _freeze.dispatch(object):
                raise NotUnderstood(leaf, "paths")


class _Freezing:
    """What one block is frozen with; hands out the numbers of its attention parts in order of execution."""

    def __init__(self, context: Context, mlps: Mlps, first_site: int) -> None:
        self.context, self.mlps, self._site = context, mlps, first_site

    def next_site(self) -> int:
        self._site += 1
        return self._site - 1


@singledispatch
def _freeze(part: Part, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    """The part held at its values on ``x``, and what it puts out there."""
    raise NotUnderstood(part, "paths")


@_freeze.register
def _chain(part: Chain, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    found: list[Frozen] = []
    for child in part.parts:
        frozen, x = _freeze(child, x, how)
        found.append(frozen)
    return FrozenChain(tuple(found)), x


@_freeze.register
def _sum(part: Sum, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    found, total = list[Frozen](), torch.zeros_like(x)
    for child in part.parts:
        frozen, y = _freeze(child, x, how)
        found.append(frozen)
        total = total + y
    return FrozenSum(tuple(found)), total


@_freeze.register
def _skip(part: Skip, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    inner, y = _freeze(part.inner, x, how)
    frozen = FrozenSkip(inner, part.scale)
    return frozen, y + frozen.own(x)


@_freeze.register
def _attention(part: Attention, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    return _leaf(FrozenAttention(part, part.mixer(x, how.context), how.next_site()), x)


@_freeze.register
def _mlp(part: Mlp, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    if how.mlps == "through":
        return _leaf(FrozenMlp(part, x), x)
    return _spring("mlp", part(x, how.context), (0, 1))


@_freeze.register
def _token_map(part: TokenMap, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    return _spring(part.site, part(x, how.context), (0, 1))


@_freeze.register
def _norm(part: Norm, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    return _leaf(FrozenNorm(part, x), x)


@_freeze.register
def _scale(part: Scale, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    return _leaf(FrozenScale(part.value), x)


def _leaf(leaf: Leaf, x: Tensor) -> tuple[Frozen, Tensor]:
    y = leaf.linear(x)
    for constant in leaf.constants():
        y = y + constant.value
    return leaf, y


def _spring(source: str, output: Tensor, degree: tuple[int, int]) -> tuple[Frozen, Tensor]:
    return Spring(source, output, degree), output
