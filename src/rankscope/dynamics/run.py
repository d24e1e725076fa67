"""Many starts of a system followed as one batch until each has ended."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.dynamics.endings import LONGEST_CYCLE, TOLERANCE, WORDS, Ending, Slowness, Watch
from rankscope.dynamics.system import System, as_system, split_sphere, value_gain
from rankscope.errors import ConfigError, NumericalError, ShapeError
from rankscope.network import Context, Network, Part

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
    longest_cycle: int = LONGEST_CYCLE,
    slowness: Slowness | None = Slowness(),  # noqa: B008 - frozen
    record: Collection[int] = (),
) -> Run:
    """Iterate from tokens ``*starts tokens dim`` for at most that many steps; a start is left where it ends.

    It ends where all tokens are equal, at rest, in a cycle of at most ``longest_cycle`` steps, with its shape at rest,
    on a plateau (``slowness=None`` goes on there), or beyond the range of float64; see ``Ending``.
    """
    system, start = as_system(system), _checked_start(x)
    if steps < 1:
        raise ConfigError(f"a run needs at least one step, got steps={steps}")
    whole = start.reshape(-1, *start.shape[-2:]).clone()
    _check_directions(system, whole)
    state, rows = whole, torch.arange(len(whole), device=whole.device)
    endings, ended_at, periods = (torch.zeros_like(rows), torch.full_like(rows, steps), torch.ones_like(rows))
    watch = Watch(
        state,
        is_steady=system.is_steady,
        tolerance=tolerance,
        longest_cycle=longest_cycle,
        slowness=slowness,
    )
    recorded = {0: start.clone()} if 0 in record else {}
    active = torch.ones(len(rows), dtype=torch.bool, device=whole.device)
    step = _Stepper(system)
    for number in range(1, steps + 1):
        after = step(state, number - 1, rows)
        found, period = watch.look(number, state, after)
        state = after if bool(active.all()) else torch.where(active[:, None, None], after, state)
        ends = active & (found > 0)
        if bool(ends.any()):
            endings[rows[ends]], ended_at[rows[ends]], periods[rows[ends]] = found[ends], number, period[ends]
            active = active & ~ends
        if number in record:
            whole[rows] = state
            recorded[number] = whole.reshape(start.shape).clone()
        if number == steps or not bool(active.any()):
            break
        if not system.per_start and number % _SHRINK_EVERY == 0 and 2 * int(active.sum()) <= len(active):
            whole[rows] = state
            state, rows = state[active], rows[active]
            watch.keep(active)
            active = torch.ones(len(rows), dtype=torch.bool, device=whole.device)
    whole[rows] = state
    last = whole.reshape(start.shape)
    return Run(
        final=last,
        endings=tuple(Ending(code) for code in endings.tolist()),
        steps=ended_at.reshape(start.shape[:-2]),
        periods=periods.reshape(start.shape[:-2]),
        recorded=recorded | {number: last for number in record if number not in recorded},
        note=system.note(start.shape[-2]),
    )


@torch.no_grad()
def iterate(system: System | Part | Network, x: Tensor) -> Iterator[Tensor]:
    """The start and every state after it, without end, checked as ``run`` does."""
    system, state = as_system(system), _checked_start(x)
    _check_directions(system, state.reshape(-1, *state.shape[-2:]))
    step, rows, number = _Stepper(system), torch.arange(state[..., 0, 0].numel(), device=x.device), 0
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
        least = 32 * torch.finfo(x.dtype).eps * source.amax(dim=-1, keepdim=True)
        lost = torch.le(lengths, least)
        if bool(lost.any()):
            _refuse(lost.reshape(-1, lost.shape[-1]), lengths, number, rows)
        return y / lengths.unsqueeze(-1) if _is_bare(sphere) else sphere(y, self.context)


def _column(gain: Tensor) -> Tensor:
    return gain.unsqueeze(-1) if gain.ndim else gain


def _is_bare(sphere: Part) -> bool:
    return next(sphere.parameters(), None) is None


def _refuse(lost: Tensor, lengths: Tensor, number: int, rows: Tensor) -> None:
    start, token = (int(index) for index in torch.nonzero(lost)[0])
    length = float(lengths.reshape(lost.shape)[start, token])
    raise NumericalError(
        f"step {number + 1} sends token {token} of start {int(rows[start])} to zero (length {length:.1e}, which is "
        "rounding), and the sphere has no direction for it; take another start, or a value map that is not singular"
    )


def _checked_start(x: Tensor) -> Tensor:
    checked(x)
    return x


def _check_directions(system: System, x: Tensor) -> None:
    lengths = torch.linalg.vector_norm(x, dim=-1)
    if system.is_on_sphere and not bool((lengths > 0).all()):
        start, token = (int(index) for index in torch.nonzero(lengths == 0)[0])
        raise ShapeError(
            f"token {token} of start {start} is zero, and the unit sphere has no direction for it; give tokens that "
            "are not zero"
        )
