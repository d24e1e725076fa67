"""Finding equilibria: iterate many starts, polish where they end, and Newton's method for those that repel."""

import dataclasses
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.dynamics.endings import Ending
from rankscope.dynamics.equilibrium import Equilibrium, judged
from rankscope.dynamics.groups import Grouping, grouped
from rankscope.dynamics.jacobian import has_unit_tokens
from rankscope.dynamics.newton import Polished, polish
from rankscope.dynamics.resting import at_rest, residual_of
from rankscope.dynamics.returning import later, returning
from rankscope.dynamics.run import Run, run
from rankscope.dynamics.symmetries import is_odd, is_scale_free, is_symmetric, shared_token, traces
from rankscope.dynamics.system import System
from rankscope.errors import ConfigError, ShapeError

NEAR = 0.05
"""A polished state is the limit of its start if it is no farther from the end of the run, relative to the largest
entry: a neutral direction leaves 1e-3 to 1e-2 after a thousand steps, other equilibria are usually farther."""

_AT_REST = 1e-6  # a run has reached a repelling equilibrium only if it is this near to it
_RANK = (
    1e-6  # singular values, relative to the largest, that count in the rank of an end that is no equilibrium
)
_PLACED = (
    1e-4  # a state of Newton's method whose place is less sure, relative to its largest entry, says nothing
)
_EQUAL = 1e-6  # relative difference of tokens below which they are tried as equal
_SLOW = 1e-3  # an end that one step moves by more than this, relative to its largest entry, is not near rest
_ENDED = (Ending.CYCLE, Ending.SHAPE, Ending.RANGE)


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


@torch.no_grad()
def find_equilibria(
    system: System,
    starts: Tensor,
    *,
    steps: int = 2000,
    newton: int = 0,
    trials: int = 64,
    most: int = 32,
    seed: int = 0,
) -> Found:
    """Where the starts ``starts tokens dim`` go, every distinct limit polished and judged.

    Starts are iterated, and the ends polished; an end that Newton's method leads farther than ``NEAR`` is not counted
    for what it found. Limits that agree are one, ``-x`` with ``x`` where the system is odd; several with the same
    inner products are a family, shown once. Where all tokens are equal, the one token they share is solved for.
    ``newton`` random states go to Newton's method directly, which also finds what repels. At most
    ``most`` are judged. ``trials`` and ``seed`` as in ``judged``.
    """
    _check(system, starts, most)
    went = run(system, starts, steps)
    ends, kinds = _settled(system, went, steps)
    rows, limits, distance = _limits(system, ends, kinds)
    extra = _newton_states(system, starts, newton, seed)
    states = torch.cat([limits.tokens, extra.tokens])
    odd = is_odd(system, starts)
    groups = grouped(
        states,
        torch.cat([limits.uncertainty, extra.uncertainty]),
        traces(system, states),
        from_runs=len(rows),
        is_odd=odd,
        is_symmetric=is_symmetric(system, starts),
        is_scale_free=is_scale_free(system, starts),
    )
    report = _Report(system, went, ends, kinds, rows, distance, groups, odd)
    return report.found(most=most, trials=trials, seed=seed)


def _check(system: System, starts: Tensor, most: int) -> None:
    if starts.ndim != 3 or not len(starts):
        raise ShapeError(f"starts are (starts, tokens, dim), at least one, got shape {tuple(starts.shape)}")
    if starts.dtype != torch.float64:
        raise ShapeError(f"equilibria are searched in float64, got {starts.dtype}; use starts.double()")
    if not system.is_steady:
        raise ConfigError("a system whose maps are drawn anew at every step has no equilibria")
    if system.per_start:
        raise ConfigError(
            "the weights of this system belong to single starts, and each start then has equilibria of its own; "
            "search one system at a time"
        )
    if most < 1:
        raise ConfigError(f"at least one equilibrium must be shown, got most={most}")


def _settled(system: System, went: Run, steps: int) -> tuple[Tensor, list[Ending]]:
    """The ends of the run; those at consensus go on, because the token they share may still move."""
    ends, kinds = went.final.clone(), list(went.endings)
    rows = [index for index, kind in enumerate(kinds) if kind == Ending.CONSENSUS]
    if rows:
        ends[rows] = later(system, ends[rows], steps)
    return ends, kinds


def _limits(system: System, ends: Tensor, kinds: list[Ending]) -> tuple[Tensor, Polished, Tensor]:
    """Starts that have an equilibrium as their limit, these equilibria, and how far the ends are from them."""
    size = ends.abs().amax(dim=(-2, -1))
    may = torch.tensor([kind not in _ENDED for kind in kinds], device=ends.device)
    rows = torch.nonzero(may & (residual_of(system, ends) <= _SLOW * size)).flatten()
    if not len(rows):
        return rows, _none(ends), ends.new_zeros(0)
    equal = torch.tensor([kinds[row] == Ending.CONSENSUS for row in rows.tolist()], device=ends.device)
    polished = _with_consensus(system, ends[rows], polish(system, ends[rows]), equal)
    distance = (polished.tokens - ends[rows]).abs().amax(dim=(-2, -1))
    kept = polished.converged & (distance <= NEAR * size[rows]) & _has_length(system, polished.tokens)
    return rows[kept], _only(polished, kept), distance[kept]


def _with_consensus(system: System, x: Tensor, polished: Polished, equal: Tensor) -> Polished:
    """Where all tokens are equal, or cannot be told from it, the equilibrium of the one token they share.

    ``equal`` marks states ``x`` that a run left at consensus.
    """
    tokens = polished.tokens
    size, unsure = tokens.abs().amax(dim=(-2, -1)), polished.uncertainty.amax(dim=(-2, -1))
    spread = (tokens - tokens[:, :1]).abs().amax(dim=(-2, -1))
    near = equal | (polished.converged & (spread <= torch.maximum(_EQUAL * size, unsure)))
    rows = torch.nonzero(near).flatten()
    if not len(rows) or tokens.shape[-2] < 2:
        return polished
    begin = torch.where(equal[:, None, None], x, tokens)[rows].mean(dim=-2, keepdim=True)
    one = polish(shared_token(system, tokens.shape[-2]), begin)
    common = one.tokens.expand_as(tokens[rows]).contiguous()
    better = at_rest(system, common)
    rows, common, one = rows[better], common[better], _only(one, better)
    if not len(rows):
        return polished
    found = Polished(
        tokens=tokens.clone(),
        residual=polished.residual.clone(),
        uncertainty=polished.uncertainty.clone(),
        converged=polished.converged.clone(),
    )
    found.tokens[rows], found.residual[rows] = common, residual_of(system, common)
    found.uncertainty[rows], found.converged[rows] = one.uncertainty.expand_as(common), True
    return found


def _only(polished: Polished, kept: Tensor) -> Polished:
    return Polished(
        tokens=polished.tokens[kept],
        residual=polished.residual[kept],
        uncertainty=polished.uncertainty[kept],
        converged=polished.converged[kept],
    )


def _none(like: Tensor) -> Polished:
    empty = like.new_zeros(0)
    return Polished(tokens=like[:0], residual=empty, uncertainty=like[:0], converged=empty.bool())


def _has_length(system: System, x: Tensor) -> Tensor:
    """Zero tokens rest under a norm that leaves zero alone, but they are not on the sphere."""
    if not has_unit_tokens(system):
        return torch.ones(len(x), dtype=torch.bool, device=x.device)
    off = (torch.linalg.vector_norm(x, dim=-1) - 1).abs().amax(dim=-1)
    return torch.lt(off, 1e-9)


def _newton_states(system: System, starts: Tensor, number: int, seed: int) -> Polished:
    """Equilibria that Newton's method reaches from random states of the same size as the starts."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(number, *starts.shape[1:], generator=generator, dtype=starts.dtype).to(starts.device)
    if not number:
        return _none(starts)
    found = polish(system, draw * starts.square().mean().sqrt())
    found = _with_consensus(system, found.tokens, found, torch.zeros_like(found.converged))
    size = found.tokens.abs().amax(dim=(-2, -1))
    is_placed = found.uncertainty.amax(dim=(-2, -1)) <= _PLACED * size
    return _only(found, found.converged & is_placed & _has_length(system, found.tokens))


@dataclass(frozen=True, slots=True, eq=False)
class _Report:
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
