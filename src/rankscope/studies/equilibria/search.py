"""Where random starts come to rest, and how many of them where."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from rankscope.dynamics import Ending, System, run
from rankscope.dynamics.equilibrium import Equilibrium
from rankscope.dynamics.search import find_equilibria
from rankscope.findings.equilibria import EquilibriaConfig
from rankscope.findings.equilibria.values import EndingName as Ended
from rankscope.findings.equilibria.values import Share

SAME = 1e-6
"""Largest difference of an entry, relative to the largest entry, up to which two equilibria are one."""

MOST = 32
"""Equilibria of a search that are judged."""

FROZEN_JUDGED = 4
"""Starts whose own equilibrium is judged where every start has its own maps."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StartSearch:
    """Equilibria, how many starts ended where, and for every start the place of its equilibrium in the list.

    ``origins`` are the starts that equilibria belong to, where each start has its own map; otherwise empty.
    ``is_full`` says that as many equilibria were found as are judged at most.
    """

    equilibria: tuple[Equilibrium, ...] = ()
    shares: tuple[Share, ...] = ()
    limits: tuple[int | None, ...] = ()
    origins: tuple[int, ...] = ()
    is_full: bool = False


def search(config: EquilibriaConfig, system: System, starts: Tensor) -> StartSearch:
    """Limits of the starts, polished and judged; Newton's method adds equilibria that no start reaches."""
    if config.has_own_maps:
        return _searched_frozen(config, system, starts)
    found = find_equilibria(
        system,
        starts,
        steps=config.steps,
        newton=config.newton,
        trials=config.pushes,
        most=MOST,
        seed=config.seed,
    )
    return StartSearch(
        equilibria=found.equilibria,
        shares=tuple(
            Share(equilibrium=one.equilibrium, ending=cast(Ended, one.ending), rank=one.rank, count=one.count)
            for one in found.basins
        ),
        limits=tuple(None if place < 0 else place for place in found.limits.tolist()),
        is_full=len(found.equilibria) >= MOST,
    )


def _searched_frozen(config: EquilibriaConfig, system: System, starts: Tensor) -> StartSearch:
    """Every start has its own system: endings are counted, and the first few starts' equilibria judged."""
    ended = run(system.frozen(starts), starts, config.steps)
    counts = Counter(_ending_of(ending, end) for ending, end in zip(ended.endings, ended.final, strict=True))
    equilibria, origins = list[Equilibrium](), list[int]()
    for number, start in enumerate(starts[:FROZEN_JUDGED]):
        own = find_equilibria(
            system.frozen(start), start[None], steps=config.steps, trials=config.pushes, seed=config.seed
        )
        equilibria += [replace(one, share=None) for one in own.equilibria[:1]]
        origins += [number] * len(own.equilibria[:1])
    shares = [
        Share(equilibrium=None, ending=name, rank=rank, count=count)
        for (name, rank), count in counts.most_common()
    ]
    return StartSearch(
        equilibria=tuple(equilibria),
        shares=tuple(shares),
        limits=(None,) * len(starts),
        origins=tuple(origins),
    )


def _ending_of(ending: Ending, tokens: Tensor) -> tuple[Ended, int | None]:
    """How one start ended, and the rank it has there if it is at rest."""
    if ending == Ending.RUNNING:
        return "unresolved", None
    rank = None if ending == Ending.RANGE else int(torch.linalg.matrix_rank(tokens, rtol=SAME))
    return cast(Ended, ending.name.lower()), rank


def with_asked(found: StartSearch, asked: Equilibrium) -> tuple[StartSearch, int]:
    """The same with the equilibrium that was asked for in the list, and its place there.

    Where random starts found it too, it takes the place of what they found; otherwise it comes last.
    """
    for place, one in enumerate(found.equilibria):
        if is_same(one, asked):
            joined = replace(asked, share=one.share, mirrored=one.mirrored, states=one.states)
            listed = (*found.equilibria[:place], joined, *found.equilibria[place + 1 :])
            return replace(found, equilibria=listed), place
    unreached = replace(asked, share=0.0 if found.limits else None)
    return replace(found, equilibria=(*found.equilibria, unreached)), len(found.equilibria)


def is_same(one: Equilibrium, other: Equilibrium) -> bool:
    """Whether two equilibria agree, or are each other's mirror image where both signs are at rest."""
    size = float(one.tokens.abs().max())
    gaps = [float((one.tokens - sign * other.tokens).abs().max()) for sign in (1.0, -1.0)]
    return gaps[0] <= SAME * size or (one.mirrored and gaps[1] <= SAME * size)


def recorded_starts(limits: tuple[int | None, ...], count: int) -> list[int]:
    """Numbers of that many starts: the first of each limit, most frequent limits first, then the first others."""
    order = sorted(set(limits), key=lambda limit: (-limits.count(limit), limits.index(limit)))
    chosen = [limits.index(limit) for limit in order]
    chosen += [place for place in range(len(limits)) if place not in set(chosen)]
    return chosen[:count]


def recorded_steps(steps: int, most: int = 120) -> list[int]:
    """Numbers of steps to record: all of the first, then ever further apart, and the last.

    >>> recorded_steps(5)
    [0, 1, 2, 3, 4, 5]
    """
    spaced = torch.logspace(0, 1, most, base=float(steps)).round().long().tolist()
    return sorted({0, steps, *spaced})
