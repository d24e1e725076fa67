"""Times in which clusters stand still, and a way through them that does not walk every step.

``coarsen`` follows ``X <- D softmax(beta X X^T) X`` to consensus. Where tokens turn by tiny angles it takes many steps
at once, so many that the strongest weight changes by less than a half, with speeds from logs (``log_speed``). Tokens
that have met are made exactly equal, which the system keeps. So lives of 1e100 steps are followed, in which float64
steps would stand still.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.dynamics.clusters import (
    CLOSE,
    count_of,
    half_squares,
    linked,
    linked_by,
    log_merging_life,
    on_sphere,
    turning,
)
from rankscope.errors import ConfigError

SLOW = 1e-3
"""Angle per step below which tokens count as standing still: a thousand steps for one radian. Less than half of
``CLOSE``: of two clusters that are meeting, one covers at least half of the angle between them in a step, so that the
end of a merger is never taken for a plateau."""

MET = 1e-7
"""Angle below which tokens have met and are made equal. Their pull on others changes by ``beta`` times that at most."""

LEAP = 0.2
"""Largest change, in one leap, of the exponent ``beta (1 - cos)`` of the nearest pair of clusters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plateau:
    """A time in which the number of clusters does not change and every token is slow.

    Args:
        first: index of its first look, among those given.
        start: steps before it.
        length: steps from its first to its last look, or to the look that ends it.
        clusters: how many there are.
        log_speed: log of the largest angle per step, where that is least.
        is_over: whether its end was seen.
    """

    first: int
    start: float
    length: float
    clusters: int
    log_speed: float
    is_over: bool


def plateaus(
    steps: Sequence[float], counts: Sequence[int], log_speeds: Sequence[float], *, slow: float = SLOW
) -> list[Plateau]:
    """Plateaus with at least two clusters, from looks at one run: steps done, clusters there, log of the largest turn.

    >>> found = plateaus([0, 1, 2, 3, 4], [3, 2, 2, 2, 1], [-1.0, -9.0, -8.0, -7.5, -1.0])
    >>> [(one.start, one.length, one.clusters, one.log_speed) for one in found]
    [(1, 3, 2, -9.0)]
    """
    if not len(steps) == len(counts) == len(log_speeds):
        raise ConfigError(
            f"a run is looked at with one count and one speed per step, got {len(steps)} steps, {len(counts)} counts "
            f"and {len(log_speeds)} speeds"
        )
    limit, found, first = math.log(slow), list[Plateau](), 0
    while first < len(steps):
        last = first
        is_slow = counts[first] > 1 and log_speeds[first] <= limit
        while (
            last + 1 < len(steps)
            and is_slow
            and counts[last + 1] == counts[first]
            and log_speeds[last + 1] <= limit
        ):
            last += 1
        if is_slow:
            end = min(last + 1, len(steps) - 1)
            found.append(
                Plateau(
                    first=first,
                    start=steps[first],
                    length=steps[end] - steps[first],
                    clusters=counts[first],
                    log_speed=min(log_speeds[first : last + 1]),
                    is_over=last + 1 < len(steps),
                )
            )
        first = last + 1
    return found


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Coarsening:
    """Looks at one start on its way to consensus.

    Args:
        steps: steps done before each look; leaps make them uneven, and they may be 1e100.
        counts: clusters at each look.
        log_speeds: log of the largest angle of the next step.
        entries: for each look at which the number of clusters is new, the tokens at the slowest later look with the
            same number: where that time is spent.
        states: tokens at each look, of starts for which they are kept.
        is_over: whether all tokens have met.
    """

    steps: list[float]
    counts: list[int]
    log_speeds: list[float]
    entries: dict[int, Tensor]
    states: list[Tensor]
    is_over: bool

    def plateaus(self, *, slow: float = SLOW) -> list[Plateau]:
        """See ``plateaus``."""
        return plateaus(self.steps, self.counts, self.log_speeds, slow=slow)

    def tokens_of(self, plateau: Plateau) -> Tensor:
        """The tokens where the plateau is slowest, ``tokens dim``."""
        return self.entries[max(look for look in self.entries if look <= plateau.first)]


@torch.no_grad()
def coarsen(
    x: Tensor, beta: float, *, looks: int = 20_000, angle: float = CLOSE, leap: float = LEAP, keep: int = 0
) -> list[Coarsening]:
    """Follow every start ``starts tokens dim`` until all tokens have met, for at most ``looks`` steps or leaps.

    Tokens of every look are kept of the first ``keep`` starts.

    Full mask, identity values; orthogonal ones give the same angles (see the module). A leap turns the fastest
    token by a given angle and counts the steps that this takes at the speed half way: of two clusters the exponent
    changes by at most ``2 leap``, so a life has a relative error of about ``(2 leap)^2 / 24`` from it. Steps that turn
    further than that are walked as they are.
    """
    if not beta > 0:
        raise ConfigError(f"clusters need an inverse temperature above zero, got beta={beta}")
    state = on_sphere(x).reshape(-1, *x.shape[-2:]).clone()
    logs = [_Log() for _ in state]
    rows = list(range(len(state)))
    done = torch.zeros(len(state), dtype=torch.float64)
    for _ in range(looks):
        state, labels, defects = _met(state)
        count = count_of(linked_by(defects, angle))
        towards, log_angle = turning(state, beta)
        fastest = log_angle.amax(dim=-1)
        seen = zip(rows, done.tolist(), count.tolist(), fastest.tolist(), state, strict=True)
        for row, *look in seen:
            logs[row].look(*look, keep=row < keep)
        is_going = torch.isfinite(fastest)
        if not bool(is_going.all()):
            rows = [row for row, goes in zip(rows, is_going.tolist(), strict=True) if goes]
            state, towards, log_angle, labels = (
                each[is_going] for each in (state, towards, log_angle, labels)
            )
            done, fastest, defects = (each[is_going] for each in (done, fastest, defects))
        if not rows:
            break
        log_steps, log_turn = torch.zeros_like(fastest), _log_leap(defects, beta, leap)
        leaps = log_turn - fastest > math.log(2)
        if bool(leaps.any()):
            half = (log_turn - fastest - math.log(2)).unsqueeze(-1)
            later, log_later = turning(_same(_turned(state, towards, log_angle + half), labels), beta)
            log_steps = torch.where(leaps, _whole(log_turn - log_later.amax(dim=-1)), log_steps)
            leaps = leaps.unsqueeze(-1)
            towards = torch.where(leaps.unsqueeze(-1), _moved(later, state), towards)
            log_angle = torch.where(leaps, log_later, log_angle)
        state = _same(_turned(state, towards, log_angle + log_steps.unsqueeze(-1)), labels)
        done = done + torch.where(log_steps < 30, log_steps.exp().round(), log_steps.exp())
    return [log.closed() for log in logs]


class _Log:
    """Looks at one start as they come."""

    def __init__(self) -> None:
        self.steps, self.counts, self.log_speeds = list[float](), list[int](), list[float]()
        self.entries, self.states = dict[int, Tensor](), list[Tensor]()
        self.entered, self.least = 0, math.inf

    def look(self, steps: float, count: int, log_speed: float, x: Tensor, *, keep: bool) -> None:
        if not self.counts or count != self.counts[-1]:
            self.entered, self.least = len(self.counts), math.inf
        if log_speed < self.least:
            self.least, self.entries[self.entered] = log_speed, x.clone()
        self.steps.append(steps)
        self.counts.append(count)
        self.log_speeds.append(log_speed)
        if keep:
            self.states.append(x.clone())

    def closed(self) -> Coarsening:
        return Coarsening(
            steps=self.steps,
            counts=self.counts,
            log_speeds=self.log_speeds,
            entries=self.entries,
            states=self.states,
            is_over=self.counts[-1] == 1,
        )


def _met(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens that have met put to their mean, equal to the last digit; their labels, and ``1 - cos`` of all pairs."""
    defects = half_squares(x)
    labels = linked_by(defects, MET)
    belongs = (labels.unsqueeze(-2) == torch.arange(x.shape[-2]).unsqueeze(-1)).to(x.dtype)
    means = belongs @ x
    means = means / torch.linalg.vector_norm(means, dim=-1, keepdim=True).clamp(min=0.5)
    is_same = labels.unsqueeze(-1) == labels.unsqueeze(-2)
    return _same(means, labels), labels, torch.where(is_same, 0.0, defects)


def _same(x: Tensor, labels: Tensor) -> Tensor:
    """Every token put where the lowest one of its label is."""
    return torch.gather(x, -2, labels.unsqueeze(-1).expand_as(x))


def _log_leap(defects: Tensor, beta: float, leap: float) -> Tensor:
    """Log of the angle that changes exponent and sine of the nearest pair by ``leap``, the sine relative to itself."""
    least = torch.where(defects > 0, defects, torch.inf).amin(dim=(-2, -1)).clamp(max=2.0)
    slope = (least * (2 - least)).clamp(min=1e-12).sqrt()  # sine of its angle
    return (leap * torch.minimum(1 / (beta * slope), slope)).log()


def _whole(log_steps: Tensor) -> Tensor:
    """Logs of numbers of steps, rounded down to whole ones where that can be seen, and at least one."""
    log_steps = log_steps.clamp(min=0.0)
    return torch.where(log_steps < 30, log_steps.exp().floor().log(), log_steps)


def _turned(x: Tensor, towards: Tensor, log_angle: Tensor) -> Tensor:
    angle = log_angle.exp().unsqueeze(-1)
    y = torch.cos(angle) * x + torch.sin(angle) * towards
    lengths: Tensor = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
    return y / lengths


def _moved(towards: Tensor, x: Tensor) -> Tensor:
    """The same direction as a tangent at ``x``, to first order in how far ``x`` is from where it was taken."""
    tangent = towards - (towards * x).sum(dim=-1, keepdim=True) * x
    lengths: Tensor = torch.linalg.vector_norm(tangent, dim=-1, keepdim=True)
    return tangent / lengths.clamp(min=1e-300)


def nearest_pair(x: Tensor, *, angle: float = CLOSE) -> tuple[float, tuple[int, int]]:
    """The least angle between two clusters of unit tokens ``tokens dim``, and the sizes of these two."""
    labels = linked(x, angle)
    square = torch.where(labels.unsqueeze(-1) != labels.unsqueeze(-2), half_squares(x), torch.inf)
    least = int(square.argmin())
    pair = (least // len(x), least % len(x))
    if not math.isfinite(float(square[pair])):
        raise ConfigError("all tokens are in one cluster; a pair of clusters needs two")
    first, second = (int((labels == labels[token]).sum()) for token in pair)
    return 2 * math.asin(min(math.sqrt(float(square[pair]) / 2), 1.0)), (first, second)


def log_estimate(x: Tensor, beta: float) -> float:
    """``log_merging_life`` of the nearest two clusters, as if they were alone."""
    gap, sizes = nearest_pair(x)
    return log_merging_life(gap, beta, sizes)
