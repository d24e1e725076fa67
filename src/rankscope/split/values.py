"""Measures of split states, as logarithms: residuals and diameters far below the smallest float."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.types import PerMatrix
from rankscope.errors import ConfigError
from rankscope.measures import Bracket, Measure, find_measure, matrix_norm
from rankscope.split.floors import log_floor
from rankscope.split.state import Split
from rankscope.split.twin import stacked


@dataclass(frozen=True, kw_only=True, slots=True)
class LogValue:
    """Natural logarithms of a measure; minus infinity for zero, NaN for 0/0. ``low`` differs for brackets only.

    ``log_floor`` is the natural log of the floor, estimated from a perturbed run: plus infinity where nothing is known,
    None where no perturbed run went along.
    """

    log: PerMatrix
    low: PerMatrix
    log_floor: PerMatrix | None = None

    @property
    def log10(self) -> PerMatrix:
        return self.log / math.log(10.0)

    @property
    def log10_floor(self) -> PerMatrix | None:
        return None if self.log_floor is None else self.log_floor / math.log(10.0)

    @property
    def resolved(self) -> Tensor:
        """Whether the value is above its floor; nowhere without an estimate of it."""
        if self.log_floor is None:
            return torch.zeros_like(self.log, dtype=torch.bool)
        return self.log > self.log_floor


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
    """Natural log of ``measure`` on every token matrix of a split batch, and of its floor if the state has twins.

    Padding is dropped first.
    """
    if not can_measure(measure):
        raise cannot_measure(measure)
    texts = _texts(state)
    if len(texts) == 1 and texts[0] is state:
        return _log_measure(measure, state)
    found = [_log_measure(measure, text) for text in texts]
    batch = state.residual.shape[:-2]

    def joined(values: list[Tensor]) -> Tensor:
        return torch.stack(values).reshape(batch)

    floors = [one.log_floor for one in found if one.log_floor is not None]
    return LogValue(
        log=joined([one.log for one in found]),
        low=joined([one.low for one in found]),
        log_floor=joined(floors) if floors else None,
    )


def _log_measure(measure: Measure, state: Split) -> LogValue:
    """The same of texts without padding."""
    low, high = _of_residual(measure, state)
    if not is_of_residual(measure):
        norm = measure.definition.partition("[")[2].partition(",")[0]
        size = matrix_norm(state.tokens(), norm=norm).log()
        low, high = low - size, high - size
    floor = log_floor(measure, state, stacked(state.twins), high) if state.twins else None
    return LogValue(log=high, low=low, log_floor=floor)


def _of_residual(measure: Measure, state: Split) -> tuple[PerMatrix, PerMatrix]:
    """Both ends of the log of a residual or diameter, or of the numerator of a ratio."""
    value = find_measure(measure.definition.replace("residual_ratio", "residual"))(state.residual)
    low, high = value if isinstance(value, Bracket) else (value, value)
    return low.log() + state.log_scale, high.log() + state.log_scale


def _texts(state: Split) -> list[Split]:
    """The batch as it is where there is no padding, otherwise its texts one by one without it."""
    if state.is_token is None or bool(state.is_token.all()):
        return [state]
    keep = state.is_token.expand(state.residual.shape[:-1]).reshape(-1, state.residual.shape[-2])
    return [_text(state, row, kept) for row, kept in enumerate(keep)]


def _text(state: Split, row: int, kept: Tensor) -> Split:
    def cut(values: Tensor, axes: int) -> Tensor:
        own = values.reshape(-1, *values.shape[values.ndim - axes :])[row]
        return own[kept] if axes == 2 else own

    return Split(
        common=cut(state.common, 1),
        residual=cut(state.residual, 2),
        log_scale=cut(state.log_scale, 0),
        direct=None if state.direct is None else cut(state.direct, 2),
        lost=None if state.lost is None else cut(state.lost, 0),
        twins=tuple(_text(twin, row, kept) for twin in state.twins),
    )
