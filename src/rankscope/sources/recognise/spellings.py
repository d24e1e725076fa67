"""Other spellings of one thing, written in one way: the graph of a region is changed in place, its values are not.

Products with the weight on the left and convolutions of one step become ``linear`` between two turns of axes,
batch norms at rest become a product and a sum, and what changes no number (casts, dropout at rest, ``+ 0``) becomes
``alias``. A node keeps its identity, so whoever points at it still points at the same value.
"""

from typing import Any

import torch
from torch import Tensor

from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.region import Region

_ATEN = torch.ops.aten


def respell(region: Region) -> None:
    """Bring a region to its usual spelling; asking again changes nothing."""
    nodes = list[Node]()
    last = max((node.id for node in region.graph.nodes), default=0)
    for node in region.graph.nodes:
        writer = _Writer(last + 1)
        if region.depends(node) and node not in region.roots and node.op is not None:
            rule = _RULES.get(node.kind)
            if rule is not None:
                rule(region, node, writer)
        nodes += [*writer.nodes, node]
        last += len(writer.nodes)
    region.graph.nodes = nodes
    region.__post_init__()


class _Writer:
    """Makes the nodes that go before a node which is rewritten."""

    def __init__(self, first: int) -> None:
        self.nodes: list[Node] = []
        self.first = first

    def __call__(self, like: Node, op: Any, *args: Any) -> Node:
        held = [leaf.value if isinstance(leaf, Node) else leaf for leaf in args]
        number = self.first + len(self.nodes)
        node = Node(number, op, args, {}, op(*held), None, like.line, like.path)
        self.nodes.append(node)
        return node


def _become(node: Node, op: Any, *args: Any) -> None:
    node.op, node.args, node.kwargs, node.item = op, args, {}, None


def _argument(node: Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _cast(region: Region, node: Node, write: _Writer) -> None:
    """A cast between equal types of number; one to integers loses digits and stays."""
    source = node.args[0]
    if source.value.dtype == node.value.dtype and source.shape == node.shape:
        _become(node, _ATEN.alias.default, source)


def _dropout(region: Region, node: Node, write: _Writer) -> None:
    """Dropout at rest; asked to drop in training, it stays what it is whatever the model's mode."""
    is_training = _argument(node, 2, "train", True)
    if (not is_training or _argument(node, 1, "p", 0.5) == 0.0) and node.item in (None, 0):
        _become(node, _ATEN.alias.default, node.args[0])


def _no_change(neutral: float) -> Any:
    def rule(region: Region, node: Node, write: _Writer) -> None:
        if len(node.args) < 2:
            return
        pairs = [node.args[:2]] if node.kind in ("sub", "div") else [node.args[:2], node.args[1::-1]]
        for source, other in pairs:
            if (
                isinstance(source, Node)
                and region.depends(source)
                and source.shape == node.shape
                and source.value.dtype == node.value.dtype
                and _is_number(other, neutral)
                and "rounding_mode" not in node.kwargs
            ):
                _become(node, _ATEN.alias.default, source)
                return

    return rule


def _is_number(value: object, number: float) -> bool:
    """Whether an argument is this number, written in the code; a weight with that value may be trained away from it."""
    if isinstance(value, Node):
        held = value.op is None and not value.name and value.value.numel() == 1
        return held and bool((value.value == number).all())
    return isinstance(value, int | float) and not isinstance(value, bool) and value == number


def _convolution(region: Region, node: Node, write: _Writer) -> None:
    """A convolution over one step in one group: a linear map of the channels, which stand on axis 1."""
    source, weight, bias, stride, padding, _, transposed, _, groups = node.args[:9]
    if (
        not region.depends(source)
        or region.depends(weight)
        or (bias is not None and region.depends(bias))
        or transposed
        or groups != 1
        or any(size != 1 for size in weight.shape[2:])
        or any(step != 1 for step in stride)
        or any(padding)
        or source.value.ndim != weight.value.ndim
    ):
        return
    axes = source.value.ndim
    last = [0, *range(2, axes), 1]
    back = [0, axes - 1, *range(1, axes - 1)]
    matrix = write(node, _ATEN.reshape.default, weight, list(weight.shape[:2]))
    turned = write(node, _ATEN.permute.default, source, last)
    mapped = write(node, _ATEN.linear.default, turned, matrix, bias)
    _become(node, _ATEN.permute.default, mapped, back)


def _left_product(region: Region, node: Node, write: _Writer) -> None:
    """``W @ X`` with channels down the columns of X: the transpose of ``X' @ W'``."""
    left, right = node.args[:2]
    if not isinstance(left, Node) or not isinstance(right, Node):
        return
    if region.depends(left) or not region.depends(right) or right.value.ndim < 2 or left.value.ndim < 2:
        return
    matrix = one_matrix(left.value)
    if matrix is None or node.shape[:-2] != right.shape[:-2]:
        return
    held = write(node, _ATEN.reshape.default, _first(write, node, left), list(matrix.shape))
    turned = write(node, _ATEN.transpose.int, right, -1, -2)
    mapped = write(node, _ATEN.linear.default, turned, held, None)
    _become(node, _ATEN.transpose.int, mapped, -1, -2)


def _first(write: _Writer, node: Node, held: Node) -> Node:
    while held.value.ndim > 2:
        held = write(node, _ATEN.select.int, held, 0, 0)
    return held


def one_matrix(value: Tensor) -> Tensor | None:
    """The matrix that a constant is for every text: two axes, or more of which the first repeat it."""
    while value.ndim > 2:
        if value.shape[0] == 0 or not torch.equal(value, value[:1].expand_as(value)):
            return None
        value = value[0]
    return value if value.ndim == 2 else None


def _batch_norm(region: Region, node: Node, write: _Writer) -> None:
    """A batch norm with stored statistics: a gain and a shift for every channel, which stand on axis 1."""
    without_training = node.kind == "_native_batch_norm_legit_no_training"
    source, gain, bias, mean, variance = node.args[:5]
    is_training = False if without_training else node.args[5]
    eps = node.args[6] if without_training else node.args[7]
    held = [leaf for leaf in (gain, bias, mean, variance) if leaf is not None]
    if is_training or mean is None or variance is None or node.item != 0 or any(map(region.depends, held)):
        return
    axes = source.value.ndim
    spread = write(node, _ATEN.rsqrt.default, write(node, _ATEN.add.Scalar, variance, eps))
    factor = spread if gain is None else write(node, _ATEN.mul.Tensor, spread, gain)
    moved = write(node, _ATEN.neg.default, write(node, _ATEN.mul.Tensor, mean, factor))
    shift = moved if bias is None else write(node, _ATEN.add.Tensor, moved, bias)
    turned = write(node, _ATEN.permute.default, source, [0, *range(2, axes), 1])
    scaled = write(node, _ATEN.mul.Tensor, turned, factor)
    shifted = write(node, _ATEN.add.Tensor, scaled, shift)
    _become(node, _ATEN.permute.default, shifted, [0, axes - 1, *range(1, axes - 1)])


def _product_sum(region: Region, node: Node, write: _Writer) -> None:
    """``a + v b c`` in one operation."""
    value = node.kwargs.get("value", 1)
    product = write(node, _ATEN.mul.Tensor, node.args[1], node.args[2])
    if value != 1:
        product = write(node, _ATEN.mul.Scalar, product, value)
    _become(node, _ATEN.add.Tensor, node.args[0], product)


def _division(region: Region, node: Node, write: _Writer) -> None:
    """``(exp(a) @ v) / exp(a).sum(-1)``, a softmax that divides last, divides first; other divisions by one go."""
    mixed, total = (*node.args, None)[:2]
    if isinstance(mixed, Node) and isinstance(total, Node) and mixed.kind in ("matmul", "bmm"):
        weights, values = mixed.args[:2]
        last = (-1, weights.value.ndim - 1)
        if (
            weights.kind == "exp"
            and total.kind == "sum"
            and total.args[0] is weights
            and len(total.args) > 1
            and len(total.args[1]) == 1
            and total.args[1][0] in last
            and total.value.ndim == weights.value.ndim
            and node.shape == mixed.shape
            and not node.kwargs
        ):
            _become(node, mixed.op, write(node, _ATEN.div.Tensor, weights, total), values)
            return
    _no_change(1.0)(region, node, write)


_RULES = {
    "_to_copy": _cast,
    "to": _cast,
    "lift_fresh": _cast,
    "dropout": _dropout,
    "native_dropout": _dropout,
    "add": _no_change(0.0),
    "sub": _no_change(0.0),
    "mul": _no_change(1.0),
    "div": _division,
    "convolution": _convolution,
    "matmul": _left_product,
    "mm": _left_product,
    "bmm": _left_product,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "addcmul": _product_sum,
}
