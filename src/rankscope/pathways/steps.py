"""A frozen network as a sequence of steps, each with one choice to make, so that a path is one choice per step.

A step is as short as the tree allows: chains are taken apart, over the borders of blocks too, and parts without heads
are joined to the part with heads behind them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from math import prod

import torch
from torch import Tensor

from rankscope.errors import ConfigError
from rankscope.pathways.freeze import FrozenNetwork
from rankscope.pathways.frozen import Frozen, FrozenAttention, FrozenChain, FrozenSkip, Leaf, Spring
from rankscope.pathways.path import SKIP
from rankscope.pathways.polynomial import Walk, push
from rankscope.pathways.term import attention_parts, only

Heads = tuple[int | None, ...]

MOST_CHOICES = 10_000
"""With more choices in one step there is little to search: all of them are looked at wherever the step is taken."""


@dataclass(frozen=True, eq=False)
class Step:
    """Parts without heads, then parts with a choice of heads.

    Args:
        lead: what comes first; it is the same whatever is chosen.
        part: what comes then.
    """

    lead: FrozenChain
    part: FrozenChain

    @cached_property
    def attention(self) -> tuple[FrozenAttention, ...]:
        """The attention parts in order of execution."""
        return tuple(attention_parts(self.part))

    @cached_property
    def choices(self) -> tuple[Heads, ...]:
        """What can be chosen: one head, or SKIP, for each attention part."""
        return tuple(choices_in(FrozenChain((self.lead, self.part))))

    @cached_property
    def _walks(self) -> tuple[Walk, ...]:
        sizes = {part.site: part.heads for part in self.attention}
        return tuple(only(dict(zip(sizes, heads, strict=True)), sizes) for heads in self.choices)

    def chosen(self, choice: int) -> dict[int, int]:
        """The heads that a choice takes, by site."""
        pairs = zip(self.attention, self.choices[choice], strict=True)
        return {part.site: head for part, head in pairs if head is not SKIP}

    def led(self, y: Tensor) -> Tensor:
        """``y`` after what comes before the choice."""
        return pushed(self.lead, y, only({}, {}))

    def taken(self, choice: int, y: Tensor) -> Tensor:
        """``y``, led already, after one of the choices."""
        return pushed(self.part, y, self._walks[choice])


def steps_of(frozen: FrozenNetwork) -> tuple[Step, ...]:
    """The network as steps; the last one ends with all that follows the last choice."""
    parts = [part for _, block in frozen.blocks() for part in _flat(block)]
    forks = [index for index, part in enumerate(parts) if any(True for _ in attention_parts(part))] or [0]
    borders = [0, *(fork + 1 for fork in forks[:-1]), len(parts)]
    for part in (parts[fork] for fork in forks if parts):
        if number_of_choices(part) > MOST_CHOICES:
            raise ConfigError(
                f"{len(list(attention_parts(part)))} attention parts share a skip or a sum, so that one step of a path "
                f"has {number_of_choices(part)} choices; single paths are searched where it has at most {MOST_CHOICES}"
            )
    return tuple(
        Step(FrozenChain(tuple(parts[start:fork])), FrozenChain(tuple(parts[fork:end])))
        for start, fork, end in zip(borders, forks, borders[1:], strict=False)
    )


def number_of_paths(steps: tuple[Step, ...]) -> int:
    """How many paths lead from the input to the output."""
    return prod(len(step.choices) for step in steps)


def choices_in(part: Frozen) -> list[Heads]:
    """What can be chosen inside a part, nothing first: one head, or SKIP, for each of its attention parts."""
    if isinstance(part, FrozenAttention):
        return [(head,) for head in range(part.heads)]
    if isinstance(part, Leaf):
        return [] if isinstance(part, Spring) else [()]
    if isinstance(part, FrozenSkip):
        inner, nothing = choices_in(part.inner), _nothing(part)
        return [nothing, *(heads for heads in inner if heads != nothing)] if part.is_open else inner
    branches = [choices_in(inner) for inner in part.parts]
    if isinstance(part, FrozenChain):
        return [tuple(chain(*heads)) for heads in product(*branches)]
    empty = [_nothing(inner) for inner in part.parts]
    found = [_nothing(part)] if any(map(list.__contains__, branches, empty)) else []
    for index, own in enumerate(branches):  # a head in one branch, nothing in all others
        around = (chain(*empty[:index]), chain(*empty[index + 1 :]))
        before, after = map(tuple, around)
        found += [before + heads + after for heads in own if heads != empty[index]]
    return found


def number_of_choices(part: Frozen) -> int:
    """How many choices there are inside a part, not listed one by one."""
    with_heads, can_be_empty = _numbers(part)
    return with_heads + can_be_empty


def pushed(part: Frozen, y: Tensor, walk: Walk) -> Tensor:
    """``y`` after ``part`` on a walk that counts nothing; zero if nothing gets through."""
    return push(part, {(0, 0): y}, walk).get((0, 0), torch.zeros_like(y))


def _numbers(part: Frozen) -> tuple[int, bool]:
    """How many choices take a head, and whether nothing can be chosen."""
    if isinstance(part, FrozenAttention):
        return part.heads, False
    if isinstance(part, Leaf):
        return 0, not isinstance(part, Spring)
    if isinstance(part, FrozenSkip):
        inner, can_be_empty = _numbers(part.inner)
        return inner, can_be_empty or part.is_open
    numbers = [_numbers(inner) for inner in part.parts]
    if isinstance(part, FrozenChain):
        is_empty = all(empty for _, empty in numbers)
        return prod(some + empty for some, empty in numbers) - is_empty, is_empty
    return sum(some for some, _ in numbers), any(empty for _, empty in numbers)


def _nothing(part: Frozen) -> Heads:
    return tuple(SKIP for _ in attention_parts(part))


def _flat(part: Frozen) -> Iterator[Frozen]:
    """The part as a sequence of parts that are no chains; a skip that is closed is what it holds."""
    if isinstance(part, FrozenChain):
        for inner in part.parts:
            yield from _flat(inner)
    elif isinstance(part, FrozenSkip) and not part.is_open:
        yield from _flat(part.inner)
    else:
        yield part
