"""What the curves of ``wu-masks`` say: depths, rates, orders of masks, and where float32 stops."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from rankscope.studies.figures.kept import RANKS, RandomStarts
from rankscope.studies.figures.stacks import Curve, Shape
from rankscope.studies.figures.statistics import (
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


@dataclass(kw_only=True, slots=True, eq=False)
class Ended:
    """One network of the figure, gathered over chunks of seeds: log10 of the ratio ``layers seeds``, float32 at the
    last layer (None where it is exactly zero)."""

    curves: list[np.ndarray] = field(default_factory=list)
    float32_size: list[float | None] = field(default_factory=list)
    float32_ratio: list[float | None] = field(default_factory=list)
    float32_floor: list[float | None] = field(default_factory=list)

    @property
    def log10(self) -> np.ndarray:
        return np.concatenate(self.curves, axis=1)


@dataclass(kw_only=True, slots=True, eq=False)
class Found:
    """Gathers what the verdict needs while the figure runs."""

    ended: dict[Key, Ended] = field(default_factory=dict)
    kept: dict[str, np.ndarray] = field(default_factory=dict)
    starts: RandomStarts | None = None

    def add(self, about: Mapping[str, Any], log10: np.ndarray, **float32: Sequence[float | None]) -> None:
        """One chunk of seeds of one network."""
        one = self.ended.setdefault((about["values"], about["norm"], about["mask"]), Ended())
        one.curves.append(log10)
        for name, values in float32.items():
            getattr(one, name).extend(values)

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

    def slope_change(self, norm: str, mask: str) -> Mean:
        """Decades per layer with the norm, minus without, paired by seed: zero if the norm changes nothing."""
        with_norm, without = (self.slopes(("gaussian", one, mask)) for one in (norm, "none"))
        return mean_of([a - b for a, b in zip(with_norm, without, strict=True)])

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
                "random_starts": None if self.starts is None else asdict(self.starts),
            },
        }

    def _network(self, key: Key) -> dict[str, Any]:
        reached = [depth for depth in self.depths(key) if depth is not None]
        one, is_full = self.ended[key], key[2] == "full"
        floats = [value for value in one.float32_ratio if value is not None]
        return {
            "values": key[0],
            "norm": key[1],
            "mask": key[2],
            "seeds": one.log10.shape[1],
            "layers_to_1e-3": mean_of(reached).section() if reached else None,
            "reached_1e-3": len(reached),
            "log10_ratio_at_last_layer": mean_of(self.last(key)).section(),
            "rate_last_half": None
            if is_full
            else mean_of([10**slope for slope in self.slopes(key)]).section(),
            "order_last_layer": mean_of(self.orders(key)).section() if is_full else None,
            "float32_log10_ratio_at_last_layer": mean_of(floats).section() if floats else None,
            "float32_exactly_zero": len(one.float32_ratio) - len(floats),
            "float32_log10_floor": one.float32_floor[0],
        }
