"""Attention maps: rows that sum to one over the keys, and logits that are not yet saturated at the start."""

import re
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.errors import is_out_of_memory
from rankscope.findings.laws import LawResult, Reason
from rankscope.sources.operations import Line, Node, Region
from rankscope.sources.operations.captured import left_as_found
from rankscope.sources.operations.influence import differs, draw
from rankscope.sources.operations.region import SAME_CHANNELS
from rankscope.wiring.alike import is_declared
from rankscope.wiring.culprits import MASKED, is_own_code, node_line
from rankscope.wiring.fresh import is_fresh
from rankscope.wiring.heads import misplaced
from rankscope.wiring.law import law, result
from rankscope.wiring.piece import SOFTMAX, Piece
from rankscope.wiring.scales import TINY, scaled_down, scaled_up
from rankscope.wiring.siblings import siblings_of
from rankscope.wiring.statements import changing_line
from rankscope.wiring.subject import NoRoom, Subject
from rankscope.wiring.texts import site_of
from rankscope.wiring.tokens import mixing_line

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

OUTLIER = 6.0
"""Logits of a fresh model, on the same random tokens, that are so many times as large or as small as in every other
block are none of the same start; where the others differ among themselves, the square of their own range counts."""

OUTLIER_TRAINED = 24.0
"""The same of a trained model, whose blocks differ more; there only large ones are said."""


@law("rows")
def rows(subject: Subject) -> LawResult:
    """The axis that a softmax sums is the one that the next product sums; numbers are finite."""
    finite = _not_finite(subject)
    if finite is not None:
        return finite
    bare = _bare(subject)
    if bare is not None:
        return bare
    seen = False
    for piece in subject.pieces:
        if piece.region is None:
            continue
        for node in _softmaxes(piece.region):
            mix = _mix(piece.region, node)
            if mix is None:
                continue
            seen = True
            found = (
                _judged(piece, node, *mix)
                or _masked_row(subject, piece, node)
                or misplaced(piece, node, *mix, subject.text_axes[piece.place.stack])
            )
            if found is not None:
                return found
    if seen:
        return result("rows", "holds")
    failed = next((one.failure for one in subject.pieces if one.failure), "")
    return result("rows", "not checked", "not captured" if failed else "no softmax", what=failed)


_WITHOUT = re.compile(r"linear|kernel|perform|retent|mamba|recurr|fourier|hyena|rwkv|delta", re.IGNORECASE)
"""Names of attention that is meant to have no softmax."""


def _bare(subject: Subject) -> LawResult | None:
    """The one block without a softmax among at least two others with the same weights, all of which have one.

    A model in which no block has one may mean that, and so may a part whose name says so.
    """
    for stack in subject.stacks:
        pieces = [one for one in subject.stack_of(stack.name) if one.region is not None]
        without = [one for one in pieces if one.region is not None and not _softmaxes(one.region)]
        if len(without) != 1 or not is_own_code(subject.model):
            continue
        piece = without[0]
        siblings = siblings_of(subject, piece)
        product = _product_of_products(piece)
        parts = piece.module.modules() if piece.shared is None else ()
        names = {type(one).__name__ for one in parts if not type(one).__module__.startswith("torch.")}
        if (
            len(siblings) < 2
            or len(siblings) < len(pieces) - 1
            or product is None
            or any(map(_WITHOUT.search, names))
            or is_declared(piece.module, [one.module for one in siblings])
        ):
            continue
        return result(
            "rows",
            "broken",
            "softmax missing",
            block=piece.place.block_of(product),
            site=site_of(piece, product.path),
            line=node_line(piece, product),
        )
    return None


def _product_of_products(piece: Piece) -> Node | None:
    """The product of queries and keys, of a block in which another product reads it together with values."""
    region = piece.region
    if region is None:
        return None

    def is_of_states(node: Node) -> bool:
        return node.kind in PRODUCTS and all(map(region.depends, node.inputs()[:2]))

    for node in region.order:
        if not is_of_states(node):
            continue
        waiting, seen = [node], set[Node]()
        while waiting:
            for user in region.users.get(waiting.pop(), []):
                if user in seen:
                    continue
                seen.add(user)
                if is_of_states(user):
                    return node
                if user.kind not in ("linear", "addmm"):
                    waiting.append(user)
    return None


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
                # where the last axis is summed, as is usual, the product is what does not fit
                line=node_line(piece, mix if axis == node.value.ndim - 1 else node),
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
        line=mixing_line(subject, piece, node),
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
            line=mixing_line(subject, piece, node)
            if is_softmax and _is_over_last(node)
            else node_line(piece, node),
            number=float((~state.isfinite()).double().mean()),
            floor=0.0,
        )
    if ran.is_finite:
        return None
    graph = subject.whole_graph
    first = None
    for one in () if graph is None else graph.nodes:
        if one.value.is_floating_point() and one.op is not None and bool(one.value.isnan().any()):
            first = one
            break
    if first is None:
        return result("rows", "broken", "not finite", floor=0.0)
    return result("rows", "broken", "not finite", floor=0.0, site=first.path, line=first.line)


def _is_over_last(node: Node | None) -> bool:
    """Whether a softmax runs over the last axis, as is usual, so that its mask and not its axis is at fault."""
    return (
        node is not None
        and node.kind in SOFTMAX
        and int(node.args[1]) % node.value.ndim == node.value.ndim - 1
    )


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
    on_noise: float | None
    """The spread on random tokens, the same for all blocks, which tells of weights and not of states."""


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
            return _told(one, "saturated", SATURATED_SPREAD, subject=subject)
    for one in found if fresh else ():
        factor = scaled_up(one.piece, one.node)
        if factor is not None:
            return _told(one, "scaled up", 1.0, at=factor.node, what=factor.what)
    tiny = [scaled_down(one.piece, one.node) for one in found] if fresh else []
    if tiny and tiny[0] is not None and all(one is not None and one.what == tiny[0].what for one in tiny):
        return _told(found[0], "scaled down", TINY, at=tiny[0].node, what=tiny[0].what)
    for group in _groups(found):
        odd = _outlier(subject, group, fresh=fresh)
        if odd is not None:
            return odd
    if not fresh:
        return result("logits", "not checked", "not fresh")
    return result("logits", "holds", number=max(one.spread for one in found), floor=SATURATED_SPREAD)


def _groups(found: list[_Logits]) -> list[list[_Logits]]:
    """Maps that stand for each other: the first of every block of a stack, the second, and so on."""
    groups: dict[tuple[str, int], list[_Logits]] = {}
    places: dict[int, int] = {}
    for one in found:
        place = places[id(one.piece)] = places.get(id(one.piece), -1) + 1
        if one.on_noise is not None:
            groups.setdefault((one.piece.place.stack, place), []).append(one)
    return list(groups.values())


def _outlier(subject: Subject, group: list[_Logits], *, fresh: bool) -> LawResult | None:
    """The one block whose logits on random tokens are of another size than those of all others."""
    if len(group) < 2 + fresh:
        return None
    first, *_, last = ordered = sorted(group, key=lambda one: one.on_noise or 0.0)
    sizes = [one.on_noise or 0.0 for one in ordered]
    if not fresh:
        is_large = sizes[-1] > OUTLIER_TRAINED * sizes[-2] > 0 and last.spread > OUTLIER_TRAINED * max(
            one.spread for one in group if one is not last
        )
        return _told(last, "outlier", OUTLIER_TRAINED * sizes[-2], subject=subject) if is_large else None
    if not sizes[1] > 0:
        return None
    if sizes[-1] > sizes[-2] * max(OUTLIER, min(sizes[-2] / max(sizes[0], 1e-300), 1e100) ** 2):
        return _told(last, "outlier", OUTLIER * sizes[-2], subject=subject)
    if 0 < sizes[0] < sizes[1] / max(OUTLIER, min(sizes[-1] / sizes[1], 1e100) ** 2):
        return _told(first, "weak", sizes[1] / OUTLIER, subject=subject)
    return None


def _told(
    one: _Logits,
    reason: Reason,
    floor: float,
    *,
    at: Node | None = None,
    what: str = "",
    subject: Subject | None = None,
) -> LawResult:
    changed = None if subject is None else _changed_maps(subject, one)
    return result(
        "logits",
        "broken",
        reason,
        block=one.piece.place.block_of(one.node),
        site=site_of(one.piece, one.node.path),
        line=changed or node_line(one.piece, at or _enlarging(one.node)),
        number=one.on_noise if reason in ("outlier", "weak") else one.spread,
        floor=floor,
        what=what,
    )


def _changed_maps(subject: Subject, one: _Logits) -> Line | None:
    """The statement that changes the weights of queries or keys, where no factor stands behind their product."""
    at, region = _enlarging(one.node), one.piece.region
    if at.kind not in PRODUCTS or region is None:
        return None
    waiting, seen = list(at.inputs()), set[Node]()
    while waiting:
        node = waiting.pop(0)
        if node in seen or node in region.roots or not region.depends(node):
            continue
        seen.add(node)
        names = [leaf.name for leaf in node.inputs() if not region.depends(leaf) and leaf.name]
        lines = (changing_line(subject.model, site_of(one.piece, name), ("number",)) for name in names)
        line = next((found for found in lines if found is not None), None)
        if line is not None:
            return line
        if node.kind not in ("linear", "addmm", "mm"):
            waiting += node.inputs()
    return None


def _enlarging(node: Node) -> Node:
    """What makes the logits of a softmax large: a factor behind the product of queries and keys, or that product."""
    waiting, seen = list(node.inputs()), set[Node]()
    while waiting:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        if one.kind in PRODUCTS or _is_enlarged(one):
            return one
        waiting += one.inputs()
    return node


def _is_enlarged(node: Node) -> bool:
    """Whether an operation multiplies numbers so that they become larger."""
    held = next((leaf for leaf in node.inputs() if leaf.shape == node.shape), None)
    if node.kind not in ("mul", "div") or held is None:
        return False
    before, after = (one.value.double().abs() for one in (held, node))
    is_number = (before < -MASKED) & (after < -MASKED)
    return bool((after * is_number).sum() > 1.5 * (before * is_number).sum())


def _logits(piece: Piece) -> list[_Logits]:
    region = piece.region
    if region is None:
        return []
    found, seen = list[_Logits](), list[tuple[Node, int, _Logits]]()
    for node in _softmaxes(region):
        above = next((leaf for leaf in node.inputs() if leaf.shape == node.shape), None)
        if above is None or _mix(region, node) is None:
            continue
        axis = int(node.args[1]) % node.value.ndim
        values, maps = (one.double().movedim(axis, -1) for one in (above.value, node.value))
        spread, rows, many = _spread(values)
        if not bool(rows.any()):
            continue
        entropy = -(maps * maps.clamp_min(1e-300).log()).sum(-1) / many.clamp_min(2).double().log()
        seen.append(
            (
                above,
                axis,
                _Logits(piece, node, float(spread[rows].median()), float(entropy[rows].median()), None),
            )
        )
    noisy = _on_noise(piece, [above for above, _, _ in seen]) if seen else None
    for above, axis, one in seen:
        drawn = None
        if noisy is not None:
            spread, rows, _ = _spread(noisy[above].double().movedim(axis, -1))
            drawn = float(spread[rows].median()) if bool(rows.any()) else None
        found.append(replace(one, on_noise=drawn))
    return found


def _spread(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Standard deviation of the logits of every row over the keys that it reads; rows that read three; how many."""
    is_read = values > MASKED
    many = is_read.sum(-1)
    values = torch.where(is_read, values, 0.0)
    mean = values.sum(-1, keepdim=True) / many.clamp_min(1).unsqueeze(-1)
    return (((values - mean) * is_read).square().sum(-1) / many.clamp_min(1)).sqrt(), many >= 3, many


def _on_noise(piece: Piece, nodes: list[Node]) -> dict[Node, Tensor] | None:
    """Logits where independent standard normal tokens enter; None where other numbers take another branch."""
    if piece.region is None or piece.region.guards():
        return None
    try:
        return piece.values(draw(piece.state.shape, 1.0, 7).to(piece.state), nodes)
    except NoRoom:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None
