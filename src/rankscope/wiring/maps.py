"""Attention maps: rows that sum to one over the keys, and logits that are not yet saturated at the start."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.findings.laws import LawResult
from rankscope.sources.operations import Node, Region
from rankscope.sources.operations.captured import left_as_found
from rankscope.sources.operations.influence import differs
from rankscope.sources.operations.region import SAME_CHANNELS
from rankscope.wiring.culprits import MASKED, node_line
from rankscope.wiring.fresh import is_fresh
from rankscope.wiring.law import law, result
from rankscope.wiring.piece import SOFTMAX, Piece
from rankscope.wiring.subject import Subject
from rankscope.wiring.texts import site_of

PRODUCTS = frozenset({"matmul", "bmm", "mm", "baddbmm", "dot", "mv"})

_PASSED = SAME_CHANNELS | {
    "dropout",
    "native_dropout",
    "_to_copy",
    "mul",
    "masked_fill",
    "where",
    "slice",
    "select",
}
"""Operations between a softmax and the product that reads its map."""

SATURATED_SPREAD, SATURATED_ENTROPY = 5.0, 0.4
"""A row of logits with this standard deviation has most of its weight on a few keys; together with an entropy of this
share of the largest one it is saturated. Usual starts have a deviation of 0.01 to 1."""

OUTLIER = 12.0
"""Logits so many times as large as in every other block are none of the same start. Blocks of one start differ by less
from one to the next, also where tokens become equal, which makes logits smaller block by block."""

OUTLIER_TRAINED = 24.0
"""The same of a trained model, whose blocks differ more."""


@law("rows")
def rows(subject: Subject) -> LawResult:
    """The axis that a softmax sums is the one that the next product sums; numbers are finite."""
    finite = _not_finite(subject)
    if finite is not None:
        return finite
    seen = False
    for piece in subject.pieces:
        if piece.region is None:
            continue
        for node in _softmaxes(piece.region):
            mix = _mix(piece.region, node)
            if mix is None:
                continue
            seen = True
            found = _judged(piece, node, *mix) or _masked_row(subject, piece, node)
            if found is not None:
                return found
    if seen:
        return result("rows", "holds")
    failed = next((one.failure for one in subject.pieces if one.failure), "")
    return result("rows", "not checked", "not captured" if failed else "no softmax", what=failed)


def _softmaxes(region: Region) -> list[Node]:
    return [node for node in region.order if node.kind in SOFTMAX and node.value.is_floating_point()]


def _judged(piece: Piece, node: Node, mix: Node, operand: Node) -> LawResult | None:
    region = piece.region
    if region is None:
        return None
    axis = int(node.args[1]) % node.value.ndim
    if node.shape[axis] > 1 and not _is_summed(region, node, mix, axis):
        others = [one for one in range(node.value.ndim) if one != axis and node.shape[one] > 1]
        if any(_is_summed(region, node, mix, one) for one in others):
            sums = node.value.double().sum(_summed_axis(region, node, mix, others))
            return result(
                "rows",
                "broken",
                "wrong axis",
                line=node_line(piece, node),
                number=float((sums - 1).abs().amax()),
                floor=1e-9,
                block=piece.place.block_of(node),
                site=site_of(piece, node.path),
            )
    return _masked_after(piece, node, operand, axis)


def _masked_row(subject: Subject, piece: Piece, node: Node) -> LawResult | None:
    """A query with every key masked in all texts and heads: its row is uniform, or zero, where it is not NaN.

    Queries that are padding have such rows rightly, so that a batch with padding tells nothing.
    """
    if any(_is_padded(name, one) for name, one in subject.batch.inputs.items()):
        return None
    above = next((leaf for leaf in node.inputs() if leaf.shape == node.shape), None)
    axis = int(node.args[1]) % node.value.ndim
    if above is None or node.value.ndim < 2 or node.shape[axis] < 2:
        return None
    full = (above.value.movedim(axis, -1) <= MASKED).all(-1)
    rows = full.flatten(0, -2).all(0) if full.ndim > 1 else full
    if not bool(rows.any()) or bool(rows.all()):
        return None
    return result(
        "rows",
        "broken",
        "fully masked",
        block=piece.place.block_of(node),
        site=site_of(piece, node.path),
        line=node_line(piece, node),
        number=float(rows.double().mean()),
        floor=0.0,
    )


def _is_padded(name: str, value: Tensor) -> bool:
    """Whether an input may say that some tokens are padding: a mask with two values, or lengths that differ."""
    if value.ndim == 1:
        return "len" in name.lower()
    return value.ndim == 2 and (
        _is_binary(value) or (value.is_floating_point() and bool((value <= MASKED).any()))
    )


def _summed_axis(region: Region, node: Node, mix: Node, others: list[int]) -> int:
    return next(one for one in others if _is_summed(region, node, mix, one))


def _is_summed(region: Region, node: Node, mix: Node, axis: int) -> bool:
    """Whether a product sums over an axis of a map: two entries along it then move the same elements."""
    base = node.value
    index: list[int | slice] = [0] * base.ndim
    moved = []
    for place in (0, 1):
        index[axis] = place
        other = base.clone()
        other[tuple(index)] = other[tuple(index)] + 1.0
        with left_as_found():
            torch.manual_seed(0)
            before, after = (region.replay(mix, {node: one}) for one in (base, other))
        moved.append(differs(before, after))
    return bool((moved[0] & moved[1]).any())


def _mix(region: Region, node: Node) -> tuple[Node, Node] | None:
    """The product of a map with values, both of which the stream reaches, and the form of the map that enters it."""
    waiting, seen = [node], set[Node]()
    while waiting:
        one = waiting.pop(0)
        for user in region.users.get(one, []):
            if user in seen:
                continue
            seen.add(user)
            if user.kind in PRODUCTS:
                others = [leaf for leaf in user.inputs() if leaf is not one]
                if others and any(region.depends(leaf) for leaf in others):
                    return user, one
                continue
            if user.kind in _PASSED:
                waiting.append(user)
    return None


def _masked_after(piece: Piece, node: Node, operand: Node, axis: int) -> LawResult | None:
    """A constant of zeros and ones that takes entries away behind the softmax, so that rows no longer sum to one."""
    region, at = piece.region, operand
    while region is not None and at is not node:
        inner = [leaf for leaf in at.inputs() if region.depends(leaf)]
        if len(inner) != 1:
            return None
        masks = [leaf.value for leaf in at.inputs() if not region.depends(leaf) and leaf.value.ndim >= 2]
        is_mask = at.kind in ("mul", "masked_fill", "where") and any(_is_binary(one) for one in masks)
        if is_mask and at.shape == node.shape and operand.shape == node.shape:
            off = float((operand.value.double().sum(axis) - 1).abs().amax())
            if off > 1e-6:
                return result(
                    "rows",
                    "broken",
                    "mask after softmax",
                    line=node_line(piece, at),
                    number=off,
                    floor=1e-6,
                    block=piece.place.block_of(at),
                    site=site_of(piece, at.path),
                )
        at = inner[0]
    return None


def _is_binary(value: Tensor) -> bool:
    return set(value.double().unique().tolist()) == {0.0, 1.0}


def _not_finite(subject: Subject) -> LawResult | None:
    """The first operation that makes numbers that are not finite out of finite ones."""
    ran = subject.base
    for piece in subject.pieces:
        state = subject.state_of(ran, piece)
        if piece.shared is not None and piece.region is not None:
            state = piece.region.target.value
        if state is None or bool(state.isfinite().all()):
            continue
        node = None
        for one in () if piece.graph is None else piece.graph.nodes:
            value = one.value
            # a mask of minus infinity is meant; what is no number is not
            if value.is_floating_point() and one.op is not None and bool(value.isnan().any()):
                node = one
                break
        is_softmax = node is not None and (node.kind in SOFTMAX or _is_fully_masked(node))
        return result(
            "rows",
            "broken",
            "fully masked" if is_softmax else "not finite",
            block=piece.place.block_of(node),
            site=site_of(piece, None if node is None else node.path),
            line=node_line(piece, node),
            number=float((~state.isfinite()).double().mean()),
            floor=0.0,
        )
    if not ran.is_finite:
        return result("rows", "broken", "not finite", floor=0.0)
    return None


def _is_fully_masked(node: Node) -> bool:
    return any(
        leaf.value.is_floating_point() and bool((leaf.value <= MASKED).all(-1).any())
        for leaf in node.inputs()
    )


@dataclass(frozen=True, slots=True)
class _Logits:
    piece: Piece
    node: Node
    spread: float
    entropy: float


@law("logits")
def logits(subject: Subject) -> LawResult:
    """Spread of the logits over the keys that are read, and entropy of the maps, of a model that is not trained yet."""
    if not subject.base.is_finite:
        return result("logits", "not checked", "output not finite")
    found = [one for piece in subject.pieces for one in _logits(piece)]
    if not found:
        failed = next((one.failure for one in subject.pieces if one.failure), "")
        return result("logits", "not checked", "not captured" if failed else "no softmax", what=failed)
    fresh = is_fresh(subject.model)
    for one in found if fresh else ():
        if one.spread > SATURATED_SPREAD and one.entropy < SATURATED_ENTROPY:
            return _told(one, "saturated", SATURATED_SPREAD)
    if len(found) >= 2:
        limit = OUTLIER if fresh else OUTLIER_TRAINED
        second, worst = sorted(found, key=lambda one: one.spread)[-2:]
        if worst.spread > limit * second.spread > 0:
            return _told(worst, "outlier", limit * second.spread)
    if not fresh:
        return result("logits", "not checked", "not fresh")
    return result("logits", "holds", number=max(one.spread for one in found), floor=SATURATED_SPREAD)


def _told(one: _Logits, reason: str, floor: float) -> LawResult:
    return result(
        "logits",
        "broken",
        "saturated" if reason == "saturated" else "outlier",
        block=one.piece.place.block_of(one.node),
        site=site_of(one.piece, one.node.path),
        line=node_line(one.piece, _product_above(one.node)),
        number=one.spread,
        floor=floor,
    )


def _product_above(node: Node) -> Node:
    """The product of queries and keys that a softmax is taken of."""
    waiting, seen = list(node.inputs()), set[Node]()
    while waiting:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        if one.kind in PRODUCTS:
            return one
        waiting += one.inputs()
    return node


def _logits(piece: Piece) -> list[_Logits]:
    region = piece.region
    if region is None:
        return []
    found = []
    for node in _softmaxes(region):
        above = next((leaf for leaf in node.inputs() if leaf.shape == node.shape), None)
        if above is None or _mix(region, node) is None:
            continue
        axis = int(node.args[1]) % node.value.ndim
        values, maps = (one.double().movedim(axis, -1) for one in (above.value, node.value))
        is_read = values > MASKED
        many = is_read.sum(-1)
        rows = many >= 3
        if not bool(rows.any()):
            continue
        values = torch.where(is_read, values, 0.0)
        mean = values.sum(-1, keepdim=True) / many.clamp_min(1).unsqueeze(-1)
        spread = (((values - mean) * is_read).square().sum(-1) / many.clamp_min(1)).sqrt()
        entropy = -(maps * maps.clamp_min(1e-300).log()).sum(-1) / many.clamp_min(2).double().log()
        found.append(_Logits(piece, node, float(spread[rows].median()), float(entropy[rows].median())))
    return found
