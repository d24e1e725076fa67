"""What a search for equilibria found: where the starts went, each distinct limit judged."""

import dataclasses
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.dynamics.endings import Ending
from rankscope.dynamics.equilibrium import Equilibrium, judged
from rankscope.dynamics.groups import Grouping
from rankscope.dynamics.returning import returning
from rankscope.dynamics.run import Run
from rankscope.dynamics.system import System

_AT_REST = 1e-6  # a run has reached a repelling equilibrium only if it is this near to it
_RANK = (
    1e-6  # singular values, relative to the largest, that count in the rank of an end that is no equilibrium
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Basin:
    """How many starts went to one place.

    Args:
        equilibrium: index into ``Found.equilibria``; None for every other end.
        ending: ``equilibrium``, ``consensus`` (the shared token moves on), ``cycle``, ``shape``, ``plateau`` (hardly
            moving, and no equilibrium near), ``range``, or ``unresolved``: still moving.
        rank: of the tokens there; None if unresolved or out of range.
        count: starts.
    """

    equilibrium: int | None
    ending: str
    rank: int | None
    count: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Found:
    """What a search found.

    Args:
        equilibria: most frequent first; those that Newton's method found alone have share 0 and come last.
        basins: most frequent first; the counts add up to the number of starts.
        limits: for every start the index of its equilibrium, -1 where it has none.
        signs: for every start 1, or -1 where its limit is the mirror image of that equilibrium.
        run: how the iteration itself ended.
        notes: sentences on what the list does not show.
    """

    equilibria: tuple[Equilibrium, ...]
    basins: tuple[Basin, ...]
    limits: Tensor
    signs: Tensor
    run: Run
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """Turns groups of limits into the answer."""

    system: System
    went: Run
    ends: Tensor
    kinds: list[Ending]
    rows: Tensor  # starts whose ends were polished, in the order of the first labels of the grouping
    distance: Tensor  # of the ends of these from their limits
    groups: Grouping
    is_odd: bool

    def found(self, *, most: int, trials: int, seed: int) -> Found:
        groups, total = self.groups, len(self.ends)
        shown = groups.order[:most]
        equilibria = [
            judged(self.system, groups.states[g], uncertainty=groups.uncertainty[g], trials=0) for g in shown
        ]
        limits, signs = torch.full((total,), -1), torch.ones(total, dtype=torch.long)
        own = groups.labels[: len(self.rows)]
        for index, group in enumerate(shown):
            members = own == group
            if equilibria[index].stable is False:
                members &= self.distance <= _AT_REST
            limits[self.rows[members]] = index
            signs[self.rows[members]] = groups.signs[: len(self.rows)][members]
        in_family = [
            groups.members[group] > 1 and bool(one.neutral_tokens or one.undecided_tokens)
            for group, one in zip(shown, equilibria, strict=True)
        ]
        returns = self._returns(shown, in_family, trials, seed)
        judged_ones = tuple(
            dataclasses.replace(
                one,
                share=float((limits == index).sum()) / total,
                returns=returns[index][0],
                returns_mirrored=returns[index][1],
                found_by="run" if bool((limits == index).any()) else "newton",
                mirrored=groups.mirrored[group],
                states=groups.members[group],
            )
            for index, (group, one) in enumerate(zip(shown, equilibria, strict=True))
        )
        return Found(
            equilibria=judged_ones,
            basins=self._basins(limits, judged_ones, shown),
            limits=limits,
            signs=signs,
            run=self.went,
            notes=self._notes(shown, judged_ones),
        )

    def _returns(
        self, shown: list[int], in_family: list[bool], trials: int, seed: int
    ) -> list[tuple[float | None, float | None]]:
        """Shares of pushes that come back, and that go to the mirror image; none for members of a continuum."""
        if not (trials and shown):
            return [(None, None)] * len(shown)
        went = returning(self.system, self.groups.states[shown], trials=trials, seed=seed)
        return [
            (None, None) if skip else (float(back), float(other) if self.is_odd else None)
            for skip, back, other in zip(in_family, went.back, went.mirrored, strict=True)
        ]

    def _basins(
        self, limits: Tensor, equilibria: tuple[Equilibrium, ...], shown: list[int]
    ) -> tuple[Basin, ...]:
        hidden = set(
            self.rows[~torch.isin(self.groups.labels[: len(self.rows)], torch.tensor(shown))].tolist()
        )
        keys: Counter[tuple[int | None, str, int | None]] = Counter()
        for start, index in enumerate(limits.tolist()):
            if index >= 0:
                keys[index, "equilibrium", equilibria[index].rank] += 1
            elif start in hidden:
                keys[None, "equilibrium", _rank(self.ends[start])] += 1
            else:
                keys[None, *self._other(start)] += 1
        return tuple(
            Basin(equilibrium=index, ending=ending, rank=rank, count=count)
            for (index, ending, rank), count in keys.most_common()
        )

    def _other(self, start: int) -> tuple[str, int | None]:
        kind = self.kinds[start]
        if kind in (Ending.CONSENSUS, Ending.CYCLE, Ending.SHAPE, Ending.PLATEAU):
            return kind.name.lower(), _rank(self.ends[start])
        return ("range" if kind == Ending.RANGE else "unresolved"), None

    def _notes(self, shown: list[int], equilibria: tuple[Equilibrium, ...]) -> tuple[str, ...]:
        notes = [] if self.went.note is None else [self.went.note]
        families = [one for one in equilibria if one.states > 1]
        if families:
            continuum = any(one.neutral_tokens or one.undecided_tokens for one in families)
            notes.append(
                f"{sum(one.states for one in families)} distinct states are {len(families)} up to turning, mirroring "
                "or scaling all tokens together or changing their order, and shown once each"
                + (
                    "; where a multiplier is one they belong to a continuum of equilibria"
                    if continuum
                    else ""
                )
            )
        if any(one.mirrored for one in equilibria):
            notes.append("the system is odd, so -x is an equilibrium with x; both are counted as one")
        left = len(self.groups.order) - len(shown)
        if left:
            notes.append(f"{left} more equilibria were found and not judged; raise most to see them")
        return tuple(notes)


def _rank(x: Tensor) -> int:
    return int(torch.linalg.matrix_rank(x, rtol=_RANK))
