"""Products of two states, and softmaxes, each in one form whatever the spelling."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.region import Region

_MATRIX = frozenset({"matmul", "bmm", "mm", "baddbmm", "addmm"})
_SOFTMAX = frozenset({"softmax", "_softmax", "_safe_softmax"})
_LOG_SOFTMAX = frozenset({"log_softmax", "_log_softmax"})


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """``out[l, r, d] = sum_c left[l, r, c] right[l, d, c]``, by flat places of the elements.

    Args:
        factor: on the sum; ``shift`` is a constant added to it, in the shape of the output.
    """

    node: Node
    left: Node
    right: Node
    left_places: Tensor
    right_places: Tensor
    out_places: Tensor
    factor: float = 1.0
    shift: Tensor | None = None


def contraction(live: set[Node], node: Node) -> Contraction | None:
    """A node as a product of two states; None where it is none."""
    if node.kind == "sum":
        return _summed_product(live, node)
    shift, factor = None, 1.0
    if node.kind in ("baddbmm", "addmm"):
        added, left, right = node.args[:3]
        if added in live:
            return None
        factor, beta = (float(node.kwargs.get(name, 1)) for name in ("alpha", "beta"))
        shift = None if beta == 0.0 else (beta * added.value).expand(node.shape)
    elif node.kind in _MATRIX or node.kind == "linear":
        left, right = node.args[:2]
        if len(node.args) > 2 and node.args[2] is not None:
            return None
    else:
        return None
    if left not in live or right not in live or left.value.ndim < 2 or right.value.ndim < 2:
        return None
    of_left, of_right = _numbered(left.shape), _numbered(right.shape)
    of_right = of_right if node.kind == "linear" else of_right.mT
    lead = np.broadcast_shapes(
        of_left.shape[:-2], of_right.shape[:-2]
    )  # torch's own loads sympy, for seconds
    return Contraction(
        node,
        left,
        right,
        of_left.expand(*lead, *of_left.shape[-2:]).reshape(-1, *of_left.shape[-2:]),
        of_right.expand(*lead, *of_right.shape[-2:]).reshape(-1, *of_right.shape[-2:]),
        _numbered(node.shape).reshape(-1, *node.shape[-2:]),
        factor,
        shift,
    )


def _numbered(shape: torch.Size) -> Tensor:
    return torch.arange(shape.numel()).reshape(shape)


def _summed_product(live: set[Node], node: Node) -> Contraction | None:
    """``(a * b).sum(axis)``: an axis that only one of the two has makes rows of it, the others go along."""
    product = node.args[0]
    axes = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if product.kind != "mul" or not axes or len(axes) != 1:
        return None
    left, right = product.args[:2]
    if left not in live or right not in live:
        return None
    count = product.value.ndim
    axis = axes[0] % count
    sizes = [[1] * (count - len(side.shape)) + list(side.shape) for side in (left, right)]
    ours = [k for k in range(count) if k != axis and sizes[0][k] > 1 and sizes[1][k] == 1]
    theirs = [k for k in range(count) if k != axis and sizes[1][k] > 1 and sizes[0][k] == 1]
    along = [k for k in range(count) if k != axis and k not in (*ours, *theirs)]
    order = [*along, *ours, *theirs, axis]
    full = product.shape
    shape = [torch.Size([full[k] for k in group]).numel() for group in (along, ours, theirs, [axis])]
    of_left, of_right = (
        _numbered(side.shape).expand(full).permute(order).reshape(shape) for side in (left, right)
    )
    out = _numbered(torch.Size([1 if k == axis else full[k] for k in range(count)]))
    return Contraction(
        node,
        left,
        right,
        of_left[:, :, 0, :],
        of_right[:, 0, :, :],
        out.permute(order).reshape(shape[:3]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """A softmax of ``logits`` along ``axis``, and the node that holds it."""

    node: Node
    logits: Node
    axis: int


def maps(region: Region, live: set[Node]) -> Iterator[Map]:
    """All softmaxes of a region, in order."""
    for node in region.order:
        found = _map(node) if node in live and node not in region.roots else None
        if found is not None and found.logits in live:
            yield found


def _map(node: Node) -> Map | None:
    if node.kind in _SOFTMAX:
        axis = node.args[1] % node.value.ndim
        return Map(node, _shifted(node.args[0], axis), axis)
    if node.kind == "exp":
        inner = node.args[0]
        if inner.kind in _LOG_SOFTMAX:
            return Map(node, inner.args[0], inner.args[1] % node.value.ndim)
        if inner.kind == "sub" and inner.args[1:] and isinstance(inner.args[1], Node) and not inner.kwargs:
            total = _unsqueezed(inner.args[1])
            if total.kind == "logsumexp" and total.args[0] is inner.args[0] and len(total.args[1]) == 1:
                axis = total.args[1][0] % node.value.ndim
                if _is_kept(inner.args[1], node, axis):
                    return Map(node, inner.args[0], axis)
        return None
    if node.kind == "div" and node.kwargs.get("rounding_mode") is None:
        top, bottom = node.args[:2]
    elif node.kind == "mul":
        top, bottom = node.args[:2]
        if isinstance(top, Node) and top.kind == "reciprocal":
            top, bottom = bottom, top
        if not isinstance(bottom, Node) or bottom.kind != "reciprocal":
            return None
        bottom = bottom.args[0]
    else:
        return None
    if not isinstance(top, Node) or not isinstance(bottom, Node) or top.kind != "exp":
        return None
    total = _unsqueezed(bottom)
    axes = total.args[1] if total.kind == "sum" and len(total.args) > 1 else None
    if not axes or len(axes) != 1 or total.args[0] is not top:
        return None
    axis = axes[0] % node.value.ndim
    return Map(node, _shifted(top.args[0], axis), axis) if _is_kept(bottom, node, axis) else None


def _unsqueezed(node: Node) -> Node:
    """Up through operations that only put an axis of size one back."""
    while node.kind in ("unsqueeze", "alias", "expand") or (
        node.kind in ("view", "reshape") and node.args[0].value.ndim == node.value.ndim - 1
    ):
        node = node.args[0]
    return node


def _is_kept(total: Node, node: Node, axis: int) -> bool:
    """Whether a sum over an axis has kept it, with size one: only then is every entry divided by its own sum."""
    while total.kind in ("alias", "expand"):
        total = total.args[0]
    return total.value.ndim == node.value.ndim and total.shape[axis] == 1 and node.shape[axis] > 1


def _shifted(logits: Node, axis: int) -> Node:
    """Logits before something was subtracted that is the same for all keys, which softmax does not see."""
    if logits.kind == "sub" and len(logits.args) > 1 and isinstance(logits.args[1], Node):
        less, alpha = logits.args[1], logits.kwargs.get("alpha", 1)
        is_row = less.value.ndim == logits.value.ndim and less.shape[axis] == 1 < logits.shape[axis]
        if is_row and alpha == 1 and logits.args[0].shape == logits.shape:
            before: Node = logits.args[0]
            return before
    return logits
