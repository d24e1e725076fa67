"""Freezing a network at one input, block by block."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.errors import ConfigError, NotUnderstood, NumericalError, ShapeError
from rankscope.network import (
    Attention,
    Chain,
    Context,
    CrossAttention,
    GatedAttention,
    Mlp,
    Network,
    Norm,
    Opaque,
    Part,
    Scale,
    SequenceMap,
    Skip,
    Sum,
    TokenMap,
    ValueResidual,
)
from rankscope.network.known import NORMS, check_tree
from rankscope.network.parts import leaves
from rankscope.pathways.frozen import (
    Frozen,
    FrozenAttention,
    FrozenChain,
    FrozenMlp,
    FrozenNorm,
    FrozenScale,
    FrozenSkip,
    FrozenSum,
    Spring,
)
from rankscope.pathways.path import PATHS, Site, named_attention, sites
from rankscope.split.run import in_dtype

Mlps = Literal["through", "source"]
"""Whether paths cross MLPs, their gates held, or begin at them."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Question:
    """A network and what is asked of it.

    Args:
        network: the tree, as it was given.
        context: padding and positions of the input.
        dtype: what everything is computed in.
        sites: the attention parts in order of execution.
        keep: which tokens are read off, ``*batch tokens``, or None for all; padding never is.
        mlps: whether paths cross MLPs or begin there.
        has_final_norm: whether the final norm is part of what is decomposed.
    """

    network: Network
    context: Context
    dtype: torch.dtype
    sites: tuple[Site, ...]
    keep: Tensor | None
    mlps: Mlps
    has_final_norm: bool

    @property
    def layers(self) -> int:
        """How many blocks there are."""
        return len(self.network.blocks)

    def part(self, layer: int) -> Part:
        """Block ``layer``, from 1, in the dtype of the question."""
        return in_dtype(list(self.network.blocks)[layer - 1], self.dtype)

    def final_norm(self) -> Norm | None:
        """The norm behind the last block, if there is one and it belongs to the output."""
        norm = self.network.final_norm if self.has_final_norm else None
        return None if norm is None else in_dtype(norm, self.dtype)

    def frozen(self, layer: int, before: Tensor) -> tuple[Frozen, Tensor]:
        """A block held at the state before it, and the state after it to the last bit of the network's own pass.

        The last block comes with the final norm, held at the state after it.
        """
        first = sum(place.layer < layer for place in self.sites)
        frozen, after = _freeze(self.part(layer), before, _Freezing(self.context, self.mlps, first))
        norm = self.final_norm() if layer == self.layers else None
        return (frozen if norm is None else FrozenChain((frozen, FrozenNorm(norm, after)))), after

    def finished(self, state: Tensor) -> Tensor:
        """The output from the last state; raises if it is no number."""
        norm = self.final_norm()
        output = state if norm is None else norm(state)
        seen = output if self.keep is None else output[self.keep]
        if not bool(torch.isfinite(seen).all()):
            dtype = str(self.dtype).removeprefix("torch.")
            raise NumericalError(f"the output is beyond the range of {dtype}; scale input or weights down")
        return output


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FrozenNetwork(Question):
    """A network, one input and the states on the way: all that is needed to freeze any of its blocks, in any order.

    Args:
        states: layers 0 .. L of the network's own pass.
        output: the last state, after the final norm if that belongs to it.
    """

    states: tuple[Tensor, ...]
    output: Tensor

    @torch.no_grad()
    def block(self, layer: int) -> Frozen:
        """Block ``layer``, from 1, frozen at the state that enters it; the last one with the final norm behind it."""
        return self.frozen(layer, self.states[layer - 1])[0]

    def blocks(self) -> Iterator[tuple[int, Frozen]]:
        """All blocks with their layers, one at a time."""
        for layer in range(1, self.layers + 1):
            yield layer, self.block(layer)


def freeze(
    network: Network,
    x: Tensor,
    context: Context | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    mlps: Mlps = "through",
    final_norm: bool = True,
    keep: Tensor | None = None,
) -> FrozenNetwork:
    """The network held at its values on ``x``; weights are brought to ``dtype`` block by block and dropped again.

    Args:
        network: any tree of parts whose leaves can be frozen.
        x: ``*batch tokens dim``, what enters the first block.
        context: padding and positions.
        dtype: float64 or float32.
        mlps: ``"through"``: paths cross MLPs, their gates held; ``"source"``: the output of an MLP is a source, and no
            path crosses one. A token map, of which nothing is known inside, can only be a source. Whatever is asked for
            MLPs, regions run as they are, attention to a memory or to values of the first layer and gated attention are
            sources, and no path crosses them.
        final_norm: whether the output is taken after the final norm, as ``network(x)`` is, or before it.
        keep: boolean ``*batch tokens``: the tokens of which norms, residuals and shares speak; None: all but padding.
    """
    asked = question(network, x, context, dtype=dtype, mlps=mlps, final_norm=final_norm, keep=keep)
    with torch.no_grad():
        states = [checked(x, tokens=1).to(dtype)]
        for layer in range(1, asked.layers + 1):
            states.append(asked.part(layer)(states[-1], asked.context))
        output = asked.finished(states[-1])
    held = {field.name: getattr(asked, field.name) for field in fields(asked)}
    return FrozenNetwork(**held, states=tuple(states), output=output)


class Streamed:
    """The blocks of a network one after the other, each frozen when its turn comes; only the last state is kept.

    ``output`` is known once all blocks went by.
    """

    def __init__(self, asked: Question, x: Tensor) -> None:
        self.asked, self.output = asked, x

    @torch.no_grad()
    def blocks(self) -> Iterator[tuple[int, Frozen]]:
        """All blocks with their layers; a block is let go when the next one is asked for."""
        asked, state = self.asked, self.output
        for layer in range(1, asked.layers + 1):
            block, state = asked.frozen(layer, state)
            yield layer, block
            del block  # before the next one is made
        self.output = asked.finished(state)


def question(
    network: Network,
    x: Tensor,
    context: Context | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    mlps: Mlps = "through",
    final_norm: bool = True,
    keep: Tensor | None = None,
) -> Question:
    """The question itself, checked; arguments as for ``freeze``."""
    _check(network, dtype, mlps)
    if final_norm and network.final_norm is not None:
        PATHS.check(network.final_norm)
    context = Context() if context is None else context
    context.check(x)
    network.check_length(x.shape[-2])
    _check_width(network, x)
    return Question(
        network=network,
        context=context,
        dtype=dtype,
        sites=sites(network),
        keep=_kept(keep, context.is_token, x),
        mlps=mlps,
        has_final_norm=final_norm,
    )


def _kept(keep: Tensor | None, is_token: Tensor | None, output: Tensor) -> Tensor | None:
    """Which tokens are read: those asked for that are no padding; None if that is all of them."""
    chosen = [mask.expand(output.shape[:-1]) for mask in (keep, is_token) if mask is not None]
    if not chosen:
        return None
    both = chosen[0] & chosen[-1]
    if not bool(both.any(dim=-1).all()):
        raise ConfigError("keep leaves no token of some text; at least one must be read")
    return both


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
    options = given(dtype=dtype, mlps=mlps, final_norm=final_norm)
    if isinstance(network, FrozenNetwork):
        if x is not None or context is not None or options:
            raise ConfigError("this network is frozen at its input already; give nothing but it")
        return network
    if x is None:
        raise ConfigError(
            "a network is decomposed at one input: give x, the tokens that enter its first block"
        )
    return freeze(network, x, context, **options)


def _check_width(network: Network, x: Tensor) -> None:
    """Raise unless tokens are as wide as the network's first attention reads them."""
    for block in network.blocks:
        for _, part in named_attention(block):
            width = part.values.value.shape[-2]
            if x.shape[-1] != width:
                raise ShapeError(f"tokens have {x.shape[-1]} channels, but the network reads {width}")
            return


def given(**options: Any) -> dict[str, Any]:
    """The options that were given; None means the default."""
    return {name: value for name, value in options.items() if value is not None}


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
            f"paths are computed in torch.float64 or torch.float32, not in {str(dtype).removeprefix('torch.')!r}"
        )
    if mlps not in ("through", "source"):
        raise ConfigError(f"mlps={mlps!r}; paths cross MLPs ('through') or begin at them ('source')")
    check_tree(PATHS, network)
    for block in network.blocks:
        for leaf in leaves(block):
            if isinstance(leaf, TokenMap) and mlps == "through":
                raise NotUnderstood(
                    leaf,
                    "paths",
                    f"{leaf.refused()}; mlps='source' lets paths begin at what it puts out",
                )


class _Freezing:
    """What one block is frozen with; hands out the numbers of its attention parts in order of execution."""

    def __init__(self, context: Context, mlps: Mlps, first_site: int) -> None:
        self.context, self.mlps, self._site = context, mlps, first_site

    def next_site(self) -> int:
        self._site += 1
        return self._site - 1


@PATHS.rules
def _freeze(part: Part, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:  # type: ignore[empty-body]
    """The part held at its values on ``x``, and what the part itself puts out there, to the last bit.

    Maps, values and the inside of MLPs are computed once for both.
    """


@_freeze.register
def _chain(part: Chain, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    found: list[Frozen] = []
    for child in part.parts:
        frozen, x = _freeze(child, x, how)
        found.append(frozen)
    return FrozenChain(tuple(found)), x


@_freeze.register
def _sum(part: Sum, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    found, outputs = list[Frozen](), list[Tensor]()
    for child in part.parts:
        frozen, y = _freeze(child, x, how)
        found.append(frozen)
        outputs.append(y)
    return FrozenSum(tuple(found)), sum(outputs[1:], outputs[0]) if outputs else torch.zeros_like(x)


@_freeze.register
def _skip(part: Skip, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    inner, y = _freeze(part.inner, x, how)
    frozen = FrozenSkip(inner, part.scale)
    return frozen, y + frozen.own(x)


@_freeze.register
def _attention(part: Attention, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    frozen = FrozenAttention(part, part.mixer(x, how.context), how.next_site())
    return frozen, part.mixed(frozen.maps, x)


@_freeze.register
def _mlp(part: Mlp, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    if how.mlps == "through":
        return FrozenMlp.at(part, x)
    return _spring("mlp", part(x, how.context), (0, 1))


@_freeze.register
def _token_map(part: TokenMap, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    return _spring(part.site, part(x, how.context), (0, 1))


@_freeze.register
def _opaque(part: Opaque, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    return _spring(f"opaque {part.site} ({part.where})", part(x, how.context), (0, 0))


@_freeze.register
def _sequence(part: SequenceMap, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    return _spring(f"{part.site} ({part.words})", part(x, how.context), (0, 0))


@_freeze.register(CrossAttention, GatedAttention, ValueResidual)
def _cross(
    part: CrossAttention | GatedAttention | ValueResidual, x: Tensor, how: _Freezing
) -> tuple[Frozen, Tensor]:
    return _spring(part.site, part(x, how.context), (0, 0))


@_freeze.register(*NORMS)
def _norm(part: Norm, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    return FrozenNorm(part, x), part(x)


@_freeze.register
def _scale(part: Scale, x: Tensor, how: _Freezing) -> tuple[Frozen, Tensor]:
    return FrozenScale(part.value), part(x, how.context)


def _spring(source: str, output: Tensor, degree: tuple[int, int]) -> tuple[Frozen, Tensor]:
    return Spring(source, output, degree), output
