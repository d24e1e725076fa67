"""The two ways to run a network step by step: with ordinary states, or with split ones whose floors are far lower."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.measures import evaluate, evaluate_padded, find_measure
from rankscope.network import Context, Part
from rankscope.network.stages import added_up, stages
from rankscope.split import LOST, Split, log_measure, of_measured, split_tokens
from rankscope.split.run import in_float64
from rankscope.split.stages import split_stages
from rankscope.split.state import added
from rankscope.split.twin import paired, parted
from rankscope.studies.blame_found import RATIO

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """Log ratio of every text, how far rounding may have moved it, and whether it is above its floor."""

    log: Tensor
    error: Tensor
    resolved: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Step(Generic[S]):
    part: Part
    state: S
    branches: tuple[S, ...]


class Pass(Protocol[S]):
    """One way to run the network: ordinary states or split ones."""

    def start(self) -> S: ...

    def steps(self, block: Part, state: S) -> list[Step[S]]: ...

    def together(self, outputs: tuple[S, ...]) -> S: ...

    def read(self, state: S, layer: int) -> Log: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatPass:
    x: Tensor
    context: Context
    measured: Tensor | None

    def start(self) -> Tensor:
        return self.x

    def steps(self, block: Part, state: Tensor) -> list[Step[Tensor]]:
        walked = stages(block, state, self.context)
        return [Step(part=stage.part, state=stage.state, branches=stage.branches) for stage in walked]

    def together(self, outputs: tuple[Tensor, ...]) -> Tensor:
        return added_up(outputs)

    def read(self, state: Tensor, layer: int) -> Log:
        measure, state, dtype = find_measure(RATIO), state.cpu(), self.x.dtype
        if self.measured is None:
            found = evaluate(measure, state, layer=layer, dtype=dtype)
        else:
            found = evaluate_padded(measure, state, self.measured.cpu(), layer=layer, dtype=dtype)
        value = found.value.reshape(-1)
        error = log_error(found.floor.reshape(-1) / value)
        return Log(log=value.log(), error=error, resolved=found.resolved.reshape(-1))


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitPass:
    x: Tensor
    context: Context
    measured: Tensor | None
    error: bool = True

    def start(self) -> Split:
        state = split_tokens(checked(self.x, tokens=1), self.context.is_token)
        return parted(paired(state)) if self.error else state

    def steps(self, block: Part, state: Split) -> list[Step[Split]]:
        walked = split_stages(in_float64(block), state, self.context)
        return [Step(part=stage.part, state=stage.state, branches=stage.branches) for stage in walked]

    def together(self, outputs: tuple[Split, ...]) -> Split:
        return added(outputs)

    def read(self, state: Split, layer: int) -> Log:
        """Some tokens alone may be closer to each other than the rounding of the residual of all of them."""
        own, share = of_measured(state, self.measured, layer)
        found = log_measure(find_measure(RATIO), own)
        if found.log_floor is not None:
            off = (found.log_floor - found.log).exp()
            share = torch.maximum(share, torch.where(torch.isnan(off), torch.inf, off))
        log, share = found.log.reshape(-1).cpu(), share.reshape(-1).cpu()
        return Log(log=log, error=log_error(share), resolved=torch.isfinite(log) & (share < LOST))


def log_error(share: Tensor) -> Tensor:
    """How far a logarithm may be off if rounding is up to ``share`` of the number: ``-ln(1 - share)``, downwards.

    Upwards it is ``ln(1 + share)``, which is less. Infinite where all of the number may be rounding.

    >>> log_error(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [0.0, 0.6931471824645996, inf]
    """
    return torch.where(share < 1, -torch.log1p(-share), torch.inf)
