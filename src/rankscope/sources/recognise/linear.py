"""Linear maps of the channels, in whatever spelling, with the weights as they are held."""

import math

import torch
from torch import Tensor

from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.region import Linear, Region
from rankscope.sources.recognise.spellings import one_matrix, respell

_PRODUCTS = frozenset({"matmul", "mm", "bmm"})
SIZES = (0.01, 1.0, 30.0)
"""Sizes of the random states that a reading is compared on."""


@torch.no_grad()
def find_linears(region: Region) -> None:
    """Fill ``region.linears``: products with a constant right factor, with what is added to all rows alike as bias.

    Two maps one after the other, and sums of maps of one state (low-rank updates), are one map, held as a copy.
    A map is of the last axis of its input; whether channels stand there is asked of the input by whoever uses it.
    """
    respell(region)
    for node in region.order:
        if node in region.roots or node in region.known:
            continue
        found = _product(region, node) or _shifted(region, node) or _added(region, node)
        if found is not None:
            region.linears[node] = chained(region, found)


def last_map(region: Region, node: Node) -> Linear | None:
    """The last of the maps that stand one after the other in ``region.linears[node]``, with its own weights."""
    if node.kind not in ("add", "sub"):
        return _product(region, node)
    for source, _ in _operands(region, node):
        below = _product(region, region.stripped(source))
        whole = _shifted(region, node, below) if below is not None else None
        if whole is not None:
            return whole
    return None


def _product(region: Region, node: Node) -> Linear | None:
    """One operation that multiplies the last axis of what depends on the stream with a constant matrix."""
    if node.kind == "linear":
        source, weight, bias = (*node.args, None)[:3]
        if not region.depends(source) or region.depends(weight) or region.depends(bias):
            return None
        held = None if bias is None else bias.value.detach()
        return Linear(region.stripped(source), node, weight.value.detach().mT, held)
    if node.kind in ("addmm", "baddbmm"):
        shift, source, weight = node.args[:3]
        beta, alpha = (float(node.kwargs.get(name, 1)) for name in ("beta", "alpha"))
    elif node.kind in _PRODUCTS:
        (source, weight), shift, beta, alpha = node.args[:2], None, 1.0, 1.0
    else:
        return None
    if not region.depends(source) or region.depends(weight) or region.depends(shift):
        return None
    matrix = one_matrix(weight.value.detach())
    if matrix is None or source.value.ndim < 2 or source.shape[:-1] != node.shape[:-1]:
        return None
    bias = None if shift is None or beta == 0.0 else channel_vector(shift.value, node)
    if shift is not None and beta != 0.0 and bias is None:
        return None
    return Linear(
        region.stripped(source), node, _times(matrix, alpha), None if bias is None else _times(bias, beta)
    )


def _times(value: Tensor, factor: float) -> Tensor:
    return value if factor == 1.0 else value * factor


def channel_vector(value: Tensor, node: Node) -> Tensor | None:
    """A constant as one number per entry of a node's last axis, equal on all other axes; None where it is not.

    Axes are asked, not sizes: a number per token is no vector of channels where there are as many tokens as channels.
    """
    if value.ndim > node.value.ndim or not value.is_floating_point():
        return None
    while value.ndim > 1:
        if value.shape[0] != 1 and value.stride(0) != 0:
            return None
        value = value[0]
    return value.detach() if value.shape == node.shape[-1:] else None


def _operands(region: Region, node: Node) -> list[tuple[Node, object]]:
    """What depends on the stream and the other operand, in both orders where both are nodes."""
    if len(node.args) < 2:
        return []
    return [
        (one, other)
        for one, other in (node.args[:2], node.args[1::-1])
        if isinstance(one, Node) and region.depends(one)
    ]


def _shifted(region: Region, node: Node, map_: Linear | None = None) -> Linear | None:
    """A linear map plus a constant vector; the map is that of ``region.linears`` unless it is given."""
    if node.kind not in ("add", "sub") or float(node.kwargs.get("alpha", 1)) != 1.0:
        return None
    for source, other in _operands(region, node):
        below = region.linears.get(region.stripped(source)) if map_ is None else map_
        if below is None or not isinstance(other, Node) or region.depends(other):
            continue
        if source.shape != node.shape or (node.kind == "sub" and source is not node.args[0]):
            continue
        bias = channel_vector(other.value, node)
        if bias is not None:
            bias = bias if node.kind == "add" else -bias
            total = bias if below.bias is None else below.bias + bias
            return Linear(below.input, node, below.matrix, total)
    return None


def chained(region: Region, found: Linear, *, through_states: bool = False) -> Linear:
    """A map of what another map puts out, as one map of what that one reads.

    What is as wide as the stream may be a state of it, between two parts, and is not passed unless it has to be.
    """
    below = as_linear(region, found.input)
    if below is None or (found.input.shape[-1] == region.roots[0].shape[-1] and not through_states):
        return found
    bias = found.bias
    if below.bias is not None:
        bias = below.bias @ found.matrix + (0.0 if bias is None else bias)
    return Linear(below.input, found.output, below.matrix @ found.matrix, bias)


def _added(region: Region, node: Node) -> Linear | None:
    """The sum of two maps of one state, each perhaps times constants."""
    if node.kind not in ("add", "sub") or len(_operands(region, node)) != 2:
        return None
    one, other = (as_linear(region, side) for side in node.args[:2])
    if one is None or other is None:
        return None
    if one.input is not other.input:
        one, other = (chained(region, side, through_states=True) for side in (one, other))
    if one.input is not other.input:
        return None
    if not node.args[0].shape == node.args[1].shape == node.shape:
        return None
    factor = float(node.kwargs.get("alpha", 1)) * (-1.0 if node.kind == "sub" else 1.0)
    biases = [
        _times(bias, size) for bias, size in ((one.bias, 1.0), (other.bias, factor)) if bias is not None
    ]
    total = None if not biases else biases[0] if len(biases) == 1 else biases[0] + biases[1]
    found = Linear(one.input, node, one.matrix + _times(other.matrix, factor), total)
    return found if is_so(region, found) else None


def as_linear(region: Region, node: Node) -> Linear | None:
    """A node as a linear map of one state, constants that multiply channels included; None where it is no such map.

    What stands in ``region.linears`` is the map without such factors, which are parts of their own on the stream.
    """
    factors = list[float | Tensor]()
    at = region.stripped(node)
    while at not in region.linears:
        step = constant_multiple(region, at)
        if step is None:
            return None
        at, factor = step
        factors.append(factor)
        at = region.stripped(at)
    found = region.linears[at]
    matrix, bias = found.matrix, found.bias
    for factor in factors:
        matrix, bias = matrix * factor, None if bias is None else bias * factor
    mapped = Linear(found.input, node, matrix, bias)
    return mapped if not factors or is_so(region, mapped) else None


def constant_multiple(region: Region, node: Node) -> tuple[Node, float | Tensor] | None:
    """What a node is a constant multiple of, number or channel vector, and that constant."""
    if node in region.roots or node in region.known or node.kind not in ("mul", "div"):
        return None
    for source, other in _operands(region, node):
        if (node.kind == "div" and source is not node.args[0]) or "rounding_mode" in node.kwargs:
            continue
        factor = constant_factor(region, other, node)
        if factor is not None and source.shape == node.shape:
            return source, factor if node.kind == "mul" else 1 / factor
    return None


def constant_factor(region: Region, value: object, node: Node) -> float | Tensor | None:
    """A number or a vector of channels that stands as an operand of ``node``; None for anything else."""
    if isinstance(value, Node):
        if region.depends(value) or not value.value.is_floating_point():
            return None
        vector = channel_vector(value.value, node)
        if vector is not None:
            return vector
        return value.value.detach().reshape(1) if value.value.numel() == 1 else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None  # type: ignore[arg-type]  # seen to be a number


def is_so(region: Region, found: Linear) -> bool:
    """Whether a map gives what the graph gives, on random states of several sizes, row by row."""
    generator = torch.Generator().manual_seed(11)
    for size in SIZES:
        x = size * torch.randn(found.input.shape, generator=generator, dtype=torch.float64)
        ours = x @ found.matrix + (0.0 if found.bias is None else found.bias)
        theirs = region.replay(found.output, {found.input: x})
        if ours.numel() != theirs.numel() or ours.shape[-1] != theirs.shape[-1]:
            return False
        if not is_close(ours.reshape(theirs.shape), theirs):
            return False
    return True


def is_close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-11) -> bool:
    """Equal up to rounding, measured by the largest entry; never where a number is not finite."""
    if not bool(ours.isfinite().all()) or not bool(theirs.isfinite().all()):
        return False
    return bool((ours - theirs).abs().max() <= tolerance * theirs.abs().max().clamp(min=1e-300))
