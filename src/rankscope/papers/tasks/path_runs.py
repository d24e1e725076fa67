"""The network of a task run again along many paths; paths that begin alike share their beginnings."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Literal

import torch
from torch import Tensor

from rankscope.errors import NotUnderstood
from rankscope.network import Attention, Chain, Context, LayerNorm, Network, Part, Skip, Softmax, Values
from rankscope.network.parts import leaves
from rankscope.network.surgery import rewriter
from rankscope.pathways import Path
from rankscope.pathways.counts import counts_of
from rankscope.pathways.drawing import draw_paths, every_path
from rankscope.pathways.isolated import OFFICIAL_EPS

Mode = Literal["isolated", "official"]
Step = Callable[[Tensor], Tensor]
Key = tuple[int, int, int]
"""Length, how many paths were drawn and which time; the sum of all paths of a length is ``(length, 0, 0)``."""

NO_CONTEXT = Context()
BARE_NORM = LayerNorm(eps=OFFICIAL_EPS)
"""LayerNorm without gain and bias, as it stands after every head in the published code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PathPlan:
    """Which paths are run, by length: ``drawn[length][summed]`` holds one list of paths per repeat.

    ``every[length]`` holds all paths of that length, or none if there are too many; with ``singles`` each of these is
    also looked at alone.
    """

    every: tuple[tuple[Path, ...], ...]
    drawn: tuple[dict[int, list[list[Path]]], ...]
    singles: bool = True

    @property
    def keys(self) -> list[Key]:
        """Every sum that is asked for."""
        found = [(length, 0, 0) for length, paths in enumerate(self.every) if paths]
        for length, by_sum in enumerate(self.drawn):
            found += [(length, s, repeat) for s, lists in by_sum.items() for repeat in range(len(lists))]
        return found

    @property
    def cumulative(self) -> list[int]:
        """Lengths up to which all paths are run."""
        return list(takewhile(lambda length: self.every[length], range(len(self.every))))

    def without_draws(self) -> "PathPlan":
        """The same with none drawn."""
        return PathPlan(every=self.every, drawn=tuple({} for _ in self.drawn))

    def uses(self) -> dict[Path, list[Key]]:
        """For every path the sums it belongs to; a path that was drawn twice is added twice."""
        found: dict[Path, list[Key]] = {}
        for key in self.keys:
            for path in self.summed(key):
                found.setdefault(path, []).append(key)
        return found

    def summed(self, key: Key) -> Sequence[Path]:
        """The paths of a sum."""
        length, summed, repeat = key
        return self.drawn[length][summed][repeat] if summed else self.every[length]


def plan_paths(
    network: Network,
    *,
    most_paths: int,
    draws: Sequence[int],
    repeats: int,
    singles: bool,
    generator: torch.Generator,
) -> PathPlan:
    """All paths of a length if there are at most ``most_paths``, and ``draws`` of them at random, ``repeats`` times."""
    counts = counts_of(network)
    every = tuple(
        tuple(every_path(network, length)) if count <= most_paths else ()
        for length, count in enumerate(counts)
    )
    drawn = tuple(
        {
            summed: [draw_paths(network, length, summed, generator=generator) for _ in range(repeats)]
            for summed in draws
        }
        for length in range(len(counts))
    )
    return PathPlan(every=every, drawn=drawn, singles=singles)


def summed_paths(
    network: Network,
    x: Tensor,
    plan: PathPlan,
    mode: Mode,
    alone: Callable[[int, Tensor], object] | None = None,
) -> dict[Key, Tensor]:
    """The sums of a plan; ``alone`` gets length and output of each of ``plan.every``."""
    uses, sums = plan.uses(), dict[Key, Tensor]()
    for path, states in path_outputs(network, x, uses, mode):
        for key in uses[path]:
            if key in sums:
                sums[key] += states
            else:
                sums[key] = states.clone()
        if alone is not None and plan.every[path.length]:
            alone(path.length, states)
    return sums


def path_outputs(
    network: Network, x: Tensor, paths: Iterable[Path], mode: Mode
) -> Iterator[tuple[Path, Tensor]]:
    """Every path with the output along it: that of ``run_path``, in lexicographic order of the paths.

    For networks of one attention per block and no final norm, as that of ``TaskModel``.
    """
    steps = [_steps(block, mode) for block in network.blocks]
    states, before = [x], tuple[int | None, ...]()
    for path in sorted(paths, key=_order):
        shared = _common_choices(before, path.heads)
        del states[shared + 1 :]
        for step, head in zip(steps[shared:], path.heads[shared:], strict=True):
            states.append(step[head](states[-1]))
        before = path.heads
        yield path, states[-1]


def _steps(block: Part, mode: Mode) -> dict[int | None, Step]:
    """What each choice in a block makes of a state; of the other heads not even the maps are computed."""
    (attention,) = (part for part in leaves(block) if isinstance(part, Attention))
    found: dict[int | None, Step] = {}
    for head in (None, *range(attention.values.heads)):
        alone = Chain(()) if head is None else _with_head(attention, head)
        if mode == "isolated":
            found[head] = partial(_run_part, _with_attention(block, alone))
        else:
            found[head] = partial(_run_part, alone if head is None else Chain([alone, BARE_NORM]))
    return found


def _run_part(part: Part, x: Tensor) -> Tensor:
    return part(x, NO_CONTEXT)


def _with_attention(block: Part, alone: Part) -> Part:
    """The block with that in place of its attention and the skip around it; norms and MLPs stay."""

    def replaced(part: Part) -> Part:
        is_sublayer = isinstance(part, Skip) and isinstance(part.inner, Attention)
        return alone if is_sublayer else part

    return rewriter(replaced)(block)


def _with_head(part: Attention, head: int) -> Attention:
    """An attention of a ``TaskModel`` with one of its heads."""
    mixer, values = part.mixer, part.values
    if not isinstance(mixer, Softmax):
        raise NotUnderstood(part, "path effectiveness")
    own = partial(_own, heads=mixer.heads, head=head)
    alone = Softmax(
        own(mixer.query),
        own(mixer.key),
        heads=1,
        query_bias=None if mixer.query_bias is None else own(mixer.query_bias),
        key_bias=None if mixer.key_bias is None else own(mixer.key_bias),
        scale=mixer.scale,
    )
    carried = Values(
        own(values.value),
        values.head_outs()[head],
        heads=1,
        value_bias=None if values.value_bias is None else own(values.value_bias),
        out_bias=values.out_bias,
    )
    return Attention(alone, carried, part.site)


def _own(columns: Tensor, *, heads: int, head: int) -> Tensor:
    """The columns that belong to a head."""
    width = columns.shape[-1] // heads
    return columns[..., head * width : (head + 1) * width]


def _order(path: Path) -> tuple[int, ...]:
    return tuple(-1 if head is None else head for head in path.heads)


def _common_choices(one: Sequence[int | None], other: Sequence[int | None]) -> int:
    """How many choices two paths begin with that are the same."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
