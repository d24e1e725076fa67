"""Many starts of a system followed as one batch until each has ended."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.dynamics.endings import AT_REST, LONGEST_CYCLE, TOLERANCE, WORDS, Ending, Slowness, Watch
from rankscope.dynamics.system import System, as_system, split_sphere, summed_sizes, value_gain
from rankscope.errors import ConfigError, NumericalError
from rankscope.network import Context, Network, Part

_ROUNDING = 32 * torch.finfo(torch.float64).eps  # of the sizes that were added up to a token
_SHRINK_EVERY = 16  # steps between looking whether many starts have ended


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Run:
    """Where every start ended, when and why.

    Args:
        final: ``*starts tokens dim``.
        endings: why each start was left, in the order of the starts.
        steps: ``*starts``, the step after which it was left.
        periods: ``*starts``, states of its cycle; 1 for everything else.
        recorded: the states of all starts after the steps that were asked for; ended ones stay where they ended.
        note: one sentence where the mask lets groups of tokens keep separate limits.
    """

    final: Tensor
    endings: tuple[Ending, ...]
    steps: Tensor
    periods: Tensor
    recorded: Mapping[int, Tensor]
    note: str | None

    def describe(self) -> str:
        """How many starts ended how, in words, most frequent first, one line each.

        >>> from rankscope.dynamics import attention_system
        >>> from rankscope.network import Sphere, Uniform
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> print(run(attention_system(Uniform(heads=1), eye, Sphere()), eye, 10).describe())
        1 of 1: all tokens equal to rounding; the token they share may still move
        """
        counts = sorted(((self.endings.count(one), one) for one in set(self.endings)), reverse=True)
        lines = [f"{count} of {len(self.endings)}: {WORDS[one]}" for count, one in counts]
        return "\n".join(lines if self.note is None else [*lines, self.note])


@torch.no_grad()
def run(
    system: System | Part | Network,
    x: Tensor,
    steps: int,
    *,
    tolerance: float = TOLERANCE,
    at_rest: float = AT_REST,
    longest_cycle: int = LONGEST_CYCLE,
    slowness: Slowness | None = Slowness(),  # noqa: B008 - frozen
    record: Collection[int] = (),
) -> Run:
    """Iterate from tokens ``*starts tokens dim`` for at most that many steps; a start is left where it ends.

    It ends where all tokens are equal, at rest, in a cycle of at most ``longest_cycle`` steps, with its shape at rest,
    on a plateau (``slowness=None`` goes on there), or beyond the range of float64; see ``Ending``. Where the mask keeps
    groups of tokens apart, equal tokens are no end: the groups have limits of their own.
    """
    if steps < 1:
        raise ConfigError(f"a run needs at least one step, got steps={steps}")
    if any(not 0 <= number <= steps for number in record):
        raise ConfigError(f"steps to record lie from 0 to {steps}, got {sorted(record)}")
    if not (tolerance >= 0 and at_rest >= 0 and longest_cycle >= 1):
        raise ConfigError(
            f"tolerance and at_rest are not negative, and a cycle has at least one step; got tolerance={tolerance}, "
            f"at_rest={at_rest}, longest_cycle={longest_cycle}"
        )
    checked(x)
    system, batch = as_system(system), _Batch(x.reshape(-1, *x.shape[-2:]), steps)
    system.check(batch.state)
    note = system.note(x.shape[-2])
    step, watch = (
        _Stepper(system),
        Watch(
            batch.state,
            is_steady=system.is_steady,
            is_connected=note is None,
            tolerance=tolerance,
            at_rest=at_rest,
            longest_cycle=longest_cycle,
            slowness=slowness,
        ),
    )
    recorded = {0: x.clone()} if 0 in record else {}
    for number in range(1, steps + 1):
        after = step(batch.state, number - 1, batch.rows)
        batch.move(after, *watch.look(number, batch.state, after), number)
        if number in record:
            recorded[number] = batch.all().reshape(x.shape)
        if not batch.goes_on:
            break
        if not system.per_start and number % _SHRINK_EVERY == 0 and batch.is_mostly_done:
            watch.keep(batch.shrink())
    final = batch.all().reshape(x.shape)
    return Run(
        final=final,
        endings=tuple(Ending(code) for code in batch.endings.tolist()),
        steps=batch.steps.reshape(x.shape[:-2]),
        periods=batch.periods.reshape(x.shape[:-2]),
        recorded={number: recorded.get(number, final) for number in sorted(record)},
        note=note,
    )


class _Batch:
    """All starts: where each is, and why and when it was left. Those that ended drop out of the work in time."""

    def __init__(self, x: Tensor, steps: int) -> None:
        self._whole, self.state, self.rows = x.clone(), x, torch.arange(len(x), device=x.device)
        self._is_active, self._is_whole = torch.ones_like(self.rows, dtype=torch.bool), True
        self.endings, self.periods = torch.zeros_like(self.rows), torch.ones_like(self.rows)
        self.steps = torch.full_like(self.rows, steps)

    @property
    def goes_on(self) -> bool:
        return self._is_whole or bool(self._is_active.any())

    @property
    def is_mostly_done(self) -> bool:
        return 2 * int(self._is_active.sum()) <= len(self._is_active)

    def move(self, after: Tensor, found: Tensor, period: Tensor, number: int) -> None:
        """Active starts move on; those that end now do so where they have arrived."""
        self.state = (
            after if self._is_whole else torch.where(self._is_active[:, None, None], after, self.state)
        )
        ends = self._is_active & (found > 0)
        if not bool(ends.any()):
            return
        self._is_whole, rows = False, self.rows[ends]
        self.endings[rows], self.periods[rows], self.steps[rows] = found[ends], period[ends], number
        self._is_active = self._is_active & ~ends

    def all(self) -> Tensor:
        """The tokens of all starts, a copy."""
        self._whole[self.rows] = self.state
        return self._whole.clone()

    def shrink(self) -> Tensor:
        """Go on with the active starts alone; returns which those are."""
        self._whole[self.rows], kept = self.state, self._is_active
        self.state, self.rows = self.state[kept], self.rows[kept]
        self._is_active, self._is_whole = self._is_active[kept], True
        return kept


@torch.no_grad()
def iterate(system: System | Part | Network, x: Tensor) -> Iterator[Tensor]:
    """The start and every state after it, without end, checked as ``run`` does."""
    checked(x)
    system, state = as_system(system), x
    system.check(x.reshape(-1, *x.shape[-2:]))
    step, rows, number = _Stepper(system), torch.arange(x[..., 0, 0].numel(), device=x.device), 0
    while True:
        yield state
        state = step(state, number, rows)
        number += 1


class _Stepper:
    """One step at a time; refuses where the sphere would divide rounding, or nothing, by its length."""

    def __init__(self, system: System) -> None:
        self.system, self.context = system, Context()
        self.parts = self._split(0) if system.is_steady else None

    def _split(self, number: int) -> tuple[Part, Part | None, Tensor | None]:
        block = self.system.block(number)
        found = split_sphere(block)
        return (block, None, None) if found is None else (*found, value_gain(found[0]))

    def __call__(self, x: Tensor, number: int, rows: Tensor) -> Tensor:
        before, sphere, gain = self.parts or self._split(number)
        y = before(x, self.context)
        if sphere is None:
            return y
        lengths = torch.linalg.vector_norm(y, dim=-1)
        source = lengths if gain is None else torch.linalg.vector_norm(x, dim=-1) * _column(gain)
        doubtful = torch.le(lengths, _ROUNDING * source.amax(dim=-1, keepdim=True)) | ~torch.isfinite(lengths)
        if bool(doubtful.any()):
            self._check(before, x, lengths, number, rows)
        return y / lengths.unsqueeze(-1) if _is_bare(sphere) else sphere(y, self.context)

    def _check(self, before: Part, x: Tensor, lengths: Tensor, number: int, rows: Tensor) -> None:
        """Raise if a token is not finite, or if all of it may be rounding: the sum of the sizes that were added."""
        flat = lengths.reshape(-1, lengths.shape[-1])
        lost = ~torch.isfinite(flat)
        if bool(lost.any()):
            start, token = _first(lost)
            raise NumericalError(
                f"step {number + 1} sends token {token} of start {int(rows[start])} beyond the range of float64; scale "
                "the start or the value map down"
            )
        sizes = summed_sizes(before, x, self.context)
        lost = torch.le(lengths, 0.0 if sizes is None else _ROUNDING * sizes).reshape(flat.shape)
        if bool(lost.any()):
            start, token = _first(lost)
            raise NumericalError(
                f"step {number + 1} sends token {token} of start {int(rows[start])} to zero (length "
                f"{float(flat[start, token]):.1e}, which is rounding), and the sphere has no direction for it: tokens "
                "cancel, or the value map is singular; take other starts or another value map"
            )


def _column(gain: Tensor) -> Tensor:
    return gain.unsqueeze(-1) if gain.ndim else gain


def _is_bare(sphere: Part) -> bool:
    return next(sphere.parameters(), None) is None


def _first(lost: Tensor) -> tuple[int, int]:
    start, token = torch.nonzero(lost)[0].tolist()
    return start, token
