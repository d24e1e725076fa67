"""Order and rate of collapse from a series of logarithms: how ``r(l+1) ~ c r(l)^p`` goes, where it has settled.

Three laws are told apart. *Cubic*: the logarithm triples. *Linear*: it falls by a constant per layer, perhaps with a
transient ``m log l`` (a Jordan block gives a power of l on top of the exponential). *Sublinear*: that power alone.
Only the later part of a run is fitted, and only if its two halves agree.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Regime = Literal["cubic", "linear", "sublinear", "none"]

SETTLED = (0.4, 0.7)
"""The share of a run, from its start, that is left out of the fit; the second is tried if the first still drifts."""

FEWEST = 8
"""Fewest steps that a rate is fitted to."""

AGREEMENT = 4.0
"""Two halves of a run agree if they differ by at most so many standard errors."""

EXACT = 2e-5
"""Differences in log rate below this count as agreement whatever the standard error says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plateau:
    """Layers over which the residual hardly falls although it does before or after."""

    first: int
    last: int
    rate: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """What a run says about its collapse.

    Args:
        order: the exponent p, or None where no power fits.
        rate: factor per layer of the residual divided by the growth of the common row; None unless linear.
        value_growth: factor per layer of the common row's length; the absolute rate is ``rate * value_growth``.
        regime: cubic, linear, sublinear, or none where the run does not collapse or has not settled.
        uncertainty: standard error of ``rate``.
        exponent: the power of l on top of the exponential, where one was found.
        reason: why something is None, in words.
        plateaus: stretches of layers without collapse.
    """

    order: float | None
    rate: float | None
    value_growth: float | None
    regime: Regime
    uncertainty: float | None
    exponent: float | None = None
    reason: str = ""
    plateaus: tuple[Plateau, ...] = ()


def fit_logs(log_residual: Array, log_common: Array, *, expected: float | None = None) -> Fit:
    """Order and rate from the natural logs of residual and common row, layers 0 .. L.

    ``expected`` is the rate that the map at consensus promises (0 for the cubic regime); stretches of layers that
    fall much slower than that, or than the run does in the end, are plateaus.
    """
    ends = np.flatnonzero(np.isneginf(log_residual))
    if len(ends):
        if ends[0] < 3 or not _is_cubic(log_residual[: ends[0]]):
            return nothing(f"all tokens are exactly equal from layer {ends[0]} on")
        log_residual, log_common = log_residual[: ends[0]], log_common[: ends[0]]
    if _is_cubic(log_residual):
        return _cubic(log_residual, log_common)
    relative = log_residual - log_common
    if not np.isfinite(relative).all():
        return nothing("the common row vanishes, so there is nothing to divide the residual by")
    if len(relative) - 1 < 2 * FEWEST:
        return nothing(f"{len(relative) - 1} layers are too few to fit a rate; use at least {2 * FEWEST}")
    return _geometric(relative, log_common, expected)


def nothing(reason: str, **known: Any) -> Fit:
    """A fit without order and rate, and why; ``known`` is what can be said all the same."""
    nothing: dict[str, Any] = {"order": None, "rate": None, "value_growth": None, "uncertainty": None}
    return Fit(**{**nothing, "regime": "none", "reason": reason, **known})


def _is_cubic(logs: Array) -> bool:
    """Whether the falls grow like a power of themselves in the end: each at least twice the one before."""
    falls = -np.diff(logs)
    return len(falls) >= 3 and bool((falls[-2:] > 2 * falls[-3:-1]).all()) and bool(falls[-3] > 1.0)


def _cubic(logs: Array, log_common: Array) -> Fit:
    falls = -np.diff(logs)
    reason = "the residual is cubed by every layer, so there is no factor per layer"
    return nothing(
        reason, regime="cubic", order=float(falls[-1] / falls[-2]), value_growth=_growth(log_common)
    )


def _growth(log_common: Array) -> float | None:
    start = int(SETTLED[0] * (len(log_common) - 1))
    slope = (log_common[-1] - log_common[start]) / (len(log_common) - 1 - start)
    return float(np.exp(slope)) if np.isfinite(slope) else None


def _geometric(relative: Array, log_common: Array, expected: float | None) -> Fit:
    growth = _growth(log_common)
    power_law = _power_law(relative)
    if power_law is not None:
        reason = f"the residual falls like layer^{power_law:.2f}, slower than any factor per layer"
        return nothing(reason, regime="sublinear", value_growth=growth, exponent=power_law)
    slope, error, exponent, drift = next(
        (found for share in SETTLED if not (found := _settled(relative, share))[-1]),
        _settled(relative, SETTLED[0]),
    )
    promised = 0.0 if expected is None else -np.log(max(expected, np.exp(-1.0)))
    plateaus = _plateaus(relative, max(-slope, promised))
    if plateaus and plateaus[-1].last >= len(relative) - 2:
        return nothing(
            f"the run ends on a plateau that begins at layer {plateaus[-1].first}", plateaus=plateaus
        )
    if drift:
        return nothing(f"the rate still drifts, {drift} per layer; use more layers", plateaus=plateaus)
    if slope >= -max(AGREEMENT * error, 1e-4):
        return nothing("the residual does not fall", plateaus=plateaus)
    rate = float(np.exp(slope))
    return Fit(
        order=_order(relative),
        rate=rate,
        value_growth=growth,
        regime="linear",
        uncertainty=rate * error,
        exponent=exponent,
        plateaus=plateaus,
    )


def _settled(relative: Array, share: float) -> tuple[float, float, float | None, str]:
    """Slope of the later part of the run, its error, the power on top of it, and how it drifts if it does."""
    start = int(share * (len(relative) - 1))
    steps, layers = np.diff(relative)[start:], np.arange(start + 1, len(relative), dtype=np.float64)
    power = _with_power(layers, steps)
    if power is not None:
        return *power, ""
    half = len(steps) // 2
    (first, first_error), (second, second_error) = _mean(steps[:half]), _mean(steps[half:])
    drifts = abs(first - second) > max(AGREEMENT * float(np.hypot(first_error, second_error)), EXACT)
    mean, error = _mean(steps)
    error = float(np.hypot(error, (first - second) / 2))  # a transient that has not quite died out
    return mean, error, None, f"from {np.exp(first):.4f} to {np.exp(second):.4f}" if drifts else ""


def _power_law(relative: Array) -> float | None:
    """The exponent of a power of the layer, where the run falls like that and not by a factor per layer.

    Told by the steps: whenever the number of layers doubles, under a power law they halve and their fluctuations with
    random weights fall by about 0.7; under a factor per layer both stay.
    """
    steps, end = np.diff(relative), len(relative) - 1
    eighths = [steps[end // 8 : end // 4], steps[end // 4 : end // 2], steps[end // 2 :]]
    sizes = [float(np.sqrt(np.mean(part**2))) for part in eighths]
    if not all(0.3 * before < after < 0.8 * before for before, after in pairwise(sizes)):
        return None
    layers = np.arange(end // 8, end + 1, dtype=np.float64)
    exponent = float(np.polyfit(np.log(layers), relative[end // 8 :], 1)[0])
    return exponent if exponent < -0.1 else None


def _order(relative: Array) -> float:
    """Slope of each log residual against the one before."""
    tail = relative[int(SETTLED[0] * (len(relative) - 1)) :]
    return float(np.polyfit(tail[:-1], tail[1:], 1)[0])


def _mean(steps: Array) -> tuple[float, float]:
    """Mean of the steps, and its standard error from the means of blocks, which sees correlation between steps."""
    blocks = min(10, max(2, len(steps) // 4))
    means = np.array([block.mean() for block in np.array_split(steps, blocks)])
    return float(steps.mean()), float(means.std(ddof=1) / np.sqrt(blocks))


def _with_power(layers: Array, steps: Array) -> tuple[float, float, float] | None:
    """Slope, its error and the power, from steps ``slope + power / l + b / l^2``; None where no such law holds.

    Steps are fitted, not levels: with random weights their errors are nearly independent, those of levels are not.
    The law holds if the power is significant and both halves of the steps give the same slope.
    """
    half = len(steps) // 2
    slope, slope_error, power, power_error = _least_squares(layers, steps)
    early, late = _least_squares(layers[:half], steps[:half]), _least_squares(layers[half:], steps[half:])
    moved = abs(early[0] - late[0])
    if half < 20 or abs(power) <= max(AGREEMENT * power_error, 1e-3) or moved > 0.02 * abs(slope):
        return None
    return slope, slope_error + moved, power


def _least_squares(layers: Array, steps: Array) -> tuple[float, float, float, float]:
    """Slope and power, each followed by its standard error."""
    design = np.stack([np.ones_like(layers), 1 / layers, layers**-2.0], axis=1)
    coefficients, *_ = np.linalg.lstsq(design, steps, rcond=None)
    rest = steps - design @ coefficients
    free = max(len(steps) - design.shape[1], 1)
    covariance = np.linalg.pinv(design.T @ design) * float(rest @ rest) / free
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return float(coefficients[0]), float(errors[0]), float(coefficients[1]), float(errors[1])


def _plateaus(relative: Array, fall: float) -> tuple[Plateau, ...]:
    """Stretches of at least ten layers that fall at less than a fifth of what the run is bound to do, beyond noise."""
    width = max(10, len(relative) // 20)
    if len(relative) < width + 1 or fall < 1e-2:
        return ()
    noise = float(np.std(np.diff(relative)[len(relative) // 2 :]))
    local = (relative[:-width] - relative[width:]) / width
    flat = local < min(0.2 * fall, fall - AGREEMENT * noise / np.sqrt(width))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flat, [False]]).astype(int)))
    found = []
    for first, past in zip(edges[::2], edges[1::2], strict=True):
        last = int(past - 1 + width)
        rate = float(np.exp((relative[last] - relative[first]) / (last - first)))
        found.append(Plateau(first=int(first), last=last, rate=rate))
    return tuple(found)
