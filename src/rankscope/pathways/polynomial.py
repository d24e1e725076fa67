"""States whose coefficients are kept apart by the number of heads and MLPs on the way, and how frozen parts move them.

A state is a polynomial ``Y(z, u) = sum Y^(k,m) z^k u^m``; a head multiplies by z, an MLP by u. The coefficient of
``z^k u^m`` is the sum of all paths with k heads and m MLPs, however many there are: L blocks cost L (L + 1) / 2
applications of a block in place of (1 + H)^L paths.

Everything else is the same walk with something left out: a coefficient that is not counted is not kept apart, heads
that must be passed close the ways around them, heads that are avoided put out nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatch

import torch
from torch import Tensor

from rankscope.pathways.frozen import (
    Constant,
    Degree,
    Frozen,
    FrozenAttention,
    FrozenChain,
    FrozenSkip,
    FrozenSum,
    Leaf,
)

Polynomial = dict[Degree, Tensor]
"""Coefficients by degree; one that is missing is zero. Coefficients are never changed in place."""

Visit = Callable[[Leaf, Polynomial], None]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Walk:
    """How a polynomial goes through frozen parts.

    Args:
        heads, mlps: whether coefficients are kept apart by the number of heads, and of MLPs.
        sources: which sources are added on the way.
        through: heads that must be passed, by the number of their site.
        avoid: heads that must not be passed, by the number of their site.
        backward: against the direction of the network, by transposed maps; there are no sources then.
        visit: told of every leaf and what enters it; backward, what arrives at its output.
    """

    heads: bool = True
    mlps: bool = False
    sources: Callable[[str], bool] = lambda source: True
    through: Mapping[int, int] = field(default_factory=dict)
    avoid: Mapping[int, frozenset[int]] = field(default_factory=dict)
    backward: bool = False
    visit: Visit | None = None

    def counted(self, degree: Degree) -> Degree:
        """The degree, without what is not counted."""
        return (degree[0] if self.heads else 0, degree[1] if self.mlps else 0)


def _no_source(source: str) -> bool:
    return False


def linear(walk: Walk) -> Walk:
    """The same walk without any source."""
    return replace(walk, sources=_no_source)


def push(part: Frozen, poly: Polynomial, walk: Walk) -> Polynomial:
    """``poly`` after ``part``, or before it on a walk backward. ``poly`` is used up: its coefficients are let go."""
    with torch.no_grad():
        return _push(part, poly, linear(walk) if walk.backward else walk)


def add(poly: Polynomial, degree: Degree, value: Tensor) -> None:
    """Add ``value`` to one coefficient of ``poly``."""
    poly[degree] = poly[degree] + value if degree in poly else value


def must_pass(part: Frozen, walk: Walk) -> bool:
    """Whether ``part`` holds a head that must be passed."""
    if isinstance(part, FrozenAttention):
        return part.site in walk.through
    if isinstance(part, FrozenSkip):
        return must_pass(part.inner, walk)
    return not isinstance(part, Leaf) and any(must_pass(inner, walk) for inner in part.parts)


@singledispatch
def _push(part: Frozen, poly: Polynomial, walk: Walk) -> Polynomial:
    raise TypeError(f"{type(part).__name__} is not a frozen part")


@_push.register
def _chain(part: FrozenChain, poly: Polynomial, walk: Walk) -> Polynomial:
    for inner in reversed(part.parts) if walk.backward else part.parts:
        poly = _push(inner, poly, walk)
        if walk.through and must_pass(inner, walk):
            walk = linear(walk)  # what starts behind a head has not passed it
    return poly


@_push.register
def _sum(part: FrozenSum, poly: Polynomial, walk: Walk) -> Polynomial:
    wanted = [inner for inner in part.parts if must_pass(inner, walk)] if walk.through else []
    if len(wanted) > 1:
        return {}  # no path passes two branches of a sum
    total: Polynomial = {}
    for inner in wanted or part.parts:
        for degree, value in _push(inner, dict(poly), walk).items():
            add(total, degree, value)
    return total


@_push.register
def _skip(part: FrozenSkip, poly: Polynomial, walk: Walk) -> Polynomial:
    if not part.is_open or (walk.through and must_pass(part.inner, walk)):
        return _push(part.inner, poly, walk)
    if walk.visit is not None or not _keeps_apart(part.inner):
        total = _push(part.inner, dict(poly), walk)
        for degree in list(poly):
            add(total, degree, part.own(poly.pop(degree)))
        return total
    # One coefficient at a time from the highest down: what it adds to is done already, so one copy is enough.
    for degree in sorted(poly, reverse=True):
        moved = _push(part.inner, {degree: poly[degree]}, linear(walk))
        poly[degree] = part.own(poly[degree])
        for landed in list(moved):
            add(poly, landed, moved.pop(landed))
    for degree, value in _push(part.inner, {}, walk).items():
        add(poly, degree, value)
    return poly


def _keeps_apart(part: Frozen) -> bool:
    """Whether no two coefficients meet inside before another leaf: then each can go through by itself at no cost."""
    if isinstance(part, FrozenChain):
        return all(_is_single(inner) for inner in part.parts[:-1]) and all(map(_keeps_apart, part.parts[-1:]))
    if isinstance(part, FrozenSum):
        return all(map(_keeps_apart, part.parts))
    return isinstance(part, Leaf) or _keeps_apart(part.inner)


def _is_single(part: Frozen) -> bool:
    """Whether there is one way through."""
    return isinstance(part, Leaf) or (isinstance(part, FrozenChain) and all(map(_is_single, part.parts)))


@_push.register(Leaf)
def _leaf(part: Leaf, poly: Polynomial, walk: Walk) -> Polynomial:
    if walk.visit is not None:
        walk.visit(part, poly)
    mapped = _map_of(part, walk)
    moved: Polynomial = {}
    up = walk.counted(part.degree)
    for degree in sorted(poly):
        value = poly.pop(degree)
        if mapped is not None:
            moved[degree[0] + up[0], degree[1] + up[1]] = mapped(value)
    for constant in _constants(part, walk):
        add(moved, walk.counted(constant.degree), constant.value)
    return moved


def _map_of(part: Leaf, walk: Walk) -> Callable[[Tensor], Tensor] | None:
    """The linear map of a leaf along the walk; None if nothing gets through."""
    if not isinstance(part, FrozenAttention) or part.site not in {**walk.through, **walk.avoid}:
        return part.adjoint if walk.backward else part.linear
    avoided = walk.avoid.get(part.site, frozenset())
    if part.site in walk.through:
        head = walk.through[part.site]
        one = part.head_adjoint if walk.backward else part.head
        return None if head in avoided else lambda y: one(y, head)
    if len(avoided) == part.heads:
        return None
    keep = torch.tensor([head not in avoided for head in range(part.heads)], device=part.maps.device)
    some = part.kept_adjoint if walk.backward else part.kept
    return lambda y: some(y, keep)


def _constants(part: Leaf, walk: Walk) -> list[Constant]:
    """The sources of a leaf that belong to the walk."""
    if walk.sources is _no_source:
        return []
    found = [constant for constant in part.constants() if walk.sources(constant.source)]
    if not isinstance(part, FrozenAttention) or part.site not in {**walk.through, **walk.avoid}:
        return found
    avoided = walk.avoid.get(part.site, frozenset())
    heads = [walk.through[part.site]] if part.site in walk.through else range(part.heads)
    kept = [head for head in heads if head not in avoided]
    chosen = []
    for constant in found:
        if constant.source == "value bias":
            chosen += [replace(constant, value=part.carried(kept))] if kept else []
        elif part.site not in walk.through:
            chosen.append(constant)
    return chosen
