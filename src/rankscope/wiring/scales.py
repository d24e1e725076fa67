"""The factor on the logits of attention: the width of a head divides, it does not multiply."""

from dataclasses import dataclass
from math import isclose, prod

import torch

from rankscope.sources.operations import Node, Region
from rankscope.sources.operations.region import SAME_CHANNELS
from rankscope.wiring.heads import product_of
from rankscope.wiring.piece import Piece

_PASSED = SAME_CHANNELS | {"_to_copy", "masked_fill", "where", "add", "sub", "slice", "select"}


TINY = 1 / 50
"""Of one over the root of the width of a head, which keeps logits of one size; one over the width itself is in use, one
over its square, or over the width times its root, is a slip."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A number that logits are multiplied by, where it stands, and which function of the width it is."""

    node: Node
    what: str


def scaled_down(piece: Piece, softmax: Node) -> Factor | None:
    """The place where logits are multiplied by so little that all keys are read alike; None where they are not."""
    found = _product_of_factors(piece, softmax)
    if found is None:
        return None
    total, width, factors = found
    is_power = any(isclose(total, width**-power, rel_tol=1e-6) for power in (1.5, 2.0))
    if not (0 < total * width**0.5 < TINY or is_power):
        return None
    return Factor(min(factors, key=lambda one: one[0])[1], f"{total:.2g}")


def scaled_up(piece: Piece, softmax: Node) -> Factor | None:
    """The place where logits are multiplied by the width of a head or its root; None where they are not."""
    found = _product_of_factors(piece, softmax)
    if found is None:
        return None
    total, width, factors = found
    for size, what in (
        (float(width), "the width of a head"),
        (width**0.5, "the root of the width of a head"),
    ):
        if isclose(total, size, rel_tol=1e-6):
            return Factor(max(factors, key=lambda one: one[0])[1], what)
    return None


def _product_of_factors(piece: Piece, softmax: Node) -> tuple[float, int, list[tuple[float, Node]]] | None:
    """What logits are multiplied by, the width of a head, and the plain numbers that do it; None where none does.

    Queries and keys of one length are meant to be enlarged, and are left out.
    """
    region = piece.region
    product = None if region is None else product_of(region, softmax)
    if region is None or product is None:
        return None
    query, key = product.inputs()[:2]
    width = query.shape[-1]
    if width < 4 or _has_one_length(query, -1) or _has_one_length(key, -2):
        return None
    factors = [
        *_factors(region, softmax, product),
        *_factors(region, query, None),
        *_factors(region, key, None),
    ]
    return (prod(size for size, _ in factors), width, factors) if factors else None


def _has_one_length(node: Node, axis: int) -> bool:
    sizes = node.value.double().norm(dim=axis).flatten()
    return bool(sizes.std() <= 0.01 * sizes.mean())


def _factors(region: Region, node: Node, end: Node | None) -> list[tuple[float, Node]]:
    """Plain numbers that multiply on the way up from a node, to ``end`` or to the next operation that computes."""
    found = list[tuple[float, Node]]()
    if end is not None:
        node = next((leaf for leaf in node.inputs() if region.depends(leaf)), end)
    while node is not end and node not in region.roots:
        inner = [leaf for leaf in node.inputs() if region.depends(leaf)]
        if len(inner) != 1:
            break
        if node.kind in ("mul", "div"):
            size = _number(node, inner[0])
            if size is None:
                break
            found.append((size if node.kind == "mul" else 1 / size, node))
        elif node.kind not in _PASSED:
            break
        node = inner[0]
    return found


def _number(node: Node, inner: Node) -> float | None:
    others = [one for one in node.args[:2] if one is not inner]
    if len(others) != 1:
        return None
    value = others[0].value if isinstance(others[0], Node) else others[0]
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 and float(value) else None
    return float(value) if isinstance(value, int | float) and value else None
