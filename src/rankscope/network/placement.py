"""Where the norms of a block stand: before a sublayer, after its skip, or on both sides inside the skip.

======== ============================
pre      ``Skip(Chain(N, F))``
post     ``Chain(Skip(F), N)``
sandwich ``Skip(Chain(N, F, N))``
======== ============================
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError
from rankscope.network.norms import Norm
from rankscope.network.parts import Chain, Part, Scale, Skip, Sum, flat, leaves
from rankscope.network.tree import Network

PLACEMENTS = ("pre", "post", "sandwich")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Branch:
    """A branch taken apart: a norm first and a norm last, what they stand around, and the scales that end it.

    A norm added at the end stands before those scales: after them it would undo them.
    """

    first: Norm | None
    body: tuple[Part, ...]
    last: Norm | None
    tail: tuple[Part, ...]

    @property
    def norms(self) -> list[Norm]:
        return [norm for norm in (self.first, self.last) if norm is not None]

    def around(self, head: Norm | None, foot: Norm | None) -> Part:
        """The branch with these norms in place of its own."""
        return _chain(part for part in (head, *self.body, foot, *self.tail) if part is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sublayer:
    """A skip taken apart: one branch, or those of a sum that hold norms of their own; the norm directly after it."""

    skip: Skip
    branches: tuple[_Branch, ...]
    tail: tuple[Part, ...] = ()
    after: Norm | None = None

    @property
    def norms(self) -> list[Norm]:
        own = [norm for branch in self.branches for norm in branch.norms]
        return own if self.after is None else [*own, self.after]

    @property
    def placement(self) -> str | None:
        """Its name; None without norms, or where they stand in a way that has no name."""
        if self.after is not None:
            return "post"
        held = {
            (branch.first is not None, branch.last is not None) for branch in self.branches if branch.norms
        }
        if held == {(True, False)}:
            return "pre"
        return "sandwich" if held == {(True, True)} else None

    def skipping(self, branches: list[Part]) -> Skip:
        """The skip around other branches."""
        whole = branches[0] if len(branches) == 1 else Sum(branches)
        return Skip(_chain([whole, *self.tail]), self.skip.scale)


def with_placement(network: Network, placement: str) -> Network:
    """A copy with the norms of its blocks moved to ``pre``, ``post`` or ``sandwich``; the final norm stays.

    The same norms with the same weights are used again: a sandwich made from one norm has it on both sides, and of
    the two norms of a sandwich ``pre`` keeps the first and ``post`` the last. A sublayer without norms stays as it
    is, and so do skip scales and the scales that end a branch. In a parallel block with one norm per branch, ``post``
    needs these to be equal, since one norm then follows their sum. A norm that stands anywhere else is refused.
    """
    if placement not in PLACEMENTS:
        raise unknown_name("placement", placement, PLACEMENTS)
    _require_norms(network)
    done: dict[Part, Part] = {}
    for number, block in enumerate(network.blocks, start=1):
        if block not in done:
            moved = [part for sub in _sublayers(block, number) for part in _placed(sub, placement, number)]
            done[block] = _chain(moved)
    return network.with_blocks([done[block] for block in network.blocks])


def placement_of(network: Network) -> str | None:
    """Where the norms of all sublayers stand that have any; None where they differ or that has no name."""
    _require_norms(network)
    numbered = enumerate(network.blocks, start=1)
    found = {sub.placement for number, block in numbered for sub in _sublayers(block, number) if sub.norms}
    return found.pop() if len(found) == 1 else None


def _require_norms(network: Network) -> None:
    if not any(isinstance(leaf, Norm) for block in network.blocks for leaf in leaves(block)):
        raise ConfigError(
            "the blocks of this network have no norms to move; placement needs a network with norms"
        )


def _placed(sub: _Sublayer, placement: str, number: int) -> list[Part]:
    if not sub.norms or sub.placement == placement:
        return [sub.skip, *([] if sub.after is None else [sub.after])]
    if placement == "post":
        feet = [branch.norms[-1] for branch in sub.branches if branch.norms]
        if len(feet) < len(sub.branches) or any(not _equal(feet[0], other) for other in feet[1:]):
            raise _not_movable(
                number, "branches with different norms, of which only one can follow their sum"
            )
        return [sub.skipping([branch.around(None, None) for branch in sub.branches]), feet[0]]
    moved: list[Part] = []
    for branch in sub.branches:
        norms = branch.norms or ([] if sub.after is None else [sub.after])
        head, foot = (norms[0], norms[-1]) if norms else (None, None)
        moved.append(branch.around(head, foot if placement == "sandwich" else None))
    return [sub.skipping(moved)]


def _sublayers(block: Part, number: int) -> list[_Sublayer]:
    """The skips of a block in order, each with the norm that follows it."""
    found: list[_Sublayer] = []
    for part in flat(block):
        if isinstance(part, Skip):
            found.append(_sublayer(part, number))
        elif not isinstance(part, Norm):
            raise _not_movable(number, f"{type(part).__name__} outside of a skip")
        elif not found or found[-1].after is not None:
            raise _not_movable(number, f"a {type(part).__name__} that does not directly follow a skip")
        elif found[-1].norms:
            raise _not_movable(number, "norms inside a skip and after it")
        else:
            found[-1] = replace(found[-1], after=part)
    return found


def _sublayer(skip: Skip, number: int) -> _Sublayer:
    whole = _branch(skip.inner)
    if not _has_norm(whole.body):
        return _Sublayer(skip=skip, branches=(whole,))
    if not whole.norms and len(whole.body) == 1 and isinstance(whole.body[0], Sum):
        branches = tuple(_branch(part) for part in whole.body[0].parts)
        if not any(_has_norm(branch.body) for branch in branches):
            return _Sublayer(skip=skip, branches=branches, tail=whole.tail)
    raise _not_movable(number, "a norm in the middle of a branch")


def _branch(part: Part) -> _Branch:
    parts, tail = flat(part), list[Part]()
    first = last = None
    if parts and isinstance(parts[0], Norm):
        first, parts = parts[0], parts[1:]
    while len(parts) > 1 and isinstance(parts[-1], Scale):
        tail, parts = [parts[-1], *tail], parts[:-1]
    if parts and isinstance(parts[-1], Norm):
        last, parts = parts[-1], parts[:-1]
    return _Branch(first=first, body=tuple(parts), last=last, tail=tuple(tail))


def _has_norm(parts: Iterable[Part]) -> bool:
    return any(isinstance(leaf, Norm) for part in parts for leaf in leaves(part))


def _equal(a: Norm, b: Norm) -> bool:
    """Whether two norms are one function: of one kind, with the same numbers."""
    alike = type(a) is type(b) and (a.eps, a.offset) == (b.eps, b.offset)
    return alike and _same(a.weight, b.weight) and _same(a.bias, b.bias)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def _chain(parts: Iterable[Part]) -> Part:
    kept = list(parts)
    return kept[0] if len(kept) == 1 else Chain(kept)


def _not_movable(number: int, found: str) -> ConfigError:
    return ConfigError(
        f"the norms of block {number} cannot be moved: found {found}. Placement knows blocks of skips with a norm "
        "first, or first and last, inside them, or directly after them"
    )
