"""How a run ends: at rest, in a cycle, with all tokens equal, or merely slow."""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

TOLERANCE = 1e-12
"""Relative difference up to which tokens are equal, and a state that comes back is the same: far above rounding."""

AT_REST = 64 * torch.finfo(torch.float64).eps
"""Relative change of a token up to which a step changes nothing but rounding: metastable states may move by 1e-13."""

LONGEST_CYCLE = 64

_MOVES = 1e-6  # relative speed of a cycle; slower returns are those of an oscillation that dies out
_TURNS = 1e-10  # relative speed above which a state with its inner products at rest is turning or growing
_KEEPS_MOVING = 0.99  # of its speed, over the time that its inner products are at rest
_SHAPES_EVERY = 8  # steps between comparing inner products, which costs as much as all the rest


class Ending(IntEnum):
    """Why a start is no longer followed; ``describe`` puts it in words."""

    RUNNING = 0
    CONSENSUS = 1
    EQUILIBRIUM = 2
    CYCLE = 3
    SHAPE = 4
    PLATEAU = 5
    RANGE = 6


WORDS = {
    Ending.RUNNING: "still moving when the steps ran out",
    Ending.CONSENSUS: "all tokens equal to rounding; the token they share may still move",
    Ending.EQUILIBRIUM: "at rest: a step changes nothing that float64 can see",
    Ending.CYCLE: "in a cycle: the same states come back",
    Ending.SHAPE: "shape at rest: inner products stay in proportion while all tokens turn or grow together",
    Ending.PLATEAU: "on a plateau: hardly moving for many steps, but not at rest",
    Ending.RANGE: "beyond the range of the arithmetic",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Slowness:
    """What counts as a plateau: for ``patience`` steps in a row the state moves by less than ``speed``, relative to
    its largest entry, and in the end still by more than ``falls`` of what it did at the beginning."""

    speed: float = 1e-6
    patience: int = 256
    falls: float = 0.5


class Watch:
    """Looks at the states of a batch of starts, step by step, and says which have ended and why.

    Equilibria and cycles are found by comparing each state with an anchor, an earlier state that is moved forward
    after 1, 2, 4, ... and then every ``longest_cycle`` steps; the first return to the anchor is the period.
    """

    def __init__(
        self,
        x: Tensor,
        *,
        is_steady: bool,
        is_connected: bool,
        tolerance: float,
        at_rest: float,
        longest_cycle: int,
        slowness: Slowness | None,
    ) -> None:
        self.is_steady, self.is_connected = is_steady, is_connected
        self.tolerance, self.at_rest = tolerance, at_rest
        self.longest_cycle, self.slowness = longest_cycle, slowness
        self.anchor, self.anchored, self.gap = x, 0, 1
        self.slow_since = torch.zeros(len(x), dtype=torch.long, device=x.device)
        self.first_speed = torch.full_like(x[:, 0, 0], torch.inf)
        self.shape_for, self.shape_speed = (
            torch.zeros_like(self.slow_since),
            torch.zeros_like(self.first_speed),
        )

    def look(self, number: int, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Endings (0 where there is none yet) and periods after step ``number``, counted from 1."""
        size = after.abs().amax(dim=(-2, -1))
        speed = _relative(after - before, after)
        found = torch.zeros(len(after), dtype=torch.long, device=after.device)
        period = torch.ones_like(found)
        if self.slowness is not None:
            self._mark_slow(found, number, speed, self.slowness)
        if self.is_steady and number % _SHAPES_EVERY == 0:
            self._mark_shape(found, before, after)
        if self.is_steady:
            returned = (_relative(after - self.anchor, after) <= self.tolerance) & (speed > _MOVES)
            period = torch.where(returned, number - self.anchored, period)
            found = torch.where(returned, Ending.CYCLE, found)
            found = torch.where(speed <= self.at_rest, Ending.EQUILIBRIUM, found)
        if self.is_connected:
            middle = after - after.mean(dim=-2, keepdim=True)
            found = torch.where(_largest(middle) <= self.tolerance * size, Ending.CONSENSUS, found)
        found = torch.where(torch.isfinite(size), found, Ending.RANGE)
        if number - self.anchored >= self.gap:
            self.anchor, self.anchored = after, number
            self.gap = min(2 * self.gap, self.longest_cycle)
        return found, torch.where(found == Ending.CYCLE, period, 1)

    def keep(self, rows: Tensor) -> None:
        """Go on with these starts alone."""
        self.anchor, self.first_speed = self.anchor[rows], self.first_speed[rows]
        self.slow_since, self.shape_for = self.slow_since[rows], self.shape_for[rows]
        self.shape_speed = self.shape_speed[rows]

    def _mark_slow(self, found: Tensor, number: int, speed: Tensor, slowness: Slowness) -> None:
        is_slow = speed <= slowness.speed
        begins = is_slow & (self.slow_since == 0)
        self.slow_since = torch.where(is_slow, self.slow_since, 0)
        self.slow_since = torch.where(begins, number, self.slow_since)
        self.first_speed = torch.where(begins, speed, self.first_speed)
        waited = is_slow & (number - self.slow_since >= slowness.patience)
        found[waited & (speed > slowness.falls * self.first_speed)] = Ending.PLATEAU
        again = waited & (speed <= slowness.falls * self.first_speed)  # it still slows down: wait anew
        self.slow_since = torch.where(again, number, self.slow_since)
        self.first_speed = torch.where(again, speed, self.first_speed)

    def _mark_shape(self, found: Tensor, before: Tensor, after: Tensor) -> None:
        """Inner products of tokens, and of their differences from the mean token, at rest for two longest cycles.

        Both are relative to the size of the state; the second also to itself, because near consensus the first hardly
        change any more. The tokens themselves must go on moving as fast as they did: what slows down is on its way to
        an equilibrium.
        """
        # in the Frobenius norm, which a turn does not change
        speed: Tensor = torch.linalg.matrix_norm(after - before) / torch.linalg.matrix_norm(after)
        is_at_rest = (speed > _TURNS) & (speed >= _KEEPS_MOVING * self.shape_speed)
        for earlier, later in zip(_inner_products(before), _inner_products(after), strict=True):
            is_at_rest &= _largest(later - earlier) <= self.tolerance * _largest(later)
        self.shape_for = torch.where(is_at_rest, self.shape_for + _SHAPES_EVERY, 0)
        self.shape_speed = torch.where(self.shape_for <= _SHAPES_EVERY, speed, self.shape_speed)
        found[self.shape_for > 2 * self.longest_cycle] = Ending.SHAPE


def _inner_products(x: Tensor) -> tuple[Tensor, Tensor]:
    unit = x / torch.linalg.matrix_norm(x)[:, None, None]
    centered = unit - unit.mean(dim=-2, keepdim=True)
    return unit @ unit.mT, centered @ centered.mT


def _largest(x: Tensor) -> Tensor:
    return x.abs().amax(dim=(-2, -1))


def _relative(change: Tensor, x: Tensor) -> Tensor:
    """The largest change of a token relative to that token, of every start; a zero token that stays has none."""
    moved, size = change.abs().amax(dim=-1), x.abs().amax(dim=-1)
    return torch.where(moved > 0, moved / size, 0.0).amax(dim=-1)
