"""Order and rate of collapse from a series of logarithms: how ``r(l+1) ~ c r(l)^p`` goes, where it has settled.

Three laws are told apart. *Cubic*: the logarithm triples. *Linear*: it falls by a constant per layer in the end.
*Sublinear*: it falls like a power of the layer alone.

The constant of a linear fall is a limit, that of the steps ``d(l) = log r(l) - log r(l-1)``, and a run ends before it.
What remains to the limit depends on the spectrum, of which a run knows nothing: other eigenvalues of modulus
``rho q`` add ``A q^l``, a Jordan block of size m + 1 adds ``m / l + b / l^2 + ..``, a complex pair makes the steps
swing, random weights make them noisy, and nearly defective spectra look like one now and like another later. So the
limit is estimated by several laws, each law is applied to shorter runs too, and how far these answers lie apart is the
standard error: see ``_limit``. Where it is no small part of the answer, there is no answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.findings.rate import Declined, Regime

Array = NDArray[np.float64]

SETTLED = 0.4
"""The share of a run, from its start, that is left out of the fit."""

FEWEST = 8
"""Half of the fewest steps that a rate is fitted to."""

SHORTER = (0.5, 0.6, 0.7, 0.8)
"""Shares of a run, from its start, that are fitted too in order to see how the answer still moves."""

LARGEST_ERROR = {"law": 0.1, "noise": 0.15}
"""Largest standard error of a log rate, relative to it, with which a rate is given.

A larger one is allowed where it is that of a mean over noise than where it is a guess of what is still to come.
"""

COMPATIBLE = 30.0
"""A law whose misfit is at most this many times the smallest one might be the true one as well."""

BEYOND = 0.05
"""Share of the way from the last steps to the limit that counts as error."""

HIDDEN = 6.0
"""A rate this many standard errors below the one that is promised is not that of the end of the run.

A slow mode that begins small shows itself only once the faster ones are gone; nothing in a run tells of it before.
"""

SMOOTH = 0.5
"""Laws with a transient are used if one of them misses the steps by less than this share of what a constant does."""

ROUNDING = 1e-12
"""Smallest standard error of a log rate: about what rounding of the logarithms leaves."""


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
        uncertainty: one standard error of ``rate``, with what the run cannot know of its end; None without a rate.
        exponent: the power of l on top of the exponential, where that law was used; or the power alone.
        declined: why there is no rate; None if there is one.
        between: of a rate that still drifts, one standard error to each side; of a hidden mode, the rate so far and
            that mode.
        from_layer: where equal tokens or the plateau begin that leave no rate.
        plateaus: stretches of layers without collapse.
    """

    order: float | None
    rate: float | None
    value_growth: float | None
    regime: Regime
    uncertainty: float | None
    exponent: float | None = None
    declined: Declined | None = None
    between: tuple[float, float] | None = None
    from_layer: int | None = None
    plateaus: tuple[Plateau, ...] = ()


def fit_logs(log_residual: Array, log_common: Array, *, expected: float | None = None) -> Fit:
    """Order and rate from the natural logs of residual and common row, layers 0 .. L.

    ``expected`` is the rate that the map at consensus promises (0 for the cubic regime). It never enters a rate or its
    uncertainty, but may take the rate away: stretches of layers that fall much slower than that, or than the run does
    in the end, are plateaus, and a run that falls much faster has not shown its slowest mode.
    """
    ends = np.flatnonzero(np.isneginf(log_residual))
    if len(ends):
        if ends[0] < 3 or not _is_cubic(log_residual[: ends[0]]):
            return nothing("equal tokens", from_layer=int(ends[0]))
        log_residual, log_common = log_residual[: ends[0]], log_common[: ends[0]]
    if _is_cubic(log_residual):
        return _cubic(log_residual, log_common)
    relative = log_residual - log_common
    if not np.isfinite(relative).all():
        return nothing("no common row")
    if len(relative) - 1 < 2 * FEWEST:
        return nothing("few layers")
    return _geometric(relative, log_common, expected)


def nothing(declined: Declined, **known: Any) -> Fit:
    """A fit without a rate, and why; ``known`` is what can be said in spite of that."""
    fields: dict[str, Any] = {"order": None, "rate": None, "value_growth": None, "uncertainty": None}
    return Fit(**{**fields, "regime": "none", "declined": declined, **known})


def _is_cubic(logs: Array) -> bool:
    """Whether the falls grow like a power of themselves in the end: each at least twice the one before."""
    falls = -np.diff(logs)
    return len(falls) >= 3 and bool((falls[-2:] > 2 * falls[-3:-1]).all()) and bool(falls[-3] > 1.0)


def _cubic(logs: Array, log_common: Array) -> Fit:
    falls = -np.diff(logs)
    return nothing(
        "cubic",
        regime="cubic",
        order=float(falls[-1] / falls[-2]),
        value_growth=_growth(log_common),
    )


def _growth(log_common: Array) -> float | None:
    start = int(SETTLED * (len(log_common) - 1))
    slope = (log_common[-1] - log_common[start]) / (len(log_common) - 1 - start)
    return float(np.exp(slope)) if np.isfinite(slope) else None


def _geometric(relative: Array, log_common: Array, expected: float | None) -> Fit:
    growth = _growth(log_common)
    power_law = _power_law(relative)
    if power_law is not None:
        return nothing("sublinear", regime="sublinear", value_growth=growth, exponent=power_law)
    promised = 0.0 if expected is None else -np.log(max(expected, np.exp(-1.0)))
    late = float(_constant(*_late(relative, np.diff(relative), 1.0, 0.7)).slope)
    plateaus = _plateaus(relative, max(-late, promised))
    if plateaus and plateaus[-1].last >= len(relative) - 1 - 2 * FEWEST:
        return nothing("plateau", from_layer=plateaus[-1].first, plateaus=plateaus)
    before = _plateaus(relative, -late)  # what the run itself calls a plateau is no part of its end
    begins = before[-1].last if before else 0
    if 2 * begins >= len(relative):  # it left the plateau too late to show its end
        return nothing("plateau", from_layer=before[-1].first, plateaus=plateaus)
    limit = _limit(np.diff(relative), begins=begins)
    if limit.slope >= -max(4 * limit.error, 1e-6) and limit.error < 1e-2:
        return nothing("no fall", plateaus=plateaus)
    if expected is not None and expected > np.exp(limit.slope + HIDDEN * limit.error):
        return nothing("hidden mode", between=(float(np.exp(limit.slope)), expected), plateaus=plateaus)
    if limit.error > LARGEST_ERROR["noise" if limit.is_noise else "law"] * abs(limit.slope):
        rates = np.exp([limit.slope - limit.error, limit.slope + limit.error])
        return nothing("unsettled", between=(float(rates[0]), float(rates[1])), plateaus=plateaus)
    rate = float(np.exp(limit.slope))
    return Fit(
        order=_order(relative),
        rate=rate,
        value_growth=growth,
        regime="linear",
        uncertainty=rate * limit.error,
        exponent=limit.power,
        plateaus=plateaus,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Law:
    """Steps as a law sees them: their limit, the root mean square of what it misses, and the power of the layer."""

    slope: float
    misfit: float
    power: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Limit:
    """The limit of the steps, its standard error, the power of the layer if such a law gave it.

    ``is_noise`` if the error is that of a mean of steps that are nearly independent.
    """

    slope: float
    error: float
    power: float | None = None
    is_noise: bool = False


def _constant(layers: Array, steps: Array) -> _Law:
    """Steps that have settled, or swing or scatter about a constant.

    The weights fade towards both ends, which takes out whatever swings: a period that fits w times into the steps
    leaves 1 / w^3 of itself in place of 1 / w.
    """
    weight = np.sin(np.pi * (np.arange(len(steps)) + 0.5) / len(steps)) ** 2
    return _Law(slope=float(weight @ steps / weight.sum()), misfit=float(steps.std()))


def _one_power(layers: Array, steps: Array) -> _Law:
    """A Jordan block, first order: ``log(l^m rho^l)`` has steps ``log rho + m / l``."""
    return _by_powers(layers, steps, 1)


def _two_powers(layers: Array, steps: Array) -> _Law:
    """The same with the next order, from the lower powers of l beside ``l^m`` and from where l is counted from."""
    return _by_powers(layers, steps, 2)


def _by_powers(layers: Array, steps: Array, count: int) -> _Law:
    design = np.stack([layers**-k for k in range(count + 1)], axis=1)
    found, *_ = np.linalg.lstsq(design, steps, rcond=None)
    misfit = float(np.sqrt(np.mean((steps - design @ found) ** 2)))
    return _Law(slope=float(found[0]), misfit=misfit, power=float(found[1]))


def _exponential(layers: Array, steps: Array) -> _Law:
    """One more eigenvalue: ``log rho + A q^l``, q the best of those that fall by e^-1 to e^-40 over the steps."""
    fades = np.exp(-np.outer(np.geomspace(1.0, 40.0, 25), (layers - layers[0]) / len(layers)))
    means = fades.mean(axis=1)
    apart, mean = fades - means[:, None], float(steps.mean())
    sizes = apart @ (steps - mean) / (apart**2).sum(axis=1)
    misfits = ((steps - mean - sizes[:, None] * apart) ** 2).mean(axis=1)
    best = int(misfits.argmin())
    return _Law(slope=float(mean - sizes[best] * means[best]), misfit=float(np.sqrt(misfits[best])))


_LAWS: tuple[Callable[[Array, Array], _Law], ...] = (_constant, _one_power, _two_powers, _exponential)


def _limit(steps: Array, begins: int = 0) -> _Limit:
    """The limit of the steps by the law that moves least, and its standard error; those before ``begins`` do not count.

    If the answer of a law is off by ``c / L`` on a run of L layers, on the share t of the run it is off by
    ``c / (t L)``: the two differ by ``(1 - t) / t`` of what the longer one is off. So ``t / (1 - t)`` times their
    difference is the error, of the right size if a law comes nearer like 1 / L, too large if it comes nearer faster;
    the largest over several t is taken, for one of them may be small by accident.

    The laws that come about as near to the steps as the best one could all be true. Half the distance to the farthest
    of their answers is part of the error. So is a share of how far the answer lies beyond the last steps: no law is
    quite true of a nearly defective spectrum, and a long way on it is less true.

    Where no transient stands out of the noise, the mean of the steps is the answer, see ``_of_noise``.
    """
    layers: Array = (
        np.arange(len(steps), dtype=np.float64) + 0.5
    )  # a step ends at a layer and begins at the one before
    layers, steps = layers[begins:], steps[begins:]
    laws = [law(*_late(layers, steps, 1.0, SETTLED)) for law in _LAWS]
    errors = [_moved(law, whole.slope, layers, steps) for law, whole in zip(_LAWS, laws, strict=True)]
    least = min(law.misfit for law in laws)
    if least > SMOOTH * laws[0].misfit:
        ends = [law(*_late(layers, steps, 1.0, 0.7)) for law in _LAWS]
        return _of_noise(steps, laws[0], errors[0], ends)
    compatible = [k for k, law in enumerate(laws) if law.misfit <= COMPATIBLE * least]
    best = min(compatible, key=lambda k: errors[k])
    apart = max(abs(laws[k].slope - laws[best].slope) for k in compatible)
    beyond = BEYOND * abs(laws[best].slope - _constant(*_late(layers, steps, 1.0, 0.9)).slope)
    error = float(np.hypot(np.hypot(errors[best], apart / 2), beyond))
    return _Limit(slope=laws[best].slope, error=max(error, ROUNDING), power=laws[best].power)


def _late(layers: Array, steps: Array, share: float, left_out: float) -> tuple[Array, Array]:
    """Layers and steps of the first ``share`` of a run, without what is left out at its start."""
    end = int(share * len(steps))
    start = int(left_out * end)
    return layers[start:end], steps[start:end]


def _moved(law: Callable[[Array, Array], _Law], slope: float, layers: Array, steps: Array) -> float:
    """How far the answer of a law may be off, from what it says on shorter runs, and on the last part alone."""
    before = [
        abs(law(*_late(layers, steps, share, SETTLED)).slope - slope) * share / (1 - share)
        for share in SHORTER
    ]
    return max(*before, abs(law(*_late(layers, steps, 1.0, 0.7)).slope - slope))


def _of_noise(steps: Array, constant: _Law, moved: float, ends: list[_Law]) -> _Limit:
    """The mean of noisy steps, with a standard error from the means of blocks, which see correlation between steps.

    Means of few blocks scatter like Student's distribution, whose standard deviation is the factor with the root. Half
    the difference of the two halves stands for a transient that noise hides. How far the answer moved on shorter
    runs says the same of independent steps but for a factor: the weights t / (1 - t) and the largest of several make it
    about three standard errors. Of smooth steps it counts in full. The mean square of their differences over their
    variance tells the two apart: it is 2 for independent steps and near 0 for smooth ones.

    Noise may die out, as where value maps turn all rows into one direction. Steps that are smooth in the end go on
    where ``ends``, the laws on that part alone, say.
    """
    late = steps[int(SETTLED * len(steps)) :]
    blocks = min(8, max(4, len(late) // 6))
    means = np.array([block.mean() for block in np.array_split(late, blocks)])
    error = float(means.std(ddof=1) / np.sqrt(blocks) * np.sqrt((blocks - 1) / (blocks - 3)))
    half = len(late) // 2
    hidden = abs(float(late[:half].mean() - late[half:].mean())) / 2
    roughness = float(np.mean(np.diff(late) ** 2) / max(late.var(), np.finfo(np.float64).tiny))
    moved /= 1 + 2 * min(1.0, roughness / 1.5)
    error = max(float(np.hypot(error, hidden)), moved, ROUNDING)
    if min(law.misfit for law in ends) <= SMOOTH * ends[0].misfit:
        error = max(error, *(abs(law.slope - constant.slope) for law in ends))
    return _Limit(slope=constant.slope, error=error, is_noise=roughness > 1.0)


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
    tail = relative[int(SETTLED * (len(relative) - 1)) :]
    return float(np.polyfit(tail[:-1], tail[1:], 1)[0])


def _plateaus(relative: Array, fall: float) -> tuple[Plateau, ...]:
    """Stretches of at least ten layers that fall at less than a fifth of what the run is bound to do, beyond noise.

    Beyond noise: by four standard errors of the mean over such a stretch.
    """
    width = max(10, len(relative) // 20)
    if len(relative) < width + 1 or fall < 1e-2:
        return ()
    noise = float(np.std(np.diff(relative)[len(relative) // 2 :]))
    local = (relative[:-width] - relative[width:]) / width
    flat = local < min(0.2 * fall, fall - 4 * noise / np.sqrt(width))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flat, [False]]).astype(int)))
    found = []
    for first, past in zip(edges[::2], edges[1::2], strict=True):
        last = int(past - 1 + width)
        rate = float(np.exp((relative[last] - relative[first]) / (last - first)))
        found.append(Plateau(first=int(first), last=last, rate=rate))
    return tuple(found)
