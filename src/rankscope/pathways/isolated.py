"""A network run again along one path: every other head is taken out, and what depends on the tokens is computed anew.

Unlike the terms of the frozen decomposition these do **not** add up to the output of the network: the attention maps,
the scales of norms and the gates of MLPs are those of a stream in which the other heads never spoke. Two ways:

``isolated`` takes the tree as it is. A chosen head stands alone in its attention, with its value bias and the output
bias of the attention; where a head is chosen inside a skip the skip is gone, where none is chosen the attention is. All
norms, scales, MLPs, attention to a memory and regions run as they are, with their own skips, and the final norm stay.

``official`` is what the code published with Dong, Cordonnier, Loukas (2021) does with a path (option ``no_sub_path``,
as in all its path experiments): a layer without a chosen head is dropped whole; elsewhere the stream is replaced by the
chosen head's output, value and output bias included, and normalized by a LayerNorm without gain and bias. There are no
norms before attention and no final norm, and no MLPs unless asked for.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from rankscope.core.numerics import checked
from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError, NotUnderstood, NumericalError
from rankscope.network import (
    Attention,
    Chain,
    Context,
    CrossAttention,
    GatedAttention,
    Mlp,
    Network,
    Opaque,
    Part,
    Scale,
    SequenceMap,
    Skip,
    Sum,
    TokenMap,
    ValueResidual,
    without,
)
from rankscope.network.known import NORMS
from rankscope.network.parts import affine, leaves, scaled
from rankscope.network.surgery import is_mlp, rewriter
from rankscope.pathways.drawing import Heads, no_route, require_path
from rankscope.pathways.path import PATHS, SKIP, Path, check_path, named_attention, sites
from rankscope.split.run import in_dtype

Mode = Literal["isolated", "official"]

OFFICIAL_EPS = 1e-12
"""Added to the variance by the LayerNorms of the published code."""


@torch.no_grad()
def run_path(
    network: Network,
    x: Tensor,
    path: Path,
    context: Context | None = None,
    *,
    mode: Mode,
    mlps: bool | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """What comes out if nothing but ``path`` is left of the network; over all paths this does not add up to anything.

    Args:
        network: any tree of parts.
        x: ``*batch tokens dim``, what enters the first block.
        path: a head or None for every attention part.
        context: padding and positions.
        mode: ``isolated``, the tree with everything else taken out, or ``official``, as the published code does it.
        mlps: whether there are MLPs; by default there are in ``isolated`` and not in ``official``. In ``official`` the
            MLP sublayers of a layer, with their skips and norms, follow the chosen head.
        dtype: what everything is computed in; weights are brought to it block by block.

    >>> from rankscope.network import Spec, build, gaussian_tokens, generators
    >>> weights, tokens = generators(0)
    >>> network = build(Spec(layers=3, heads=2, dim=8, variant="san+skip"), weights)
    >>> x = gaussian_tokens(5, 8, generator=tokens)
    >>> torch.equal(run_path(network, x, Path((None, None, None)), mode="isolated"), x)
    True
    """
    if mode not in get_args(Mode):
        raise unknown_name("mode", mode, get_args(Mode))
    context = _checked(network, x, context, dtype)
    y = checked(x).to(dtype)
    if mode == "official":
        y = _official(network, y, path, context, with_mlps=bool(mlps))
    else:
        y = _isolated(without(network, "mlp") if mlps is False else network, y, path, context)
    return _finite(y, context, path)


def official_sum(
    network: Network,
    x: Tensor,
    paths: Sequence[Path],
    context: Context | None = None,
    *,
    mlps: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """What the published code hands to the classifier: the sum over ``paths``, normalized without gain and bias."""
    if not paths:
        raise ConfigError("no paths were given; give at least one")
    total = run_path(network, x, paths[0], context, mode="official", mlps=mlps, dtype=dtype)
    for path in paths[1:]:
        total = total + run_path(network, x, path, context, mode="official", mlps=mlps, dtype=dtype)
    return _bare_norm(total)


def _checked(network: Network, x: Tensor, context: Context | None, dtype: torch.dtype) -> Context:
    if network.training:
        raise ConfigError(
            "the network is in training mode, so its weights and its values move; call network.eval() first"
        )
    if not dtype.is_floating_point:
        raise ConfigError(f"paths are computed in floating-point numbers, not in {dtype}; use torch.float64")
    checked(x)
    network.check_length(x.shape[-2])
    context = Context() if context is None else context
    context.check(x)
    return context


def _finite(y: Tensor, context: Context, path: Path) -> Tensor:
    tokens = y if context.is_token is None else y[context.is_token.expand(y.shape[:-1])]
    if not bool(torch.isfinite(tokens).all()):
        raise NumericalError(
            f"path {path} leaves the range of {str(y.dtype).removeprefix('torch.')}; scale input or weights down"
        )
    return y


def _isolated(network: Network, y: Tensor, path: Path, context: Context) -> Tensor:
    check_path(sites(network), path)
    for layer, (block, heads) in enumerate(_by_block(network, path), start=1):
        found = _along(in_dtype(block, y.dtype), y, heads, context)
        if found is None:
            raise no_route(network, path, layer, heads)
        y = found
    return y if network.final_norm is None else in_dtype(network.final_norm, y.dtype)(y)


def _official(network: Network, y: Tensor, path: Path, context: Context, *, with_mlps: bool) -> Tensor:
    require_path(network, path)
    _check_official(network)
    for stored, heads in _by_block(network, path):
        if all(head is SKIP for head in heads):
            continue
        block = in_dtype(stored, y.dtype)
        for (_, part), head in zip(named_attention(block), heads, strict=True):
            if head is not SKIP:
                y = _bare_norm(head_alone(part, y, head, context))
        rest = _without_attention(block)
        if with_mlps and any(is_mlp(leaf) for leaf in leaves(rest)):
            y = rest(y, context)
    return y


def _check_official(network: Network) -> None:
    """Raise where the published code has nothing to follow: it knows attention, norms and MLPs alone."""
    for block in network.blocks:
        for leaf in leaves(block):
            if isinstance(leaf, CrossAttention | Opaque | GatedAttention | ValueResidual | SequenceMap):
                raise NotUnderstood(leaf, "paths", "the published code has no such part; use mode='isolated'")


def _by_block(network: Network, path: Path) -> Iterator[tuple[Part, Heads]]:
    """Every block with the part of the path that lies in it."""
    start = 0
    for block in network.blocks:
        size = _sites(block)
        yield block, path.heads[start : start + size]
        start += size


def _sites(part: Part) -> int:
    return sum(isinstance(leaf, Attention) for leaf in leaves(part))


def _bare_norm(y: Tensor) -> Tensor:
    return F.layer_norm(y, y.shape[-1:], eps=OFFICIAL_EPS)


def _without_attention(block: Part) -> Part:
    """What is left of a block without its attention sublayers; the identity if nothing is."""

    def is_attention_sublayer(part: Part) -> bool:
        held = [leaf for leaf in leaves(part) if isinstance(leaf, Attention) or is_mlp(leaf)]
        return len(held) == 1 and isinstance(held[0], Attention)

    return rewriter(lambda part: part, is_attention_sublayer)(block)


def head_alone(part: Attention, y: Tensor, head: int, context: Context) -> Tensor:
    """``P_h (y V_h + 1 v_h) O_h + 1 o``: one head as if the attention had no other, the output bias included."""
    values = part.values
    width = values.value.shape[-1] // values.value_heads
    group = head // (values.heads // values.value_heads)
    own = slice(group * width, (group + 1) * width)
    bias = None if values.value_bias is None else values.value_bias[..., own]
    carried = affine(y, values.value[..., own], bias)
    mixed = part.mixer(y, context)[..., head, :, :] @ carried
    return affine(mixed, values.head_outs()[..., head, :, :], values.out_bias)


@PATHS.rules
def _along(part: Part, y: Tensor, heads: Heads, context: Context) -> Tensor | None:
    """``part(y)`` with exactly these of its heads; None if no route through the part takes these and no others."""


@_along.register
def _chain(part: Chain, y: Tensor, heads: Heads, context: Context) -> Tensor | None:
    found: Tensor | None = y
    for child, own in _shared_out(part, heads):
        if found is None:
            return None
        found = _along(child, found, own, context)
    return found


@_along.register
def _sum(part: Sum, y: Tensor, heads: Heads, context: Context) -> Tensor | None:
    branches = list(_shared_out(part, heads))
    taken = [(child, own) for child, own in branches if any(head is not SKIP for head in own)]
    if len(taken) > 1:
        return None
    routes = [_along(child, y, own, context) for child, own in taken or branches]
    return _added(route for route in routes if route is not None)


@_along.register
def _skip(part: Skip, y: Tensor, heads: Heads, context: Context) -> Tensor | None:
    inner = _along(part.inner, y, heads, context)
    is_closed = isinstance(part.scale, float) and part.scale == 0.0
    if is_closed or any(head is not SKIP for head in heads):
        return inner
    return _added(route for route in (inner, scaled(y, part.scale)) if route is not None)


@_along.register
def _attention(part: Attention, y: Tensor, heads: Heads, context: Context) -> Tensor | None:
    return None if heads[0] is SKIP else head_alone(part, y, heads[0], context)


@_along.register(Mlp, CrossAttention, Scale, TokenMap, Opaque, *NORMS)
@_along.register(GatedAttention, ValueResidual, SequenceMap)
def _leaf(part: Part, y: Tensor, heads: Heads, context: Context) -> Tensor | None:
    return part(y, context)


def _shared_out(part: Chain | Sum, heads: Heads) -> Iterator[tuple[Part, Heads]]:
    start = 0
    for child in part.parts:
        size = _sites(child)
        yield child, heads[start : start + size]
        start += size


def _added(routes: Iterator[Tensor]) -> Tensor | None:
    """The sum of all routes; None if there is none."""
    total: Tensor | None = None
    for route in routes:
        total = route if total is None else total + route
    return total
