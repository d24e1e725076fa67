"""Heads: a token keeps its place in all of them, and what they read for it is written into its own row.

Which elements of an operation's value a token moves says this for any spelling: a split that is read in the wrong order
puts pieces of one token at several places of one head; a join without the transpose before it writes one query into
several rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.findings.laws import LawResult
from rankscope.sources.operations import Node, Region
from rankscope.sources.operations.captured import left_as_found
from rankscope.sources.operations.influence import differs
from rankscope.sources.operations.region import SAME_CHANNELS
from rankscope.wiring.culprits import node_line
from rankscope.wiring.law import result
from rankscope.wiring.piece import Piece
from rankscope.wiring.texts import site_of

_MOVES = SAME_CHANNELS | {"dropout", "native_dropout", "_to_copy", "cat", "slice", "select", "stack", "index"}
"""Operations that compute nothing."""

_TO_OUTPUT = _MOVES | {"mul", "div", "add"}
"""Operations between the product of a map with values and the linear map behind it."""

_MAPS = frozenset({"linear", "addmm", "mm", "matmul"})


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one token moves in an operand of attention, ``maps rows channels``.

    Args:
        rows: the largest number of rows that it moves in one map, all their channels together.
        is_all: whether it moves no more elements than one token has.
    """

    rows: int
    is_all: bool


def misplaced(piece: Piece, node: Node, mix: Node, operand: Node, text_axis: int) -> LawResult | None:
    """What is wrong with the heads of one attention map, where anything is."""
    region = piece.region
    if region is None or piece.root_shape is None or node.value.ndim not in (3, 4):
        return None
    product = product_of(region, node)
    tokens = piece.state.shape[1 - text_axis]
    if product is None or tokens < 3:
        return None
    query, key = product.inputs()[:2]
    values = [leaf for leaf in mix.inputs() if leaf is not operand and region.depends(leaf)]
    asked = [(query, -2), (key, -1), *((leaf, -2) for leaf in values[:1])]
    asked = [(one, axis) for one, axis in asked if region.depends(one) and one.value.ndim >= 3]
    # pieces of the first token lie side by side in one head, wherever heads end
    moved = _moved(piece, [one for one, _ in asked], piece.slice_at(1 - text_axis, 0))
    for one, axis in asked:
        seen = _of(moved[one], axis, tokens)
        if seen is None or seen.rows < 2 or not seen.is_all:
            continue
        many = one.shape[axis]
        if many == tokens:
            return _told(piece, _splitting(region, one), "torn heads", float(seen.rows))
        # maps over texts look the same: law batch says that
        is_read = piece.mixes(1 - text_axis) or piece.mixes(text_axis)
        if one is query and many == node.shape[-1] and not is_read:
            return _told(piece, product, "over heads", float(seen.rows))
    return _joined(piece, node, tokens, text_axis)


def _told(piece: Piece, node: Node, reason: str, number: float) -> LawResult:
    return result(
        "rows",
        "broken",
        reason,  # type: ignore[arg-type]  # one of three reasons
        block=piece.place.block_of(node),
        site=site_of(piece, node.path),
        line=node_line(piece, node),
        number=number,
        floor=1.0,
    )


def product_of(region: Region, node: Node) -> Node | None:
    """The product of queries and keys above a softmax, if there is just one."""
    waiting, seen, found = list(node.inputs()), set[Node](), list[Node]()
    while waiting:
        one = waiting.pop()
        if one in seen or not region.depends(one):
            continue
        seen.add(one)
        if one.kind in ("matmul", "bmm", "baddbmm"):
            found.append(one)
        elif one not in region.roots:
            waiting += one.inputs()
    only = found[0] if len(found) == 1 else None
    is_plain = only is not None and only.kind != "baddbmm" and all(map(region.depends, only.inputs()[:2]))
    return only if is_plain and only is not None and only.value.numel() == node.value.numel() else None


def _moved(piece: Piece, nodes: list[Node], where: Tensor) -> dict[Node, Tensor]:
    before = piece.values(piece.state, nodes)
    after = piece.values(piece.noise(where), nodes)
    return {node: differs(before[node], after[node]) for node in nodes}


def _of(moved: Tensor, axis: int, tokens: int) -> _Seen | None:
    """What a token moves in an operand; None where it does not move whole rows."""
    rows = moved.movedim(axis, -2)
    touched = rows.any(-1)
    if not bool(touched.any()) or not bool((rows.all(-1) == touched).all()):
        return None
    is_all = int(moved.sum()) <= moved.numel() / tokens * 1.001
    return _Seen(int(touched.sum(-1).amax()), is_all)


def _splitting(region: Region, node: Node) -> Node:
    """The operation that splits channels into heads: the first view behind the linear map that an operand is from."""
    waiting, seen, views = [node], set[Node](), list[Node]()
    while waiting:
        one = waiting.pop(0)
        if one in seen or one in region.roots or not region.depends(one) or one.kind in _MAPS:
            continue
        seen.add(one)
        if one.kind in ("view", "reshape", "_unsafe_view"):
            views.append(one)
        waiting += one.inputs()
    return min(views, key=lambda one: one.id, default=node)


def _joined(piece: Piece, node: Node, tokens: int, text_axis: int) -> LawResult | None:
    """Whether one query of every map is written into more rows than it has maps for."""
    region = piece.region
    if region is None or node.shape[-2] != tokens:
        return None
    entering = _entering(region, node)
    if entering is None:
        return None
    texts = piece.state.shape[text_axis]
    maps = node.value.numel() // (node.shape[-1] * node.shape[-2])
    heads = maps // texts
    if heads < 2 or maps % texts:
        return None
    other = node.value.clone()
    row = other[..., tokens // 2, :]
    row += torch.linspace(0.1, 1, node.shape[-1]).to(row)
    with left_as_found():
        values = []
        for one in (node.value, other):
            torch.manual_seed(0)
            values.append(region.replay(entering, {node: one}))
    before, after = values
    rows = int(differs(before, after).flatten(0, -2).any(-1).sum())
    if rows <= texts:
        return None
    return _told(piece, _joining(region, entering), "joined heads", rows / texts)


def _entering(region: Region, node: Node) -> Node | None:
    """What enters the linear map behind an attention map, if nothing but the product with values lies between."""
    at, has_mixed = node, False
    while True:
        users = [one for one in region.users.get(at, []) if one.kind != "detach"]
        if len(users) != 1:
            return None
        user = users[0]
        others = [leaf for leaf in user.inputs() if leaf is not at]
        if user.kind in ("matmul", "bmm") and not has_mixed and any(map(region.depends, others)):
            has_mixed, at = True, user
        elif user.kind in _MAPS and has_mixed and not any(map(region.depends, others)):
            return at
        elif user.kind in _TO_OUTPUT and not any(map(region.depends, others)):
            at = user
        else:
            return None


def _joining(region: Region, node: Node) -> Node:
    """The view that joins heads."""
    while node.kind in _MOVES and node.kind not in ("view", "reshape", "_unsafe_view"):
        inner = [leaf for leaf in node.inputs() if region.depends(leaf)]
        if not inner:
            break
        node = inner[0]
    return node
