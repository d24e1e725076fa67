"""What the curves of ``wu-masks`` say: depths, rates, orders of masks, and where float32 stops."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import digamma

from rankscope.masks import parse_mask
from rankscope.papers.figures.kept import RANKS, Pushed, RandomStarts
from rankscope.papers.figures.stacks import Curve, Shape, recorded_layers
from rankscope.papers.figures.statistics import (
    Mean,
    depths,
    late_order,
    late_slope,
    mean_of,
    shallower,
)

LEVEL = -3.0
"""Collapse counts from here: the residual is a thousandth of the tokens."""

Key = tuple[str, str, str]
"""Value maps, norm, mask."""

FAR = 1e3
"""The residual must lie this much below what float32 shows before that is called rounding."""

LEVEL_RATIO = 3.0
"""A float32 curve is level if its medians over the two halves of its last quarter differ by no more than this."""


STILL = 1e-9
"""Decades per layer; less than this is the rounding of a fitted slope."""


def forecast_rate(mask: str, norm: str, shape: Shape) -> float:
    """Factor per layer of the ratio once tokens are close, value maps Gaussian: ``SLEM exp(lambda_2 - lambda_1)``.

    Without a norm residual and tokens grow alike, with the largest Lyapunov exponent of the product of the value maps,
    and the factor is the SLEM of the mask. On the sphere the residual is projected off the common token at every layer
    and grows with the second exponent: ``lambda_i = (log(2/d) + digamma((d - i + 1) / 2)) / 2`` for entries N(0, 1/d)
    (Newman 1986). LayerNorm takes one dimension out before.

    >>> [round(forecast_rate("causal", norm, Shape(layers=2, dim=64, tokens=64)), 4) for norm in ("none", "sphere")]
    [0.5, 0.496]
    """
    slem = parse_mask(mask).graph(shape.tokens).slem()
    if norm == "none":
        return slem
    dim = shape.dim - (norm == "layer")
    return float(slem * np.exp((digamma((dim - 1) / 2) - digamma(dim / 2)) / 2))


@dataclass(kw_only=True, slots=True, eq=False)
class Ended:
    """One network of the figure, gathered over chunks of seeds.

    ``curves`` hold log10 of the ratio from the split pass, ``layers seeds``; ``single`` and ``floors`` the ratio and
    its floor in float32, ``recorded seeds``, not as logarithms because it may be exactly zero; ``size`` is mu in
    float32 at the last layer.
    """

    curves: list[np.ndarray] = field(default_factory=list)
    single: list[np.ndarray] = field(default_factory=list)
    floors: list[np.ndarray] = field(default_factory=list)
    size: list[np.ndarray] = field(default_factory=list)

    @property
    def log10(self) -> np.ndarray:
        return np.concatenate(self.curves, axis=1)

    @property
    def float32(self) -> np.ndarray:
        return np.concatenate(self.single, axis=1)

    @property
    def floor(self) -> float:
        """Of float32 at the last layer; it depends on the layer alone."""
        return float(self.floors[0][-1].max())

    @property
    def zeros(self) -> int:
        """Seeds in which float32 gives exactly zero at the last layer."""
        return int((self.float32[-1] == 0).sum())

    def is_level(self) -> bool | None:
        """Whether the float32 curve stands still at rounding; None if it is not there yet.

        There: below its floor at the last layer in every seed, and over the last quarter of recorded layers the median
        of the split pass a thousand times below that of float32. Still: the medians over seeds and layers of the two
        halves of that quarter are within a factor of three, and not zero.
        """
        single, layers = self.float32, recorded_layers(len(self.log10) - 1)
        last = max(2, len(layers) // 4)
        shown = np.median(single[-last:], axis=1)
        real = np.median(self.log10[list(layers[-last:])], axis=1)
        is_there = (single[-1] <= self.floor).all() and ((shown == 0) | (10**real < shown / FAR)).all()
        if not is_there:
            return None
        early, late = (float(np.median(half)) for half in np.array_split(single[-last:], 2))
        return early > 0 and 1 / LEVEL_RATIO <= late / early <= LEVEL_RATIO


@dataclass(kw_only=True, slots=True, eq=False)
class Found:
    """Gathers what the verdict needs while the figure runs."""

    ended: dict[Key, Ended] = field(default_factory=dict)
    kept: dict[str, np.ndarray] = field(default_factory=dict)
    pushed: list[Pushed] = field(default_factory=list)
    starts: RandomStarts | None = None

    def add(self, about: Mapping[str, Any], **arrays: np.ndarray) -> None:
        """One chunk of seeds of one network, by the fields of ``Ended``."""
        one = self.ended.setdefault((about["values"], about["norm"], about["mask"]), Ended())
        for name, array in arrays.items():
            getattr(one, name).append(array)

    def add_kept(self, curve: Curve) -> None:
        """The constructed starts, with or without the norm."""
        self.kept[str(curve.cell.about["norm"])] = np.asarray(curve.log10_ratio)

    def depths(self, key: Key) -> list[int | None]:
        return depths(self.ended[key].log10, LEVEL)

    def last(self, key: Key) -> list[float]:
        return [float(value) for value in self.ended[key].log10[-1]]

    def slopes(self, key: Key) -> list[float]:
        """Decades per layer over the last half, of every seed."""
        return [late_slope(curve) for curve in self.ended[key].log10.T]

    def orders(self, key: Key) -> list[float]:
        return [late_order(curve) for curve in self.ended[key].log10.T]

    def order_counts(self, norm: str, masks: Sequence[str]) -> list[dict[str, Any]]:
        """For every pair of masks, in how many seeds the first collapses earlier, and lies lower in the end."""
        counted = []
        for fast, slow in combinations(masks, 2):
            one, other = ("gaussian", norm, fast), ("gaussian", norm, slow)
            earlier = sum(map(shallower, self.depths(one), self.depths(other)))
            gaps = [b - a for a, b in zip(self.last(one), self.last(other), strict=True)]
            counted.append(
                {
                    "norm": norm,
                    "faster": fast,
                    "slower": slow,
                    "seeds": len(gaps),
                    "earlier_below_1e-3": earlier,
                    "lower_at_last_layer": sum(gap > 0 for gap in gaps),
                    "log10_gap_at_last_layer": mean_of(gaps).section(),
                }
            )
        return counted

    def in_order(self, norm: str, shape: Shape) -> int:
        """Seeds with complete before causal before both windows, by depth and at the last layer."""
        full, causal, *windows = (("gaussian", norm, mask) for mask in shape.masks)
        depths_of = {key: self.depths(key) for key in (full, causal, *windows)}
        last = {key: self.last(key) for key in depths_of}

        def holds(seed: int, fast: Key, slow: Key) -> bool:
            return (
                shallower(depths_of[fast][seed], depths_of[slow][seed])
                and last[fast][seed] < last[slow][seed]
            )

        pairs = [(full, causal), *((causal, window) for window in windows)]
        return sum(all(holds(seed, *pair) for pair in pairs) for seed in range(len(last[full])))

    def slope(self, key: Key) -> Mean:
        """Decades per layer over the last half."""
        return mean_of(self.slopes(key))

    def order(self, key: Key) -> Mean:
        return mean_of(self.orders(key))

    def falls(self, key: Key) -> bool | None:
        """Whether the ratio is on its way to zero in the end, by 95% intervals.

        The complete mask by its order (above 2), all others by decades per layer (below 0). False if it does not fall;
        None where the interval does not tell.
        """
        if key[2] == "full":
            order = self.order(key)
            return None if order.low is None or order.high is None else _side(order.low > 2, order.high <= 1)
        slope = self.slope(key)
        return (
            None
            if slope.low is None or slope.high is None
            else _side(slope.high < -STILL, slope.low >= -STILL)
        )

    def sections(self, shape: Shape) -> dict[str, Any]:
        """Numbers behind the verdict, as JSON."""
        return {
            "setting": {**asdict(shape), "window": shape.window, "masks": list(shape.masks)},
            "networks": [self._network(key) for key in self.ended],
            "order": [
                line for norm in ("none", "sphere", "layer") for line in self.order_counts(norm, shape.masks)
            ],
            "kept": {
                "ranks": list(RANKS),
                "log10_ratio_at_last_layer": {
                    norm: [float(value) for value in curves[-1]] for norm, curves in self.kept.items()
                },
                "pushed": [asdict(one) for one in self.pushed],
                "random_starts": None if self.starts is None else asdict(self.starts),
            },
        }

    def _network(self, key: Key) -> dict[str, Any]:
        reached = [depth for depth in self.depths(key) if depth is not None]
        one, is_full = self.ended[key], key[2] == "full"
        last = one.float32[-1]
        floats = [float(np.log10(value)) for value in last if value > 0]
        return {
            "values": key[0],
            "norm": key[1],
            "mask": key[2],
            "seeds": one.log10.shape[1],
            "layers_to_1e-3": mean_of(reached).section() if reached else None,
            "reached_1e-3": len(reached),
            "log10_ratio_at_last_layer": mean_of(self.last(key)).section(),
            "log10_rate_last_half": None if is_full else self.slope(key).section(),
            "order_last_layer": self.order(key).section() if is_full else None,
            "falls": self.falls(key),
            "float32_log10_ratio_at_last_layer": mean_of(floats).section() if floats else None,
            "float32_exactly_zero": one.zeros,
            "float32_log10_floor": float(np.log10(one.floor)) if one.floor > 0 else None,
            "float32_is_level": one.is_level(),
        }


def _side(holds: bool, fails: bool) -> bool | None:
    return True if holds else False if fails else None
