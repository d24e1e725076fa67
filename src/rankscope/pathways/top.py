"""The single paths that carry most, exactly, without looking at all of them."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, get_args

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor, threads_for
from rankscope.errors import ConfigError
from rankscope.network import Context, Network
from rankscope.pathways.freeze import FrozenNetwork, Mlps, frozen_with
from rankscope.pathways.frozen import Frozen, FrozenAttention, FrozenMlp, FrozenNorm, FrozenSkip, Leaf
from rankscope.pathways.path import Path
from rankscope.pathways.reading import centered, kept_rows
from rankscope.pathways.search import Found, Problem, Search
from rankscope.pathways.steps import number_of_paths, steps_of

Score = Literal["norm", "residual"]
Progress = Callable[[int, int | None], None]

LARGEST = math.log(torch.finfo(torch.float64).max)

LEAST_BEAM = 32

GUESS = 4
"""Width of the quick descent before the search; it only decides how many prefixes have to wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """A path and its term Z, over all texts together; padding is left out.

    Args:
        path: one head, or None, for every attention part.
        norm: Frobenius norm of Z.
        residual: Frobenius norm of ``J Z``, what is left when the mean token of each text is taken away.
        share: ``<J Z, J Y> / |J Y|^2``, the signed part of the output's residual Z is; NaN where that is zero.
        cosine_to_output: cosine of the angle between ``J Z`` and ``J Y``; NaN where one of them is zero.
        floor: what rounding may have left of the residual; paths with less have no order among themselves.
        share_floor: the same for the share.
        norm_floor: the same for the norm.
    """

    path: Path
    norm: float
    residual: float
    share: float
    cosine_to_output: float
    floor: float
    share_floor: float
    norm_floor: float

    @property
    def resolved(self) -> bool:
        """Whether the residual is above its floor."""
        return self.residual > self.floor

    @property
    def norm_resolved(self) -> bool:
        """Whether the norm is above its floor."""
        return self.norm > self.norm_floor


@dataclass(frozen=True, kw_only=True, slots=True)
class Top:
    """The paths with the largest score, best first, and what is known of all others.

    Args:
        paths: the list.
        score: what it is sorted by.
        exact: whether no other path has a larger score than the last one of the list: the largest that any other can
            have, what rounding may have taken away included, is at most the last score less its floor. Never where the
            last score is not above its floor, unless it and all others are zero.
        gap: no other path has a score above ``(1 + gap)`` times that of the last one, the floor of the last one taken
            off; 0 if the list is exact. None if no number is known: the score of the last one may be all rounding, and
            nothing is a multiple of that.
        bound: no other path has a score above it, what rounding may have taken away included.
        expanded: how many prefixes were carried one step further.
        of: how many paths there are.
        seconds: how much time was allowed for the search.
        waiting: how many prefixes might still have led to a better path, or to doubt of the list, when time was over. 0
            if the search has ended: what is not proven then is open because of rounding, and more time does not help.
        seconds_more: about how long it takes to carry these one step further, at the pace of the search; a proof takes
            at least that, because what they lead to may have to be looked at too. None where nothing waits, or where
            there was no time to find out the pace.
    """

    paths: tuple[Ranked, ...]
    score: Score
    exact: bool
    gap: float | None
    bound: float
    expanded: int
    of: int
    seconds: float
    waiting: int
    seconds_more: float | None

    @property
    def resolved(self) -> tuple[bool, ...]:
        """Whether the score of each path is above its floor."""
        return tuple(one.norm_resolved if self.score == "norm" else one.resolved for one in self.paths)

    @property
    def ranked(self) -> int:
        """How many of the first paths have a rank: from the first score that is not above its floor on, none has."""
        return self.resolved.index(False) if False in self.resolved else len(self.paths)


@torch.no_grad()
def top_paths(
    network: Network | FrozenNetwork,
    x: Tensor | None = None,
    context: Context | None = None,
    *,
    count: int = 20,
    score: Score = "norm",
    seconds: float = 3.0,
    beam: int | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
    dtype: torch.dtype | None = None,
    mlps: Mlps | None = None,
    final_norm: bool | None = None,
) -> Top:
    """The ``count`` paths from the input whose terms have the largest norm, or the largest residual.

    A prefix of a path is bounded by its own size times the largest gain of any way on, so that most paths are never
    looked at and the list is exact all the same. If time runs out, the best prefixes of each depth are followed to the
    end, and ``gap`` says how far the list may be from exact. Several texts are scored together, by the root of
    the sum of squares.

    Args:
        network: a tree, or one that ``freeze`` holds at its input already.
        x: ``*batch tokens dim``, what enters the first block.
        context: padding and positions.
        count: how many paths.
        score: ``"norm"`` or ``"residual"``.
        seconds: for the search itself, once gains are bounded; 0 is a beam alone.
        beam: how many prefixes of each depth are followed when time is over, at least ``count``; by default twice
            that, but no fewer than 32.
        progress: told how many prefixes were carried on so far.
        clock: tells the time in seconds.
        dtype, mlps, final_norm: as for ``freeze``.

    >>> from rankscope.network import Spec, build, gaussian_tokens
    >>> generator = torch.Generator().manual_seed(0)
    >>> net = build(Spec(layers=12, heads=12, dim=48, variant="san+skip"), generator)
    >>> found = top_paths(net, gaussian_tokens(8, 48, generator=generator), count=2)
    >>> found.of, found.exact
    (23298085122481, True)
    >>> [str(one.path) for one in found.paths]
    ['-.-.-.-.-.-.-.-.-.-.-.-', '-.-.-.-.-.-.-.9.-.-.-.-']
    """
    _check(score, seconds)
    frozen = frozen_with(network, x, context, dtype=dtype, mlps=mlps, final_norm=final_norm)
    pace: float | None = None
    with threads_for(frozen.states[0].numel()):
        problem = problem_of(frozen, score)
        paths = number_of_paths(problem.steps)
        width = _width(count, beam, paths)
        search = Search(problem, count)
        is_over = _deadline(search, clock() + seconds, clock, progress)  # the bounds are there now
        if not is_over():
            search.guess(GUESS)
            begun, guessed = clock(), search.expanded
            search.run(is_over)
            pace = (clock() - begun) / max(search.expanded - guessed, 1)
        waiting = 0 if search.is_over else search.waiting
        if not search.is_over:
            search.finish(width)
        is_proven = search.is_proven
        waiting = 0 if is_proven else waiting
        ranked = tuple(_ranked(one, search, frozen) for one in sorted(search.found, reverse=True))
    return Top(
        paths=ranked,
        score=score,
        exact=is_proven,
        gap=0.0 if is_proven else _gap(search.most, search.least),
        bound=_exp(search.most),
        expanded=search.expanded,
        of=paths,
        seconds=seconds,
        waiting=waiting,
        seconds_more=pace * waiting if waiting and pace else None,
    )


def problem_of(frozen: FrozenNetwork, score: Score) -> Problem:
    """The search for the largest score in a frozen network."""
    steps = steps_of(frozen)
    parts = [part for step in steps for part in (step.lead, step.part)]
    is_residual = score == "residual"
    is_token = frozen.context.is_token
    return Problem(
        steps=steps,
        start=kept_rows(frozen.states[0], is_token),
        is_token=is_token,
        keep=frozen.keep,
        is_residual=is_residual,
        is_centered=is_residual and all(_keeps_consensus(part, is_token) for part in parts),
    )


def _ranked(found: Found, search: Search, frozen: FrozenNetwork) -> Ranked:
    """What is told of one path of the list."""
    ways, problem = found.ways, search.problem
    plain = replace(problem, is_centered=False).after(ways).double()
    own = problem.after(ways).double() if problem.is_centered else plain
    own = centered(kept_rows(own, problem.keep), problem.keep)
    whole = centered(kept_rows(frozen.output.double(), problem.keep), problem.keep)
    norm, residual, size = (
        float(torch.linalg.vector_norm(matrix)) for matrix in (kept_rows(plain, problem.keep), own, whole)
    )
    if not size > relative_floor(frozen.layers, frozen.dtype) * float(
        kept_rows(frozen.output, problem.keep).norm()
    ):
        size = 0.0  # the tokens of the output are equal up to rounding: there is nothing to have a share in
    along = float((own * whole).sum())
    floor = relative_floor(frozen.layers, frozen.dtype) * norm
    own_floor = search.floor(found)
    whole_rounding = (
        search.rounding(ways, replace(problem, is_centered=False)) if problem.is_centered else own_floor
    )
    return Ranked(
        path=Path(tuple(chain(*(step.choices[way] for step, way in zip(problem.steps, ways, strict=True))))),
        norm=norm,
        residual=residual,
        share=along / size**2 if size else math.nan,
        cosine_to_output=along / (residual * size) if residual and size else math.nan,
        floor=own_floor,
        share_floor=floor / size if size else math.nan,
        norm_floor=max(floor, whole_rounding),
    )


def _keeps_consensus(part: Frozen, is_token: Tensor | None) -> bool:
    """Whether equal tokens come out equal: norms and MLPs hold a factor for every token, maps must sum to one."""
    if isinstance(part, FrozenNorm | FrozenMlp):
        return False
    if isinstance(part, FrozenAttention):
        off = (part.maps.sum(dim=-1) - 1).abs()
        off = off if is_token is None else torch.where(is_token.unsqueeze(-2), off, 0.0)
        return bool(off.max() <= 1e3 * torch.finfo(part.maps.dtype).eps)
    if isinstance(part, FrozenSkip):
        return _keeps_consensus(part.inner, is_token)
    return isinstance(part, Leaf) or all(_keeps_consensus(inner, is_token) for inner in part.parts)


def _check(score: str, seconds: float) -> None:
    if score not in get_args(Score):
        raise ConfigError(f"score={score!r}; paths are ranked by 'norm' or by 'residual'")
    if not seconds >= 0:
        raise ConfigError(f"seconds={seconds}; the search needs a time of 0 or more, 0 for a beam alone")


def _width(count: int, beam: int | None, paths: int) -> int:
    """The width of the beam; raises unless that many paths can be listed."""
    if type(count) is not int or count < 1:
        raise ConfigError(f"the top {count} paths were asked for; ask for at least one")
    if count > paths:
        raise ConfigError(
            f"the top {count} paths were asked for, but the network has {paths} from its input to its output"
            + (f"; ask for at most {paths}" if paths else "")
        )
    if beam is not None and beam < count:
        raise ConfigError(f"beam={beam} is narrower than the list of {count} paths; take at least {count}")
    return max(2 * count, LEAST_BEAM) if beam is None else beam


def _deadline(
    search: Search, end: float, clock: Callable[[], float], progress: Progress | None
) -> Callable[[], bool]:
    def is_over() -> bool:
        if progress is not None:
            progress(search.expanded, None)
        return clock() >= end

    return is_over


def _gap(most: float, least: float) -> float | None:
    """By how much a bound is above what a score is at least, both logarithms; None where that is no number."""
    if least == -math.inf:
        return None
    above = most - least
    return math.expm1(max(above, 0.0)) if above < LARGEST else None


def _exp(log: float) -> float:
    return math.exp(log) if log < LARGEST else math.inf
