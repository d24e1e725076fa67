"""``wu-temperature``: how the temperature term of the logits moves the curves, mask by mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.results import Table
from rankscope.studies.figures.figure import Advance, Figure, Point, Size, decided, register
from rankscope.studies.figures.stacks import (
    CURVE_MEASURES,
    Shape,
    add_curve,
    cells,
    follow,
    stacks,
    tempered,
)
from rankscope.studies.figures.statistics import Mean, depths, mean_of
from rankscope.studies.rows import Rows, definitions

TERMS: dict[str, float] = {"1/64": 1 / 64, "1": 1.0, "64": 64.0}
"""d_QK of the published figure, by the text that names it."""

NORMS = ("none", "sphere")
MOST = 1e6
"""Decades beyond which only that is said."""

HALF = -0.3
"""Log10 of one half: the first layer below it is when collapse sets in."""


class WuTemperatureConfig(Config):
    """Sizes of the stacks."""

    figure: Literal["wu-temperature"] = "wu-temperature"
    size: Size
    layers: int
    dim: int
    tokens: int
    seeds: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        return Shape(layers=self.layers, dim=self.dim, tokens=self.tokens)


SIZES: dict[Size, dict[str, Any]] = {
    "fast": {"layers": 24, "dim": 16, "tokens": 16, "seeds": range(4)},
    "usual": {"layers": 128, "dim": 64, "tokens": 64, "seeds": range(20)},
    "full": {"layers": 128, "dim": 768, "tokens": 128, "seeds": range(3)},
}

Curves = dict[tuple[str, str, str], np.ndarray]
"""Log10 of the ratio, ``layers seeds``, by norm, mask and temperature term."""


def make(size: Size, seeds: Sequence[int], advance: Advance | None = None) -> Table:
    """The table of the figure: column ``temperature`` holds d_QK, logits are divided by its square root."""
    chosen = SIZES[size] | ({"seeds": seeds} if seeds else {})
    config = WuTemperatureConfig.of(size=size, **chosen | {"seeds": tuple(chosen["seeds"])})
    rows, done = Rows(), 0
    parts: dict[tuple[str, str, str], list[np.ndarray]] = {}
    total = len(config.seeds) * len(NORMS) * len(TERMS) * len(config.shape.masks)
    for batch in stacks(config.shape, config.seeds, "gaussian"):
        work = [
            tempered(cell, (term / config.dim) ** 0.5, temperature=name)
            for cell in cells(batch, masks=config.shape.masks, norms=NORMS, values="gaussian")
            for name, term in TERMS.items()
        ]
        for curve in follow(work, config.layers):
            add_curve(rows, curve)
            about = curve.cell.about
            key = (str(about["norm"]), str(about["mask"]), str(about["temperature"]))
            parts.setdefault(key, []).append(np.asarray(curve.log10_ratio))
            done += len(batch.seeds)
            if advance is not None:
                advance(done, total)
    curves = {key: np.concatenate(each, axis=1) for key, each in parts.items()}
    slowing = {norm: {mask: Slowing.of(curves, norm, mask) for mask in config.shape.masks} for norm in NORMS}
    return rows.table(
        config,
        command="reproduce",
        seeds=config.seeds,
        definitions=definitions(CURVE_MEASURES),
        setting={
            "layers": config.layers,
            "dim": config.dim,
            "tokens": config.tokens,
            "window": config.shape.window,
            "masks": list(config.shape.masks),
            "temperatures": list(TERMS),
        },
        networks=[_network(key, log10) for key, log10 in curves.items()],
        slowing={
            norm: {mask: one.section() for mask, one in found.items()} for norm, found in slowing.items()
        },
        verdict=_verdict(slowing["none"], config.shape),
        notes=_notes(config),
    )


def _network(key: tuple[str, str, str], log10: np.ndarray) -> dict[str, Any]:
    reached = [depth for depth in depths(log10, HALF) if depth is not None]
    return {
        "norm": key[0],
        "mask": key[1],
        "temperature": key[2],
        "layers_to_half": mean_of(reached).section() if reached else None,
        "reached_half": len(reached),
        "log10_ratio_at_last_layer": mean_of(log10[-1].tolist()).section(),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Slowing:
    """Decades that the ratio at d_QK = 1/64 lies above that at 64, paired by seed, at layers 1, 2, ...

    No layer is singled out: the sign is told for all of them, and the size where it is largest.
    """

    by_layer: tuple[Mean, ...]

    @classmethod
    def of(cls, curves: Curves, norm: str, mask: str) -> "Slowing":
        sharp, flat = (curves[norm, mask, term] for term in ("1/64", "64"))
        return cls(by_layer=tuple(mean_of(gaps.tolist()) for gaps in (sharp - flat)[1:]))

    @property
    def slowed_until(self) -> int:
        """The last layer of the first ones at which the whole interval is above zero; 0 if not even the first is."""
        signs = [one.mean > 0 and (one.low is None or one.low > 0) for one in self.by_layer]
        return signs.index(False) if False in signs else len(signs)

    @property
    def overtaken_from(self) -> int | None:
        """The first layer from which on the whole interval is below zero, to the end; None if it is not in the end."""
        signs = [one.mean < 0 and (one.high is None or one.high < 0) for one in self.by_layer]
        if not signs[-1]:
            return None
        return len(signs) + 1 - (signs[::-1].index(False) if False in signs else len(signs))

    @property
    def peak(self) -> tuple[int, Mean]:
        """The layer at which the difference is largest, and the difference there."""
        layer = max(range(len(self.by_layer)), key=lambda place: self.by_layer[place].mean)
        return layer + 1, self.by_layer[layer]

    def section(self) -> dict[str, Any]:
        layer, peak = self.peak
        return {
            "slowed_until_layer": self.slowed_until,
            "overtaken_from_layer": self.overtaken_from,
            "peak_layer": layer,
            "peak": peak.section(),
            "last": self.by_layer[-1].section(),
        }


def _verdict(found: dict[str, Slowing], shape: Shape) -> list[Point]:
    full, causal, *windows = shape.masks
    peaks = {mask: one.peak for mask, one in found.items()}
    sparse = max(peaks[mask][1].mean for mask in windows)
    early = shape.layers // EARLY
    last = [f"{mask} {_interval(one.by_layer[-1])}" for mask, one in found.items()]
    return [
        Point(
            published="A smaller temperature term (sharper attention) slows collapse in early layers.",
            measured="mu/||X||_F at d_QK = 1/64 is above that at 64, no norm, beyond chance over seeds: "
            + "; ".join(f"{mask} {_range(one, shape.layers)}" for mask, one in found.items())
            + ".",
            agrees=decided([one.slowed_until > 0 for one in found.values()]),
        ),
        Point(
            published="More so for global masks than for sparse ones.",
            measured="Largest difference at any layer, in decades: "
            + "; ".join(f"{mask} {_interval(peak)} at layer {at}" for mask, (at, peak) in peaks.items())
            + ".",
            agrees=decided([peaks[mask][1].mean > sparse for mask in (full, causal)]),
        ),
        Point(
            published="The effect is seen in early layers above all.",
            measured=f"It is largest within the first {early} layers: {', '.join(_early(found, early)) or 'nowhere'}. "
            f"At layer {shape.layers}: {'; '.join(last)}. Below 0 sharper attention has overtaken: each token copies "
            "nearly one other, and tokens that copy the same one are equal at once. With the complete mask a late "
            "onset stays ahead, because every layer cubes the residual.",
            agrees=decided([peaks[mask][0] <= early for mask in (causal, *windows)]),
        ),
    ]


EARLY = 4
"""Layers in the first quarter of the depth are early."""


def _early(found: dict[str, Slowing], early: int) -> list[str]:
    return [mask for mask, one in found.items() if one.peak[0] <= early]


def _range(one: Slowing, layers: int) -> str:
    slowed = {0: "at no first layer", layers: "at all layers"}.get(
        one.slowed_until, f"at layers 1 to {one.slowed_until}"
    )
    return slowed + ("" if one.overtaken_from is None else f", below it from layer {one.overtaken_from} on")


def _interval(one: Mean) -> str:
    if one.low is None or one.high is None or one.low > MOST:
        return _decades(one.mean)
    return f"{_decades(one.mean)} ({_decades(one.low)} to {_decades(one.high)})"


def _decades(value: float) -> str:
    if value > MOST:
        return f"more than {MOST:.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}"


def _notes(config: WuTemperatureConfig) -> list[str]:
    return [
        "The temperature term is d_QK of softmax(X W_Q (X W_K)^T / sqrt(d_QK)), as in the paper: 64 divides the logits "
        "by 8, 1/64 multiplies them by 8. With weights N(0, 1/dim) the logits of the first layer have standard "
        f"deviation {config.dim**0.5 / 8:.2g}, {config.dim**0.5:.2g} and {8 * config.dim**0.5:.2g}.",
        f"Stacks of {config.layers} layers, dim {config.dim}, {config.tokens} Gaussian tokens, value maps N(0, 1/dim), "
        f"windows of {config.shape.window} tokens to a side; the weights of a seed are the same throughout.",
        "Once tokens are nearly equal their logits are too, whatever the temperature: asymptotic rates do not depend "
        "on it (causal: 1/2 per layer; complete: order 3), only the depth at which they set in.",
    ]


def _chart(table: Table) -> Any:
    from rankscope.plots.wu_temperature_chart import temperature_chart

    return temperature_chart(table)


register(
    Figure(
        name="wu-temperature",
        title="the temperature term and collapse, mask by mask",
        source=Ref(
            key="wu2024",
            where="Section 5, temperature term d_QK in {1/64, 1, 64}",
            differs="random stacks and Gaussian tokens, mu/||X||_F without a floor",
        ),
        question="Does sharper attention slow collapse, and for which masks?",
        durations={
            "fast": "about 3 seconds",
            "usual": "about 1 minute",
            "full": "about 6 minutes, up to 11 GB (extrapolated)",
        },
        make=make,
        chart=_chart,
    )
)
