"""What the elements of a node are made of: at most two elements of the nodes they come from, each times a number.

Reshapes, splits, joins, repeated groups, turns by position: whatever the spelling, what counts is where each element
comes from. It is read by numbers: random ones are sent through the operations, once all together and once for every
binary digit of the place that they stand at, so that a few runs tell the places. Only operations that are linear
whatever the numbers are let through; a probe alone never meets a clamp.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.region import SAME_CHANNELS, Region, Unread

EXACT = 1e-9
"""Relative error that is rounding: probes are of size one, and a few hundred roundings of 1e-16 stay far below."""

CONSTANT = frozenset(
    {"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"}
    | {"new_empty_strided", "empty_strided"}
)
"""Operations that read the shape of their argument and none of its numbers."""

MOVES = SAME_CHANNELS | {
    "split",
    "split_with_sizes",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "slice",
    "select",
    "unbind",
    "narrow",
    "cat",
    "stack",
    "repeat",
    "repeat_interleave",
    "flip",
    "roll",
    "constant_pad_nd",
    "as_strided",
    "as_strided_scatter",
    "slice_scatter",
    "select_scatter",
    "index_select",
    "index",
    "gather",
    "copy",
    "unfold",
    "diagonal",
    "take",
    "put",
}
_SUMS = frozenset(
    {"add", "sub", "rsub", "neg", "sum", "view_as_complex", "view_as_real", "tril", "triu", "_conj"}
)
_PRODUCTS = frozenset({"mul", "matmul", "mm", "bmm", "linear"})
_INDEXED = frozenset({"index_select", "index", "gather", "repeat_interleave", "take"})


def live_nodes(region: Region) -> set[Node]:
    """The nodes whose numbers depend on those of a root; a mask made with ``zeros_like`` of a state does not."""
    live = set(region.roots)
    for node in region.order:
        if node.kind not in CONSTANT and any(leaf in live for leaf in node.inputs()):
            live.add(node)
    return live


def linear_inputs(live: set[Node], node: Node) -> list[Node]:
    """The inputs that a node is linear in, together and whatever the numbers; an error where it is not."""
    found = [leaf for leaf in node.inputs() if leaf in live]
    kind = node.kind
    if kind in MOVES:
        if kind == "put":
            if node.args[1] not in live and not any(node.args[3:]) and not node.kwargs.get("accumulate"):
                return found
        elif kind not in _INDEXED or found == [node.args[0]]:
            return found
    elif kind in _SUMS:
        return found
    elif kind in _PRODUCTS:
        if len(found) == 1:
            return found
    elif kind in ("addmm", "baddbmm"):
        if sum(leaf in live for leaf in node.args[1:3]) <= 1:
            return found
    elif kind == "div":
        if found == [node.args[0]] and node.kwargs.get("rounding_mode") is None:
            return found
    elif kind == "masked_fill":
        if found == [node.args[0]]:
            return found
    elif kind == "where":
        if node.args[0] not in live and len(node.args) == 3:
            return found
    elif kind in ("dropout", "native_dropout"):
        rate, training = (*node.args[1:], *node.kwargs.values(), True)[:2]
        if node.item in (None, 0) and (not training or rate == 0.0):
            return found
    elif kind == "_to_copy" and _is_number(node) and all(map(_is_number, found)):
        return found
    raise Unread(f"`{kind}`, which is not linear in the states", node)


def _is_number(node: Node) -> bool:
    return node.value.is_floating_point() or node.value.is_complex()


def climbed(region: Region, live: set[Node], node: Node, stops: Iterable[Node]) -> list[Node]:
    """The nearest of ``stops`` above a node, in order, by linear operations alone; itself if it is one."""
    held, found, seen, waiting = set(stops), set[Node](), set[Node](), [node]
    while waiting:
        at = waiting.pop()
        if at in seen or at not in live:
            continue
        seen.add(at)
        if at in held:
            found.add(at)
        else:
            waiting += linear_inputs(live, at)
    return [one for one in region.order if one in found]


@dataclass(frozen=True, slots=True, eq=False)
class Combination:
    """Flat elements of a node, as ``factors . sources + offset``.

    Args:
        places: elements 2; which element of the sources laid end to end, -1 where there is none.
        factors: elements 2.
        offset: elements.
    """

    places: Tensor
    factors: Tensor
    offset: Tensor

    @property
    def is_single(self) -> bool:
        return not bool((self.places[:, 1] >= 0).any())


def combination(region: Region, bases: list[Node], target: Node, what: str) -> Combination:
    """What every element of ``target`` is made of; an error where that is more than two elements of ``bases``."""
    sizes = [base.value.numel() for base in bases]
    count = sum(sizes)

    def run(values: Tensor) -> Tensor:
        pieces = values.split(sizes)
        given = {base: piece.reshape(base.shape) for base, piece in zip(bases, pieces, strict=True)}
        return region.replay(target, given).reshape(-1)

    generator = torch.Generator().manual_seed(5)
    sign = torch.randint(2, (count,), generator=generator) * 2.0 - 1.0
    probe = (0.5 + torch.rand(count, generator=generator, dtype=torch.float64)) * sign
    offset = run(torch.zeros(count, dtype=torch.float64))
    if not bool(offset.isfinite().all()):
        raise Unread(f"{what} hold numbers that are not finite", target)
    whole = run(probe) - offset
    ones = run(torch.ones(count, dtype=torch.float64)) - offset
    again = torch.randn(count, generator=generator, dtype=torch.float64)
    answer = run(again)
    number = torch.arange(1, count + 1)
    alone = _single(whole, run(probe * number) - offset, ones, offset, again, answer)
    if alone is not None:
        return alone
    digits = [
        run(torch.where(number.bitwise_right_shift(k) % 2 == 1, probe, 0.0)) - offset
        for k in range(count.bit_length())
    ]
    size = torch.stack([whole.abs(), *(one.abs() for one in digits)]).amax(0)
    near = EXACT * torch.maximum(size, offset.abs() * EXACT)
    # The first digit that splits the two elements apart gives the share of one of them.
    share = torch.zeros_like(whole)
    split = torch.zeros_like(whole, dtype=torch.bool)
    for one in digits:
        is_part = ((one - whole).abs() > near) & (one.abs() > near) & ~split
        share = torch.where(is_part, one, share)
        split |= is_part
    first, rest = torch.where(split, share, whole), torch.where(split, whole - share, 0.0)
    place, other = torch.zeros_like(whole, dtype=torch.long), torch.zeros_like(whole, dtype=torch.long)
    for k, one in enumerate(digits):
        both, has_first, has_rest = ((one - value).abs() <= near for value in (whole, first, rest))
        place += (both | has_first).long() << k
        other += (split & (both | has_rest)).long() << k
    empty = size <= 0
    place, other = torch.where(empty, 0, place), torch.where(empty, 0, other)
    if int(place.max()) > count or int(other.max()) > count:
        raise Unread(f"{what} are mixed from more than two numbers", target)
    places = torch.stack([place, other], -1) - 1
    held = torch.cat([probe, torch.ones(1, dtype=torch.float64)])  # place -1 reads the last one
    factors = torch.stack([torch.where(split, first / held[place - 1], ones), rest / held[other - 1]], -1)
    factors = torch.where(places >= 0, factors, 0.0)
    made = (factors * torch.cat([again, again[:1]])[places]).sum(-1) + offset
    if bool(((made - answer).abs() > 10 * near + EXACT * (size == 0)).any()):
        raise Unread(f"{what} are mixed from more than two numbers", target)
    return Combination(places, factors, offset)


def _single(
    whole: Tensor, numbered: Tensor, ones: Tensor, offset: Tensor, again: Tensor, answer: Tensor
) -> Combination | None:
    """The same where every element is made of one alone, read from numbers times their place; None elsewhere."""
    used = whole != 0
    place = torch.where(used, numbered / torch.where(used, whole, 1.0), 0.0)
    near = place.round()
    if bool(((place - near).abs() > 1e-3).any()) or bool(((near < 0) | (near > len(again))).any()):
        return None
    index = near.long() - 1
    factor = torch.where(index >= 0, ones, 0.0)
    made = factor * again[index] + offset
    room = EXACT * (factor.abs() * again[index].abs() + EXACT * offset.abs())
    if bool(((made - answer).abs() > room + EXACT * (factor == 0)).any()):
        return None
    none = torch.full_like(index, -1)
    return Combination(
        torch.stack([index, none], -1), torch.stack([factor, torch.zeros_like(factor)], -1), offset
    )
