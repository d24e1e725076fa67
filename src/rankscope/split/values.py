"""Measures of split states, as logarithms: residuals and diameters far below the smallest float."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.types import PerMatrix
from rankscope.errors import ConfigError
from rankscope.measures import Bracket, Measure, find_measure, matrix_norm
from rankscope.split.state import Split


@dataclass(frozen=True, kw_only=True, slots=True)
class LogValue:
    """Natural logarithms of a measure; minus infinity for zero, NaN for 0/0. ``low`` differs for brackets only."""

    log: PerMatrix
    low: PerMatrix

    @property
    def log10(self) -> PerMatrix:
        return self.log / math.log(10.0)


def log_residual(state: Split, *, norm: str, center: str) -> PerMatrix:
    """Natural log of the residual in that norm, from that center; the upper end where it is a bracket."""
    return log_measure(find_measure(f"residual[{norm},{center}]"), state).log


def can_measure(measure: Measure) -> bool:
    """Whether a split state has an answer: residuals, their ratios, diameters, but not of unit tokens."""
    return is_of_residual(measure) or (measure.name == "residual_ratio" and "unit" not in measure.definition)


def cannot_measure(measure: Measure) -> ConfigError:
    """The error for a measure that a split state has no answer to."""
    return ConfigError(
        f"{measure.definition} cannot be read off a split state; residual, residual_ratio and diameter can"
    )


def is_of_residual(measure: Measure) -> bool:
    """Whether ``m(1 v + c R) = c m(R)``: then the residual alone, and the log of its scale, give the measure."""
    return measure.name in ("residual", "diameter") and "unit" not in measure.definition


def log_measure(measure: Measure, state: Split) -> LogValue:
    """Natural log of ``measure`` on every token matrix of a split batch; padding is dropped first."""
    if is_of_residual(measure):
        return _of_residual(measure, state)
    if not can_measure(measure):
        raise cannot_measure(measure)
    top = _of_residual(find_measure(measure.definition.replace("residual_ratio", "residual")), state)
    norm = measure.definition.partition("[")[2].partition(",")[0]
    size = _each_text(state, state.tokens(), lambda x: (matrix_norm(x, norm=norm),) * 2)[1].log()
    return LogValue(log=top.log - size, low=top.low - size)


def _of_residual(measure: Measure, state: Split) -> LogValue:
    def ends(x: Tensor) -> tuple[Tensor, Tensor]:
        value = measure(x)
        return (value.low, value.high) if isinstance(value, Bracket) else (value, value)

    low, high = _each_text(state, state.residual, ends)
    return LogValue(log=high.log() + state.log_scale, low=low.log() + state.log_scale)


def _each_text(
    state: Split, x: Tensor, ends: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """``ends`` of the whole batch at once, or of each text without its padding."""
    if state.is_token is None or bool(state.is_token.all()):
        return ends(x)
    flat, keep = x.reshape(-1, *x.shape[-2:]), state.is_token.expand(x.shape[:-1]).reshape(-1, x.shape[-2])
    pairs = [ends(text[kept]) for text, kept in zip(flat, keep, strict=True)]
    low, high = (torch.stack(side).reshape(x.shape[:-2]) for side in zip(*pairs, strict=True))
    return low, high
