"""Which option matters most: how much of the spread of a number each option of a balanced product explains."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rankscope.findings.base import Number, Value

DRAWS = 1_000
"""Draws of seeds behind an interval."""

FEWEST_SEEDS = 3
"""With fewer, an interval would mean nothing."""


class Share(Value):
    """How much of the variance over all configurations the means of one option's values account for."""

    option: str
    """The option; ``combinations`` in the last entry, which is what they add to every option alone."""

    share: float
    """Sum of squares between its values, divided by the whole."""

    floor: float
    """The share that rounding alone could make: the numbers are known to their own floors only."""

    low: Number
    """Lower end of the 95 % interval over seeds; null where the seed is not varied."""

    high: Number
    """Upper end of it."""

    @property
    def resolved(self) -> bool:
        """Whether it is more than rounding could make."""
        return self.share > self.floor

    @property
    def most(self) -> float:
        """The largest share that is possible, rounding included: lengths of differences add at worst."""
        return min(1.0, (math.sqrt(self.share) + math.sqrt(self.floor)) ** 2)


COMBINATIONS = "combinations"
"""What is left after every option alone."""


def shares_of(
    values: NDArray[np.float64],
    errors: NDArray[np.float64],
    names: Sequence[str],
    seeds: int | None,
    draw: np.random.Generator,
) -> list[Share]:
    """The share of every option, largest first, then that of combinations; nothing where all numbers are alike.

    ``values`` has one axis per option, ``errors`` how far each of them may be off by rounding. Its configurations
    differ by chance only in their seeds: an interval comes from drawing seeds (the axis ``seeds``) with replacement,
    and there is none without them. A seed is an option as others are; its own share has no interval.

    >>> values = np.array([[0.0, 1.0], [2.0, 3.0]])
    >>> found = shares_of(values, 0 * values, ["mask", "dim"], None, np.random.default_rng(0))
    >>> [(one.option, one.share) for one in found]
    [('mask', 0.8), ('dim', 0.2), ('combinations', 0.0)]
    """
    # Means over some axes, and what is left of them, are projections: of errors they leave at most their own length.
    least = 64 * np.finfo(float).eps * float(np.abs(values).max())
    noise = float((np.maximum(errors, least) ** 2).sum())
    found = _explained(values, noise)
    if found is None:
        return []
    low = high = None
    if seeds is not None and values.shape[seeds] >= FEWEST_SEEDS:
        drawn = [
            one
            for _ in range(DRAWS)
            if (
                one := _explained(
                    np.take(values, draw.integers(values.shape[seeds], size=values.shape[seeds]), seeds),
                    noise,
                )
            )
            is not None
        ]
        low, high = np.quantile(np.array(drawn), [0.025, 0.975], axis=0) if drawn else (None, None)
    floor = noise / _spread(values)
    made = [
        Share(
            option=name,
            share=float(found[place]),
            floor=floor,
            low=None if low is None or place == seeds else float(low[place]),
            high=None if high is None or place == seeds else float(high[place]),
        )
        for place, name in enumerate([*names, COMBINATIONS])
    ]
    return [*sorted(made[:-1], key=lambda one: -one.share), made[-1]]


def _spread(values: NDArray[np.float64]) -> float:
    """The sum of squares about the mean."""
    return float(((values - values.mean()) ** 2).sum())


def _explained(values: NDArray[np.float64], noise: float) -> NDArray[np.float64] | None:
    """The share of each axis, then what is left; None where nothing varies beyond ``noise``."""
    centred = values - values.mean()
    whole = float((centred**2).sum())
    if whole <= noise:
        return None
    shares = list[float]()
    for axis in range(values.ndim):
        means = centred.mean(axis=tuple(other for other in range(values.ndim) if other != axis))
        shares.append(float((means**2).sum()) * (values.size // values.shape[axis]) / whole)
    return np.array([*shares, max(0.0, 1.0 - sum(shares))])
