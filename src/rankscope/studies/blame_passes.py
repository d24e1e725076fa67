"""The two ways to run a network step by step: with ordinary states, or with split ones that have no floor."""

from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from rankscope.core.numerics import checked, relative_floor
from rankscope.measures import evaluate, evaluate_padded, find_measure
from rankscope.network import Context, Part
from rankscope.network.stages import added_up, stages
from rankscope.split import Split, log_measure, split_tokens
from rankscope.split.run import in_float64
from rankscope.split.stages import split_stages
from rankscope.split.state import added, normalized
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
        return Log(
            log=value.log(), error=found.floor.reshape(-1) / value, resolved=found.resolved.reshape(-1)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitPass:
    x: Tensor
    context: Context
    measured: Tensor | None

    def start(self) -> Split:
        return split_tokens(checked(self.x, tokens=1), self.context.is_token)

    def steps(self, block: Part, state: Split) -> list[Step[Split]]:
        walked = split_stages(in_float64(block), state, self.context)
        return [Step(part=stage.part, state=stage.state, branches=stage.branches) for stage in walked]

    def together(self, outputs: tuple[Split, ...]) -> Split:
        return added(outputs)

    def read(self, state: Split, layer: int) -> Log:
        """Some tokens alone may be closer to each other than the rounding of the residual of all of them."""
        if self.measured is None or _same_tokens(self.measured, self.context.is_token):
            log = log_measure(find_measure(RATIO), state).log.reshape(-1).cpu()
            return Log(log=log, error=torch.zeros_like(log), resolved=torch.isfinite(log))
        own = normalized(replace(state, is_token=self.measured))
        log = log_measure(find_measure(RATIO), own).log.reshape(-1).cpu()
        share = (state.log_scale - own.log_scale).reshape(-1).cpu().exp()
        error = share * relative_floor(layer, torch.float64)
        return Log(log=log, error=error, resolved=torch.isfinite(log) & (error < 1))


def _same_tokens(measured: Tensor, is_token: Tensor | None) -> bool:
    return bool(measured.all()) if is_token is None else torch.equal(measured, is_token.expand_as(measured))
