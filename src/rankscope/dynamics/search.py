"""Finding equilibria: iterate many starts, polish where they end, and Newton's method for those that repel."""

import torch
from torch import Tensor

from rankscope.dynamics.endings import Ending
from rankscope.dynamics.found import Found, Report
from rankscope.dynamics.groups import grouped
from rankscope.dynamics.jacobian import has_unit_tokens
from rankscope.dynamics.newton import Polished, polish
from rankscope.dynamics.resting import at_rest, residual_of
from rankscope.dynamics.returning import later
from rankscope.dynamics.run import Run, run
from rankscope.dynamics.symmetries import is_odd, is_scale_free, is_symmetric, shared_token, traces
from rankscope.dynamics.system import System
from rankscope.errors import ConfigError, ShapeError

NEAR = 0.05
"""A polished state is the limit of its start if it is no farther from the end of the run, relative to the largest
entry: a neutral direction leaves 1e-3 to 1e-2 after a thousand steps, other equilibria are usually farther."""

_PLACED = (
    1e-4  # a state of Newton's method whose place is less sure, relative to its largest entry, says nothing
)
_EQUAL = 1e-6  # relative difference of tokens below which they are tried as equal
_SLOW = 1e-3  # an end that one step moves by more than this, relative to its largest entry, is not near rest
_ENDED = (Ending.CYCLE, Ending.SHAPE, Ending.RANGE)


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
    report = Report(system, went, ends, kinds, rows, distance, groups, odd)
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
